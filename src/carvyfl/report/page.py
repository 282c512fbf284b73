"""A self-contained HTML page of titled sections: no file, font or script from elsewhere.

All text goes through :func:`escape` unless it is :class:`Html` already, and the page's
Content-Security-Policy lets no script run but the page's own, and nothing be fetched.
"""

from __future__ import annotations

import base64
import hashlib
import html
import importlib.resources
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from carvyfl.plots.style import PALETTE, text_colour


class Html(str):
    """Text that is HTML already; every other string is escaped before it enters a page."""

    __slots__ = ()


Cell = str | int | float | None
"""What a table takes: None is shown as a dash, a float with one decimal place."""


_NUMBER = re.compile(r"[-−+]?\d|–$")


@dataclass(frozen=True)
class Section:
    """A titled part of a page.

    Attributes
    ----------
    title
        Its heading, as plain text; it also stands in the page's table of contents.
    html
        What comes below the heading.
    parts
        Sections inside this one, after ``html``.
    """

    title: str
    html: Html
    parts: tuple[Section, ...] = ()


def escape(text: str) -> Html:
    """Return text as HTML that shows it; HTML is returned as it is."""
    return text if isinstance(text, Html) else Html(html.escape(text))


def join(*pieces: str) -> Html:
    """Put pieces one after another, plain text escaped."""
    return Html("".join(map(escape, pieces)))


def paragraph(text: str, *, kind: str = "") -> Html:
    """Return a paragraph.

    Parameters
    ----------
    text
        Plain text or HTML.
    kind
        "note", "good" or "alarm" for a paragraph that stands out.
    """
    return Html(f'<p class="{kind}">{escape(text)}</p>' if kind else f"<p>{escape(text)}</p>")


def cell_text(cell: Cell) -> Html:
    """Return a table cell's text: a dash for None, one decimal place for a float."""
    if cell is None:
        return Html("–")
    if isinstance(cell, str):
        return escape(cell)
    return Html(f"{cell:.1f}" if isinstance(cell, float) else str(cell))


def table(
    head: Sequence[str],
    rows: Iterable[Sequence[Cell]],
    *,
    caption: str = "",
    places: Sequence[float] | None = None,
) -> Html:
    """Return a table that scrolls by itself where it is wider than the screen.

    Parameters
    ----------
    head
        The names of the columns.
    rows
        As many cells each; the first one names the row. A column of numbers, or of texts
        that begin with one, is aligned to the right.
    caption
        What the table shows, for people and screen readers.
    places
        For a chart's table: where each row lies in the drawing.
    """
    texts = [[cell_text(cell) for cell in cells] for cells in rows]
    right = [all(_NUMBER.match(text) for text in column) for column in zip(*texts, strict=True)]
    marks = [" class=n" if numeric else "" for numeric in right] or [""] * len(head)
    lines = []
    for position, (first, *others) in enumerate(texts):
        place = "" if places is None else f' data-x="{places[position]:.1f}"'
        cells = (f"<td{m}>{text}</td>" for m, text in zip(marks[1:], others, strict=True))
        lines.append(f'<tr{place}><th scope="row"{marks[0]}>{first}</th>{"".join(cells)}</tr>')
    titles = (
        f'<th scope="col"{m}>{escape(title)}</th>' for m, title in zip(marks, head, strict=True)
    )
    above = f"<caption>{escape(caption)}</caption>" if caption else ""
    name = escape(caption or ", ".join(head))
    return Html(
        f'<div class="wide" tabindex="0" role="region" aria-label="{name}"><table>{above}'
        f"<thead><tr>{''.join(titles)}</tr></thead>"
        f"<tbody>{''.join(lines)}</tbody></table></div>"
    )


def beside(pieces: Iterable[Html]) -> Html:
    """Return pieces side by side, or one below the other where there is no room."""
    return Html(f'<div class="beside">{"".join(pieces)}</div>')


def items(pieces: Iterable[str], kind: str = "") -> Html:
    """Return a list, plain text escaped; its kind is a class of the style sheet."""
    entries = "".join(f"<li>{escape(piece)}</li>" for piece in pieces)
    return Html(f'<ul class="{kind}">{entries}</ul>' if kind else f"<ul>{entries}</ul>")


def heading(text: str) -> Html:
    """Return a heading inside a section."""
    return Html(f"<h4>{escape(text)}</h4>")


def folded(summary: str, content: Html) -> Html:
    """Return content that is opened by a click."""
    return Html(f"<details><summary>{escape(summary)}</summary>{content}</details>")


def image(png: bytes, description: str) -> Html:
    """Return a PNG picture as part of the page."""
    data = base64.b64encode(png).decode()
    return Html(f'<img src="data:image/png;base64,{data}" alt="{escape(description)}">')


def page(title: str, sections: Sequence[Section], *, subtitle: str = "") -> str:
    """Return a whole page as one HTML document.

    Parameters
    ----------
    title, subtitle
        Plain text for the head of the page.
    sections
        The page's content, in order; a table of contents is put before it.
    """
    style, script = _asset("page.css") + _tile_colours(), _asset("page.js")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = (
        f"default-src 'none'; script-src 'sha256-{digest}'; style-src 'unsafe-inline'; "
        "img-src data:; base-uri 'none'; form-action 'none'"
    )
    names = [(f"s{number}", section) for number, section in enumerate(sections, 1)]
    below = f'<p class="subtitle">{escape(subtitle)}</p>' if subtitle else ""
    return _defined_once(
        f'<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>{style}</style>\n</head>\n<body>\n"
        f"<header><h1>{escape(title)}</h1>{below}</header>\n"
        f'<nav aria-label="Contents">{_contents(names)}</nav>\n'
        f"<main>\n{''.join(_section(name, section, 2) for name, section in names)}</main>\n"
        f"<script>{script}</script>\n</body>\n</html>\n"
    )


def _tile_colours() -> str:
    """Return the style sheet's part on the palette: classes t0, t1, … for tiles."""
    return "".join(
        f".t{number} {{ background: {colour}; color: {text_colour(colour)}; }}\n"
        for number, colour in enumerate(PALETTE)
    )


def _defined_once(text: str) -> str:
    """Keep the first of equal definitions in drawings, whose ids hold for the whole page."""
    seen: set[str] = set()

    def once(found: re.Match[str]) -> str:
        repeated = found[0] in seen
        seen.add(found[0])
        return "" if repeated else found[0]

    return re.sub("<defs>.*?</defs>", once, text)


def _asset(name: str) -> str:
    folder = importlib.resources.files("carvyfl.report").joinpath("assets")
    return folder.joinpath(name).read_text(encoding="utf-8")


def _parts(name: str, section: Section) -> list[tuple[str, Section]]:
    return [(f"{name}-{number}", part) for number, part in enumerate(section.parts, 1)]


def _contents(names: Sequence[tuple[str, Section]]) -> Html:
    return items(
        Html(
            f'<a href="#{name}">{escape(section.title)}</a>'
            f"{_contents(_parts(name, section)) if section.parts else ''}"
        )
        for name, section in names
    )


def _section(name: str, section: Section, level: int) -> Html:
    inner = "".join(_section(*part, level + 1) for part in _parts(name, section))
    return Html(
        f'<section id="{name}" class="level{level}">\n'
        f"<h{level}>{escape(section.title)}</h{level}>\n{section.html}\n{inner}</section>\n"
    )
