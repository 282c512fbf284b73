"""FLCert-P runs, and a cell is what its votes say; the share of the gain that a grouping keeps."""

from __future__ import annotations

import json

import pytest

from reproduction.studies.__main__ import main
from reproduction.studies.heterogeneity import GAINS, PARTITIONS, gains_table, kept

FEW = ("--engine", "loop", "--workers", "1", "--commit", "abc1234", "--dataset", "embedded")
SMALL = ("--clients", "20", "--samples", "30", "--groups", "4", "--seeds", "0")


@pytest.mark.slow
def test_flcert_p(tmp_path, capsys):
    options = ("--out", str(tmp_path), "--store", str(tmp_path / "store"), "--draws", "60")
    arguments = ["flcert-p", *FEW, *SMALL, *options, "--partitions", "i.i.d.", "2 classes"]
    main(arguments)
    path = tmp_path / "flcert-p.jsonl"
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    assert [row["cell"] for row in rows] == [[n, 0, "flcert-p", 4] for n in ("i.i.d.", "2 classes")]
    for row in rows:
        ca = row["ca"]
        assert (row["commit"], row["size"], row["subsets"]) == ("abc1234", 5, 60)
        assert 100 >= row["accuracy"] >= ca[0] > 0 == ca[-1]
        assert ca == sorted(ca, reverse=True)
        # One of 20 clients is in a quarter of the subsets of 5, two are in 43 %, three in 60 %.
        assert len(ca) <= 4
    assert rows[0]["auc"] > rows[1]["auc"]
    capsys.readouterr()
    main(arguments)  # nothing is missing
    assert capsys.readouterr().out == ""


def test_the_share_is_that_of_the_means():
    areas = {"balanced": [100.0, 200.0], "carvy": [300.0, 400.0], "slots": [200.0, 350.0]}
    assert kept(areas, "slots") == pytest.approx(100 * (275 - 150) / (350 - 150))
    assert kept(areas, "balanced") == 0
    assert kept(areas, "carvy") == 100
    text = gains_table({"2 classes:20": areas, "i.i.d.:20": {method: [] for method in areas}})
    assert "| 2 classes | 20 | 150 ± 71 | 350 ± 71 | 275 ± 106 | 62 % |" in text
    assert "i.i.d." not in text


def test_every_partition_is_known():
    for where in GAINS:
        name, _, groups = where.rpartition(":")
        assert name in PARTITIONS
        assert int(groups) > 1
