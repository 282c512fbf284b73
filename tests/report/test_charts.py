"""A chart's table holds its numbers."""

from __future__ import annotations

import math
import re

from carvyfl.plots.figure import Curve, Panel
from carvyfl.report.charts import chart


def test_a_gap_leaves_its_cell_empty() -> None:
    y = [1.0, math.nan, 3.0, 4.0]
    html = chart(Panel("t", "x", "y", [Curve("c", [0, 1, 2, 3], y, low=y, high=y)], None))
    cells = re.findall(r"<tr data-x=[^>]*><th[^>]*>(\d)</th><td[^>]*>([^<]*)</td>", html)
    assert cells == [
        ("0", "1.0 (1.0–1.0)"),
        ("1", "–"),
        ("2", "3.0 (3.0–3.0)"),
        ("3", "4.0 (4.0–4.0)"),
    ]
