"""A self-contained HTML page of titled sections: nothing is fetched, and no script runs.

Pages are jinja2 templates. All text is escaped unless it is :data:`Html` already, and the page's
Content-Security-Policy lets nothing run and nothing be fetched.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from carvyfl.plots.draw import MANY, draw, encoded
from carvyfl.plots.figure import Panel, Shares

Html = Markup
"""Text that is HTML already; every other string is escaped before it enters a page."""

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


def page(title: str, sections: Sequence[Section], *, subtitle: str = "") -> str:
    """Return a whole page as one HTML document, with a table of contents before the sections."""
    return str(render("page.html", title=title, subtitle=subtitle, sections=sections))


def render(template: str, **values: object) -> Html:
    """Return a template of the folder ``assets`` filled with values, plain text escaped."""
    return Html(_TEMPLATES.get_template(template).render(values))


def join(*pieces: str) -> Html:
    """Put pieces one after another, plain text escaped."""
    return Html("").join(pieces)


def paragraph(text: str, *, kind: str = "") -> Html:
    """Return a paragraph; the kinds "note", "good" and "alarm" stand out."""
    return Html('<p class="{}">{}</p>').format(kind, text)


def image(kind: str, content: bytes, description: str) -> Html:
    """Return a picture, of the kind "png" or "svg+xml", as part of the page."""
    data = base64.b64encode(content).decode()
    return Html('<img src="data:image/{};base64,{}" alt="{}">').format(kind, data, description)


def table(head: Sequence[str], rows: Iterable[Sequence[Cell]], *, caption: str = "") -> Html:
    """Return a table that scrolls by itself where it is wider than the screen.

    The first cell names its row. A column of numbers, or of texts that begin with one, is aligned
    to the right. ``caption`` says what the table shows, also to screen readers.
    """
    texts = [[_text(cell) for cell in cells] for cells in rows]
    numeric = [all(map(_NUMBER.match, column)) for column in zip(*texts, strict=True)]
    kinds = ["n" if right else "" for right in numeric] or [""] * len(head)
    return render("table.html", head=head, rows=texts, kinds=kinds, caption=caption)


def _text(cell: Cell) -> str:
    if cell is None:
        return "–"
    if isinstance(cell, str):
        return cell
    return f"{cell:.1f}" if isinstance(cell, float) else f"{cell}"


def chart(panel: Panel | Shares) -> Html:
    """Return a panel as a chart with its values in a table that can be unfolded.

    It has at least one curve with a point, or at least one bar.
    """
    inches, places = (10.0, 3.0), set()
    if isinstance(panel, Panel):
        below = len(panel.curves) if len(panel.curves) > MANY else 0
        inches = (5.3, 3.5 + 0.1 * below)  # can be read on a phone
        places = {x for curve in panel.curves for x in curve.x}
    svg = encoded(draw([replace(panel, title="")], inches=inches), "svg", transparent=True)
    picture = image("svg+xml", svg, f"{panel.title}: the numbers are in the table below")
    return render("chart.html", panel=panel, image=picture, places=sorted(places))


_TEMPLATES = Environment(
    loader=PackageLoader("carvyfl.report", "assets"),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
_TEMPLATES.globals |= {"table": table, "chart": chart, "image": image}
