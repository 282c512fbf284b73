"""Groups trained on a Ray cluster of two nodes, one of which dies over its work.

What Ray takes for a GPU here is none: it is told of one, and the engine to stack on the CPU.
"""

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
STACKED = """
import sys
import torch
from carvyfl import Recipe, build_federation, load
from carvyfl.learning.job import group_job
from carvyfl.learning.models import build_model
from carvyfl.learning.backends import Gpus
from carvyfl.learning.backends import RayCluster
clients = build_federation(load("embedded"), "class-disjoint", num_clients=6, samples=20, seed=0)
module, recipe = build_model("mlp", (1, 28, 28), 10, 0), Recipe(rounds=2)
jobs = [group_job(clients, own, module, recipe, 0) for own in ([0, 3], [1, 4], [2, 5])]
there, here = (
    dict(engine.train_groups(jobs, lambda *rounds: None))
    for engine in (RayCluster(sys.argv[1], stacked_on="cpu"), Gpus("cpu", "fp32"))
)
print([torch.equal(there[p].weights, here[p].weights) for p in range(3)])
"""
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
            f"{NODE} --num-gpus 1 --head --port {port} --temp-dir {short_path}/t "
            f"--include-dashboard false --dashboard-agent-listen-port {others[0]}",
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

        (short_path / "head" / "stacked.py").write_text(STACKED)
        assert head.run(f"python stacked.py {address}").split("\n")[-2] == "[True, True, True]"


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
    refused = carvy(*quick, *where, "--cluster", "x", "--precision", "bf16")
    assert_refused(refused, "--precision", "--engine to batched")
