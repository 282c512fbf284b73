"""Curves can be told apart by everybody."""

from __future__ import annotations

import itertools

from carvyfl.groups.methods import GROUPINGS
from carvyfl.plots.style import method_style, nth_style


def test_no_two_curves_differ_by_colour_alone():
    methods = [method_style(method) for method in GROUPINGS]
    for styles in ([nth_style(k) for k in range(64)], methods):
        for one, other in itertools.combinations(styles, 2):
            assert (one.marker, one.dash) != (other.marker, other.dash)


def test_a_new_method_goes_by_its_own_name():
    assert method_style("mine").label == "mine"
