"""What reaches the terminal: no command to it, no endless table, one line for bad input."""

from __future__ import annotations

import io
import re
import time
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from carvyfl.data.datasets import IDX_FILES
from support.bounded import GIB, bounded, gzip_bomb, zip_claiming
from support.cli import QUICK, Answer, assert_refused, carvy
from support.sealing import reseal

EVIL = "\x1b[2J\x1b]0;owned\x07\x9b31m\r\u202e\udcff"
"""Clears the screen, names the window, colours, goes back, turns round, and is no text at all."""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that somebody sealed again, with escape sequences wherever a text is free."""
    out = tmp_path_factory.mktemp("output")
    flags = ("--methods", "carvy", "--rounds", 1, "--store", out / "store", "--out", out / "run")
    assert carvy("run", *QUICK, *flags).code == 0

    def change(record: dict[str, Any]) -> None:
        entry = record["methods"]["carvy"]
        record["data"]["name"] = EVIL
        record["data"]["class_names"] = [f"{EVIL}{c}" for c in range(10)]
        record["types"]["warnings"] = [EVIL]
        record["types"]["set_aside"] = {"0": EVIL}
        entry["certificate"]["because"] = EVIL
        entry["set_aside"] = {"0": EVIL}
        entry["ca"] = [50.0] * 50_000 + [0.0]
        for reading in filter(None, entry["readings"].values()):
            reading["ca"] = entry["ca"]

    reseal(out / "run", change)
    return out / "run"


def assert_harmless(answer: Answer) -> None:
    for character in answer.out + answer.err:
        assert character.isprintable() or character == "\n", repr(character)


@pytest.mark.slow
def test_a_records_escape_sequences_reach_no_terminal(run: Path, tmp_path: Path) -> None:
    shown = carvy("show", run)
    assert shown.code == 0
    assert_harmless(shown)
    assert shown.out.count("owned") >= 2  # they are there, and do nothing
    assert shown.err.count("owned") >= 3
    np.save(tmp_path / "x.npy", np.zeros((1, 28, 28), np.uint8))
    for command in (
        ("verify", run, "--workers", 1),
        ("predict", run, tmp_path / "x.npy", "--workers", 1),
        ("report", run, "--out", tmp_path / "report.html"),
    ):
        answer = carvy(*command)
        assert_harmless(answer)
        assert "Traceback" not in answer.err


def test_names_in_messages_reach_no_terminal(tmp_path: Path) -> None:
    evil = EVIL.replace("\x1b]0;", "")  # a path has no slash
    folder = tmp_path / evil
    folder.mkdir()
    (folder / "v.csv").write_text(f"{evil.encode(errors='replace').decode()},g\n0,x\n")
    (folder / "c.yaml").write_text('"\\e[2J": 1')
    for command in (
        ("verify", tmp_path / f"{evil}absent"),
        ("certify", folder / "v.csv"),
        ("groups", "--config", folder / "c.yaml"),
        ("groups", "--model", "\x1b[2J" * 10_000),
        ("predict", folder, "x.npy"),
        (f"{evil}",),
    ):
        answer = carvy(*command)
        assert_refused(answer)
        assert_harmless(answer)
        assert len(answer.err) < 1100


def test_a_curve_of_fifty_thousand_rows_is_thinned(run: Path) -> None:
    started = time.process_time()
    shown = carvy("show", run)
    assert time.process_time() - started < 20
    assert shown.out.count("\n") < 400
    assert "Every 1,000th of 50,001 rows; --json gives all." in shown.out
    rows = re.findall(r"^│ +(\d+) │ +50\.0 │$", shown.out, re.MULTILINE)
    assert [int(row) for row in rows] == list(range(0, 50_000, 1000))


@pytest.mark.slow
def test_predictions_of_very_many_inputs(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # short names are not folded
    np.save("x.npy", np.zeros((300, 28, 28), np.uint8))
    shown = carvy("predict", run, "x.npy", "--workers", 1).out
    assert "x.npy[199]" in shown
    assert "x.npy[200]" not in shown
    assert "… and 100 more; --json gives all." in shown


# What would take all memory, under a limit of it.


@pytest.mark.slow
def test_bombs(tmp_path: Path) -> None:
    vote = io.BytesIO()
    np.save(vote, np.ones((1, 4), np.uint8))
    claimed = vote.getvalue().replace(b"(1, 4)", b"(64, 134217728)")[: len(vote.getvalue())]
    votes = zip_claiming(
        tmp_path / "v.npz", {"votes.npy": claimed}, {"votes.npy": 9 * GIB}, zipfile.ZIP_DEFLATED
    )
    assert_refused(bounded("certify", votes), "v.npz", "unpack to more than")

    idx = tmp_path / "idx"
    idx.mkdir()
    for file in IDX_FILES.values():
        (idx / f"{file}.gz").write_bytes(b"")
    gzip_bomb(idx / f"{IDX_FILES['x_train']}.gz", 6 * GIB)
    assert_refused(bounded("groups", "--dataset", idx), "unpack to more than")

    lines = ["a0: &a0 [0, 0]"] + [f"a{i}: &a{i} [*a{i - 1}, *a{i - 1}]" for i in range(1, 60)]
    (tmp_path / "c.yaml").write_text("\n".join([*lines, "partition_options: {a: *a59}"]))
    assert_refused(bounded("groups", "--config", tmp_path / "c.yaml"), "c.yaml", "aliases")


def test_a_file_larger_than_memory(tmp_path: Path) -> None:
    for file in IDX_FILES.values():
        with (tmp_path / file).open("wb") as sparse:
            sparse.truncate(1 << 43)  # takes no room on the disk
    assert_refused(carvy("groups", "--dataset", tmp_path), "not enough memory")


@pytest.mark.parametrize(
    ("flags", "word"),
    [
        (("--clients", 1_000_000, "--samples", 50_000), "GB"),
        (("--seed", 10**4000), "seed must be a whole number of at most 38 digits"),
        (("--seed", "9" * 5000), "--seed"),
        (("--partition", "dirichlet", "-p", "alpha=" + "[" * 50_000), "nested"),
    ],
    ids=range(4),
)
def test_giants(flags: tuple[Any, ...], word: str) -> None:
    answer = carvy("groups", *flags)
    assert_refused(answer, word)
    assert len(answer.err) < 1100
