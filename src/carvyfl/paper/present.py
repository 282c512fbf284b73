"""Everything that is shown of a reproduction, from its records into one folder."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from carvyfl.core.files import write_text
from carvyfl.paper import records
from carvyfl.paper.exhibits import EXHIBITS, Content, caption, content
from carvyfl.paper.figures import Picture
from carvyfl.paper.markdown import markdown
from carvyfl.paper.numbers import as_text, numbers
from carvyfl.paper.published import PRESETS
from carvyfl.paper.summaries import frame
from carvyfl.paper.tables import OVERVIEW, overview
from carvyfl.paper.verdicts import Verdict, verdicts
from carvyfl.plots.draw import draw, png, save
from carvyfl.plots.figure import Cloud, Panel
from carvyfl.report import page
from carvyfl.report.charts import chart
from carvyfl.report.page import Html, Section

SHOWN = "reproduction"
"""The folder with pictures, tables and the report, beside the records."""
TITLE = "CARVY-FL: the paper and its reproduction"
VERDICT = [field.name for field in dataclasses.fields(Verdict)]


def present(folder: Path) -> Path:
    """Show the records of a folder.

    Reads ``PRESET.jsonl`` and writes beside it ``PRESET.json`` (our numbers in the
    layout of the paper's) for every preset with records, and into the folder
    ``reproduction`` pictures (SVG, PNG), tables (CSV), a Markdown page for every target,
    an overview, the verdicts, and one HTML report of it all.

    Returns
    -------
    Path
        The HTML report.
    """
    found = {preset: frame(records.load(folder / f"{preset}.jsonl")) for preset in PRESETS}
    judged = {preset: verdicts(trials) for preset, trials in found.items()}
    contents = {
        exhibit.target: [content(exhibit, trials, preset) for preset, trials in found.items()]
        for exhibit in EXHIBITS
    }
    for preset, trials in found.items():
        if len(trials):
            write_text(folder / f"{preset}.json", as_text(numbers(trials, preset)) + "\n")
    shown = folder / SHOWN
    for target, parts in contents.items():
        for part in parts:
            for picture in part.pictures:
                stem = shown / "figures" / f"{picture.name}-{part.preset}"
                drawing = draw(picture.panels, picture.columns)
                save(drawing, stem.with_suffix(".png"), stem.with_suffix(".svg"))
            for table in part.tables:
                write_text(shown / "tables" / f"{table.name}-{part.preset}.csv", table.csv())
        write_text(shown / f"{target}.md", "\n".join(map(_markdown, parts)))
    lines = overview(found)
    write_text(shown / "overview.md", markdown(OVERVIEW, lines, numbers=True))
    pages = []
    for preset, own in judged.items():
        body = [(v.claim, v.paper, v.ours, f"**{v.verdict}**", v.why) for v in own]
        pages.append(f"### Preset `{preset}`\n\n{markdown(VERDICT, body)}")
    write_text(shown / "verdicts.md", "\n".join(pages))
    listed = {preset: list(map(dataclasses.asdict, own)) for preset, own in judged.items()}
    write_text(shown / "verdicts.json", as_text(listed) + "\n")
    report = shown / "report.html"
    write_text(report, _report(lines, judged, contents))
    return report


def _markdown(shown: Content) -> str:
    """Return the Markdown page of what one preset has to show of a target."""
    parts = [f"### Preset `{shown.preset}`"]
    for picture in shown.pictures:
        address = f"{SHOWN}/figures/{picture.name}-{shown.preset}.svg"
        parts += [f"![{picture.title}]({address})", f"*{picture.title}.* {caption(picture)}"]
    for table in shown.tables:
        parts += [f"**{table.title}**", table.markdown().rstrip(), caption(table)]
    if shown.missing:
        parts.append(shown.missing)
    return "\n\n".join(parts) + "\n"


def _report(
    lines: Sequence[Sequence[str]],
    judged: Mapping[str, Sequence[Verdict]],
    contents: Mapping[str, Sequence[Content]],
) -> str:
    """Return the overview, the verdicts and what there is to show as one HTML document."""

    def by_preset(bodies: Mapping[str, Html]) -> tuple[Section, ...]:
        return tuple(Section(f"Preset {preset}", body) for preset, body in bodies.items())

    claims = {
        preset: page.table(VERDICT, list(map(dataclasses.astuple, own)))
        for preset, own in judged.items()
    }
    sections = [
        Section("Overview", page.table(OVERVIEW, lines)),
        Section("The paper's claims", Html(""), by_preset(claims)),
    ]
    for exhibit in EXHIBITS:
        shown = {own.preset: _html(own) for own in contents[exhibit.target]}
        sections.append(Section(exhibit.title, Html(""), by_preset(shown)))
    subtitle = "Our numbers beside the paper's: with its own settings, and with our default ones."
    return page.page(TITLE, sections, subtitle=subtitle)


def _html(shown: Content) -> Html:
    """Return hoverable figures and tables of what one preset has to show of a target."""
    if shown.missing:
        return page.paragraph(shown.missing, kind="note")
    pieces = [_picture(picture) for picture in shown.pictures]
    for table in shown.tables:
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
