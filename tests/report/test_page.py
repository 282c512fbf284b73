"""The parts of a page: nothing unescaped, nothing fetched, nothing run, and every number there."""

from __future__ import annotations

import math
import re

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from carvyfl.plots.figure import Curve, Panel, Shares
from carvyfl.report.page import Html, Section, chart, image, join, page, paragraph, table
from support.browser import PHONES, WellFormed, fits_sideways, opened

HOSTILE = "<script>alert(1)</script><img src=x onerror=alert(2)>\"'&amp;"
HALVES = np.full((2, 2), 0.5)


def whole_page() -> str:
    """A page of everything there is, with hostile text wherever text can stand."""
    curve = Curve(HOSTILE, [0, 1], [50, 60], [40, 50], [60, 70])
    shares = Shares(HOSTILE, HOSTILE, [HOSTILE, "b"], [HOSTILE, "d"], HALVES, HALVES[0])
    rows = table([HOSTILE, "b"], [[HOSTILE, 1.25], ["x", None]], caption=HOSTILE)
    alarm = Section(HOSTILE, paragraph(HOSTILE, kind="alarm"))
    sections = [
        Section(HOSTILE, rows),
        Section("Charts", chart(Panel(HOSTILE, HOSTILE, HOSTILE, [curve])), (alarm,)),
        Section("Shares", chart(shares)),
        Section("Rest", join(HOSTILE, image("png", b"no PNG", HOSTILE))),
    ]
    return page(HOSTILE, sections, subtitle=HOSTILE)


def test_a_page_is_well_formed_and_shows_hostile_text_as_text(browser, tmp_path):
    text = whole_page()
    WellFormed(text)
    file = tmp_path / "page.html"
    file.write_text(text, encoding="utf-8")
    for width in (1200, *PHONES):
        with opened(browser, file, width=width) as tab:
            assert tab.title() == HOSTILE
            assert tab.locator("h1").text_content() == HOSTILE
            assert tab.locator("figcaption").first.text_content() == HOSTILE
            assert tab.locator("script, [onerror]").count() == 0
            assert fits_sideways(tab)
            drawn = "all => all.slice(0, 2).every(img => img.complete && img.naturalWidth > 0)"
            assert tab.locator("img").evaluate_all(drawn)


def test_the_policy_stops_a_script_that_got_in(browser, tmp_path):
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
def test_text_is_inert_and_escaped_once(text: str) -> None:
    shown = join(text)
    assert not set(shown) & set("<>\"'")
    assert join(shown) == shown
    assert f">{shown}</td>" in table(["a", "b"], [["c", text]])


def rows_of(html: str) -> list[list[str]]:
    """The cells of every row of a table's body, their markup left out."""
    body = html.split("<tbody>")[1]
    lines = re.findall(r"<tr>(.*?)</tr>", body, re.DOTALL)
    return [re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", line) for line in lines]


def test_a_gap_leaves_its_cell_empty():
    y = [1.0, math.nan, 3.0, 4.0]
    curves = [Curve("c", [0, 1, 2, 3], y, low=y, high=y), Curve("d", [2, 5], [7.5, 8])]
    assert rows_of(chart(Panel("t", "x", "y", curves, None))) == [
        ["0", "1.0 (1.0–1.0)", "–"],
        ["1", "–", "–"],
        ["2", "3.0 (3.0–3.0)", "7.5"],
        ["3", "4.0 (4.0–4.0)", "–"],
        ["5", "–", "8.0"],
    ]


def test_numbers_are_aligned_to_the_right_and_words_are_not():
    html = table(["name", "number", "either"], [["a", 1, "2 of 3"], ["b", None, "none"]])
    assert re.findall(r'<td class="(n?)">', html) == ["n", "", "n", ""]
