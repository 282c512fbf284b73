"""Pictures of a run: every method and every type can be seen in them."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageColor

from carvyfl.core.errors import CarvyError
from carvyfl.groups.methods import GROUPINGS, form_groups
from carvyfl.plots.pictures import plot
from carvyfl.plots.style import method_style
from carvyfl.profiles.methods import Profiles
from carvyfl.profiles.types import ClientTypes
from carvyfl.voting.certificate import certify
from carvyfl.voting.spread import Comparison, Spread
from carvyfl.voting.votes import votes


def test_every_method_has_its_curve_in_its_colour(tmp_path: Path) -> None:
    curves = {m: np.array([90.0 - 5 * k, 30 - k, 0]) for k, m in enumerate(GROUPINGS)}
    for name in ("ca.png", "ca.svg"):
        plot(curves, title="what was run").save(tmp_path / name)
    with Image.open(tmp_path / "ca.png") as image:
        found = {colour for _, colour in image.convert("RGB").getcolors(1 << 20) or []}
    svg = (tmp_path / "ca.svg").read_text()
    for label, colour in ((s.label, s.colour) for s in map(method_style, GROUPINGS)):
        assert ImageColor.getrgb(colour) in found
        assert f">{label}</text>" in svg  # text stays text
    assert ">what was run</text>" in svg


def test_the_same_picture_has_the_same_bytes(tmp_path: Path) -> None:
    for name in ("a.png", "b.png", "a.svg", "b.svg"):
        plot({"carvy": np.array([90.0, 0])}, title="t").save(tmp_path / name)
    for ending in ("png", "svg"):
        one, other = ((tmp_path / f"{name}.{ending}").read_bytes() for name in "ab")
        assert one == other
    assert not re.search(r"<dc:date>", (tmp_path / "a.svg").read_text())


def inferred(labels: np.typing.NDArray[np.int64]) -> ClientTypes:
    return ClientTypes(
        labels=labels,
        method="xmeans",
        local=False,
        names=tuple(f"type {kind}" for kind in range(labels.max() + 1)),
        set_aside=dict.fromkeys(np.flatnonzero(labels == -1).tolist(), "unusable"),
    )


@pytest.mark.parametrize(
    ("num_clients", "num_types", "method"),
    [
        (100, 5, "flcert"),
        (100, 5, "single"),
        pytest.param(1000, 12, "carvy", marks=pytest.mark.slow),
        (1, 1, "carvy"),
    ],
)
def test_the_plot_shows_every_type(
    tmp_path: Path, num_clients: int, num_types: int, method: str
) -> None:
    labels = np.arange(num_clients) % num_types
    if num_clients > 1:
        labels[::15] = -1
    number = 20 if method == "flcert" else None
    value = form_groups(
        method,
        num_clients=num_clients,
        seed=0,
        profiles=Profiles(inferred(labels)),
        num_groups=number,
    )
    path = tmp_path / "groups.png"
    plot(value, types=labels).save(path)
    with Image.open(path) as image:
        picture = np.asarray(image.convert("RGB")).astype(int)
    colours, counts = np.unique(picture.reshape(-1, 3), axis=0, return_counts=True)
    vivid = (np.ptp(colours, axis=1) > 40) & (counts > 1000)
    assert np.count_nonzero(vivid) >= num_types


def test_the_plot_refuses_unknown_formats(tmp_path: Path) -> None:
    value = form_groups("balanced", num_clients=2, seed=0, num_groups=2)
    with pytest.raises(CarvyError, match=r"\.txt"):
        plot(value, types=[0, 1]).save(tmp_path / "groups.txt")
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_values_are_drawn_for_a_notebook(tmp_path: Path) -> None:
    certificate = certify(votes([[0, 1], [0, 0], [0, 1]], 2), [0, 1])
    grouping = form_groups("balanced", num_clients=6, seed=0, num_groups=2)
    spread = Spread.of([[90, 0], [80, 0]])
    for value, word in (
        (certificate, "given these groups"),
        ({"mine": certificate, "carvy": certificate}, "CARVY-FL"),
        ({"flcert": spread}, "FLCert"),
        (grouping, "Clients by group"),
    ):
        picture = plot(value)
        assert picture._repr_png_().startswith(b"\x89PNG")
        picture.save(tmp_path / "drawn.svg")
        assert word in (tmp_path / "drawn.svg").read_text()
    plot(grouping, types=[0, 1, 2, 0, 1, 2]).save(tmp_path / "drawn.svg")
    assert "mean diversity" in (tmp_path / "drawn.svg").read_text()


def test_a_comparison_is_drawn_as_its_methods_are_under_its_reading(tmp_path: Path) -> None:
    methods = {"carvy": Spread.of([[90, 40, 0], [80, 0]]), "mine": Spread.of([[70, 0], [60, 0]])}
    found = Comparison((0, 1), "honest_only", methods, {"carvy": (4, 4), "mine": (2, 2)})
    for value, title, name in (
        (found, "", "whole"),
        (methods, "honest only", "parts"),
        (found, "mine", "titled"),
    ):
        plot(value, title=title).save(tmp_path / f"{name}.svg")
    whole, parts, titled = (
        (tmp_path / f"{n}.svg").read_text() for n in ("whole", "parts", "titled")
    )
    assert whole == parts
    assert ">honest only</text>" in whole
    assert ">honest only</text>" not in titled


@pytest.mark.parametrize("value", [None, {}, {"a": 3}, [1.0]])
def test_what_cannot_be_drawn_is_refused(value: object) -> None:
    with pytest.raises(CarvyError, match="plot"):
        plot(value)  # type: ignore[arg-type]
