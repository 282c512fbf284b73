"""Pictures from figures' data: the same bytes from the same data, as SVG and PNG."""

from __future__ import annotations

import io
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from scipy.spatial.distance import cdist

from carvyfl.core.files import replacing
from carvyfl.paper.figures import Cloud, Panel, Picture
from carvyfl.report.charts import Curve, Look, look

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PANEL_INCHES = (5.4, 3.7)
DPI = 120
COLOURS = 256
MANY = 6  # the legend of more curves than this stands beside them, else below: never over them


def draw(picture: Picture) -> Figure:
    """Draw a figure in the paper's layout."""
    from matplotlib.figure import Figure

    columns = min(picture.columns, len(picture.panels))
    rows = -(-len(picture.panels) // columns)
    size = (PANEL_INCHES[0] * columns, PANEL_INCHES[1] * rows)
    figure = Figure(figsize=size, layout="constrained")
    panels: tuple[Panel | Cloud, ...] = picture.panels
    for position, panel in enumerate(panels, start=1):
        axes = figure.add_subplot(rows, columns, position)
        axes.set_title(panel.title, fontsize="medium")
        axes.grid(alpha=0.3)
        if isinstance(panel, Cloud):
            _draw_cloud(axes, panel)
        else:
            _draw_panel(axes, panel)
    return figure


def save(picture: Picture, folder: Path, suffix: str) -> None:
    """Write a figure as ``NAME-SUFFIX.svg`` and ``.png``, without date or random ids."""
    import matplotlib

    figure = draw(picture)
    stem = f"{picture.name}-{suffix}"
    with replacing(folder / f"{stem}.png") as file:
        file.write(png(figure))
    figure.set_layout_engine("none")  # it is laid out by now, and doing it again takes time
    # Text stays text: smaller files, and it can be searched and read aloud.
    with (
        matplotlib.rc_context({"svg.hashsalt": stem, "svg.fonttype": "none"}),
        replacing(folder / f"{stem}.svg") as file,
    ):
        figure.savefig(file, format="svg", metadata={"Date": None})


def png(figure: Figure) -> bytes:
    """Return a drawing as a PNG of its most frequent colours: a third of the size.

    Lines and markers keep their very colours, which tell methods apart; only shades at
    edges are rounded to the nearest. By hand, since Pillow's palettes average rare colours
    away, and a thin curve is rare.
    """
    from PIL import Image

    full, small = io.BytesIO(), io.BytesIO()
    figure.savefig(full, format="png", dpi=DPI)
    drawn = Image.open(full).convert("RGB")
    packed = np.asarray(drawn, dtype=np.int64) @ (1 << 16, 1 << 8, 1)
    codes, place, counts = np.unique(packed, return_inverse=True, return_counts=True)
    colours = codes[:, None] >> (16, 8, 0) & 255
    frequent = colours[np.argsort(-counts, kind="stable")[:COLOURS]]
    nearest = cdist(colours, frequent).argmin(axis=1).astype(np.uint8)
    few = Image.frombytes("P", drawn.size, nearest[place].tobytes())
    few.putpalette(frequent.flatten().tolist())
    few.save(small, format="PNG", optimize=True)
    return small.getvalue()


def _draw_panel(axes: Axes, panel: Panel) -> None:
    from matplotlib.ticker import MaxNLocator

    axes.set(xlabel=panel.x_label, ylabel=panel.y_label)
    if not panel.curves:
        axes.text(0.5, 0.5, "not run yet", transform=axes.transAxes, ha="center", va="center")
        return
    for position, curve in enumerate(panel.curves):
        _draw_curve(axes, curve, curve.look or look(position))
    axes.set_xlim(0, max(1.0, *(x for curve in panel.curves for x in curve.x)))
    axes.set_ylim(bottom=0)
    if panel.y_range is not None:
        axes.set_ylim(panel.y_range)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    if len(panel.curves) > MANY:
        axes.legend(fontsize="x-small", loc="center left", bbox_to_anchor=(1, 0.5))
    else:
        axes.legend(fontsize="x-small", loc="upper center", bbox_to_anchor=(0.5, -0.17), ncols=2)


def _draw_curve(axes: Axes, curve: Curve, own: Look) -> None:
    # SVG counts dashes in pixels, matplotlib in line widths.
    dashes = tuple(float(length) / 2 for length in own.dash.split())
    axes.plot(
        curve.x,
        curve.y,
        color=own.colour,
        marker=own.marker,
        markersize=4,
        linewidth=1.4,
        linestyle=(0, dashes) if dashes else "-",
        label=curve.name,
        clip_on=False,
    )
    if curve.low is not None and curve.high is not None:
        axes.fill_between(curve.x, curve.low, curve.high, color=own.colour, alpha=0.15, linewidth=0)


def _draw_cloud(axes: Axes, cloud: Cloud) -> None:
    """Colour says the type found, the marker the true one."""
    clients = list(zip(cloud.labels, cloud.true, cloud.points, strict=True))
    for found, true in sorted(set(zip(cloud.labels, cloud.true, strict=True))):
        points = [point for label, other, point in clients if (label, other) == (found, true)]
        axes.scatter(
            [x for x, _ in points],
            [y for _, y in points],
            color=look(found).colour,
            marker=look(true).marker,
            s=22,
            label=f"found {found + 1}, true {true + 1}",
        )
    axes.set(xlabel="first principal component", ylabel="second principal component")
    axes.legend(fontsize="x-small")
