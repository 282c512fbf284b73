"""Pictures of a run: every method and every type can be seen in them."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageColor

from carvyfl.core.errors import CarvyError
from carvyfl.groups.methods import GROUPINGS, form_groups
from carvyfl.plots.pictures import plot_ca, plot_grouping
from carvyfl.plots.style import method_style
from carvyfl.profiles.methods import Profiles
from carvyfl.profiles.types import ClientTypes


def test_every_method_has_its_curve_in_its_colour(tmp_path: Path) -> None:
    curves = {m: np.array([90.0 - 5 * k, 30 - k, 0]) for k, m in enumerate(GROUPINGS)}
    for name in ("ca.png", "ca.svg"):
        plot_ca(curves, tmp_path / name, title="what was run")
    with Image.open(tmp_path / "ca.png") as image:
        found = {colour for _, colour in image.convert("RGB").getcolors(1 << 20) or []}
    svg = (tmp_path / "ca.svg").read_text()
    for label, colour in ((s.label, s.colour) for s in map(method_style, GROUPINGS)):
        assert ImageColor.getrgb(colour) in found
        assert f">{label}</text>" in svg  # text stays text
    assert ">what was run</text>" in svg


def test_the_same_picture_has_the_same_bytes(tmp_path: Path) -> None:
    for name in ("a.png", "b.png", "a.svg", "b.svg"):
        plot_ca({"carvy": np.array([90.0, 0])}, tmp_path / name, title="t")
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
        (1000, 12, "carvy"),
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
    plot_grouping(value, labels, path)
    with Image.open(path) as image:
        picture = np.asarray(image.convert("RGB")).astype(int)
    colours, counts = np.unique(picture.reshape(-1, 3), axis=0, return_counts=True)
    vivid = (np.ptp(colours, axis=1) > 40) & (counts > 1000)
    assert np.count_nonzero(vivid) >= num_types


def test_the_plot_refuses_unknown_formats(tmp_path: Path) -> None:
    value = form_groups("balanced", num_clients=2, seed=0, num_groups=2)
    with pytest.raises(CarvyError, match=r"\.txt"):
        plot_grouping(value, [0, 1], tmp_path / "groups.txt")
    assert not list(tmp_path.iterdir())
