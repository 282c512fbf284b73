"""The HTML report of a reproduction: verdicts, hoverable figures and tables of both presets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from carvyfl.paper.exhibits import EXHIBITS, Content, caption
from carvyfl.paper.figures import Picture
from carvyfl.paper.overview import HEAD
from carvyfl.paper.verdicts import Verdict
from carvyfl.plots.draw import draw, png
from carvyfl.plots.figure import Cloud, Panel
from carvyfl.report import page
from carvyfl.report.charts import chart
from carvyfl.report.page import Html, Section

TITLE = "CARVY-FL: the paper and its reproduction"


def reproduction_page(
    lines: Sequence[Sequence[str]],
    judged: Mapping[str, Sequence[Verdict]],
    contents: Mapping[str, Sequence[Content]],
) -> str:
    """Return the report as one HTML document.

    Parameters
    ----------
    lines
        The overview.
    judged
        By preset: the verdicts.
    contents
        By target: what each preset has to show.
    """
    sections = [
        Section("Overview", page.table(HEAD, lines)),
        Section(
            "The paper's claims",
            Html(""),
            tuple(Section(f"Preset {name}", _verdicts(found)) for name, found in judged.items()),
        ),
    ]
    for exhibit in EXHIBITS:
        parts = tuple(
            Section(f"Preset {content.preset}", _content(content))
            for content in contents[exhibit.target]
        )
        sections.append(Section(exhibit.title, Html(""), parts))
    subtitle = "Our numbers beside the paper's: with its own settings, and with our default ones."
    return page.page(TITLE, sections, subtitle=subtitle)


def _verdicts(found: Sequence[Verdict]) -> Html:
    head = ["claim", "paper", "ours", "verdict", "why"]
    return page.table(head, [[v.claim, v.paper, v.ours, v.verdict, v.why] for v in found])


def _content(content: Content) -> Html:
    if content.missing:
        return page.paragraph(content.missing, kind="note")
    pieces = [_picture(picture) for picture in content.pictures]
    for table in content.tables:
        pieces.append(page.table(table.head(), table.body(), caption=table.title))
        pieces.append(page.paragraph(caption(table), kind="note"))
    return page.join(*pieces)


def _picture(picture: Picture) -> Html:
    pieces = []
    clouds = [panel.title for panel in picture.panels if isinstance(panel, Cloud)]
    if clouds:
        described = f"{picture.title}: {'; '.join(clouds)}"
        pieces.append(page.image(png(draw(picture.panels, picture.columns)), described))
    for panel in picture.panels:
        if isinstance(panel, Panel) and panel.curves:
            pieces.append(chart(replace(panel, title=f"{picture.title}: {panel.title}")))
    return page.join(*pieces, page.paragraph(f"{picture.title}. {caption(picture)}", kind="note"))
