"""The parts of a page: nothing unescaped, charts drawn where their axes say, looks that differ."""

from __future__ import annotations

import itertools
import math
import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from playwright.sync_api import Browser

from carvyfl.report.charts import Bar, Curve, bar_chart, line_chart, look, method_look
from carvyfl.report.page import Html, Section, escape, folded, image, join, page, paragraph, table
from carvyfl.report.plots import STYLE
from support.browser import PHONES, WellFormed, fits_sideways, opened

HOSTILE = "<script>alert(1)</script><img src=x onerror=alert(2)>\"'&amp;"


def drawn_points(svg: str, kind: str = "line") -> list[tuple[float, float]]:
    """The points of the first path of this kind, in the drawing's units."""
    found = re.search(rf'<path class="{kind}"[^>]* d="([^"]*)"', svg[svg.index('class="plot"') :])
    assert found
    return [(float(x), float(y)) for x, y in re.findall(r"[ML]([-\d.]+) ([-\d.]+)", found[1])]


def axis(svg: str, name: str) -> list[tuple[float, float]]:
    """The numbers at an axis, each with its place, in the drawing's units."""
    place = r'x="([-\d.]+)" y="([-\d.]+)"'
    found = re.findall(rf'<text class="{name}" {place}>([^<]+)</text>', svg)
    return [(float(text), float(x if name == "x" else y)) for x, y, text in found]


def interpolated(ticks: list[tuple[float, float]], value: float) -> float:
    """Where a value lies, going by two of the axis' numbers."""
    (a, at_a), (b, at_b) = ticks[0], ticks[-1]
    return at_a + (value - a) / (b - a) * (at_b - at_a)


@settings(deadline=None)  # the first chart imports matplotlib
@given(
    st.lists(st.floats(0, 100), min_size=2, max_size=30),
    st.integers(0, 50),
    st.booleans(),
)
def test_points_are_drawn_where_the_axes_say(ys: list[float], start: int, fixed: bool) -> None:
    xs = [float(start + k) for k in range(len(ys))]
    svg = line_chart(
        [Curve("c", xs, ys)],
        title="t",
        x_label="x",
        y_label="y",
        y_range=(0, 100) if fixed else None,
    )
    across, up = axis(svg, "x"), axis(svg, "y")
    assert len(across) >= 2
    assert len(up) >= 2
    spread = up[-1][0] - up[0][0]
    for x, y, (at_x, at_y) in zip(xs, ys, drawn_points(svg), strict=True):
        assert at_x == pytest.approx(interpolated(across, x), abs=0.2)
        # Places and the axis' numbers are rounded; a tenth of a unit in 274 is not to be seen.
        assert at_y == pytest.approx(interpolated(up, y), abs=0.5 + 300 * 1e-5 * spread)
        assert 0 <= at_y <= 320


def test_the_axis_runs_to_the_ends_of_a_tiny_range() -> None:
    svg = line_chart([Curve("c", [3], [7.0])], title="t", x_label="x", y_label="y")
    ((x, y),) = drawn_points(svg)
    assert x == pytest.approx(axis(svg, "x")[0][1])
    assert y == pytest.approx(interpolated(axis(svg, "y"), 7.0), abs=0.2)


def test_a_gap_breaks_line_and_band_and_leaves_its_cell_empty() -> None:
    y = [1.0, math.nan, 3.0, 4.0]
    svg = line_chart(
        [Curve("c", [0, 1, 2, 3], y, low=y, high=y)], title="t", x_label="x", y_label="y"
    )
    assert len(drawn_points(svg)) == 3
    line = re.search(r'<path class="line" stroke="[^"]*" d="([^"]*)"', svg[svg.index("plot") :])
    assert line
    assert line[1].count("M") == 2
    cells = re.findall(r"<tr data-x=[^>]*><th[^>]*>(\d)</th><td[^>]*>([^<]*)</td>", svg)
    assert cells == [("0", "1.0 (1.0–1.0)"), ("1", "–"), ("2", "3.0 (3.0–3.0)"), *cells[3:]]


def test_bars_are_as_high_as_they_count() -> None:
    heights = [3, 0, 17, 8]
    bars = [Bar(k, k + 1, h, str(k), striped=k < 2) for k, h in enumerate(heights)]
    svg = bar_chart(bars, title="t", x_label="x", y_label="n", kinds=("right", "wrong"))
    up = axis(svg, "y")
    inside = svg[svg.index('class="plot"') :]
    rects = re.findall(
        r'<rect class="(bar[^"]*)" x="[^"]*" y="([^"]*)"[^>]*height="([^"]*)"', inside
    )
    for height, (kind, top, tall) in zip(heights, rects, strict=True):
        assert float(top) == pytest.approx(interpolated(up, height), abs=0.2)
        assert float(top) + float(tall) == pytest.approx(interpolated(up, 0), abs=0.2)
        assert ("striped" in kind) == (height in (3, 0))


def test_no_two_curves_differ_by_colour_alone() -> None:
    methods = [method_look(method)[1] for method in STYLE]
    for looks in ([look(k) for k in range(64)], methods):
        for one, other in itertools.combinations(looks, 2):
            assert (one.marker, one.dash) != (other.marker, other.dash)


def whole_page() -> str:
    """A page of everything there is, with hostile text wherever text can stand."""
    curve = Curve(HOSTILE, [0, 1], [50, 60], [40, 50], [60, 70])
    return page(
        HOSTILE,
        [
            Section(
                HOSTILE, table([HOSTILE, "b"], [[HOSTILE, 1.25], ["x", None]], caption=HOSTILE)
            ),
            Section(
                "Charts",
                line_chart([curve], title=HOSTILE, x_label=HOSTILE, y_label=HOSTILE),
                (Section(HOSTILE, paragraph(HOSTILE, kind="alarm")),),
            ),
            Section(
                "Bars",
                bar_chart(
                    [Bar(0, 1, 2, HOSTILE), Bar(1, 2, 3, "b", striped=True)],
                    title=HOSTILE,
                    x_label=HOSTILE,
                    y_label=HOSTILE,
                    kinds=(HOSTILE, HOSTILE),
                ),
            ),
            Section("Rest", join([folded(HOSTILE, escape(HOSTILE)), image(b"no PNG", HOSTILE)])),
        ],
        subtitle=HOSTILE,
    )


def test_a_page_is_well_formed_and_shows_hostile_text_as_text(
    browser: Browser, tmp_path: Path
) -> None:
    text = whole_page()
    WellFormed(text)
    file = tmp_path / "page.html"
    file.write_text(text, encoding="utf-8")
    for width in (1200, *PHONES):
        with opened(browser, file, width=width) as tab:
            assert tab.title() == HOSTILE
            assert tab.locator("h1").text_content() == HOSTILE
            assert tab.locator("figcaption").first.text_content() == HOSTILE
            tab.locator(".plot").first.hover()
            tip = tab.locator(".tip").first
            assert tip.locator("span").first.text_content() in {f"{HOSTILE}: 0", f"{HOSTILE}: 1"}
            assert tab.locator("script").count() == 1
            assert fits_sideways(tab)


def test_the_policy_stops_a_script_that_got_in(browser: Browser, tmp_path: Path) -> None:
    """Escaping is the first wall; this is the second."""
    hole = Html(
        "<script>document.title = 'taken'</script><img src='https://example.invalid/a.png'>"
    )
    file = tmp_path / "page.html"
    file.write_text(page("Fine", [Section("Hole", hole)]), encoding="utf-8")
    tab = browser.new_page()
    stopped: list[tuple[str, str | None]] = []
    tab.on("requestfailed", lambda request: stopped.append((request.url, request.failure)))
    refused: list[str] = []
    tab.on("console", lambda message: refused.append(message.text))
    tab.goto(file.as_uri())
    assert tab.title() == "Fine"
    assert stopped == [("https://example.invalid/a.png", "csp")]
    assert len([text for text in refused if "Content Security Policy" in text]) == 2
    tab.close()


@given(st.text(max_size=40))
def test_escaped_text_is_inert_and_escaped_once(text: str) -> None:
    shown = escape(text)
    assert not set(shown) & set("<>\"'")
    assert escape(shown) == shown
