"""How things look in every figure: the palette, the lines, and the style of a method."""

from __future__ import annotations

from dataclasses import dataclass, replace

from carvyfl.groups.methods import GROUPINGS

M = "malicious clients m"
CA = "certified accuracy CA(m) in %"
"""The axes of a curve of CA."""

BLUE, ORANGE, GREEN, VERMILLION = "#0072B2", "#E69F00", "#009E73", "#D55E00"
SKY, PURPLE, YELLOW, BLACK = "#56B4E9", "#CC79A7", "#F0E442", "#000000"
PALETTE = (BLUE, ORANGE, GREEN, VERMILLION, SKY, PURPLE, YELLOW, BLACK)
"""Okabe and Ito's colours, distinguishable with every common colour blindness."""
NAMED = {
    "blue": BLUE,
    "vermillion": VERMILLION,
    "green": GREEN,
    "purple": PURPLE,
    "black": BLACK,
    "orange": ORANGE,
    "sky": SKY,
}
"""Colours of lines, the strongest first, and no yellow, which is too pale on white. A registered
grouping can name one of them; any other colour is given as in CSS."""
NO_TYPE = "#BBBBBB"
STRIPED = ("#E8A57E", "#A84800")
"""The fill and the stripes of a bar of the second kind: lighter and darker vermillion."""
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
    """How a curve is drawn."""

    colour: str
    """As in CSS."""
    marker: str
    """A key of :data:`DASHES`."""
    dash: str
    """Lengths of dashes and gaps in pixels, as in SVG; empty for a continuous line."""
    label: str = ""
    """A method's name in print; empty for other curves."""

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
    markers, dashes, colours = list(DASHES), list(DASHES.values()), list(NAMED.values())
    turn, place = divmod(position, len(markers))
    dash = dashes[(place + turn) % len(dashes)]
    return Style(colours[position % len(colours)], markers[place], dash)


def text_colour(background: str) -> str:
    """Return black or white, whichever is readable on a colour written as ``#RRGGBB``."""
    red, green, blue = bytes.fromhex(background.removeprefix("#"))
    return "black" if 0.3 * red + 0.6 * green + 0.1 * blue > 0.38 * 255 else "white"
