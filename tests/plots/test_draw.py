"""What is drawn is what the values say, and curves can be told apart by everybody."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from matplotlib.patches import Rectangle

from carvyfl.groups.methods import GROUPINGS
from carvyfl.plots.draw import draw, encoded
from carvyfl.plots.figure import Curve, Panel, Shares, ca_panel
from carvyfl.plots.style import method_style, nth_style


def test_a_panel_shows_its_curves_with_their_bands():
    y = [80.0, math.nan, 20.0]
    band = Curve("a", [0, 1, 2], [80, 50, 20], [70, 40, 10], [90, 60, 30])
    (axes,) = draw([Panel("t", "x", "y", [band, Curve("b", [0, 1, 2], y)])]).axes
    first, second = axes.lines
    np.testing.assert_array_equal(first.get_ydata(), [80, 50, 20])
    np.testing.assert_array_equal(second.get_ydata(), y)
    edge = np.asarray(axes.collections[0].get_paths()[0].vertices)
    assert {tuple(point) for point in edge.tolist()} >= {(1.0, 40.0), (1.0, 60.0), (2.0, 30.0)}
    assert axes.get_ylim() == (0, 100)
    assert axes.get_xlim() == (0, 2)
    legend = axes.get_legend()
    assert legend is not None
    assert [text.get_text() for text in legend.get_texts()] == ["a", "b"]


@pytest.mark.parametrize("y", [[math.nan] * 2, [7.0, 7.0], [-1.0, 0.0]])
def test_any_range_can_be_drawn(y):
    (axes,) = draw([Panel("t", "x", "y", [Curve("c", [3, 4], y)], y_range=None)]).axes
    low, high = axes.get_ylim()
    assert low < high
    assert (low == 0) == (y == [7.0, 7.0])  # the whole axis, where nothing is below 0
    (axes,) = draw([Panel("t", "x", "y", [Curve("c", [3], [7.0])])]).axes
    assert axes.get_xlim() == (3, 4)


def test_a_marked_place_has_a_line_and_the_axis_begins_at_zero():
    panel = Panel("t", "x", "y", [Curve("c", [10, 40], [1, 2])], y_range=None, marked=20)
    (axes,) = draw([panel]).axes
    assert any(np.array_equal(line.get_xdata(), [20, 20]) for line in axes.lines)
    low, high = axes.get_xlim()
    assert low == 0
    assert high > 40


def test_curves_that_end_early_keep_their_last_value():
    short = Curve("a", [0, 1], [9, 3], low=[8, 2], high=[10, 4])
    panel = ca_panel("t", [short, Curve("b", range(4), [9, 8, 7, 0])])
    first = panel.curves[0]
    assert [first.y, first.low, first.high] == [[9, 3, 3, 3], [8, 2, 2, 2], [10, 4, 4, 4]]
    assert panel.curves[1].low is None
    assert [list(curve.x) for curve in panel.curves] == [[0, 1, 2, 3]] * 2


def test_shares_are_stacked_in_order_beside_those_of_all():
    shares = np.array([[0.2, 0.3, 0.5], [1.0, 0.0, 0.0]])
    overall = np.array([0.6, 0.15, 0.25])
    (axes,) = draw([Shares("t", "group", ["g", "h"], ["a", "b", "c"], shares, overall)]).axes
    for part, drawn in enumerate(axes.collections[:3]):
        points = np.asarray(drawn.get_paths()[0].vertices)
        for bar, row in enumerate(shares):
            inside = points[(points[:, 0] > bar - 0.6) & (points[:, 0] < bar + 0.6)][:, 1]
            for height in (row[:part].sum(), row[: part + 1].sum()):
                assert np.isclose(inside, 100 * height).any(), (part, bar)
    heights = [patch.get_bbox().height for patch in axes.patches if isinstance(patch, Rectangle)]
    np.testing.assert_allclose(heights, 100 * overall)
    lines = axes.collections[-1].get_paths()  # where the parts of all end, across the bars
    np.testing.assert_allclose([np.asarray(line.vertices)[0, 1] for line in lines], [60, 75])


@pytest.mark.parametrize("kind", ["png", "svg", "pdf"])
def test_files_have_no_date_and_the_same_bytes(kind):
    panels = [Panel("t", "x", "y", [Curve("c", [0, 1], [5, 6])])]
    first, second = (encoded(draw(panels), kind) for _ in range(2))
    assert first == second
    assert b"date>" not in first
    assert b"CreationDate" not in first


# Curves can be told apart by everybody.


def test_no_two_curves_differ_by_colour_alone():
    methods = [method_style(method) for method in GROUPINGS]
    for styles in ([nth_style(k) for k in range(64)], methods):
        for one, other in itertools.combinations(styles, 2):
            assert (one.marker, one.dash) != (other.marker, other.dash)


def test_a_new_method_goes_by_its_own_name():
    assert method_style("mine").label == "mine"
