"""Mean and standard deviation over seeds, against plain Python."""

from __future__ import annotations

import statistics

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from carvyfl import CarvyError
from carvyfl.voting.spread import Comparison, Spread, mean_sd

CURVES = st.lists(st.lists(st.floats(0, 100), min_size=1, max_size=6), min_size=2, max_size=5)


@given(CURVES)
def test_every_point_is_the_mean_over_seeds(curves: list[list[float]]) -> None:
    spread = Spread.of([sorted(curve, reverse=True) for curve in curves])
    for m in range(max(map(len, curves))):
        at_m = [sorted(row, reverse=True)[m] if m < len(row) else 0.0 for row in curves]
        assert spread.mean[m] == pytest.approx(statistics.mean(at_m))
        assert spread.sd[m] == pytest.approx(statistics.stdev(at_m), abs=1e-9)
    assert spread.auc == pytest.approx([np.trapezoid(row) for row in spread.curves])
    assert spread.band is not None
    low, high = spread.band
    assert low == pytest.approx(np.maximum(spread.mean - spread.sd, 0))
    assert high == pytest.approx(np.minimum(spread.mean + spread.sd, 100))


def test_one_seed_has_no_spread() -> None:
    spread = Spread.of([[50.0, 0.0]])
    assert np.isnan(spread.sd).all()
    assert spread.band is None
    assert mean_sd([50.0]) == "50.0"
    assert mean_sd([50.0, 52.0]) == "51.0 ± 1.4"
    with pytest.raises(CarvyError, match="at least one"):
        Spread.of([])


def test_a_comparison_is_printed_with_areas_and_numbers_of_groups() -> None:
    found = Comparison(
        (0, 1),
        "honest_only",
        {"slots": Spread.of([[90, 60, 0], [80, 0]]), "single": Spread.of([[50, 0], [50, 0]])},
        {"slots": (5, 4), "single": (1, 1)},
    )
    assert str(found).splitlines() == [
        "CA(m) in %, honest only, mean ± standard deviation over 2 seeds",
        "  m        slots      single",
        "  0   85.0 ± 7.1  50.0 ± 0.0",
        "  1  30.0 ± 42.4   0.0 ± 0.0",
        "  2    0.0 ± 0.0         0.0",
        "AUC  72.5 ± 46.0  25.0 ± 0.0",
        "  G       4 to 5           1",
    ]
