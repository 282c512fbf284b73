"""`carvy coins`, and runs whose groups are drawn from committed coins."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest

from carvyfl.core.errors import CarvyError
from carvyfl.groups.coins import coins_from_seed, load_coins
from carvyfl.pipeline import Compute
from carvyfl.runs.execute import prepare, regrouping
from carvyfl.runs.folder import RunFolder
from support.cli import QUICK, assert_refused, assert_valid, carvy

GROUPED = (*QUICK, "--groups", 3)
SLOTS = (*GROUPED, "--method", "slots")
TRAINED = ("--methods", "slots", "--rounds", 1, "--engine", "loop")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    assert carvy("coins", tmp_path / "secret.json").code == 0
    return tmp_path / "secret.json"


def test_coins_are_secret_and_their_commitment_is_printed(tmp_path: Path) -> None:
    file = tmp_path / "new" / "secret.json"
    said = carvy("coins", file)
    assert said.code == 0, said.err
    assert file.stat().st_mode & 0o777 == 0o600
    value = json.loads(file.read_text())["value"]
    assert said.out.strip() == hashlib.sha256(b"carvyfl coins" + bytes.fromhex(value)).hexdigest()
    assert value not in said.out + said.err
    assert_refused(carvy("coins", file), "not overwritten")
    assert json.loads(file.read_text())["value"] == value
    carvy("coins", tmp_path / "other.json")
    assert json.loads((tmp_path / "other.json").read_text())["value"] != value


@pytest.mark.slow
def test_groups_are_drawn_from_them(file: Path) -> None:
    mine = [carvy("groups", *SLOTS, "--coins", file, "--json").json for _ in range(2)]
    assert mine[0] == mine[1]
    assert_valid(mine[0], "groups")
    assert mine[0]["coins"] == json.loads(file.read_text())
    assert "simulated" not in mine[0]["certificate"]["because"]
    simulated = carvy("groups", *SLOTS, "--json").json
    assert simulated["coins"]["source"] == "simulated"
    assert "simulated" in simulated["certificate"]["because"]
    assert "drawn from simulated coins" in carvy("groups", *SLOTS).out
    assert "drawn from committed coins" in carvy("groups", *SLOTS, "--coins", file).out


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, "cannot read"),
        (b"\xff", "carvy coins"),
        (b"[" * 5000, "carvy coins"),
        (b"{}", "no complete coins"),
        (json.dumps(coins_from_seed(0).to_json()).encode(), "simulated"),
        (b'{"value": "00", "source": "system", "commitment": ""}', "32 bytes"),
    ],
    ids=range(6),
)
def test_other_files_are_refused(tmp_path: Path, content: bytes | None, words: str) -> None:
    if content is not None:
        (tmp_path / "coins.json").write_bytes(content)
    with pytest.raises(CarvyError, match=words):
        load_coins(tmp_path / "coins.json")


def test_coins_that_nothing_is_drawn_from_are_refused(file: Path, tmp_path: Path) -> None:
    assert_refused(carvy("groups", *GROUPED, "--coins", file), "random slots", "method slots")
    flags = (*GROUPED, "--methods", "carvy,flcert", "--coins", file, "--out", tmp_path / "run")
    assert_refused(carvy("run", *flags, "--rounds", 1), "random slots")


@pytest.mark.slow
def test_a_run_with_committed_coins(file: Path, tmp_path: Path) -> None:
    """It promises them in its configuration and reveals them in its groups; the audit compares."""
    out = tmp_path / "run"
    flags = ("run", *GROUPED, *TRAINED, "--out", out)
    commitment = json.loads(file.read_text())["commitment"]
    first = carvy(*flags, "--coins", file, "--json").json
    assert first["config"]["commitment"] == commitment
    assert json.loads(file.read_text())["value"] not in (out / "config.yaml").read_text()
    revealed = json.loads((out / "groups" / "slots.json").read_text())
    assert revealed["coins"] == json.loads(file.read_text())
    assert "simulated" not in first["methods"]["slots"]["certificate"]["because"]

    # Again it is the same run; without the coins, or with others, it is none.
    assert carvy(*flags, "--coins", file, "--json").json["methods"] == first["methods"]
    assert_refused(carvy(*flags), "other settings", "commitment")
    again = tmp_path / "again"
    assert_refused(carvy("run", "--config", out / "config.yaml", "--out", again), "--coins")
    carvy("run", "--config", out / "config.yaml", "--coins", file, "--out", again)
    assert (again / "groups" / "slots.json").read_text() == json.dumps(revealed) + "\n"

    verified = carvy("verify", out, "--commitment", commitment, "--json").json
    states = {check["what"]: check["state"] for check in verified["checks"]}
    assert {states["commitment"], states["groups of slots"]} == {"ok"}

    # An attack forms the groups again from the run's own coins.
    folder = RunFolder(out)
    prepared, mine = prepare(folder.config()), folder.grouping("slots")
    regroup = regrouping("slots", folder.config(), prepared.setup, Compute.on_cores(1), mine.coins)
    assert regroup is not None
    assert regroup(prepared.setup) == mine
