"""Synthetic images of dead leaves, nobody's data, which stand in for public inputs.

An image shows up to 40 ellipses and rectangles, each over those before it, of random place, size,
angle and colour (Lee, Mumford and Huang, 2001). A warped version shows the same leaves from
elsewhere: what differs between versions of an image should not matter to a classifier.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from carvyfl.core.errors import CarvyError
from carvyfl.core.randomness import generator

SEED = 20260729  # of all synthetic images, whatever a run's seed is
IMAGES = 3000  # that a map is made of
VERSIONS = 4  # of each image: one as it is, and three warped
LEAVES = 2, 40  # in an image, fewest and most
MIDDLE = 0.4  # the part of each side over which the centres of leaves spread
SIZES = 0.03, 0.25  # half axes of leaves, as parts of the side

Bytes = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float64]


def dead_leaves(shape: tuple[int, ...], numbers: range, versions: int = VERSIONS) -> Bytes:
    """Draw the synthetic images of these numbers, uint8 of shape (images, versions, *shape).

    ``shape`` is (channels, height, width), of 1 or 3 channels. The first version of an image is not
    warped. An image is a function of its number, the shape and the versions.
    """
    if len(shape) != 3 or shape[0] not in (1, 3) or min(shape) < 1:
        raise CarvyError(
            f"synthetic images have 1 or 3 channels, height and width, not the shape {shape}; give "
            "`public` inputs of that shape"
        )
    channels, height, width = shape
    most = LEAVES[1]
    draws = [generator(SEED, "dead leaves", number) for number in numbers]
    counts = np.array([draw.integers(LEAVES[0], most + 1) for draw in draws])
    leaves = np.stack([draw.random((most, 6 + channels)) for draw in draws])
    x, y = _seen_from(np.stack([draw.uniform(-1, 1, (versions, 6)) for draw in draws]), shape)
    gamma = np.exp(np.stack([0.3 * draw.uniform(-1, 1, versions) for draw in draws]))
    gamma[:, 0] = 1.0
    canvas = np.zeros((len(draws), versions, channels, height, width))
    for leaf in range(most):
        there = np.flatnonzero(counts > leaf)
        kind, across, down, long, short, turn, *_ = leaves[there, leaf].T[:, :, None, None, None]
        dx, dy = x[there] - MIDDLE * (across - 0.5), y[there] - MIDDLE * (down - 0.5)
        cos, sin = np.cos(np.pi * turn), np.sin(np.pi * turn)
        axes = [SIZES[0] + (SIZES[1] - SIZES[0]) * part for part in (long, short)]
        along, aside = (dx * cos + dy * sin) / axes[0], (dy * cos - dx * sin) / axes[1]
        ellipse = along**2 + aside**2 <= 1
        rectangle = np.maximum(np.abs(along), np.abs(aside)) <= 1
        inside = np.where(kind < 0.5, ellipse, rectangle)[:, :, None]
        colour = leaves[there, leaf, 6:][:, None, :, None, None]
        canvas[there] = np.where(inside, colour, canvas[there])
    drawn: Bytes = np.rint(255 * canvas ** gamma[..., None, None, None]).astype(np.uint8)
    return drawn


def _seen_from(warps: Floats, shape: tuple[int, ...]) -> tuple[Floats, Floats]:
    """Return where each version sees each pixel, -½ … ½ unwarped; (images, versions, H, W) both."""
    height, width = shape[1:]
    turn, shear, scale, stretch, right, down = warps.transpose(2, 0, 1)[..., None, None]
    turn, shear = 0.15 * turn, 0.25 * shear
    wide, high = np.exp(0.2 * (scale + stretch)), np.exp(0.2 * (scale - stretch))
    rows, columns = (np.arange(height) + 0.5) / height - 0.5, (np.arange(width) + 0.5) / width - 0.5
    y, x = np.broadcast_arrays(rows[:, None], columns)
    x, y = wide * (x + shear * y + 0.07 * right), high * (y + 0.07 * down)
    x, y = x * np.cos(turn) - y * np.sin(turn), x * np.sin(turn) + y * np.cos(turn)
    x[:, 0], y[:, 0] = np.broadcast_arrays(columns, rows[:, None])
    return x, y
