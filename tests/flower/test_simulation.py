"""Many clients through Flower's simulation, some of them hostile in every known way."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from msgspec import UNSET

from carvyfl.runs.folder import RunFolder
from carvyfl.runs.record import Readings
from support.cli import assert_valid, carvy
from support.flower_apps import (
    ROUNDS,
    command,
    federation,
    groups,
    lost,
    make_app,
    simulated,
    simulated_in_one_shot,
    weights,
)
from support.processes import connection, free_ports, processes

CLIENTS, GROUPS = 75, 15  # more groups than hostile clients
# Clients are numbered by partition; client k has type k % 5, and the groups are formed by type.
HOSTILE = {
    0: "nan",
    1: "shape",
    2: "dtype",
    3: "truncated",
    4: "many-bytes",
    5: "other-group",
    6: "other-client",
    7: "accuracy",
    8: "empty",
    9: "lost",
    10: "replay",
    11: "raises",
    12: "giant",
    13: "types-garbage",
}
FEW, LIAR = 10, 3
"""Clients of the second run, in one shot, and the one among them that sends NaN."""


@pytest.mark.flower
@pytest.mark.timeout(1500)
def test_many_clients_some_hostile(tmp_path: Path):
    """Two runs of one SuperLink, which is slow to start."""
    (port,) = free_ports(1)
    with processes(tmp_path) as flower:
        make_app(flower)
        flower.start("superlink", command("flower-superlink --insecure").replace("8000", str(port)))
        flower.until("SuperLink is up", lambda: "startup complete" in flower.log("superlink"))
        connection(flower, {"address": f'"127.0.0.1:{port}"', "insecure": "true"})
        roles = " ".join(f"{client}:{kind}" for client, kind in HOSTILE.items())
        settings = (
            f'carvy.out="run" carvy.min-clients={CLIENTS} carvy.groups={GROUPS} carvy.misses=2'
        )
        settings += ' carvy.method="slots"'
        settings += f' hostile="{roles}"'
        flower.start(
            "run",
            f"{command('flwr run federation link --stream --fed').replace('10', str(CLIENTS))} "
            f"--run-config '{settings}'",
        )
        flower.until("the run ends", lambda: "saved in" in flower.log("run"), 500)
        said = flower.log("run")
        settings = 'carvy.out="once" carvy.learner="one-shot" carvy.method="slots"'
        settings += f' carvy.groups=2 hostile="{LIAR}:nan"'
        line = command("flwr run federation link --stream --fed")
        flower.start("once", f"{line} --run-config '{settings}'")
        flower.until("the second run ends", lambda: "saved in" in flower.log("once"), 300)
    in_one_shot(RunFolder(tmp_path / "once"))

    folder = RunFolder(tmp_path / "run")
    record, members = folder.record(), groups(folder.path)
    entry, types = record.methods["slots"], folder.types()
    assert types is not None
    assert {types.names[k] for k in set(types.labels.tolist()) - {-1}} == {
        f"classes {2 * t}+{2 * t + 1}" for t in range(5)
    }

    # Who sent garbage is set aside, with the reason, and nobody else outside its group.
    assert set(types.set_aside) == {13}
    aside = {int(client) for client in entry.set_aside}
    # The giant is a number like any other, and who raises may still come back.
    assert aside >= HOSTILE.keys() - {11, 12, 13}
    hurt = {g for g, own in enumerate(members) if HOSTILE.keys() & set(own)}
    assert aside <= {client for g in hurt for client in members[g]}

    # Every other group's model is what the simulator makes of it alone, to the bit.
    clients, models = federation(list(range(CLIENTS))), weights(folder.path)
    unhurt = sorted(set(range(len(members))) - hurt)
    assert unhurt
    for g in unhurt:
        alone = simulated(clients, members[g])
        torch.testing.assert_close(models[g], alone.weights)
        assert entry.validation_accuracy[g] == pytest.approx(
            [None if math.isnan(a) else a for a in alone.accuracy], abs=1e-5
        )
        assert entry.rounds[g] == ROUNDS

    # Class means are small: ten shares, a sketch of 256 numbers, and two more.
    assert record.deployment is not UNSET
    sent = record.deployment.traffic["types"]["up"]
    assert 4 * 268 * (CLIENTS - 1) < sent < (4 * 268 + 500) * CLIENTS

    # What happened is in the certificate; who could be anybody, too.
    certificate = entry.certificate
    assert entry.readings == Readings(None, None, None)
    assert "not authenticated" in certificate.because
    assert f"{len(aside) + 1} of {CLIENTS} clients were set aside" in certificate.because
    assert [g for g, why in enumerate(entry.stopped) if why in {"empty", "diverged"}] == lost(
        folder.path
    )
    assert "not authenticated" in said
    assert "nothing certified" in said
    # Here Flower's own log of the clients is the server's, too.
    failed = [line for line in said.splitlines() if "carvy: node" in line]
    assert any("client app raised exception" in line for line in failed)
    assert not any("I will not" in line for line in failed)
    assert "certified accuracy" not in said

    # The commands that read a run read this one.
    answer = carvy("show", folder.path, "--json")
    assert_valid(answer.json, "run")
    assert carvy("certify", folder.votes_file("slots"), "--json").json["ca"] == list(entry.ca)
    np.save(tmp_path / "one.npy", np.zeros((28, 28), np.uint8))
    assert carvy("predict", folder.path, tmp_path / "one.npy", "--workers", 1).code == 0

    page = tmp_path / "page.html"
    assert carvy("report", folder.path, "--out", page).code == 0
    assert "not authenticated" in page.read_text()

    # The audit derives the groups again, from the coins that were committed to beforehand.
    promised = (folder.path / "federation" / "commitment.txt").read_text().strip()
    assert said.index(promised) < said.index("carvy: groups")
    check = ("verify", folder.path, "--workers", 1, "--commitment")
    verdict = carvy(*check, promised, "--json")
    assert verdict.code == 0, verdict.out
    states = {check["what"]: check["state"] for check in verdict.json["checks"]}
    checked = ("commitment", "groups of slots", "certificate of slots")
    assert {states[what] for what in checked} == {"ok"}
    other = carvy(*check, "0" * 64)
    assert other.code == 1


def in_one_shot(folder: RunFolder) -> None:
    """Two messages per client give the simulator's heads; a liar is set aside in its own group."""
    record, clients = folder.record(), federation(list(range(FEW)))
    entry = record.methods["slots"]
    assignment = folder.grouping("slots").assignment
    seated = assignment[LIAR] >= 0  # the slots are random
    assert list(map(int, entry.set_aside)) == ([LIAR] if seated else [])
    for own, model in zip(groups(folder.path), weights(folder.path), strict=True):
        honest = [client for client in own if client != LIAR]
        alone = simulated_in_one_shot(clients, honest).weights
        # Only as many threads as the clients use would give the same bits.
        torch.testing.assert_close(model, alone, rtol=1e-3, atol=1e-3 * float(alone.abs().median()))
    assert set(entry.stopped) == {"closed-form"}
    assert record.deployment is not UNSET
    traffic, asked = record.deployment.traffic, len(assignment) - len(entry.benched)
    assert (traffic["types"]["messages"], traffic["training"]["messages"]) == (FEW, asked)
    assert not list((folder.path / "federation" / "sums").iterdir())
    promised = (folder.path / "federation" / "commitment.txt").read_text().strip()
    verdict = carvy("verify", folder.path, "--workers", 1, "--commitment", promised)
    assert verdict.code == 0, verdict.out
