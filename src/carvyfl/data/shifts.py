"""Public transformations of images, through which clients see the same classes differently.

Pixels are uint8, or floats from 0 to 1: their range is never taken from the clients' data.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from carvyfl.core.errors import CarvyError
from carvyfl.core.randomness import generator
from carvyfl.core.registry import Registry
from carvyfl.data.clients import Inputs, Labels, Samples

NOISE = 0.2  # standard deviation, as a share of the pixels' range
Draws = Iterable[np.random.Generator]


@dataclass(frozen=True)
class Shift:
    """A transformation of images, which may have to be ``square``.

    ``apply``: images (n, c, h, w) and n generators, one for each, → images of the same shape and
    type. All randomness comes from the generators. If it is ``ranged``, it needs the pixels' range:
    floats must lie between 0 and 1.
    """

    name: str
    help: str
    apply: Callable[[Inputs, Draws], Inputs]
    square: bool = False
    ranged: bool = False


def _rotate(images: Inputs, draws: Draws, *, quarters: int) -> Inputs:
    turned: npt.NDArray[Any] = np.rot90(images, quarters, axes=(2, 3))  # counter-clockwise
    return np.ascontiguousarray(turned)


def _invert(images: Inputs, draws: Draws) -> Inputs:
    return images.dtype.type(255 if images.dtype == np.uint8 else 1) - images


def _add_noise(images: Inputs, draws: Draws) -> Inputs:
    """Add Gaussian noise and clip to the range; uint8 is rounded."""
    top = 255 if images.dtype == np.uint8 else 1
    noisy = np.empty_like(images)
    for image, target, rng in zip(images, noisy, draws, strict=True):
        pixels = image + top * NOISE * rng.standard_normal(image.shape)
        target[:] = np.clip(np.rint(pixels) if top == 255 else pixels, 0, top)
    return noisy


SHIFTS: Registry[Shift] = Registry(
    "shift",
    "carvyfl.shifts",
    [
        Shift("rotate-0", "as it is", partial(_rotate, quarters=0)),
        Shift("rotate-90", "a quarter turn to the left", partial(_rotate, quarters=1), square=True),
        Shift("rotate-180", "upside down", partial(_rotate, quarters=2)),
        Shift("rotate-270", "a quarter turn to the right", partial(_rotate, quarters=3), True),
        Shift("invert", "light and dark exchanged", _invert, ranged=True),
        Shift("noise", f"Gaussian noise, {NOISE:g} of the range", _add_noise, ranged=True),
    ],
)


def as_shifts(shifts: Any, where: str, number: int | None = None) -> tuple[str, ...]:
    """Return names of :data:`SHIFTS` as a tuple; ``number`` is how many there must be."""
    if not isinstance(shifts, Sequence) or isinstance(shifts, str) or not shifts:
        raise CarvyError(f"{where} must be a list of names, such as [rotate-0, invert]")
    if number is not None and len(shifts) != number:
        raise CarvyError(f"{where} must be {number} names, one per client; got {len(shifts)}")
    return tuple(SHIFTS.pick(name).name for name in shifts)


def check_images(inputs: Inputs, shifts: Iterable[str], where: str) -> None:
    """Refuse inputs, shape (n, …), that one of the shifts cannot be applied to."""
    shape, floats = inputs.shape[1:], inputs.dtype != np.uint8 and inputs.size > 0
    for name in dict.fromkeys(shifts):
        shift, fault = SHIFTS[name], ""
        if len(shape) != 3:
            fault = f"images of shape (channels, height, width), not inputs of shape {shape}"
        elif shift.square and shape[1] != shape[2]:
            fault = f"square images, not {shape[1]}×{shape[2]}"
        elif shift.ranged and floats and (inputs.min() < 0 or inputs.max() > 1):
            actual = f"{inputs.min():g} to {inputs.max():g}"
            fault = f"uint8 or floats from 0 to 1, not from {actual}"
        if fault:
            raise CarvyError(f"{where}: shift '{name}' needs {fault}; use others")


def shift_samples(
    samples: Samples, shift: str, positions: Labels, seed: int, *key: str | int
) -> Samples:
    """Show samples through one shift.

    ``positions`` (n,) are the samples' places in their data set: what one of them draws is a
    function of seed, key and place, whichever others are there.
    """
    draws = (generator(seed, "shift", *key, position) for position in positions.tolist())
    return replace(samples, inputs=SHIFTS[shift].apply(samples.inputs, draws))


def shift_mixture(test: Samples, shifts: Sequence[str], seed: int) -> Samples:
    """Show every test sample through the shift of one client, drawn uniformly.

    ``shifts`` has one name per client, so that the test data follow the clients' mixture. What
    a sample gets depends on the seed and its place only.
    """
    check_images(test.inputs, shifts, "test data")
    draw = generator(seed, "shift", "mixture").integers(len(shifts), size=len(test))
    chosen, inputs = np.array(shifts)[draw], test.inputs.copy()
    for name in np.unique(chosen).tolist():
        places = np.flatnonzero(chosen == name)
        inputs[places] = shift_samples(test.take(places), name, places, seed, "test").inputs
    return replace(test, inputs=inputs)
