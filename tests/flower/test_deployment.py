"""A federation of real processes with TLS and authentication, by the commands of its page."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import signal
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest
import torch
from msgspec import UNSET
from safetensors import safe_open

from carvyfl.flower.identity import registered_keys
from carvyfl.flower.server import Plan
from carvyfl.groups.hashing import named_ids
from carvyfl.runs.folder import RunFolder
from support.cli import carvy
from support.flower_apps import command, federation, groups, lost, make_app, simulated, weights
from support.processes import Processes, connection, free_ports, in_memory, processes

NODES, LIAR = 8, 0  # of five types, in two groups of four
REGISTER = """
import sys
from flwr.cli.app import app
for line in sys.argv[1:]:
    app(line.split()[1:], standalone_mode=False)
"""
"""Does what several lines of `flwr` do, in one process: most of their time loads modules."""


@dataclass
class Deployment:
    """A SuperLink and its SuperNodes, started as the page says."""

    flower: Processes
    port: int = 0
    ports: list[int] = field(default_factory=list)

    def superlink(self, name: str) -> None:
        line = command("flower-superlink --ssl").replace("--port 8000", f"--port {self.port}")
        self.flower.start(name, line)
        self.flower.until("SuperLink is up", lambda: "startup complete" in self.flower.log(name))

    def node_command(self, node: int) -> str:
        line = command("flower-supernode").replace(":9092", f":{self.port}")
        line = line.replace("client-0", f"client-{node}").replace("9094", str(self.ports[node]))
        line = line.replace("num-partitions=10", f"num-partitions={NODES}")
        return line.replace("partition-id=0", f"partition-id={node}")

    def supernode(self, node: int) -> None:
        # Many nodes on a small machine come after the SuperLink they all depend on.
        self.flower.start(f"node-{node}", f"nice {self.node_command(node)}")

    def run(self, name: str, settings: str = "") -> None:
        """Start a run; its folder and its log bear its name.

        A message that was lost on the way is sent again after half of answer-seconds.
        """
        line = command("flwr run federation link --stream --run-config").replace(
            '"run"', f'"{name}"'
        )
        assert line.endswith("'")
        more = f"carvy.min-clients={NODES} {settings}"
        self.flower.start(f"{name}-log", f"{line[:-1]} carvy.answer-seconds=240 {more}'")

    def said(self, name: str, words: str) -> bool:
        return words in self.flower.log(f"{name}-log")

    def finish(self, name: str, timeout: float = 600) -> RunFolder:
        self.flower.until(f"{name} ends", lambda: self.said(name, "saved in"), timeout)
        return RunFolder(self.flower.folder / name)

    def rounds(self, name: str) -> list[int]:
        """Return the rounds, at least one, that groups have on disk, finished or not."""
        store = self.flower.folder / name / "federation"
        found: dict[str, int] = {}
        for file in store.glob("*.safetensors"):
            # The state of a group that has just been finished is removed.
            with contextlib.suppress(FileNotFoundError), safe_open(file, framework="pt") as entry:
                record = json.loads((entry.metadata() or {})["record"])
                found[file.name.partition(".")[0]] = len(record["accuracy"])
        return [rounds for rounds in found.values() if rounds]

    def plan(self, name: str) -> Plan:
        """Return what Steps 1 and 2 found; it is on disk while groups train."""
        return Plan.load(self.flower.folder / name / "federation" / "plan.json")

    def partitions(self, name: str) -> list[int]:
        """Return every client's partition, by the client's number."""
        keys = self.flower.folder / "keys"
        names = {}
        for node in range(NODES):
            alone = self.flower.folder / f"key-{node}"
            alone.mkdir(exist_ok=True)
            (alone / "one.pub").write_bytes((keys / f"client-{node}.pub").read_bytes())
            (key,) = registered_keys(alone)
            names[key] = node
        return [names[key] for key in self.plan(name).names]


@pytest.fixture(scope="module")
def deployment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    with in_memory() as folder, processes(folder or tmp_path_factory.mktemp("run")) as flower:
        port, *ports = free_ports(NODES + 3)
        found = Deployment(flower, port, ports)
        make_app(flower)
        flower.run(command("mkdir"))
        flower.run(
            command(
                "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 "
                '-nodes -days 365 -subj "/CN=Federation CA"'
            )
        )
        flower.run(
            command(
                "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 "
                '-nodes -days 365 -subj "/CN=Federation server"'
            )
        )
        for node in range(NODES + 1):  # one more than will be registered
            flower.run(command("ssh-keygen").replace("client-0", f"client-{node}"))
        stranger = flower.folder / "keys" / f"client-{NODES}.pub"
        stranger.rename(flower.folder / "stranger.pub")
        found.superlink("superlink")
        certificate = flower.folder / "certificates" / "ca.crt"
        connection(
            flower, {"address": f'"127.0.0.1:{port}"', "root-certificates": f'"{certificate}"'}
        )
        line = command("flwr supernode register")
        flower.run(line)
        others = [line.replace("client-0", f"client-{node}") for node in range(1, NODES)]
        flower.run(shlex.join([sys.executable, "-c", REGISTER, *others]))
        for node in range(NODES):
            found.supernode(node)
        yield found


@pytest.mark.flower
@pytest.mark.timeout(1800)
def test_federation_of_processes(deployment: Deployment):
    """Clients lie, die and come late, the server is killed: the other group never notices."""
    flower = deployment.flower
    stranger, plain = deployment.node_command(NODES), deployment.node_command(NODES + 1)
    flower.start("stranger", stranger)
    plain = plain.replace("--root-certificates certificates/ca.crt", "--insecure --max-retries 1")
    plain = re.sub(r"--auth-supernode-private-key \S+", "", plain)
    flower.start("plaintext", plain)
    deployment.run("run", f'hostile="{LIAR}:nan" carvy.misses=2')
    flower.until("Step 1 is over", lambda: deployment.said("run", "carvy: groups"), 300)

    # In the middle of the first round one client dies and one is held up.
    partitions, formed = deployment.partitions("run"), deployment.plan("run").grouping.groups
    hurt = next(g for g, own in enumerate(formed) if partitions.index(LIAR) in own)
    members = [partitions[client] for client in formed[hurt]]
    dead, late = [node for node in members if node != LIAR][:2]
    flower.kill(f"node-{dead}")
    stopped = flower.find(f"keys/client-{late} ")
    for process in stopped:
        os.kill(process, signal.SIGSTOP)
    flower.until("a round is made by both", lambda: len(deployment.rounds("run")) == 2, 300)
    for process in stopped:
        os.kill(process, signal.SIGCONT)

    # The ServerApp dies, and the SuperLink; both are started again, by the same commands.
    (server,) = flower.find("flwr-serverapp")
    os.kill(server, signal.SIGKILL)
    flower.kill("superlink")
    assert len(deployment.rounds("run")) == 2
    flower.kill("run-log")
    deployment.superlink("superlink again")
    deployment.run("run", f'hostile="{LIAR}:nan" carvy.misses=2')
    folder = deployment.finish("run")
    assert deployment.said("run", "going on with 2 groups")
    assert not deployment.said("run", "has made round 3")
    assert deployment.said("run", "certified accuracy in %")

    types, record, found = folder.types(), folder.record(), groups(folder.path)
    assert types is not None
    assert sorted(types.sizes.tolist()) == [1, 1, 2, 2, 2]
    assert found == [own.tolist() for own in formed]
    assert sorted(len(own) for own in found) == [4, 4]
    assert record.deployment is not UNSET
    assert record.deployment.authenticated
    entry = record.methods["carvy"]
    assert entry.readings.given_groups is not None
    assert entry.readings.honest_only is None  # the number of groups was found
    assert "clients were set aside" in entry.certificate.because
    assert carvy("show", folder.path).code == 0

    # The group of honest clients has the simulator's model; the other one lost its liar alone.
    clients, models = federation(partitions), weights(folder.path)
    ids = named_ids(record.deployment.clients, seed=0)
    alone = [simulated(clients, own, ids).weights for own in found]
    torch.testing.assert_close(models[1 - hurt], alone[1 - hurt])
    assert not torch.allclose(models[hurt], alone[hurt])
    assert torch.isfinite(models).all()
    assert lost(folder.path) == []
    aside = {partitions[int(client)] for client in entry.set_aside}
    assert LIAR in aside
    assert aside <= set(members)

    # Two more tried to take part: neither got in.
    assert len(record.deployment.clients) == NODES
    for name in ("stranger", "plaintext"):
        assert flower.wait(name) != 0
        assert "could not establish a connection" in flower.log(name)
