"""Everything that is shown of a reproduction, from its records into one folder."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path

from carvyfl.core.files import write_text
from carvyfl.paper import records
from carvyfl.paper.exhibits import EXHIBITS, Content, caption, content
from carvyfl.paper.numbers import as_text, numbers
from carvyfl.paper.overview import HEAD, overview
from carvyfl.paper.page import reproduction_page
from carvyfl.paper.published import PRESETS
from carvyfl.paper.summaries import frame
from carvyfl.paper.tables import markdown
from carvyfl.paper.verdicts import Verdict, verdicts
from carvyfl.plots.draw import draw, save

SHOWN = "reproduction"
"""The folder with pictures, tables and the report, beside the records."""


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
    write_text(shown / "overview.md", markdown(HEAD, lines))
    write_text(shown / "verdicts.md", _verdicts_markdown(judged))
    listed = {preset: [dataclasses.asdict(v) for v in all_of] for preset, all_of in judged.items()}
    write_text(shown / "verdicts.json", as_text(listed) + "\n")
    report = shown / "report.html"
    write_text(report, reproduction_page(lines, judged, contents))
    return report


def _markdown(shown: Content) -> str:
    parts = [f"### Preset `{shown.preset}`"]
    for picture in shown.pictures:
        address = f"{SHOWN}/figures/{picture.name}-{shown.preset}.svg"
        parts += [f"![{picture.title}]({address})", f"*{picture.title}.* {caption(picture)}"]
    for table in shown.tables:
        parts += [f"**{table.title}**", table.markdown().rstrip(), caption(table)]
    if shown.missing:
        parts.append(shown.missing)
    return "\n\n".join(parts) + "\n"


def _verdicts_markdown(judged: Mapping[str, Sequence[Verdict]]) -> str:
    parts = []
    for preset, found in judged.items():
        lines = ["| claim | paper | ours | verdict | why |", "|---|---|---|---|---|"]
        lines += [
            f"| {v.claim} | {v.paper} | {v.ours} | **{v.verdict}** | {v.why} |" for v in found
        ]
        parts += [f"### Preset `{preset}`", "\n".join(lines)]
    return "\n\n".join(parts) + "\n"
