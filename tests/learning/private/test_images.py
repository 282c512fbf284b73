"""Synthetic images: nobody's data, the same everywhere, each a function of its number."""

from __future__ import annotations

import numpy as np
import pytest

from carvyfl.core.errors import CarvyError
from carvyfl.learning.private.images import VERSIONS, dead_leaves


@pytest.mark.parametrize("shape", [(1, 28, 28), (3, 20, 33), (1, 1, 1)])
def test_images_have_the_shape_and_are_functions_of_their_number(shape: tuple[int, ...]) -> None:
    images = dead_leaves(shape, range(6))
    assert images.dtype == np.uint8
    assert images.shape == (6, VERSIONS, *shape)
    assert np.array_equal(images[2:4], dead_leaves(shape, range(2, 4)))


def test_versions_of_an_image_are_nearer_than_other_images() -> None:
    images = dead_leaves((1, 28, 28), range(40)).astype(float).reshape(40, VERSIONS, -1)
    among = np.linalg.norm(images[:, 1:] - images[:, :1], axis=2).mean()
    others = np.linalg.norm(images[1:, 1:] - images[:-1, :1], axis=2).mean()
    assert 0 < among < 0.8 * others
    assert not (images[:, 1] == images[:, 0]).all(axis=1).any()


def test_colours_of_three_channels_differ_and_places_do_not() -> None:
    images = dead_leaves((3, 24, 24), range(30))[:, 0]
    assert not np.array_equal(images[:, 0], images[:, 1])
    changes = [np.diff(images[:, c].astype(int), axis=2) != 0 for c in range(3)]
    assert np.mean(changes[0] == changes[1]) > 0.99  # but for equal shades


@pytest.mark.parametrize("shape", [(2, 28, 28), (28, 28), (1, 0, 28)])
def test_other_shapes_are_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(CarvyError, match="`public`"):
        dead_leaves(shape, range(1))
