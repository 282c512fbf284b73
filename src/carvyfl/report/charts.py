"""Charts for a page: a drawing, its legend, and its numbers in a table.

A chart's numbers are in its table alone: people unfold it, screen readers read it, and the
page's script shows the row nearest to the pointer. A row's ``data-x`` is its place in the
drawing. Curves differ by colour, dashes and marker, never by colour alone.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from carvyfl.plots import draw
from carvyfl.plots.figure import Curve, Histogram, Panel
from carvyfl.plots.style import nth_style
from carvyfl.report.page import Cell, Html, escape, folded, items, table


def chart(panel: Panel | Histogram) -> Html:
    """Return a panel as a chart whose values appear at the pointer and by the arrow keys.

    Parameters
    ----------
    panel
        With at least one curve with a point, or at least one bar. Its title is the chart's
        caption, and its name for screen readers.
    """
    return _line_chart(panel) if isinstance(panel, Panel) else _bar_chart(panel)


def _line_chart(panel: Panel) -> Html:
    xs = sorted({x for curve in panel.curves for x in curve.x})
    texts = [_texts(curve) for curve in panel.curves]
    rows = [[draw.plain(x), *(text.get(x) for text in texts)] for x in xs]
    legend = [
        (draw.swatch(curve.style or nth_style(position)), curve.name)
        for position, curve in enumerate(panel.curves)
    ]
    return _figure(panel, legend, [panel.x_label, *(c.name for c in panel.curves)], rows, xs)


def _bar_chart(panel: Histogram) -> Html:
    rows = [[bar.name, panel.kinds[bar.striped], draw.plain(bar.height)] for bar in panel.bars]
    first = {bar.striped: bar for bar in reversed(panel.bars)}  # of each kind
    legend = [(draw.swatch(first[kind]), panel.kinds[kind]) for kind in sorted(first)]
    middles = [(bar.start + bar.stop) / 2 for bar in panel.bars]
    return _figure(panel, legend, [panel.x_label, "kind", panel.y_label], rows, middles)


def _texts(curve: Curve) -> dict[float, str]:
    found = {}
    for position, (x, y) in enumerate(zip(curve.x, curve.y, strict=True)):
        if math.isfinite(y):
            found[x] = f"{y:.1f}"
            if curve.low is not None and curve.high is not None:
                found[x] += f" ({curve.low[position]:.1f}–{curve.high[position]:.1f})"
    return found


def _figure(
    panel: Panel | Histogram,
    legend: Iterable[tuple[str, str]],
    head: Sequence[str],
    rows: Iterable[Sequence[Cell]],
    at: Sequence[float],
) -> Html:
    drawing, places = draw.inline(panel, at)
    box = "0 0 {} {}".format(*draw.SWATCH)
    entries = (
        Html(f'<svg viewBox="{box}" aria-hidden="true">{picture}</svg>{escape(name)}')
        for picture, name in legend
    )
    name = escape(f"{panel.title}. The arrow keys step through its values.")
    foot = draw.HEIGHT - draw.BOTTOM
    return Html(
        f'<figure class="chart"><figcaption>{escape(panel.title)}</figcaption>'
        f'{items(entries, "legend")}<p class="axis-name">{escape(panel.y_label)}</p>'
        f'<div class="plot" tabindex="0" role="group" aria-label="{name}">'
        f'<svg viewBox="0 0 {draw.WIDTH} {draw.HEIGHT}" aria-hidden="true">{drawing}'
        f'<path class="guide" d="M0 {draw.TOP}V{foot}" visibility="hidden"/></svg>'
        f'<div class="tip" role="status" hidden></div></div>'
        f'<p class="axis-name below">{escape(panel.x_label)}</p>'
        f"{folded('The numbers', table(head, rows, places=places))}</figure>"
    )
