"""Values as pandas data frames, and what is said without pandas."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from carvyfl import CarvyError
from carvyfl.core.frames import data_frame
from carvyfl.groups.basis import BLIND
from carvyfl.groups.grouping import Grouping
from carvyfl.runs.folder import RunFolder
from carvyfl.voting.certificate import certify
from carvyfl.voting.votes import votes
from support.cli import QUICK, carvy


def test_a_certificate_as_rows_of_inputs_and_of_its_curve() -> None:
    certificate = certify(votes([[0, 1], [0, 0], [0, 1]], 2), [0, 1], BLIND)
    inputs = certificate.to_frame()
    assert inputs["radius"].tolist() == certificate.radius.tolist()
    assert inputs["label"].tolist() == [0, 1]
    curve = certificate.to_frame("curve")
    assert curve["ca"].tolist() == certificate.ca().tolist()
    assert ((curve["ca_low"] <= curve["ca"]) & (curve["ca"] <= curve["ca_high"])).all()
    assert "label" not in certify(votes([[0, 1]], 2)).to_frame()
    with pytest.raises(CarvyError, match="'inputs' or the points of the 'curve'"):
        certificate.to_frame("rows")


def test_groups_as_rows_of_clients() -> None:
    grouping = Grouping(np.array([0, 1, 1, -1]), 2, "mine", BLIND)
    assert grouping.to_frame().to_dict("list") == {"client": [0, 1, 2, 3], "group": [0, 1, 1, -1]}
    assert grouping.to_frame([5, 6, 6, 5])["type"].tolist() == [5, 6, 6, 5]


def test_a_stored_run_as_rows_of_its_curves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    out = tmp_path / "run"
    flags = ("--rounds", 1, "--methods", "carvy,balanced", "--groups", 4, "--out", out)
    assert carvy("run", *QUICK, *flags).code == 0
    frame, record = RunFolder(out).to_frame(), RunFolder(out).record()
    for method, entry in record.methods.items():
        assert entry.readings.given_groups is not None
        mine = frame[(frame.method == method) & (frame.reading == "given_groups")]
        assert tuple(mine.ca) == entry.readings.given_groups.ca
        assert mine.m.tolist() == list(range(len(mine)))
    assert set(frame.seed) == {record.config.seed}


def test_without_pandas_the_remedy_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(CarvyError, match="pip install pandas"):
        data_frame({"a": [1]})
