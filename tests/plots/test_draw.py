"""Drawings for a page: everything is where the axes say."""

from __future__ import annotations

import io
import math
import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from scipy.spatial.distance import cdist

from carvyfl.plots.draw import HEIGHT, draw, inline, png
from carvyfl.plots.figure import Bar, Curve, Histogram, Panel


def paths(svg: str, kind: str) -> list[str]:
    """The paths of the parts of this kind."""
    drawn = re.sub("<defs>.*?</defs>", "", svg)
    parts = re.findall(rf'<g class="{kind}">(.*?)</g>', drawn)
    return [d for part in parts for d in re.findall(r'<path d="([^"]*)"', part)]


def points(path: str) -> list[tuple[float, float]]:
    """The points of a path, in the drawing's units."""
    return [(float(x), float(y)) for x, y in re.findall(r"[ML]([-\d.]+) ([-\d.]+)", path)]


def axis(svg: str, name: str) -> list[tuple[float, float]]:
    """The numbers at an axis, each with its place, in the drawing's units."""
    place = r'x="([-\d.]+)" y="([-\d.]+)"'
    found = re.findall(rf'<g class="{name}"><text {place}>([^<]+)</text>', svg)
    return [(float(text), float(x if name == "x" else y)) for x, y, text in found]


def interpolated(ticks: list[tuple[float, float]], value: float) -> float:
    """Where a value lies, going by two of the axis' numbers."""
    (a, at_a), (b, at_b) = ticks[0], ticks[-1]
    return at_a + (value - a) / (b - a) * (at_b - at_a)


@pytest.mark.slow
@given(
    st.lists(st.floats(0, 100), min_size=2, max_size=30),
    st.integers(0, 50),
    st.booleans(),
)
def test_points_are_drawn_where_the_axes_say(ys: list[float], start: int, fixed: bool) -> None:
    xs = [float(start + k) for k in range(len(ys))]
    panel = Panel("t", "x", "y", [Curve("c", xs, ys)], (0, 100) if fixed else None)
    svg, places = inline(panel, xs)
    across, up = axis(svg, "x"), axis(svg, "y")
    assert len(across) >= 2
    assert len(up) >= 2
    spread = up[-1][0] - up[0][0]
    (line,) = paths(svg, "line")
    for x, y, place, (at_x, at_y) in zip(xs, ys, places, points(line), strict=True):
        assert at_x == pytest.approx(interpolated(across, x), abs=0.2)
        assert at_x == pytest.approx(place, abs=0.1)
        # Places and the axis' numbers are rounded; a tenth of a unit in 274 is not to be seen.
        assert at_y == pytest.approx(interpolated(up, y), abs=0.5 + 300 * 1e-5 * spread)
        assert 0 <= at_y <= HEIGHT


def test_the_axis_runs_to_the_ends_of_a_tiny_range() -> None:
    svg, (place,) = inline(Panel("t", "x", "y", [Curve("c", [3], [7.0])], None), [3])
    (mark,) = re.findall(r'<use href="[^"]*" x="([^"]*)" y="([^"]*)"', svg.split('"line"')[1])
    assert float(mark[0]) == place == pytest.approx(axis(svg, "x")[0][1])
    assert float(mark[1]) == pytest.approx(interpolated(axis(svg, "y"), 7.0), abs=0.2)


def test_a_gap_breaks_line_and_band() -> None:
    y = [1.0, 2.0, math.nan, 3.0, 4.0]
    svg, _ = inline(Panel("t", "x", "y", [Curve("c", range(5), y, y, y)], None), [0])
    (line,) = paths(svg, "line")
    assert len(points(line)) == 4
    assert line.count("M") == 2
    assert len(paths(svg, "band")) == 2


def test_a_curve_without_any_value_can_be_drawn() -> None:
    svg, _ = inline(Panel("t", "x", "y", [Curve("c", [0, 1], [math.nan] * 2)], None), [0])
    assert len(axis(svg, "y")) >= 2


def test_bars_are_as_high_as_they_count() -> None:
    heights = [3, 0, 17, 8]
    bars = [Bar(k, k + 1, h, str(k), striped=k < 2) for k, h in enumerate(heights)]
    svg, _ = inline(Histogram("t", "x", "n", bars, ("right", "wrong")), [0])
    up = axis(svg, "y")
    striped, plain = paths(svg, "bar striped"), paths(svg, "bar")
    assert len(striped) == len(plain) == 2
    for height, bar in zip(heights, striped + plain, strict=True):
        ys = [y for _, y in points(bar)]
        assert min(ys) == pytest.approx(interpolated(up, height), abs=0.2)
        assert max(ys) == pytest.approx(interpolated(up, 0), abs=0.2)


def test_faint_lines_stand_behind_the_curves() -> None:
    panel = Panel("t", "x", "y", [Curve("c", [0, 1], [5, 6])], faint=[([0, 1], [1, 2])] * 3)
    svg, _ = inline(panel, [0])
    assert len(paths(svg, "faint")) == 3
    assert svg.rindex('class="faint"') < svg.index('class="line"')


def test_every_pixel_of_a_png_has_the_nearest_of_its_colours() -> None:
    curves = [Curve(f"c{k}", [0.0, 1, 2], [k * 7.0, 50 - 3 * k, k]) for k in range(12)]
    drawing = draw([Panel("t", "x", "y", curves)])
    file = io.BytesIO()
    drawing.savefig(file, format="png", dpi=120)
    full, few = (
        np.asarray(Image.open(each).convert("RGB"), dtype=np.float64).reshape(-1, 3)
        for each in (file, io.BytesIO(png(drawing)))
    )
    pairs = np.unique(np.hstack([full, few]), axis=0)
    palette = np.unique(few, axis=0)
    assert len(palette) < len(np.unique(full, axis=0))
    chosen = np.linalg.norm(pairs[:, :3] - pairs[:, 3:], axis=1)
    np.testing.assert_allclose(chosen, cdist(pairs[:, :3], palette).min(axis=1))
