"""Draw figures with matplotlib, as files and as bytes for a page.

The same values give the same bytes. Nothing else in the package imports matplotlib.
"""

from __future__ import annotations

import functools
import io
import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from carvyfl.core.errors import CarvyError
from carvyfl.core.files import replacing
from carvyfl.plots.figure import Panel, Shares
from carvyfl.plots.style import PALETTE, nth_style

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Drawing

MANY = 6  # the legend of more curves stands below them, and needs room
_DPI = 120  # of a PNG file
_MARKED = 40  # curves with more points are drawn without markers
_APART = 60  # more bars than this are drawn without gaps
_NAMED = 12  # more parts than this get no legend
# Text stays text: smaller files, and it can be searched. The salt makes ids the same every time.
_STYLE: dict[Any, Any] = {"svg.hashsalt": "carvyfl", "svg.fonttype": "none"}
_STYLE |= {"lines.linewidth": 1.4, "lines.markersize": 4}
_STYLE |= {"axes.titlesize": "medium", "legend.fontsize": 9}
# Nothing that tells when, or by which version, a file was written.
_METADATA: dict[str, Any] = {"png": {"Software": None}, "pdf": {"CreationDate": None}}
_METADATA |= {"svg": {"Date": None, "Creator": None}}


def draw(
    panels: Sequence[Any], columns: int = 1, inches: tuple[float, float] = (5.4, 3.7)
) -> Drawing:
    """Draw panels that :func:`paint` knows, each of a size in inches, in rows of ``columns``."""
    import matplotlib
    from matplotlib.figure import Figure as Drawing

    columns = min(columns, len(panels))
    rows = -(-len(panels) // columns)
    with matplotlib.rc_context(_STYLE):
        size = (inches[0] * columns, inches[1] * rows)
        drawing = Drawing(figsize=size, dpi=72, layout="constrained")  # a pixel is an SVG unit
        for position, panel in enumerate(panels, start=1):
            axes = drawing.add_subplot(rows, columns, position)
            axes.set_title(panel.title)
            paint(panel, axes)
    return drawing


def save(drawing: Drawing, *paths: Path) -> None:
    """Write a drawing without date or random ids; the files' endings choose the formats."""
    for path in paths:
        kind = path.suffix.lstrip(".")
        if kind not in drawing.canvas.get_supported_filetypes():
            raise CarvyError(f"{path}: cannot draw into '.{kind}' files; use .png, .svg or .pdf")
        with replacing(path) as file:
            file.write(encoded(drawing, kind))


def encoded(drawing: Drawing, kind: str, *, transparent: bool = False) -> bytes:
    """Return a drawing as the content of a file of a format, such as "png" or "svg"."""
    import matplotlib

    file = io.BytesIO()
    with matplotlib.rc_context(_STYLE):
        how = {"format": kind, "dpi": _DPI, "metadata": _METADATA.get(kind)}
        drawing.savefig(file, transparent=transparent, **how)
    drawing.set_layout_engine("none")  # the layout is done; repeating it takes time
    return file.getvalue()


@functools.singledispatch
def paint(panel: object, axes: Axes) -> None:
    """Draw a panel, but for its title; other kinds of panels register how they are drawn."""
    raise TypeError(f"nothing draws a {type(panel).__name__}")


@paint.register(Panel)
def _paint_curves(panel: Panel, axes: Axes) -> None:
    from matplotlib.ticker import MaxNLocator

    axes.set(xlabel=panel.x_label, ylabel=panel.y_label)
    axes.grid(alpha=0.3)
    if not panel.curves:
        axes.text(0.5, 0.5, "not run yet", transform=axes.transAxes, ha="center", va="center")
        return
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, steps=[1, 2, 5, 10]))
    for position, curve in enumerate(panel.curves):
        style = curve.style or nth_style(position)
        dashes = tuple(float(length) / 2 for length in style.dash.split())
        line: dict[str, Any] = {"color": style.colour, "linestyle": (0, dashes) if dashes else "-"}
        marker = style.marker if len(curve.x) <= _MARKED else ""
        # Markers at the ends of the axes are drawn whole.
        line |= {"label": curve.name, "marker": marker, "clip_on": False, "zorder": 3}
        axes.plot(curve.x, curve.y, **line)
        if curve.low is not None and curve.high is not None:
            band: dict[str, Any] = {"color": style.colour, "alpha": 0.18, "linewidth": 0}
            axes.fill_between(curve.x, curve.low, curve.high, **band)
    xs = [x for curve in panel.curves for x in curve.x]
    low, high = min(xs), max(xs)
    if panel.marked is not None:
        axes.axvline(panel.marked, color="#5a6675", linewidth=1, linestyle=":")
        low, high = 0, 1.04 * high
    axes.set_xlim(low, high if high > low else low + 1)
    if panel.y_range is not None:
        axes.set_ylim(*panel.y_range)
    elif math.isfinite(axes.dataLim.y0) and axes.dataLim.y0 >= 0:
        axes.set_ylim(0)
    below: dict[str, Any] = {"loc": "upper center", "bbox_to_anchor": (0.5, -0.17), "ncols": 2}
    axes.legend(**below if len(panel.curves) > MANY else {"loc": "best"})


@paint.register(Shares)
def _paint_shares(panel: Shares, axes: Axes) -> None:
    """Draw the bar of all together apart on the left; few divisions go on across all others."""
    number, colours = len(panel.shares), _shades(len(panel.parts))
    edges = np.arange(number + 1) - 0.5
    percent = 100 * np.vstack([panel.shares, panel.shares[-1:]])
    apart = 0.6 if number <= _APART else 0
    edge: dict[str, Any] = {"step": "post", "edgecolor": "white", "linewidth": apart}
    axes.stackplot(edges, percent.T, colors=colours, labels=panel.parts, **edge)
    axes.vlines(edges, 0, 100, color="white", linewidth=2 * apart)
    gap = max(1.0, number / 40)
    ends = 100 * np.cumsum(panel.overall)
    axes.bar(-0.5 - 1.5 * gap, 100 * panel.overall, gap, ends - 100 * panel.overall, color=colours)
    places = range(0, number, -(-number // 25))
    axes.set_xticks([-0.5 - 1.5 * gap, *places], ["all", *(panel.names[place] for place in places)])
    axes.set(xlabel=panel.label, ylabel="share in %", ylim=(0, 100))
    axes.set_xlim(-0.5 - 2 * gap, max(number, 5) - 0.5)  # a bar alone is no wall
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    if len(panel.parts) <= _NAMED:
        axes.hlines(ends[:-1], -0.5 - gap, number - 0.5, color="black", linewidth=0.7, ls="--")
        axes.legend(loc="center left", bbox_to_anchor=(1, 0.5), reverse=True, frameon=False)


def _shades(number: int) -> Sequence[Any]:
    """Return so many colours; beyond the palette neighbours, which are alike, have like ones."""
    from matplotlib import colormaps

    few = number <= len(PALETTE)
    return PALETTE[:number] if few else list(colormaps["viridis"](np.linspace(0, 1, number)))
