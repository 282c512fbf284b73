"""Curves and tiles can be told apart by everybody."""

from __future__ import annotations

import itertools

from carvyfl.groups.methods import GROUPINGS
from carvyfl.plots.style import PALETTE, method_style, nth_style, text_colour


def test_no_two_curves_differ_by_colour_alone() -> None:
    methods = [method_style(method) for method in GROUPINGS]
    for styles in ([nth_style(k) for k in range(64)], methods):
        for one, other in itertools.combinations(styles, 2):
            assert (one.marker, one.dash) != (other.marker, other.dash)


def test_a_new_method_goes_by_its_own_name() -> None:
    assert method_style("mine").label == "mine"


def luminance(colour: str) -> float:
    """The relative luminance of WCAG 2."""
    parts = [value / 255 for value in bytes.fromhex(colour.removeprefix("#"))]
    linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return sum(w * p for w, p in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def test_text_on_the_palette_is_readable() -> None:
    for colour in PALETTE:
        light = 1.0 if text_colour(colour) == "white" else 0.0
        low, high = sorted((light, luminance(colour)))
        assert (high + 0.05) / (low + 0.05) >= 4.5, colour  # WCAG's level AA
