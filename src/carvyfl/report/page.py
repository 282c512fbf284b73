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
import string
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
    """A titled part of a page."""

    title: str
    """Its heading, as plain text; it also stands in the page's table of contents."""
    html: Html
    """What comes below the heading."""
    parts: tuple[Section, ...] = ()
    """Sections inside this one, after ``html``."""


def escape(text: str) -> Html:
    """Return text as HTML that shows it; HTML is returned as it is."""
    return text if isinstance(text, Html) else Html(html.escape(text))


def join(*pieces: str) -> Html:
    """Put pieces one after another, plain text escaped."""
    return Html("".join(map(escape, pieces)))


def element(name: str, *content: str, kind: str = "", **attributes: object) -> Html:
    """Return an element; text and attributes are escaped, and ``kind`` is its class."""
    named = {"class": kind, **attributes} if kind else attributes
    own = "".join(f' {k.replace("_", "-")}="{escape(str(v))}"' for k, v in named.items())
    return Html(f"<{name}{own}>{join(*content)}</{name}>")


def paragraph(text: str, *, kind: str = "") -> Html:
    """Return a paragraph; the kinds "note", "good" and "alarm" stand out."""
    return element("p", text, kind=kind)


def items(pieces: Iterable[str], kind: str = "") -> Html:
    """Return a list."""
    return element("ul", *(element("li", piece) for piece in pieces), kind=kind)


def folded(summary: str, content: Html) -> Html:
    """Return content that is opened by a click."""
    return element("details", element("summary", summary), content)


def image(png: bytes, description: str) -> Html:
    """Return a PNG picture as part of the page."""
    data = base64.b64encode(png).decode()
    return Html(f'<img src="data:image/png;base64,{data}" alt="{escape(description)}">')


def table(
    head: Sequence[str],
    rows: Iterable[Sequence[Cell]],
    *,
    caption: str = "",
    places: Sequence[float] | None = None,
) -> Html:
    """Return a table that scrolls by itself where it is wider than the screen.

    The first cell names its row. A column of numbers, or of texts that begin with one, is aligned
    to the right. ``caption`` says what the table shows, also to screen readers; ``places`` are,
    for a chart's table, where its rows lie in the drawing.
    """
    texts = [[_cell_text(cell) for cell in cells] for cells in rows]
    right = [all(map(_NUMBER.match, column)) for column in zip(*texts, strict=True)]
    kinds = ["n" if numeric else "" for numeric in right] or [""] * len(head)
    titles = (
        element("th", title, kind=kind, scope="col")
        for title, kind in zip(head, kinds, strict=True)
    )
    lines = []
    for position, (first, *others) in enumerate(texts):
        place = {} if places is None else {"data_x": f"{places[position]:.1f}"}
        cells = (element("td", text, kind=k) for text, k in zip(others, kinds[1:], strict=True))
        named = element("th", first, kind=kinds[0], scope="row")
        lines.append(element("tr", named, *cells, **place))
    above = element("caption", caption) if caption else ""
    return element(
        "div",
        element("table", above, element("thead", element("tr", *titles)), element("tbody", *lines)),
        kind="wide",
        tabindex=0,
        role="region",
        aria_label=caption or ", ".join(head),
    )


def _cell_text(cell: Cell) -> Html:
    if isinstance(cell, str):
        return escape(cell)
    if cell is None:
        return Html("–")
    return Html(f"{cell:.1f}" if isinstance(cell, float) else str(cell))


def page(title: str, sections: Sequence[Section], *, subtitle: str = "") -> str:
    """Return a whole page as one HTML document, with a table of contents before the sections."""
    script = _asset("page.js")
    colours = (
        f".t{number} {{ background: {colour}; color: {text_colour(colour)}; }}\n"
        for number, colour in enumerate(PALETTE)
    )  # of tiles
    numbered = _numbered("s", sections)
    return _defined_once(
        string.Template(_asset("page.html")).substitute(
            title=escape(title),
            subtitle=paragraph(subtitle, kind="subtitle") if subtitle else "",
            style=_asset("page.css") + "".join(colours),
            script=script,
            digest=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
            contents=_contents(numbered),
            sections=join(*(_section(name, section, 2) for name, section in numbered)),
        )
    )


def _asset(name: str) -> str:
    folder = importlib.resources.files("carvyfl.report").joinpath("assets")
    return folder.joinpath(name).read_text(encoding="utf-8")


def _defined_once(text: str) -> str:
    """Keep the first of equal definitions in drawings, whose ids hold for the whole page."""
    seen: set[str] = set()

    def once(found: re.Match[str]) -> str:
        repeated = found[0] in seen
        seen.add(found[0])
        return "" if repeated else found[0]

    return re.sub("<defs>.*?</defs>", once, text)


def _numbered(name: str, sections: Iterable[Section]) -> list[tuple[str, Section]]:
    return [(f"{name}{number}", section) for number, section in enumerate(sections, 1)]


def _contents(numbered: Iterable[tuple[str, Section]]) -> Html:
    return items(
        join(
            element("a", section.title, href=f"#{name}"),
            _contents(_numbered(f"{name}-", section.parts)) if section.parts else "",
        )
        for name, section in numbered
    )


def _section(name: str, section: Section, level: int) -> Html:
    inner = (_section(own, part, level + 1) for own, part in _numbered(f"{name}-", section.parts))
    title = element(f"h{level}", section.title)
    return element("section", title, section.html, *inner, id=name, kind=f"level{level}")
