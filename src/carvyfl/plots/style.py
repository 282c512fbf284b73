"""How things look in every figure: the palette, the lines, and the style of a method."""

from __future__ import annotations

from dataclasses import dataclass, replace

from carvyfl.groups.methods import GROUPINGS

M = "malicious clients m"
CA = "certified accuracy CA(m) in %"
"""The axes of a curve of CA."""

BLUE, ORANGE, GREEN, VERMILLION = "#0072B2", "#E69F00", "#009E73", "#D55E00"
SKY, PURPLE, YELLOW, BLACK = "#56B4E9", "#CC79A7", "#F0E442", "#000000"
NAMED = {
    "blue": BLUE,
    "orange": ORANGE,
    "green": GREEN,
    "vermillion": VERMILLION,
    "sky": SKY,
    "purple": PURPLE,
    "black": BLACK,
}
"""The colours that a registered grouping can name; any other colour is given as in CSS."""
PALETTE = (BLUE, ORANGE, GREEN, VERMILLION, SKY, PURPLE, YELLOW, BLACK)
"""Okabe and Ito's colours, distinguishable with every common colour blindness."""
NO_TYPE = "#BBBBBB"
STRIPED = ("#E8A57E", "#A84800")
"""The fill and the stripes of a bar of the second kind: lighter and darker vermillion."""

# The strongest first, and no yellow: it is too pale for lines on white.
_LINES = (BLUE, VERMILLION, GREEN, PURPLE, BLACK, ORANGE, SKY)

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
DOTS = "1 6"
"""Unlike the dashes of any marker: a second curve of the same method."""


@dataclass(frozen=True)
class Style:
    """How a curve is drawn.

    Attributes
    ----------
    colour
        As in CSS.
    marker
        A key of :data:`DASHES`.
    dash
        Lengths of dashes and gaps in pixels, as in SVG; empty for a continuous line.
    label
        A method's name in print; empty for other curves.
    """

    colour: str
    marker: str
    dash: str
    label: str = ""

    def dotted(self) -> Style:
        """Return the style of a second curve of the same method."""
        return replace(self, dash=DOTS)


def method_style(name: str) -> Style:
    """Return the style of a grouping method; one that is not registered is shown under its name."""
    entry = GROUPINGS.get(name)
    if entry is None:
        return Style(SKY, "v", DASHES["v"], name)
    colour = NAMED.get(entry.colour, entry.colour)
    return Style(colour, entry.marker, DASHES.get(entry.marker, ""), entry.label)


def nth_style(position: int) -> Style:
    """Return a style for the curve at this position; the first 64 differ without their colour."""
    markers, dashes = list(DASHES), list(DASHES.values())
    turn, place = divmod(position, len(markers))
    dash = dashes[(place + turn) % len(dashes)]
    return Style(_LINES[position % len(_LINES)], markers[place], dash)


def text_colour(background: str) -> str:
    """Return black or white, whichever is readable on a colour written as ``#RRGGBB``."""
    red, green, blue = bytes.fromhex(background.removeprefix("#"))
    return "black" if 0.3 * red + 0.6 * green + 0.1 * blue > 0.38 * 255 else "white"
