"""Charts for a page: a drawing, its legend, and its numbers in a table.

A chart's numbers are in its table alone: people unfold it, screen readers read it, and the
page's script shows the row nearest to the pointer. A row's ``data-x`` is its place in the
drawing. Curves differ by colour, dashes and marker, never by colour alone.
"""

from __future__ import annotations

import math

from carvyfl.plots import draw
from carvyfl.plots.figure import Curve, Histogram, Panel
from carvyfl.plots.style import nth_style
from carvyfl.report.page import Cell, Html, element, folded, items, join, paragraph, table

_FOOT = draw.HEIGHT - draw.BOTTOM
_GUIDE = Html(f'<path class="guide" d="M0 {draw.TOP}V{_FOOT}" visibility="hidden"/>')


def chart(panel: Panel | Histogram) -> Html:
    """Return a panel as a chart whose values appear at the pointer and by the arrow keys.

    It has at least one curve with a point, or at least one bar. Its title is the chart's
    caption, and its name for screen readers.
    """
    rows: list[list[Cell]]
    if isinstance(panel, Panel):
        at = sorted({x for curve in panel.curves for x in curve.x})
        texts = [_texts(curve) for curve in panel.curves]
        rows = [[draw.plain(x), *(text.get(x) for text in texts)] for x in at]
        head = [panel.x_label, *(curve.name for curve in panel.curves)]
        styles = (curve.style or nth_style(place) for place, curve in enumerate(panel.curves))
        legend = list(zip(head[1:], map(draw.swatch, styles), strict=True))
    else:
        at = [(bar.start + bar.stop) / 2 for bar in panel.bars]
        rows = [[bar.name, panel.kinds[bar.striped], draw.plain(bar.height)] for bar in panel.bars]
        head = [panel.x_label, "kind", panel.y_label]
        kinds = sorted({bar.striped: bar for bar in panel.bars}.items())
        legend = [(panel.kinds[striped], draw.swatch(bar)) for striped, bar in kinds]
    drawing, places = draw.inline(panel, at)
    name = f"{panel.title}. The arrow keys step through its values."
    return element(
        "figure",
        element("figcaption", panel.title),
        items((join(_svg(own, *draw.SWATCH), name) for name, own in legend), "legend"),
        paragraph(panel.y_label, kind="axis-name"),
        element(
            "div",
            _svg(drawing + _GUIDE, draw.WIDTH, draw.HEIGHT),
            Html('<div class="tip" role="status" hidden></div>'),
            kind="plot",
            tabindex=0,
            role="group",
            aria_label=name,
        ),
        paragraph(panel.x_label, kind="axis-name below"),
        folded("The numbers", table(head, rows, places=places)),
        kind="chart",
    )


def _svg(content: str, width: int, height: int) -> Html:
    return Html(f'<svg viewBox="0 0 {width} {height}" aria-hidden="true">{content}</svg>')


def _texts(curve: Curve) -> dict[float, str]:
    found = {}
    for position, (x, y) in enumerate(zip(curve.x, curve.y, strict=True)):
        if math.isfinite(y):
            found[x] = f"{y:.1f}"
            if curve.low is not None and curve.high is not None:
                found[x] += f" ({curve.low[position]:.1f}–{curve.high[position]:.1f})"
    return found
