"""The parts of a page: nothing unescaped, nothing fetched, nothing defined twice."""

from __future__ import annotations

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st
from playwright.sync_api import Browser

from carvyfl.plots.figure import Bar, Curve, Histogram, Panel
from carvyfl.report.charts import chart
from carvyfl.report.page import Html, Section, escape, folded, image, join, page, paragraph, table
from support.browser import PHONES, WellFormed, fits_sideways, opened

HOSTILE = "<script>alert(1)</script><img src=x onerror=alert(2)>\"'&amp;"


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
                chart(Panel(HOSTILE, HOSTILE, HOSTILE, [curve])),
                (Section(HOSTILE, paragraph(HOSTILE, kind="alarm")),),
            ),
            Section(
                "Bars",
                chart(
                    Histogram(
                        HOSTILE,
                        HOSTILE,
                        HOSTILE,
                        [Bar(0, 1, 2, HOSTILE), Bar(1, 2, 3, "b", striped=True)],
                        (HOSTILE, HOSTILE),
                    )
                ),
            ),
            Section("Rest", join(folded(HOSTILE, escape(HOSTILE)), image(b"no PNG", HOSTILE))),
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


def test_equal_charts_can_stand_on_one_page(browser: Browser, tmp_path: Path) -> None:
    """What both refer to by id is defined once, and both show it."""
    bars = Histogram("t", "x", "n", [Bar(0, 1, 2, "a", striped=True)], ("right", "wrong"))
    both = [chart(Panel("t", "x", "y", [Curve("c", [0, 1], [50, 60])])), chart(bars)]
    text = page("Twice", [Section("One", join(*both)), Section("Two", join(*both))])
    WellFormed(text)
    file = tmp_path / "page.html"
    file.write_text(text, encoding="utf-8")
    with opened(browser, file) as tab:
        missing = """
            [...document.querySelectorAll("use")].map(use => use.getAttribute("href"))
                .concat([...document.body.innerHTML.matchAll(/url[(](#[^)]+)[)]/g)].map(f => f[1]))
                .filter(id => !document.querySelector(id)).length
        """
        assert tab.evaluate(missing) == 0
        drawings = [figure.locator(".plot").screenshot() for figure in tab.locator("figure").all()]
    assert drawings[0] == drawings[2]
    assert drawings[1] == drawings[3]


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
