"""Groups trained on a Ray cluster of two nodes, one of which dies over its work."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from carvyfl.runs.folder import RunFolder
from support.cli import assert_refused, carvy
from support.processes import Processes, free_ports, processes

pytest.importorskip("ray")
pytestmark = pytest.mark.ray

NODE = "ray start --block --num-cpus 1 --object-store-memory 100000000 --disable-usage-stats"
RUN = (
    "run --clients 20 --samples 40 --model mlp --rounds 40 --methods carvy "
    "--workers 1 --engine loop"
)


@pytest.fixture
def short_path() -> Iterator[Path]:
    """A place with a short name: Ray's sockets lie in it, and their names must be short."""
    with tempfile.TemporaryDirectory(prefix="r") as folder:
        yield Path(folder)


def busy(node: Processes) -> bool:
    """Whether a node trains a group; Ray names its workers by what they do."""
    return bool(node.find("ray::_train"))


def test_node_dies_over_its_work(tmp_path: Path, short_path: Path):
    port, *others = free_ports(3)
    (short_path / "head").mkdir()
    (short_path / "other").mkdir()
    address = f"127.0.0.1:{port}"
    with processes(short_path / "head") as head, processes(short_path / "other") as other:
        head.start(
            "node",
            f"{NODE} --head --port {port} --temp-dir {short_path}/t --include-dashboard false "
            f"--dashboard-agent-listen-port {others[0]}",
        )
        head.until("the head is up", lambda: "Ray runtime started" in head.log("node"))
        other.start("node", f"{NODE} --address {address}")
        other.until("the other node is up", lambda: "Ray runtime started" in other.log("node"))

        head.start("run", f"carvy {RUN} --cluster {address} --out run --store store")
        other.until("the other node trains", lambda: busy(other))
        other.end()
        assert head.wait("run", 300) == 0, head.log("run")
        here = carvy(*RUN.split(), "--out", tmp_path / "here", "--store", tmp_path / "store")
        assert here.code == 0, here.err
        there, alone = RunFolder(short_path / "head" / "run"), RunFolder(tmp_path / "here")
        assert torch.equal(there.models("carvy").weights, alone.models("carvy").weights)
        assert there.record().environment.engine == "ray"


def test_no_cluster_is_one_line(tmp_path: Path):
    (port,) = free_ports(1)
    quick = ("run", "--clients", "5", "--samples", "4", "--model", "mlp", "--rounds", "1")
    where = ("--out", tmp_path / "run", "--store", tmp_path / "store")
    with processes(tmp_path) as place:
        words = ["carvy", *quick, *where, "--cluster", f"127.0.0.1:{port}"]
        place.start("run", " ".join(map(str, words)))
        assert place.wait("run") == 2
        assert place.log("run").count("\n") == 1
        assert "no Ray cluster" in place.log("run")
    assert_refused(carvy(*quick, *where, "--cluster", "x", "--engine", "batched"), "--engine")
