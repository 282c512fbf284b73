"""Draw figures with matplotlib: PNG and SVG files, and drawings for an HTML page.

The same values give the same bytes. Nothing else in the package imports matplotlib.
"""

from __future__ import annotations

import functools
import io
import math
import re
from collections.abc import Sequence
from contextlib import AbstractContextManager
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree

import numpy as np
import numpy.typing as npt

from carvyfl.core.errors import CarvyError
from carvyfl.core.files import replacing
from carvyfl.groups.grouping import Grouping
from carvyfl.plots.figure import Bar, Cloud, HeatMap, Histogram, Panel
from carvyfl.plots.style import BLUE, NO_TYPE, PALETTE, STRIPED, Style, nth_style, text_colour

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Drawing

Ints = npt.NDArray[np.int64]
Stacks = list[tuple[str, Ints]]
"""Clients in named stacks; one without a name goes on with the one before."""

WIDTH, HEIGHT = 640, 320  # of a drawing for a page, in its own units
LEFT, RIGHT, TOP, BOTTOM = 54, 18, 12, 34  # room for the axes' numbers, in the same units
SWATCH = (32, 14)  # width and height of a legend's entry on a page

_CLASS = "class:"  # an artist whose id begins so gets the rest as the class of its g element
_LINK = "{http://www.w3.org/1999/xlink}href"
_DPI = 120
_COLOURS = 256  # of a PNG file
_MANY = 6  # the legend of more curves is on their right, else below them
_MARKED = 40  # curves with more points are drawn without markers
_NUMBERED = 45  # tiles show the client's number in grids up to this size
# Text stays text: smaller files, and it can be searched and read aloud. The salt makes ids the
# same in every process, and an id the same for the same shape.
_SVG = {"svg.hashsalt": "carvyfl", "svg.fonttype": "none"}
_PRINT = {"lines.linewidth": 1.4, "lines.markersize": 4}
_PAGE = {
    "lines.linewidth": 2.2,
    "lines.markersize": 7,
    "lines.markeredgewidth": 2,
    "axes.edgecolor": "#8894a1",
    "xtick.color": "#8894a1",
    "grid.color": "#dde3ea",
    "grid.linewidth": 1,
    "hatch.linewidth": 1.4,
}


# --- files --------------------------------------------------------------------------------------


def draw(
    panels: Sequence[Panel | Cloud | HeatMap],
    columns: int = 1,
    inches: tuple[float, float] = (5.4, 3.7),
) -> Drawing:
    """Draw panels for print, each of a size in inches, in rows of ``columns``."""
    columns = min(columns, len(panels))
    rows = -(-len(panels) // columns)
    with _settings(_PRINT):
        drawing = _empty(inches[0] * columns, inches[1] * rows)
        for position, panel in enumerate(panels, start=1):
            axes = drawing.add_subplot(rows, columns, position)
            axes.set_title(panel.title, fontsize="medium")
            if isinstance(panel, HeatMap):
                _draw_heat_map(drawing, axes, panel)
            elif isinstance(panel, Cloud):
                _draw_cloud(axes, panel)
            else:
                _print_panel(axes, panel)
    return drawing


def save(drawing: Drawing, *paths: Path) -> None:
    """Write a drawing without date or random ids; the files' endings choose the formats."""
    undated: dict[str, Any] = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}
    for path in paths:
        kind = path.suffix.lstrip(".")
        if kind not in drawing.canvas.get_supported_filetypes():
            raise CarvyError(f"{path}: cannot draw into '.{kind}' files; use .png, .svg or .pdf")
        with replacing(path) as file, _settings(_SVG):
            if kind == "png":
                file.write(png(drawing))
            else:
                drawing.savefig(file, format=kind, dpi=_DPI, metadata=undated.get(kind))
        drawing.set_layout_engine("none")  # the layout is done; repeating it takes time


def png(drawing: Drawing) -> bytes:
    """Return a drawing as a PNG of its most frequent colours: a third of the size.

    Lines and markers keep their very colours, which tell methods apart; only shades at
    edges are rounded to the nearest. By hand, since Pillow's palettes average rare colours
    away, and a thin curve is rare.
    """
    from PIL import Image

    full, small = io.BytesIO(), io.BytesIO()
    drawing.savefig(full, format="png", dpi=_DPI)
    drawn = Image.open(full).convert("RGB")
    packed = np.asarray(drawn, dtype=np.int64) @ (1 << 16, 1 << 8, 1)
    codes, place, counts = np.unique(packed, return_inverse=True, return_counts=True)
    colours = codes[:, None] >> (16, 8, 0) & 255
    frequent = colours[np.argsort(-counts, kind="stable")[:_COLOURS]]
    # |a - b|² less |a|², which is the same for every b
    distance = (frequent**2).sum(axis=1) - 2 * colours @ frequent.T
    nearest = distance.argmin(axis=1).astype(np.uint8)
    few = Image.frombytes("P", drawn.size, nearest[place].tobytes())
    few.putpalette(frequent.flatten().tolist())
    few.save(small, format="PNG", optimize=True)
    return small.getvalue()


# --- drawings for a page ------------------------------------------------------------------------


def inline(panel: Panel | Histogram, at: Sequence[float]) -> tuple[str, list[float]]:
    """Draw a panel with at least one curve or bar for an HTML page, without the words around it.

    Returns
    -------
    str
        The content of an ``svg`` element of WIDTH × HEIGHT units. The numbers at the axes are
        in ``g`` elements of the classes ``x`` and ``y``, the rest in ``line``, ``faint``,
        ``band`` and ``bar``.
    list of float
        Where the places ``at`` of the x axis are in the drawing, in its units.
    """
    from matplotlib.ticker import MaxNLocator

    with _settings(_PAGE):
        drawing = _empty(WIDTH / 72, HEIGHT / 72, layout=None)
        across, up = WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM
        axes = drawing.add_axes(
            (LEFT / WIDTH, BOTTOM / HEIGHT, across / WIDTH, up / HEIGHT), frameon=False
        )
        axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
        axes.yaxis.set_major_locator(MaxNLocator(6))
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_major_formatter(lambda value, _: plain(value))
        if isinstance(panel, Panel):
            _draw_panel(axes, panel)
        else:
            _draw_bars(axes, panel)
        axes.axhline(axes.get_ylim()[0], color="#8894a1", linewidth=1, clip_on=False, gid="axis")
        axes.grid(axis="y", clip_on=False)
        axes.set_axisbelow(True)
        axes.tick_params("x", length=5, width=1, pad=4)
        axes.tick_params("y", length=0, pad=8)
        for name, numbers in (("x", axes.get_xticklabels()), ("y", axes.get_yticklabels())):
            for number in numbers:
                # The page's style sheet aligns them, in whatever size it gives them.
                number.set(gid=name, verticalalignment="baseline")
        places = axes.transData.transform([(x, 0) for x in at])[:, 0].tolist()
        return _content(drawing), places


@functools.cache
def swatch(shown: Style | Bar) -> str:
    """Draw a legend's entry; return the content of an ``svg`` element of SWATCH's size."""
    width, height = SWATCH
    with _settings(_PAGE):
        drawing = _empty(width / 72, height / 72, layout=None)
        axes = drawing.add_axes((0, 0, 1, 1), xlim=(0, width), ylim=(0, height))
        axes.set_axis_off()
        if isinstance(shown, Bar):
            axes.bar(16, 12, 20, 1, **_bar_style(striped=shown.striped))
        else:
            axes.plot([0, 16, 32], [7, 7, 7], markevery=[1], **_line_style(shown))
        return _content(drawing)


def plain(value: float) -> str:
    """Write a number without needless decimals."""
    return f"{value:g}" if abs(value) < 1e6 else f"{value:.0f}"


def _content(drawing: Drawing) -> str:
    """Return a drawing as SVG; the ids of its parts become classes."""
    for artist in drawing.findobj(lambda found: found.get_gid() is not None):
        artist.set_gid(f"{_CLASS}{artist.get_gid()}")
    drawing.patch.set_visible(False)
    file = io.StringIO()
    with _settings(_SVG):
        drawing.savefig(file, format="svg", metadata={"Date": None})
    return "".join(map(_minified, ElementTree.fromstring(file.getvalue())))


def _minified(element: ElementTree.Element) -> str:
    """Return a part of a drawing without what a page does not need.

    Ids stay where something is defined; all other elements lose theirs. Numbers are rounded
    to a tenth of a unit. Text loses its font and alignment, which the page's style sheet
    gives it. Every ``defs`` element holds one definition, so that equal ones can be
    told by their text.
    """
    name = _name(element)
    if name in ("metadata", "style"):
        return ""
    inside = [_minified(child) for child in element]
    if name == "defs":
        return "".join(f"<defs>{child}</defs>" for child in inside if child)
    kept = dict(element.attrib)
    own = kept.pop("id", "")
    if name == "g":
        if own.startswith(_CLASS):
            kept["class"] = own.removeprefix(_CLASS)
        # The marks of a line have one style; it stands once, around them.
        style = next((child.get("style") for child in element if _name(child) == "use"), None)
        if style is not None:
            kept["style"] = style
    elif own:
        kept["id"] = own
    if name == "use":
        kept = {"href": kept[_LINK], "x": kept["x"], "y": kept["y"]}
    elif name == "text":
        kept = {"x": kept["x"], "y": kept["y"]}
    content = "".join(inside) + escape((element.text or "").strip())
    if name == "g" and (not kept or not content):
        return content
    attributes = "".join(f' {key}="{_short(key, value)}"' for key, value in kept.items())
    return f"<{name}{attributes}>{content}</{name}>" if content else f"<{name}{attributes}/>"


def _name(element: ElementTree.Element) -> str:
    return str(element.tag).rpartition("}")[2]


def _short(key: str, value: str) -> str:
    if key in ("d", "x", "y"):
        value = re.sub(r"-?\d+\.\d+", lambda found: f"{float(found[0]):.1f}", value)
        value = re.sub(r"\.0(?!\d)", "", value)
        return re.sub(r"\s*([A-Za-z])\s*", r"\1", value).strip()
    return escape(value.replace("; ", ";").replace(": ", ":"))


# --- parts --------------------------------------------------------------------------------------


def _settings(values: dict[Any, Any]) -> AbstractContextManager[None]:
    import matplotlib

    return matplotlib.rc_context(values)


def _empty(width: float, height: float, layout: Any = "constrained") -> Drawing:
    """Return an empty drawing, its size in inches; a pixel is an SVG unit."""
    from matplotlib.figure import Figure as Drawing

    return Drawing(figsize=(width, height), dpi=72, layout=layout)


def _print_panel(axes: Axes, panel: Panel) -> None:
    from matplotlib.ticker import MaxNLocator

    axes.set(xlabel=panel.x_label, ylabel=panel.y_label)
    axes.grid(alpha=0.3)
    if not panel.curves:
        axes.text(0.5, 0.5, "not run yet", transform=axes.transAxes, ha="center", va="center")
        return
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    _draw_panel(axes, panel)
    if len(panel.curves) > _MANY:
        axes.legend(fontsize="x-small", loc="center left", bbox_to_anchor=(1, 0.5))
    else:
        axes.legend(fontsize="x-small", loc="upper center", bbox_to_anchor=(0.5, -0.17), ncols=2)


def _draw_panel(axes: Axes, panel: Panel) -> None:
    """Draw curves, bands and faint lines, and set the limits of both axes."""
    for x, y in panel.faint:
        axes.plot(x, y, color="#9aa5b1", linewidth=0.8, alpha=0.7, clip_on=False, gid="faint")
    for position, curve in enumerate(panel.curves):
        style = curve.style or nth_style(position)
        (line,) = axes.plot(curve.x, curve.y, label=curve.name, **_line_style(style))
        if len(curve.x) > _MARKED:
            line.set_marker("")
        if curve.low is not None and curve.high is not None:
            band = axes.fill_between(curve.x, curve.low, curve.high, color=style.colour, alpha=0.15)
            band.set(linewidth=0, clip_on=False, gid="band")
    xs = [x for curve in panel.curves for x in curve.x]
    low, high = min(xs), max(xs)
    axes.set_xlim(low, high if high > low else low + 1)
    axes.set_ylim(panel.y_range or _round_range(axes, *axes.dataLim.intervaly))


def _line_style(style: Style) -> dict[str, Any]:
    # SVG counts dashes in pixels, matplotlib in line widths.
    dashes = tuple(float(length) / 2 for length in style.dash.split())
    line = {"color": style.colour, "marker": style.marker, "clip_on": False, "gid": "line"}
    return {**line, "linestyle": (0, dashes) if dashes else "-"}


def _round_range(axes: Axes, low: float, high: float) -> tuple[float, float]:
    """Return the round numbers at the y axis that enclose a range."""
    if not math.isfinite(low):  # there is no value at all
        low, high = 0.0, 1.0
    ticks = axes.yaxis.get_major_locator().tick_values(low, high if high > low else low + 1)
    return ticks[0], ticks[-1]


def _draw_bars(axes: Axes, panel: Histogram) -> None:
    start, stop = panel.bars[0].start, panel.bars[-1].stop
    gap = (stop - start) / (WIDTH - LEFT - RIGHT)  # one unit of the drawing
    for bar in panel.bars:
        middle, width = (bar.start + bar.stop) / 2, max(bar.stop - bar.start - gap, gap / 2)
        axes.bar(middle, bar.height, width, **_bar_style(striped=bar.striped))
    axes.set_xlim(start, stop)
    axes.set_ylim(_round_range(axes, 0, max(1.0, *(bar.height for bar in panel.bars))))


def _bar_style(*, striped: bool) -> dict[str, Any]:
    style: dict[str, Any] = {"facecolor": BLUE, "edgecolor": "none", "gid": "bar"}
    if striped:
        fill, stripes = STRIPED
        style = {"facecolor": fill, "edgecolor": stripes, "hatch": "--", "gid": "bar striped"}
    return {**style, "linewidth": 0, "clip_on": False}


def _draw_cloud(axes: Axes, cloud: Cloud) -> None:
    """Colour says the type found, the marker the true one."""
    points, labels, true = (np.asarray(own) for own in (cloud.points, cloud.labels, cloud.true))
    for found, real in sorted(set(zip(cloud.labels, cloud.true, strict=True))):
        x, y = points[(labels == found) & (true == real)].T
        colour, marker = nth_style(found).colour, nth_style(real).marker
        name = f"found {found + 1}, true {real + 1}"
        axes.scatter(x, y, color=colour, marker=marker, s=22, label=name)
    axes.set(xlabel="first principal component", ylabel="second principal component")
    axes.grid(alpha=0.3)
    axes.legend(fontsize="x-small")


def _draw_heat_map(drawing: Drawing, axes: Axes, panel: HeatMap) -> None:
    image = axes.imshow(panel.values, cmap="cividis", vmin=0, vmax=100, aspect="auto")
    for (row, column), value in np.ndenumerate(panel.values):
        if math.isfinite(value):
            ink = "white" if value < 50 else "black"
            text = panel.texts[row][column]
            axes.text(column, row, text, ha="center", va="center", fontsize=6.5, color=ink)
    axes.set_xticks(range(len(panel.columns)), panel.columns, rotation=40, ha="right")
    axes.set_yticks(range(len(panel.rows)), panel.rows)
    drawing.colorbar(image, ax=axes, label=panel.label, shrink=0.6)


# --- groups -------------------------------------------------------------------------------------


def draw_grouping(grouping: Grouping, types: Ints) -> Drawing:
    """Draw every client as a tile in the colour of its type: by type above, by group below."""
    kinds = np.unique(types[types >= 0])
    shade = np.searchsorted(kinds, types)
    shade[types < 0] = len(kinds)
    by_type = [(str(kind), np.flatnonzero(types == kind)) for kind in kinds]
    by_group = [(str(g), m[np.argsort(shade[m])]) for g, m in enumerate(grouping.groups)]
    panels = {
        "type": _with_rest(by_type, np.flatnonzero(types < 0)),
        "group": _with_rest(by_group, grouping.benched),
    }
    # A third of an inch per row, within limits.
    rows = [min(len(stacks), _depth(stacks)) for stacks in panels.values()]
    heights = [float(np.clip(number / 3, 1, 6)) for number in rows]
    drawing = _empty(11, sum(heights) + 1.6)
    both = drawing.subplots(2, 1, height_ratios=heights)
    for axes, (what, stacks) in zip(both, panels.items(), strict=True):
        _draw_stacks(axes, what, stacks, shade, [*_shades(len(kinds)), NO_TYPE])
        axes.set_title(f"Clients by {what}", loc="left", fontweight="bold")
    diversity = grouping.mean_diversity(types)
    note = f"'{grouping.method}', G = {grouping.num_groups}, mean diversity {diversity:.2f}"
    both[1].set_title(note, loc="right", fontsize="medium")
    return drawing


def _depth(stacks: Stacks) -> int:
    return max(len(members) for _, members in stacks)


def _with_rest(stacks: Stacks, clients: Ints) -> Stacks:
    """Add clients without a type or group, stacked no higher than the others."""
    depth = _depth(stacks)
    starts = range(0, len(clients), depth)
    return [*stacks, *(("" if at else "none", clients[at : at + depth]) for at in starts)]


def _draw_stacks(
    axes: Axes, what: str, stacks: Stacks, shade: Ints, colours: Sequence[str]
) -> None:
    """Draw one stack of tiles per name, along whichever side is longer."""
    from matplotlib.colors import ListedColormap

    grid = np.full((len(stacks), _depth(stacks)), -1)
    for row, (_, members) in zip(grid, stacks, strict=True):
        row[: len(members)] = members
    upright = grid.shape[0] > grid.shape[1]
    grid = grid.T if upright else grid
    axes.pcolormesh(
        np.ma.masked_array(shade[grid], mask=grid < 0),
        cmap=ListedColormap(colours),
        vmin=-0.5,
        vmax=len(colours) - 0.5,
        edgecolors="white",
        linewidth=min(1.0, 40 / grid.shape[1]),
    )
    if max(grid.shape) <= _NUMBERED:
        style: dict[str, Any] = {"fontsize": 7, "ha": "center", "va": "center"}
        for row, column in np.argwhere(grid >= 0):
            client = grid[row, column]
            ink = text_colour(colours[shade[client]])
            axes.text(column + 0.5, row + 0.5, str(client), color=ink, **style)
    if not upright:
        axes.invert_yaxis()
    named, counted = (axes.xaxis, axes.yaxis) if upright else (axes.yaxis, axes.xaxis)
    shown = _names_shown([name for name, _ in stacks], 40 if upright else 25)
    named.set_ticks([place + 0.5 for place in shown], [stacks[place][0] for place in shown])
    named.set_label_text(what)
    counted.set_ticks([])
    counted.set_label_text("clients")
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)


def _shades(number: int) -> Sequence[str]:
    """Return colours; beyond the palette neighbours, which are alike, get neighbouring ones."""
    from matplotlib import colormaps
    from matplotlib.colors import to_hex

    if number <= len(PALETTE):
        return PALETTE[:number]
    return [to_hex(colour) for colour in colormaps["viridis"](np.linspace(0, 1, number))]


def _names_shown(names: Sequence[str], most: int) -> list[int]:
    """Return the places of the names to write: not too many, and "none", the last, always."""
    step = -(-len(names) // most)
    shown = [p for p, name in enumerate(names) if name and name != "none" and p % step == 0]
    if "none" in names:
        last = names.index("none")
        shown = [p for p in shown if last - p >= step or p == 0]  # names would overlap
        shown.append(last)
    return shown
