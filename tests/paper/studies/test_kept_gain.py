"""The share of the gain that a grouping keeps."""

from __future__ import annotations

import pytest

from carvyfl.paper.studies.heterogeneity import PARTITIONS
from carvyfl.paper.studies.kept_gain import WHERE, kept, table


def test_the_share_is_that_of_the_means():
    areas = {"balanced": [100.0, 200.0], "carvy": [300.0, 400.0], "seats": [200.0, 350.0]}
    assert kept(areas, "seats") == pytest.approx(100 * (275 - 150) / (350 - 150))
    assert kept(areas, "balanced") == 0
    assert kept(areas, "carvy") == 100
    text = table({"2 classes:20": areas, "i.i.d.:20": {method: [] for method in areas}})
    assert "| 2 classes | 20 | 150 ± 71 | 350 ± 71 | 275 ± 106 | 62 % |" in text
    assert "i.i.d." not in text


def test_every_partition_is_known():
    for where in WHERE:
        name, _, groups = where.rpartition(":")
        assert name in PARTITIONS
        assert int(groups) > 1
