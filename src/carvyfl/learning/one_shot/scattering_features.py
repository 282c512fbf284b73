"""From images to features: scattering coefficients, compressed, in their lowest frequencies.

Nothing here is learned and nothing depends on data: the map is a constant fixed before any client
is heard. With S the scattering coefficients of an image inside a black border of two pixels, the
features x are

    z = K F((S + ε)^¼ - ε^¼),    x = 8 z / √(‖z‖² + 1)

where K keeps the numbers that stand at low frequencies and F is an orthogonal transform along every
axis: cosines over rows i and columns j, Fourier's circular basis over the angles (a, or a and b at
order 2), which wrap around. Kept are all numbers of order 0, those with i + j + f(a) ≤ 8 at order 1
and those with i + j + f(a) + f(b) ≤ 6 at order 2, where f counts waves per half turn. Coefficients
are smooth along all these axes, so a fifth of the numbers tells a linear head nearly as much as all
of them, with sums of a twenty-fifth of the size. The length of z, about 8 for a picture of clothes,
says how much ink there is; a head does better without it.
"""

from __future__ import annotations

import functools
import math
from typing import Final

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from carvyfl.learning.one_shot.scattering import ANGLES, SCALE, scattering

BORDER: Final = 2  # pixels of black on each side
HIGHEST: Final = (8, 6)  # the largest sums of frequencies kept at orders 1 and 2

_OFFSET: Final = 1e-3  # ε: without it the root would blow up rounding errors where S is 0
_LENGTH: Final = 8.0  # of every image's features, but for the almost black
_FIRST: Final = 1 + SCALE * ANGLES  # where order 2 begins
_IMAGES: Final = 1024  # at once: their coefficients take some 20 MB


def scattering_features(images: Tensor) -> Tensor:
    """Return the features of images, as the equation above has them.

    Parameters
    ----------
    images
        float32 of shape (n, channels, H, W), values 0 … 1, H and W at least 4; on any device.

    Returns
    -------
    Tensor
        float32 of shape (n, d), on the same device: d = 1,000 for one channel of 28 × 28 pixels.
        An image's features depend on the other images of the call by rounding alone.
    """
    padded = torch.nn.functional.pad(images, (BORDER,) * 4)
    starts = range(0, max(len(padded), 1), _IMAGES)
    parts = [_features(padded[start : start + _IMAGES]) for start in starts]
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def feature_width(channels: int, height: int, width: int) -> int:
    """Return d, the number of features of images with so many channels and pixels."""
    high, wide = ((side + 2 * BORDER) // 2**SCALE for side in (height, width))
    first, second = _kept(high, wide)
    return channels * (high * wide + SCALE * len(first) + len(second))


def _features(images: Tensor) -> Tensor:
    """Return the features of a few images that have their border already."""
    roots = scattering(images).clamp_min_(0).add_(_OFFSET).sqrt_().sqrt_()
    compressed = roots.sub_(_OFFSET**0.25)
    n, channels, _, high, wide = compressed.shape
    rows, columns, angles, kept = _axes(channels, high, wide, images.device)
    waves = (compressed @ columns.T).transpose(-1, -2) @ rows.T  # (n, channels, 81, W', H')

    pixels, each = wide * high, n * channels
    second = angles @ waves[:, :, _FIRST:].reshape(each, ANGLES, ANGLES * pixels)
    first = waves[:, :, 1:_FIRST].reshape(each, SCALE * ANGLES, pixels)
    paths = torch.cat([first, second.reshape(each, ANGLES**2, pixels)], dim=1)
    paths = angles @ paths.reshape(each, SCALE + ANGLES, ANGLES, pixels)
    paths = paths.reshape(n, channels * (SCALE + ANGLES) * ANGLES * pixels)
    orders = torch.cat([waves[:, :, 0].flatten(1), paths], dim=1)
    low = orders.index_select(1, kept)
    return low * (_LENGTH / (low.square().sum(dim=1, keepdim=True) + 1).sqrt())


@functools.lru_cache(maxsize=16)
def _axes(channels: int, high: int, wide: int, device: torch.device) -> tuple[Tensor, ...]:
    """Return the transforms of rows, columns and angles, and the positions of the features.

    They are positions among the numbers of order 0, channel by channel, and the others: (channel,
    path, angle, column, row). Channels come within an order.
    """
    first, second = _kept(high, wide)
    path = ANGLES * wide * high
    channel = channels * wide * high + (SCALE + ANGLES) * path * np.arange(channels)
    scales = channel[:, None, None] + path * np.arange(SCALE)[:, None] + first
    orders = [np.arange(channels * wide * high), scales, channel[:, None] + SCALE * path + second]

    def held(array: npt.NDArray[np.float64]) -> Tensor:
        return torch.from_numpy(array.astype(np.float32)).to(device)

    return (
        held(_cosines(high)),
        held(_cosines(wide)),
        held(_circular_waves()),
        torch.from_numpy(np.concatenate([order.ravel() for order in orders])).to(device),
    )


def _kept(high: int, wide: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return which numbers stay.

    They are positions: at order 1 among (angle, column, row), at order 2 among (angle, angle,
    column, row), flattened.
    """
    turns = (np.arange(ANGLES) + 1) // 2  # waves per half turn: 0, 1, 1, 2, 2, 3, 3, 4
    a, b, j, i = np.ogrid[:ANGLES, :ANGLES, :wide, :high]
    first = np.flatnonzero((turns[a] + i + j)[:, 0] <= HIGHEST[0])
    second = np.flatnonzero(turns[a] + turns[b] + i + j <= HIGHEST[1])
    return first, second


def _cosines(side: int) -> npt.NDArray[np.float64]:
    """Return the orthogonal cosine transform (DCT-II) of ``side`` numbers, low frequency first."""
    frequency, place = np.ogrid[:side, :side]
    waves = math.sqrt(2 / side) * np.cos(math.pi * (place + 0.5) * frequency / side)
    waves[0] /= math.sqrt(2)
    return waves


def _circular_waves() -> npt.NDArray[np.float64]:
    """Return the orthogonal Fourier basis over the angles: constant, then cosine and sine."""
    place = 2 * math.pi * np.arange(ANGLES) / ANGLES
    waves = np.empty((ANGLES, ANGLES))
    for row in range(ANGLES):
        wave = (np.sin if row % 2 == 0 else np.cos)((row + 1) // 2 * place)
        waves[row] = wave if row else 1.0
    basis: npt.NDArray[np.float64] = waves / np.linalg.norm(waves, axis=1, keepdims=True)
    return basis
