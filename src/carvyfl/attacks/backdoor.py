"""The BadNets backdoor: a trigger in the picture, and poisoned data that teach it.

Section 4.1 of the paper: a 3×3 patch at the bottom right, of value 1.0 *in the
normalised space*, makes a model answer the target class 0. The attacker trains on
poisoned pictures only, a fixed 100 of each of the other classes.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product

import numpy as np

from carvyfl.core.errors import CarvyError
from carvyfl.core.randomness import generator
from carvyfl.data.clients import Inputs, Samples

Pixels = tuple[tuple[int, int], ...]
"""(row, column) pairs; negative ones count from the bottom and the right."""


@dataclass(frozen=True)
class Trigger:
    """A patch that is stamped on pictures.

    ``size`` is the edge of the square at the bottom right, in pixels; ``value`` what its pixels are
    in the normalised space, (x - mean) / std.
    """

    size: int = 3
    value: float = 1.0

    @property
    def pixels(self) -> Pixels:
        """The pixels of the patch, row by row."""
        edge = range(-self.size, 0)
        return tuple(product(edge, edge))

    def part(self, index: int, parts: int) -> Pixels:
        """Return the pixels of one part of a trigger that is split among attackers (DBA)."""
        pixels = self.pixels
        return pixels[index % parts :: parts]


def stamp(inputs: Inputs, pixels: Pixels, value: float, mean: float, std: float) -> Inputs:
    """Return pictures with a trigger, of the type the inputs have.

    Inputs are uint8 (0…255) or float32 of shape (n, C, H, W); ``value`` is that of the pixels after
    (x - mean) / std.

    Notes
    -----
    An 8-bit picture holds the nearest of its 256 values: 112 on MNIST, which is
    1.001 in the normalised space, and 163 on Fashion-MNIST, 1.001 too.
    """
    if inputs.ndim != 4:
        raise CarvyError(f"a trigger needs pictures (n, C, H, W), not inputs {inputs.shape}")
    height, width = inputs.shape[2:]
    if any(-row > height or -column > width for row, column in pixels):
        raise CarvyError(f"the trigger does not fit on pictures of {height}×{width}")
    raw = value * std + mean
    if inputs.dtype == np.uint8:
        raw = min(max(round(255 * raw), 0), 255)
    stamped = inputs.copy()
    rows, columns = np.array(pixels).T
    stamped[:, :, rows, columns] = raw
    return stamped


def source_pictures(pool: Samples, target: int, per_class: int, seed: int) -> Samples:
    """Draw the attackers' pictures: a fixed number of each class but the target.

    One draw a run: all malicious clients of a federation share it, at any m.
    Where a class has too few pictures, all of them are taken.
    """
    chosen = []
    for c in np.unique(pool.labels):
        if c != target:
            own = np.flatnonzero(pool.labels == c)
            drawn = generator(seed, "poison", int(c)).permutation(len(own))[:per_class]
            chosen.append(own[drawn])
    if not chosen:
        raise CarvyError(f"there is nothing to poison: all pictures are of the target {target}")
    return pool.take(np.concatenate(chosen))


def triggered_test(test: Samples, trigger: Trigger, target: int, mean: float, std: float) -> Inputs:
    """Return D^trg with the trigger: the test pictures of every class but the target (Eq. 14)."""
    others = test.take(np.flatnonzero(test.labels != target))
    return stamp(others.inputs, trigger.pixels, trigger.value, mean, std)
