"""Charts as inline SVG: lines with bands, and bars; every one with its numbers in a table.

The table is the one home of a chart's numbers: people unfold it, screen readers read
it, and the page's script shows the row nearest to the pointer. A row's ``data-x`` is its
place in the drawing. Curves differ by colour, dashes and marker, never by colour alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from carvyfl.report.page import Html, escape, folded, table
from carvyfl.report.plots import style

WIDTH, HEIGHT = 640, 320
LEFT, RIGHT, TOP, BOTTOM = 54, 18, 12, 34  # room for the axes' numbers, in the drawing's units
_MARKED = 40  # curves with more points are drawn without markers

# Okabe and Ito's palette without its yellow, which is too pale for lines on white.
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#000000", "#E69F00", "#56B4E9")
DASHES = {
    "o": "",
    "s": "9 4",
    "^": "3 3",
    "D": "12 4 3 4",
    "x": "6 3",
    "v": "14 5",
    "p": "2 5",
    "h": "10 3 2 3 2 3",
}
"""The dashes that go with each marker; markers are named as in matplotlib."""


@dataclass(frozen=True)
class Look:
    """How a curve is drawn.

    Attributes
    ----------
    colour
        As in CSS.
    marker
        A key of :data:`DASHES`.
    dash
        Lengths of dashes and gaps as in SVG; empty for a continuous line.
    """

    colour: str
    marker: str
    dash: str


def method_look(method: str) -> tuple[str, Look]:
    """Return a method's name in print, and how its curves are drawn."""
    title, colour, marker = style(method)
    return title, Look(colour, marker, DASHES[marker])


def look(position: int) -> Look:
    """Return a look for the curve at this position; the first 64 differ without their colour."""
    markers, dashes = list(DASHES), list(DASHES.values())
    turn, place = divmod(position, len(markers))
    dash = dashes[(place + turn) % len(dashes)]
    return Look(_COLOURS[position % len(_COLOURS)], markers[place], dash)


@dataclass(frozen=True)
class Curve:
    """A line of a chart.

    Attributes
    ----------
    name
        Plain text for the legend and the table.
    x, y
        The points, x ascending; NaN in y leaves a gap.
    low, high
        A band around the line (spread, interval), as many values as ``y``; or None.
    look
        How it is drawn; None takes :func:`look` of its position.
    """

    name: str
    x: Sequence[float]
    y: Sequence[float]
    low: Sequence[float] | None = None
    high: Sequence[float] | None = None
    look: Look | None = None


@dataclass(frozen=True)
class Bar:
    """A bar of a histogram.

    Attributes
    ----------
    start, stop
        Where it stands on the x axis.
    height
        A count, or any number from 0 up.
    name
        What it counts, for the table.
    striped
        Whether it belongs to the second kind, which is drawn striped.
    """

    start: float
    stop: float
    height: float
    name: str
    striped: bool = False


@dataclass(frozen=True)
class _Frame:
    """The drawing area: data ranges and their mapping to the drawing's units."""

    x_low: float
    x_high: float
    y_low: float
    y_high: float

    def x(self, value: float) -> float:
        share = (value - self.x_low) / (self.x_high - self.x_low)
        return LEFT + share * (WIDTH - LEFT - RIGHT)

    def y(self, value: float) -> float:
        share = (value - self.y_low) / (self.y_high - self.y_low)
        return HEIGHT - BOTTOM - share * (HEIGHT - TOP - BOTTOM)


def line_chart(
    curves: Sequence[Curve],
    *,
    title: str,
    x_label: str,
    y_label: str,
    y_range: tuple[float, float] | None = None,
    faint: Iterable[tuple[Sequence[float], Sequence[float]]] = (),
) -> Html:
    """Draw curves with bands.

    Parameters
    ----------
    curves
        At least one, with at least one point.
    title
        What is shown; the chart's name for screen readers, and its caption.
    x_label, y_label
        The axes, with units.
    y_range
        Both ends of the y axis; None fits the data.
    faint
        The points (x, y) of thin grey lines behind the curves, without name and numbers.
    """
    behind = list(faint)
    dressed = [(curve, curve.look or look(position)) for position, curve in enumerate(curves)]
    frame = _frame_of(curves, behind, y_range)
    drawn = [_path(frame, x, y, 'class="faint"') for x, y in behind]
    drawn += [_band(frame, curve, own) for curve, own in dressed]
    drawn += [_line(frame, curve, own) for curve, own in dressed]
    legend = [(_swatch(own), curve.name) for curve, own in dressed]
    xs = sorted({x for curve in curves for x in curve.x})
    texts = [_texts(curve) for curve in curves]
    rows = [[_plain(x), *(text.get(x) for text in texts)] for x in xs]
    head = [x_label, *(curve.name for curve in curves)]
    numbers = table(head, rows, places=[frame.x(x) for x in xs])
    return _figure(title, frame, drawn, legend, x_label, y_label, numbers)


def bar_chart(
    bars: Sequence[Bar], *, title: str, x_label: str, y_label: str, kinds: tuple[str, str]
) -> Html:
    """Draw a histogram.

    Parameters
    ----------
    bars
        At least one, from left to right.
    title, x_label, y_label
        As in :func:`line_chart`.
    kinds
        What the plain bars and the striped bars are, for the legend.
    """
    top = _ticks(0, max(1.0, *(bar.height for bar in bars)))[-1]
    frame = _Frame(bars[0].start, bars[-1].stop, 0, top)
    drawn = []
    for bar in bars:
        left, right, height = frame.x(bar.start), frame.x(bar.stop), frame.y(bar.height)
        place = f'x="{left + 0.5:.1f}" y="{height:.1f}" width="{max(right - left - 1, 0.5):.1f}"'
        tall = HEIGHT - BOTTOM - height
        kind = "bar striped" if bar.striped else "bar"
        drawn.append(f'<rect class="{kind}" {place} height="{tall:.1f}"/>')
        if bar.striped:
            edges = range(6, int(tall) + 1, 6)  # stripes from the foot of the bar upwards
            lines = (f"M{left + 0.5:.1f} {HEIGHT - BOTTOM - e}H{right - 0.5:.1f}" for e in edges)
            drawn.append(f'<path class="stripes" d="{"".join(lines)}"/>')
    squares = [f'<rect class="{kind}" x="6" y="1" width="20" height="12"/>' for kind in _BARS]
    squares[1] += '<path class="stripes" d="M6 5H26M6 9H26"/>'
    legend = [
        (Html(square), name)
        for square, name, striped in zip(squares, kinds, (False, True), strict=True)
        if any(bar.striped == striped for bar in bars)
    ]
    rows = [[bar.name, kinds[bar.striped], _plain(bar.height)] for bar in bars]
    middles = [frame.x((bar.start + bar.stop) / 2) for bar in bars]
    numbers = table([x_label, "kind", y_label], rows, places=middles)
    return _figure(title, frame, drawn, legend, x_label, y_label, numbers)


_BARS = ("bar", "bar striped")


def _frame_of(
    curves: Sequence[Curve],
    behind: Sequence[tuple[Sequence[float], Sequence[float]]],
    y_range: tuple[float, float] | None,
) -> _Frame:
    xs = [x for curve in curves for x in curve.x]
    x_low, x_high = min(xs), max(xs)
    if x_low == x_high:
        x_high = x_low + 1
    if y_range is None:
        found = [curve.y for curve in curves] + [y for _, y in behind]
        found += [side for curve in curves for side in (curve.low, curve.high) if side is not None]
        values = [value for line in found for value in line if math.isfinite(value)] or [0.0]
        low, high = min(values), max(values)
        steps = _ticks(low, high if high > low else low + 1)
        y_range = (steps[0], steps[-1])
    return _Frame(x_low, x_high, *y_range)


def _ticks(low: float, high: float, *, whole: bool = False, inside: bool = False) -> list[float]:
    """Return round numbers that cover the range, or those inside of it."""
    from matplotlib.ticker import MaxNLocator

    steps = [float(step) for step in MaxNLocator(6, integer=whole).tick_values(low, high)]
    slack = 1e-9 * (high - low)
    return [s for s in steps if low - slack <= s <= high + slack] if inside else steps


def _plain(value: float) -> str:
    """Write a number without needless decimals."""
    return f"{value:g}" if abs(value) < 1e6 else f"{value:.0f}"


def _texts(curve: Curve) -> dict[float, str]:
    found = {}
    for position, (x, y) in enumerate(zip(curve.x, curve.y, strict=True)):
        if math.isfinite(y):
            found[x] = f"{y:.1f}"
            if curve.low is not None and curve.high is not None:
                found[x] += f" ({curve.low[position]:.1f}–{curve.high[position]:.1f})"
    return found


def _pieces(
    frame: _Frame, x: Sequence[float], y: Sequence[float]
) -> list[list[tuple[float, float]]]:
    """Split a line at its gaps, in the drawing's units."""
    pieces: list[list[tuple[float, float]]] = [[]]
    for a, b in zip(x, y, strict=True):
        if math.isfinite(b):
            pieces[-1].append((frame.x(a), frame.y(b)))
        elif pieces[-1]:
            pieces.append([])
    return [piece for piece in pieces if piece]


def _path(frame: _Frame, x: Sequence[float], y: Sequence[float], attributes: str) -> str:
    steps = ("M" + "L".join(f"{a:.1f} {b:.1f}" for a, b in part) for part in _pieces(frame, x, y))
    return f'<path {attributes} d="{"".join(steps)}"/>'


def _band(frame: _Frame, curve: Curve, own: Look) -> str:
    if curve.low is None or curve.high is None:
        return ""
    lower = _pieces(frame, curve.x, curve.low)
    upper = _pieces(frame, curve.x, curve.high)
    outline = (
        "M" + "L".join(f"{a:.1f} {b:.1f}" for a, b in [*up, *reversed(down)]) + "Z"
        for up, down in zip(upper, lower, strict=True)
    )
    return f'<path class="band" fill="{own.colour}" d="{"".join(outline)}"/>'


def _line(frame: _Frame, curve: Curve, own: Look) -> str:
    dash = f' stroke-dasharray="{own.dash}"' if own.dash else ""
    line = _path(frame, curve.x, curve.y, f'class="line" stroke="{own.colour}"{dash}')
    points = [point for part in _pieces(frame, curve.x, curve.y) for point in part]
    if len(points) > _MARKED:
        return line
    return line + "".join(_marker(own, x, y) for x, y in points)


_SHAPES: dict[str, Callable[[float, float], str]] = {
    "o": lambda x, y: f"M{x - 4:.1f} {y:.1f}a4 4 0 1 0 8 0a4 4 0 1 0 -8 0Z",
    "s": lambda x, y: f"M{x - 3.5:.1f} {y - 3.5:.1f}h7v7h-7Z",
    "^": lambda x, y: f"M{x:.1f} {y - 4.5:.1f}l4.5 8h-9Z",
    "v": lambda x, y: f"M{x:.1f} {y + 4.5:.1f}l4.5 -8h-9Z",
    "p": lambda x, y: f"M{x:.1f} {y - 4.5:.1f}l4.3 3.1l-1.7 5.1h-5.2l-1.7 -5.1Z",
    "h": lambda x, y: f"M{x:.1f} {y - 4.5:.1f}l3.9 2.2v4.6l-3.9 2.2l-3.9 -2.2v-4.6Z",
    "D": lambda x, y: f"M{x:.1f} {y - 4.8:.1f}l4.8 4.8l-4.8 4.8l-4.8 -4.8Z",
    "x": lambda x, y: f"M{x - 4:.1f} {y - 4:.1f}l8 8m0 -8l-8 8",
}


def _marker(own: Look, x: float, y: float) -> str:
    paint = f'stroke="{own.colour}" stroke-width="2"' if own.marker == "x" else ""
    return f'<path d="{_SHAPES[own.marker](x, y)}" fill="{own.colour}" {paint}/>'


def _swatch(own: Look) -> Html:
    dash = f' stroke-dasharray="{own.dash}"' if own.dash else ""
    line = f'<path class="line" stroke="{own.colour}"{dash} d="M0 7H32"/>'
    return Html(line + _marker(own, 16, 7))


def _axes(frame: _Frame) -> str:
    drawn = []
    for y in _ticks(frame.y_low, frame.y_high, inside=True):
        at = f"{frame.y(y):.1f}"
        drawn.append(f'<path class="grid" d="M{LEFT} {at}H{WIDTH - RIGHT}"/>')
        drawn.append(f'<text class="y" x="{LEFT - 8}" y="{at}">{_plain(y)}</text>')
    for x in _ticks(frame.x_low, frame.x_high, whole=True, inside=True):
        at = f"{frame.x(x):.1f}"
        drawn.append(f'<path class="tick" d="M{at} {HEIGHT - BOTTOM}v5"/>')
        drawn.append(f'<text class="x" x="{at}" y="{HEIGHT - BOTTOM + 9}">{_plain(x)}</text>')
    drawn.append(f'<path class="axis" d="M{LEFT} {HEIGHT - BOTTOM}H{WIDTH - RIGHT}"/>')
    return "".join(drawn)


def _figure(
    title: str,
    frame: _Frame,
    drawn: Sequence[str],
    legend: Sequence[tuple[Html, str]],
    x_label: str,
    y_label: str,
    numbers: Html,
) -> Html:
    entries = "".join(
        f'<li><svg viewBox="0 0 32 14" aria-hidden="true">{picture}</svg>{escape(name)}</li>'
        for picture, name in legend
    )
    name = escape(f"{title}. The arrow keys step through its values.")
    guide = f'<path class="guide" d="M0 {TOP}V{HEIGHT - BOTTOM}" visibility="hidden"/>'
    return Html(
        f'<figure class="chart"><figcaption>{escape(title)}</figcaption>'
        f'<ul class="legend">{entries}</ul><p class="axis-name">{escape(y_label)}</p>'
        f'<div class="plot" tabindex="0" role="group" aria-label="{name}">'
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" aria-hidden="true">'
        f"{_axes(frame)}{''.join(drawn)}{guide}</svg>"
        f'<div class="tip" role="status" hidden></div></div>'
        f'<p class="axis-name below">{escape(x_label)}</p>'
        f"{folded('The numbers', numbers)}</figure>"
    )
