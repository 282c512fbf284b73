"""Clients are known by their keys, however these are written and whatever else they say."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from carvyfl.core.errors import CarvyError
from carvyfl.flower.identity import Presence, ServerContext, registered_keys, wait_for_clients
from carvyfl.groups.hashing import named_ids
from carvyfl.runs.flower_settings import Settings
from support.clock import Clock


@dataclass
class Node:
    """What Flower tells of a node; its name is one that it chose."""

    node_id: int
    public_key: bytes
    name: str = "honest as the day"


class Grid:
    """The nodes that are connected."""

    def __init__(self, keys: list[ec.EllipticCurvePublicKey]) -> None:
        self.nodes = [
            Node(i, key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo))
            for i, key in enumerate(keys)
        ]

    def get_nodes(self) -> list[Node]:
        return self.nodes


def some_keys(count: int) -> list[ec.EllipticCurvePublicKey]:
    return [ec.generate_private_key(ec.SECP384R1()).public_key() for _ in range(count)]


def write(keys: list[ec.EllipticCurvePublicKey], folder: Path) -> Path:
    folder.mkdir()
    for i, key in enumerate(keys):
        text = key.public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
        (folder / f"{i}.pub").write_bytes(text + b" a comment\n")
    return folder


def located(names: tuple[str, ...], presence: Any) -> dict[int, int]:
    nothing: Any = None
    return ServerContext(nothing, presence, names, Settings(), nothing).located()


def test_only_holders_of_registered_keys(tmp_path: Path):
    keys = some_keys(5)
    folder = write(keys[:3], tmp_path / "keys")
    grid: Any = Grid(keys)
    presence = Presence(grid, Settings(keys=str(folder)))
    assert set(presence.now()) == registered_keys(folder)
    assert sorted(presence.now().values()) == [0, 1, 2]

    # The numbers hang on keys and seed alone: not on the order in which nodes came.
    settings = Settings(keys=str(folder), seed=7)
    first = wait_for_clients(presence, settings)
    grid.nodes.reverse()
    assert wait_for_clients(presence, settings) == first
    assert settings.identity == {"authenticated": True, "identity": "registered keys"}
    assert sorted(located(first, presence).values()) == [0, 1, 2]
    others = [wait_for_clients(presence, Settings(keys=str(folder), seed=s)) for s in range(8)]
    assert len(set(others)) > 1
    assert len({*named_ids(first, 0), *named_ids(first, 1)}) == 6


def test_who_stays_away_changes_nobody_elses_number(tmp_path: Path):
    keys = some_keys(5)
    folder = write(keys, tmp_path / "keys")
    settings = Settings(keys=str(folder), seed=3, join_seconds=0.01)
    everybody: Any = Grid(keys)
    whole = wait_for_clients(Presence(everybody, settings), settings)
    for away in range(5):
        grid: Any = Grid([key for i, key in enumerate(keys) if i != away])
        presence = Presence(grid, settings)
        assert wait_for_clients(presence, settings) == whole
        assert len(located(whole, presence)) == 4


@pytest.mark.parametrize(
    ("least", "connected", "deadline", "waited", "words"),
    [
        (2, 1, math.inf, 600, "1 clients are connected"),
        (4, 3, math.inf, 0, r"min-clients is 4, but .*keys holds 3 public keys"),
        (2, 0, 60.0, 60, "passed when 0 clients were connected"),
        (2, 2, 60.0, 60, "passed when 2 clients were connected"),
    ],
)
def test_waiting_for_clients_ends(
    least: int, connected: int, deadline: float, waited: float, words: str, tmp_path: Path
):
    keys, clock = some_keys(3), Clock()
    folder = str(write(keys, tmp_path / "keys"))
    settings = Settings(keys=folder, min_clients=least, join_seconds=600)
    grid: Any = Grid(keys[:connected])
    with pytest.raises(CarvyError, match=words):
        wait_for_clients(Presence(grid, settings), settings, deadline, clock)
    assert clock.now == waited


@pytest.mark.parametrize(("until", "waited"), [(math.inf, 1800), (60.0, 60), (-5.0, 0)])
def test_a_group_waits_for_its_members_until_the_deadline(until: float, waited: float):
    nothing: Any = None
    nobody: Any = SimpleNamespace(now=dict)
    clock = Clock()
    context = ServerContext(nothing, nobody, ("a",), Settings(), nothing, until, clock)
    assert context.connected_nodes([0]) == {}
    assert clock.now == waited


def test_folders_without_keys_are_refused(tmp_path: Path):
    with pytest.raises(CarvyError, match="no public keys"):
        registered_keys(tmp_path)
    (tmp_path / "one.pub").write_text("no key at all")
    with pytest.raises(CarvyError, match="not a public key"):
        registered_keys(tmp_path)
