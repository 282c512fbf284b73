"""Everything that is shown of a reproduction, from its records into one folder."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from carvyfl.core.files import write_text
from carvyfl.plots.draw import draw, encoded, save
from carvyfl.plots.figure import Panel
from carvyfl.report import page
from carvyfl.report.page import Html, Section
from reproduction import records
from reproduction.exhibits import EXHIBITS, OVERVIEW, Picture, Table, overview, shown
from reproduction.markdown import markdown
from reproduction.numbers import as_text, numbers
from reproduction.panels import Cloud
from reproduction.published import PRESETS
from reproduction.summaries import frame
from reproduction.verdicts import Verdict, verdicts

SHOWN = "reproduction"
"""The folder with pictures, tables and the report, beside the records."""
TITLE = "CARVY-FL: the paper and its reproduction"
VERDICT = [field.name for field in dataclasses.fields(Verdict)]

Shown = Mapping[str, Sequence[Picture | Table]]
"""Preset → what there is to show of a target."""


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
    for preset, trials in found.items():
        if len(trials):
            write_text(folder / f"{preset}.json", as_text(numbers(trials, preset)) + "\n")
    out = folder / SHOWN
    contents: dict[str, Shown] = {}
    for target in EXHIBITS:
        contents[target] = {preset: shown(target, trials) for preset, trials in found.items()}
        for preset, parts in contents[target].items():
            for part in parts:
                if isinstance(part, Table):
                    write_text(out / "tables" / f"{part.name}-{preset}.csv", part.csv())
                else:
                    stem = out / "figures" / f"{part.name}-{preset}"
                    drawing = draw(part.panels, part.columns)
                    save(drawing, stem.with_suffix(".png"), stem.with_suffix(".svg"))
        pages = [_markdown(target, preset, parts) for preset, parts in contents[target].items()]
        write_text(out / f"{target}.md", "\n".join(pages))
    lines = overview(found)
    write_text(out / "overview.md", markdown(OVERVIEW, lines, numbers=True))
    judged = {preset: verdicts(trials) for preset, trials in found.items()}
    pages = []
    for preset, own in judged.items():
        body = [(v.claim, v.paper, v.ours, f"**{v.verdict}**", v.why) for v in own]
        pages.append(f"### Preset `{preset}`\n\n{markdown(VERDICT, body)}")
    write_text(out / "verdicts.md", "\n".join(pages))
    listed = {preset: list(map(dataclasses.asdict, own)) for preset, own in judged.items()}
    write_text(out / "verdicts.json", as_text(listed) + "\n")
    report = out / "report.html"
    write_text(report, _report(lines, judged, contents))
    return report


def _missing(target: str, preset: str) -> str:
    """Say how to get what there is not."""
    return f"not run yet: python -m reproduction {target} --preset {preset}"


def _markdown(target: str, preset: str, content: Sequence[Picture | Table]) -> str:
    """Return the Markdown page of what one preset has to show of a target."""
    parts = [f"### Preset `{preset}`"]
    for part in content:
        if isinstance(part, Table):
            parts += [f"**{part.title}**", part.markdown().rstrip(), part.caption]
        else:
            address = f"{SHOWN}/figures/{part.name}-{preset}.svg"
            parts += [f"![{part.title}]({address})", f"*{part.title}.* {part.caption}"]
    if not content:
        parts.append(_missing(target, preset))
    return "\n\n".join(parts) + "\n"


def _report(
    lines: Sequence[Sequence[str]],
    judged: Mapping[str, Sequence[Verdict]],
    contents: Mapping[str, Shown],
) -> str:
    """Return the overview, the verdicts and what there is to show as one HTML document."""

    def section(title: str, bodies: Mapping[str, Html]) -> Section:
        parts = tuple(Section(f"Preset {preset}", body) for preset, body in bodies.items())
        return Section(title, Html(""), parts)

    claims = {
        preset: page.table(VERDICT, list(map(dataclasses.astuple, own)))
        for preset, own in judged.items()
    }
    sections = [
        Section("Overview", page.table(OVERVIEW, lines)),
        section("The paper's claims", claims),
    ]
    for target, own in contents.items():
        bodies = {
            preset: page.join(*map(_html, parts))
            if parts
            else page.paragraph(_missing(target, preset), kind="note")
            for preset, parts in own.items()
        }
        sections.append(section(EXHIBITS[target][0], bodies))
    subtitle = "Our numbers beside the paper's: with its own settings, and with our default ones."
    return page.page(TITLE, sections, subtitle=subtitle)


def _html(part: Picture | Table) -> Html:
    """Return a figure, with its numbers unless it is a map of points, or a table."""
    if isinstance(part, Table):
        wide = part.wide()
        table = page.table(list(wide.columns), wide.to_numpy().tolist(), caption=part.title)
        return page.join(table, page.paragraph(part.caption, kind="note"))
    pieces = []
    clouds = [panel.title for panel in part.panels if isinstance(panel, Cloud)]
    if clouds:
        described = f"{part.title}: {'; '.join(clouds)}"
        pieces.append(page.image("png", encoded(draw(part.panels, part.columns), "png"), described))
    for panel in part.panels:
        if isinstance(panel, Panel) and panel.curves:
            pieces.append(page.chart(replace(panel, title=f"{part.title}: {panel.title}")))
    return page.join(*pieces, page.paragraph(f"{part.title}. {part.caption}", kind="note"))
