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
NAMED = {"blue": BLUE, "vermillion": VERMILLION, "green": GREEN, "purple": PURPLE}
NAMED |= {"black": BLACK, "orange": ORANGE, "sky": SKY}
"""Colours of lines, the strongest first, and no yellow, which is too pale on white. A registered
grouping can name one of them; any other colour is given as in CSS."""
DASHES = {"o": "", "s": "9 4", "^": "3 3", "D": "12 4 3 4", "x": "6 3"}
DASHES |= {"v": "14 5", "p": "2 5", "h": "10 3 2 3 2 3"}
"""The dashes that go with each marker; markers are named as in matplotlib."""
DOTS = "1 6"
"""Unlike the dashes of any marker: a second curve of the same method."""


@dataclass(frozen=True)
class Style:
    """How a curve is drawn.

    ``colour`` is as in CSS; ``marker`` a key of :data:`DASHES`; ``dash`` the lengths of dashes and
    gaps in pixels, as in SVG, empty for a continuous line; ``label`` a method's name in print.
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
    markers, dashes, colours = list(DASHES), list(DASHES.values()), list(NAMED.values())
    turn, place = divmod(position, len(markers))
    dash = dashes[(place + turn) % len(dashes)]
    return Style(colours[position % len(colours)], markers[place], dash)
