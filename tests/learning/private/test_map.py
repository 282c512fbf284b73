"""The map: what it whitens, the bound that always holds, and its file."""

from __future__ import annotations

import json
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from safetensors.numpy import load_file, save_file
from scipy.linalg import eigh
from torch import nn

from carvyfl.core.errors import CarvyError
from carvyfl.learning.one_shot.features import features_for
from carvyfl.learning.private import map as maps
from carvyfl.learning.private.map import (
    Map,
    load,
    make_map,
    plain_map,
    public_inputs,
    whitened,
    width_for,
)

RNG = np.random.default_rng(0)
VIEWS = RNG.normal(size=(200, 1, 6)) * [3, 1, 1, 1, 1, 1] + RNG.normal(size=(200, 3, 6)) / 3
SMALL = whitened(VIEWS, 4, "a test")


def numbers() -> st.SearchStrategy[float]:
    extremes = [0.0, np.nan, np.inf, -np.inf, 1e30, -1e30, 3.4e38, 1e300, 5e-324, 1e-40, -1.0]
    return st.one_of(st.sampled_from(extremes), st.floats(width=64))


@settings(deadline=None)
@given(arrays(np.float64, (3, 6), elements=numbers()), st.sampled_from([SMALL, plain_map(6, 4)]))
def test_no_vector_is_longer_than_one_whatever_the_features_are(
    features: np.ndarray, private_map: Map
) -> None:
    for row, alone in zip(private_map.vectors(features), features, strict=True):
        assert sum(Fraction(number) ** 2 for number in row) <= 1  # exact arithmetic
        assert all((Fraction(number) * 4096).denominator == 1 for number in row)
        assert np.array_equal(row, private_map.vectors(alone[None])[0])
        with np.errstate(over="ignore"):
            finite = np.isfinite(alone.astype(np.float32)).all()
        assert finite or not row.any()


def test_vectors_are_not_all_cut_to_nothing() -> None:
    lengths = np.linalg.norm(SMALL.vectors(VIEWS.reshape(-1, 6)), axis=1)
    assert 0.45 < (lengths > 0.999).mean() < 0.55  # the bound is the median
    assert np.linalg.norm(plain_map(6, 4).vectors(VIEWS[:, 0]), axis=1) == pytest.approx(
        1, abs=1e-3
    )


def test_directions_solve_the_generalised_eigenproblem() -> None:
    """The leading directions of T against P = W + T/5, computed by another routine."""
    rows = VIEWS.reshape(-1, 6)
    total = np.cov(rows.T, bias=True)
    within = np.mean([np.cov(view.T) for view in VIEWS], axis=0)
    values, directions = eigh(total, within + 0.2 * total)  # columns v with vᵀ P v = 1
    leading = directions[:, ::-1][:, :4]
    signs = np.sign((leading * SMALL.matrix).sum(axis=0))
    assert SMALL.matrix == pytest.approx(leading * signs, rel=1e-4, abs=1e-5)
    projected = (rows - rows.mean(axis=0)) @ leading
    assert projected.var(axis=0) == pytest.approx(values[::-1][:4], rel=1e-6)
    assert SMALL.bound == pytest.approx(np.median(np.linalg.norm(projected, axis=1)), rel=1e-5)
    assert np.linalg.norm(SMALL.spread) == pytest.approx(1, rel=1e-5)


def test_public_inputs_without_versions_are_whitened() -> None:
    public = whitened(VIEWS[:, :1], 4, "public")
    projected = (VIEWS[:, 0] - VIEWS[:, 0].mean(axis=0)) @ public.matrix
    assert np.cov(projected.T, bias=True) == pytest.approx(np.eye(4), abs=1e-4)


def test_a_map_comes_of_the_shape_or_of_public_inputs_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(maps, "IMAGES", 20)
    monkeypatch.setattr(maps, "AT_ONCE", 10)
    features = features_for("scattering", (1, 8, 8))
    made = make_map(features, (1, 8, 8), 10, dimensions=12)
    assert made.digest == make_map(features, (1, 8, 8), 10, dimensions=12).digest
    assert made.width == 12
    public = np.random.default_rng(1).integers(0, 256, (30, 1, 8, 8), dtype=np.uint8)
    other = make_map(features, (1, 8, 8), 10, public, 12)
    assert "SHA-256" in other.origin
    assert other.digest not in (made.digest, make_map(features, (1, 8, 8), 10, ~public, 12).digest)
    table = make_map(features_for("none", (7,)), (7,), 3)
    assert np.array_equal(table.matrix, np.eye(7))
    with pytest.raises(CarvyError, match="`public` inputs have the shape"):
        public_inputs(public[:, :, 1:], (1, 8, 8))
    with pytest.raises(CarvyError, match="all alike"):
        make_map(features, (1, 8, 8), 10, 0 * public)


@pytest.mark.parametrize(
    ("features", "classes", "width"), [(1000, 10, 256), (40, 10, 40), (1000, 62, 65), (9, 4095, 0)]
)
def test_a_message_fits_into_16_kilobytes(features: int, classes: int, width: int) -> None:
    if width == 0:
        with pytest.raises(CarvyError, match="do not fit"):
            width_for(features, classes)
        return
    assert width_for(features, classes) == width
    assert 4 * classes * (width + 1) <= 16_384
    with pytest.raises(CarvyError, match="`dimensions`"):
        width_for(features, classes, 2000)


def test_a_file_holds_the_map_and_a_damaged_one_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "map.safetensors"
    SMALL.save(path)
    first = path.read_bytes()
    for _ in range(20):  # the same bytes, whatever order a library has of its own
        SMALL.save(path)
        assert path.read_bytes() == first
    loaded = load(path)
    assert loaded.digest == SMALL.digest
    assert np.array_equal(loaded.vectors(VIEWS[:, 0]), SMALL.vectors(VIEWS[:, 0]))
    tensors = load_file(path)
    tensors["matrix"][1, 2] = np.nextafter(tensors["matrix"][1, 2], np.float32(9))
    about = {"origin": SMALL.origin, "digest": SMALL.digest}
    save_file(tensors, path, {"about": json.dumps(about)})
    with pytest.raises(CarvyError, match="damaged"):
        load(path)
    for content in (b"", path.read_bytes()[:-9]):
        path.write_bytes(content)
        with pytest.raises(CarvyError, match="cannot read the map"):
            load(path)


def test_every_part_of_a_map_is_in_its_digest() -> None:
    changed = [replace(SMALL, origin="another")]
    for name in ("mean", "matrix", "bound", "spread"):
        array = np.array(getattr(SMALL, name))
        array.flat[-1] += np.float32(0.5)
        part: dict[str, Any] = {name: array}
        changed.append(replace(SMALL, **part))
    assert len({each.digest for each in [SMALL, *changed]}) == 6


@pytest.mark.parametrize(
    "change",
    [
        {"mean": np.zeros(3, np.float32)},
        {"bound": np.array(-1, np.float32)},
        {"matrix": np.full((6, 4), np.nan, np.float32)},
        {"spread": np.ones(4)},
    ],
)
def test_a_map_that_makes_no_sense_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(CarvyError, match="a map needs"):
        replace(SMALL, **change)


def test_features_of_another_width_are_refused() -> None:
    with pytest.raises(CarvyError, match="6 features"):
        SMALL.vectors(np.zeros((2, 5)))


def test_a_network_of_ones_own_gets_no_synthetic_images() -> None:
    network = nn.Sequential(nn.Flatten(), nn.Linear(64, 12))
    assert make_map(features_for(network, (1, 8, 8)), (1, 8, 8), 3).origin.startswith("nothing")
