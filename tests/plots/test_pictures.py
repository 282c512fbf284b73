"""Pictures of a run: every method and every type can be seen in them."""

from __future__ import annotations

import numpy as np
import pytest
from PIL import Image, ImageColor

from carvyfl.core.errors import CarvyError
from carvyfl.groups.basis import Basis
from carvyfl.groups.grouping import Grouping
from carvyfl.groups.methods import GROUPINGS, form_groups
from carvyfl.plots.pictures import composition, plot
from carvyfl.plots.style import method_style
from carvyfl.voting.certificate import certify
from carvyfl.voting.spread import Comparison, Spread
from carvyfl.voting.votes import votes


def test_every_method_has_its_curve_in_its_colour(tmp_path):
    curves = {m: np.array([90.0 - 5 * k, 30 - k, 0]) for k, m in enumerate(GROUPINGS)}
    for name in ("ca.png", "ca.svg"):
        plot(curves, title="what was run").save(tmp_path / name)
    with Image.open(tmp_path / "ca.png") as image:
        colours = {colour for _, colour in image.convert("RGB").getcolors(1 << 20) or []}
    svg = (tmp_path / "ca.svg").read_text()
    for label, colour in ((s.label, s.colour) for s in map(method_style, GROUPINGS)):
        assert ImageColor.getrgb(colour) in colours
        assert f">{label}</text>" in svg  # text stays text
    assert ">what was run</text>" in svg


@pytest.mark.parametrize(("clients", "kinds", "groups"), [(100, 5, 20), (1000, 12, 50), (1, 1, 1)])
def test_groups_show_every_type(tmp_path, clients, kinds, groups):
    labels = np.arange(clients) % kinds
    if clients > 1:
        labels[::15] = -1
    value = form_groups("balanced", num_clients=clients, seed=0, num_groups=groups)
    plot(value, types=labels).save(tmp_path / "groups.png")
    with Image.open(tmp_path / "groups.png") as image:
        picture = np.asarray(image.convert("RGB")).astype(int)
    colours, counts = np.unique(picture.reshape(-1, 3), axis=0, return_counts=True)
    vivid = (np.ptp(colours, axis=1) > 40) & (counts > 500)
    assert np.count_nonzero(vivid) >= kinds


def test_a_group_is_compared_with_all_clients():
    """Shares by hand: clients 0 and 1 hold (3, 1) and (0, 4), client 2 told nothing."""
    basis = Basis("for a test")
    grouping = Grouping(np.array([0, 1, 1, -1]), 2, "mine", basis)
    weights = np.array([[3, 1, 0], [0, 4, 0], [0, 0, 0], [0, 0, 8.0]])
    clients, groups = composition(grouping, weights, ["a", "b", "c"])
    np.testing.assert_allclose(groups.overall, [3 / 16, 5 / 16, 8 / 16])
    np.testing.assert_allclose(groups.shares, np.array([[0.75, 0.25, 0], [0, 1, 0]]))
    # Half of |0.75 - 3/16| + |0.25 - 5/16| + 1/2 is 9/16, of 3/16 + 11/16 + 8/16 it is 11/16.
    assert groups.title == "mine, G = 2: on average 62 % of a group differs from all clients"
    assert list(clients.names) == ["0", "1", "3"]
    np.testing.assert_allclose(clients.shares, np.array([[0.75, 0.25, 0], [0, 1, 0], [0, 0, 1]]))


@pytest.mark.parametrize("shares", [[1.0] * 4, np.ones((3, 2)), -np.ones((4, 2)), np.zeros((4, 2))])
def test_shares_that_fit_no_clients_are_refused(shares):
    value = form_groups("balanced", num_clients=4, seed=0, num_groups=2)
    with pytest.raises(CarvyError, match="shares"):
        plot(value, shares=shares)


def test_the_plot_refuses_unknown_formats(tmp_path):
    value = form_groups("balanced", num_clients=2, seed=0, num_groups=2)
    with pytest.raises(CarvyError, match=r"\.txt"):
        plot(value, types=[0, 1]).save(tmp_path / "groups.txt")
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_values_are_drawn_for_a_notebook(tmp_path):
    certificate = certify(votes([[0, 1], [0, 0], [0, 1]], 2), [0, 1])
    grouping = form_groups("balanced", num_clients=6, seed=0, num_groups=2)
    spread = Spread.of([[90, 0], [80, 0]])
    for value, word in (
        (certificate, "given these groups"),
        ({"mine": certificate, "carvy": certificate}, "CARVY-FL"),
        ({"flcert": spread}, "FLCert"),
        (grouping, "balanced random, G = 2"),
    ):
        picture = plot(value)
        assert picture._repr_png_().startswith(b"\x89PNG")
        picture.save(tmp_path / "drawn.svg")
        assert word in (tmp_path / "drawn.svg").read_text()
    plot(grouping, types=[0, 1, 2, 0, 1, 2]).save(tmp_path / "drawn.svg")
    assert ">type 2</text>" in (tmp_path / "drawn.svg").read_text()


def test_a_comparison_is_drawn_as_its_methods_are_under_its_reading(tmp_path):
    methods = {"carvy": Spread.of([[90, 40, 0], [80, 0]]), "mine": Spread.of([[70, 0], [60, 0]])}
    comparison = Comparison((0, 1), "honest_only", methods, {"carvy": (4, 4), "mine": (2, 2)})
    for value, title, name in (
        (comparison, "", "whole"),
        (methods, "honest only", "parts"),
        (comparison, "mine", "titled"),
    ):
        plot(value, title=title).save(tmp_path / f"{name}.svg")
    whole, parts, titled = (
        (tmp_path / f"{n}.svg").read_text() for n in ("whole", "parts", "titled")
    )
    assert whole == parts
    assert ">honest only</text>" in whole
    assert ">honest only</text>" not in titled


@pytest.mark.parametrize("value", [None, {}, {"a": 3}, [1.0]])
def test_what_cannot_be_drawn_is_refused(value):
    with pytest.raises(CarvyError, match="plot"):
        plot(value)
