"""Features of images: a two-layer wavelet scattering transform, in which nothing is learned.

Written with ⋆ for circular convolution, ψ for Morlet wavelets at L angles and two scales, and φ for
a Gaussian, the coefficients of an image x are

    order 0:  x ⋆ φ            order 1:  |x ⋆ ψ| ⋆ φ            order 2:  ||x ⋆ ψ| ⋆ ψ'| ⋆ φ

read at every 2^J-th pixel, with ψ' coarser than ψ. They hardly move when an image is shifted or
bent by a pixel or two, and the moduli keep what the average alone would lose (Mallat, 2012; Bruna
and Mallat, 2013). Filters, borders and the order of the paths are those of kymatio 0.3.0.

Features are coefficients, compressed, in their lowest frequencies. With S those of an image inside
a black border of two pixels, the features x are

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
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from carvyfl.core.errors import CarvyError

SCALE: Final = 2  # J: coefficients are read at every 2^J-th pixel
ANGLES: Final = 8  # L
PATHS: Final = 1 + SCALE * ANGLES + ANGLES**2  # orders 0, 1 and 2; at J = 2 only fine → coarse
LEAST_SIDE: Final = 8  # pixels
_STEP: Final = 2**SCALE
_SPREAD: Final = 0.8  # pixels: standard deviation of the finest wavelet's envelope
_TURNS: Final = 3.1415  # kymatio's π where it scales a Gaussian; the true one moves all by 3e-5
_CPU_MAPS: Final = 8  # channels at once: what one layer leaves is still in the cache for the next
_GPU_MAPS: Final = 2048  # half a megabyte each, for 28×28 pixels
_PERIODS: Final = 5  # of a filter along each axis are added up; further ones are zero
_Real = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class _Filters:
    """What the transform of H × W pixels needs; H₊ × W₊ with borders, both divisible by 2^J.

    ``fine`` and ``coarse`` are spectra of wavelets, (L, H₊, W₊, 2) and (2, 2, L, H₊/2, W₊/2, 2):
    real, and twice, for the real and imaginary parts they multiply; the coarse ones over four, cut
    into the quarters that fall onto each other when every second pixel is read. The others are φ
    along an axis and reading every 2^J-th pixel, borders left out, of whole maps and of every
    second pixel.
    """

    border: tuple[int, int, int, int]
    fine: Tensor
    coarse: Tensor
    full_rows: Tensor
    full_columns: Tensor
    half_rows: Tensor
    half_columns: Tensor


def scattering(images: Tensor) -> Tensor:
    """Return the scattering coefficients of images, channel by channel.

    (n, channels, H, W) → (n, channels, 81, ⌊H/4⌋, ⌊W/4⌋), float32 on any device, H and W at least
    8. Along the paths: order 0; order 1, scale before angle; order 2, the first wavelet's angle
    before the second's. Borders are reflected. An image's coefficients depend on the other images
    of the call by rounding alone.
    """
    if images.ndim != 4 or min(images.shape[2:]) < LEAST_SIDE:
        raise CarvyError(
            f"scattering needs images (n, channels, height, width) of at least "
            f"{LEAST_SIDE}×{LEAST_SIDE}, not an array of shape {tuple(images.shape)}"
        )
    n, channels, height, width = images.shape
    filters = _filters(height, width, images.device)
    maps = images.reshape(-1, 1, height, width)
    at_once = _CPU_MAPS if images.device.type == "cpu" else _GPU_MAPS
    if not len(maps):
        return maps.new_empty(n, channels, PATHS, height // _STEP, width // _STEP)
    out = torch.cat([_transform(part, filters) for part in torch.split(maps, at_once)])
    return out.reshape(n, channels, *out.shape[1:])


def _transform(maps: Tensor, filters: _Filters) -> Tensor:
    """Return the coefficients of maps (k, 1, H, W), shape (k, 81, H', W'), in few operations."""
    padded = torch.nn.functional.pad(maps, filters.border, mode="reflect")
    spectrum = torch.fft.fft2(padded)
    fine = _modulus(torch.view_as_complex(torch.view_as_real(spectrum) * filters.fine))
    full = torch.cat([padded, fine], dim=1)  # (k, 1 + L, H₊, W₊): for order 0, and 1 of fine waves
    spectra = torch.view_as_real(torch.cat([spectrum, torch.fft.fft2(fine)], dim=1))
    half = _coarse_modulus(spectra, filters)  # (k, 1 + L, L, …): for order 1 of coarse waves, and 2
    return torch.cat(
        [
            _blur(full, filters.full_rows, filters.full_columns),
            _blur(half.flatten(1, 2), filters.half_rows, filters.half_columns),
        ],
        dim=1,
    )


def _coarse_modulus(spectra: Tensor, filters: _Filters) -> Tensor:
    """Return |· ⋆ ψ| at every second pixel, (k, maps, L, H₊/2, W₊/2): the product stays small."""
    k, maps, height, width, _ = spectra.shape
    quarters = spectra.reshape(k, maps, 1, 2, height // 2, 2, width // 2, 2)
    folded = quarters[:, :, :, 0, :, 0] * filters.coarse[0, 0]
    for i, j in ((0, 1), (1, 0), (1, 1)):
        folded.addcmul_(quarters[:, :, :, i, :, j], filters.coarse[i, j])
    return _modulus(torch.view_as_complex(folded))


def _modulus(spectra: Tensor) -> Tensor:
    waves = torch.fft.ifft2(spectra)
    squares = torch.view_as_real(waves).square_()  # on a CPU three times as fast as abs
    return (squares[..., 0] + squares[..., 1]).sqrt_()


def _blur(maps: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """Return φ's average at the pixels that are kept: φ is a product, so one axis at a time."""
    return rows @ (maps @ columns.T)


@functools.lru_cache(maxsize=16)
def _filters(height: int, width: int, device: torch.device) -> _Filters:
    top, bottom = _border(height)
    left, right = _border(width)
    high, wide = top + height + bottom, left + width + right
    fine, coarse = (_morlet_spectra(high, wide, scale) for scale in range(SCALE))
    quarters = coarse.reshape(ANGLES, 2, high // 2, 2, wide // 2).transpose(1, 3, 0, 2, 4) / 4
    held = functools.partial(_held, device=device)
    return _Filters(
        border=(left, right, top, bottom),
        fine=held(np.stack([fine, fine], axis=-1)),
        coarse=held(np.stack([quarters, quarters], axis=-1)),
        full_rows=held(_circulant(_gaussian(high), _STEP)),
        full_columns=held(_circulant(_gaussian(wide), _STEP)),
        half_rows=held(_half_average(high)),
        half_columns=held(_half_average(wide)),
    )


def _held(array: _Real, device: torch.device) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(array, dtype=np.float32)).to(device)


def _border(side: int) -> tuple[int, int]:
    added = (side // _STEP + 2) * _STEP - side
    return added // 2, added - added // 2


def _gaussian(side: int) -> _Real:
    """Return φ along one axis of ``side`` pixels, periodic, centred at 0."""
    spread = _SPREAD * 2 ** (SCALE - 1)
    periods = np.arange(_PERIODS)[:, None] - _PERIODS // 2
    bell = np.exp(-((np.arange(side) + periods * side) ** 2) / (2 * spread**2)).sum(axis=0)
    wave: _Real = bell / math.sqrt(2 * _TURNS * spread**2)
    return wave


def _half_average(side: int) -> _Real:
    """Return φ for a signal of every second pixel: its spectrum, cut to that signal's."""
    spectrum = np.fft.fft(_gaussian(side)).real
    cut = np.concatenate([spectrum[: side // 4], spectrum[-side // 4 :]])
    return _circulant(np.fft.ifft(cut).real, _STEP // 2)


def _circulant(wave: _Real, step: int) -> _Real:
    """Return the matrix that convolves with ``wave``, reads every ``step``-th, drops both ends."""
    side = len(wave)
    read = np.arange(step, side - step, step)[:, None]
    matrix: _Real = wave[(read - np.arange(side)) % side]
    return matrix


def _morlet_spectra(high: int, wide: int, scale: int) -> _Real:
    """Return the real spectra (L, high, wide) of the Morlet wavelets at a scale, angle by angle."""
    angles = math.pi * (ANGLES // 2 - 1 - np.arange(ANGLES)) / ANGLES
    return np.stack([_spectrum(high, wide, scale, angle) for angle in angles])


def _spectrum(high: int, wide: int, scale: int, angle: float) -> _Real:
    spread, slant, frequency = _SPREAD * 2**scale, 4 / ANGLES, 3 / 4 * math.pi / 2**scale
    periods = np.arange(_PERIODS)[:, None] - _PERIODS // 2
    y = (np.arange(high) + periods * high)[:, None, :, None]
    x = (np.arange(wide) + periods * wide)[None, :, None, :]
    along = (y * np.cos(angle) + x * np.sin(angle)).reshape(-1, high, wide)
    aside = (x * np.cos(angle) - y * np.sin(angle)).reshape(-1, high, wide)
    bells = np.exp(-(along**2 + (slant * aside) ** 2) / (2 * spread**2))
    envelope = bells.sum(axis=0)
    wave = (bells * np.exp(1j * frequency * along)).sum(axis=0)
    wave -= wave.sum() / envelope.sum() * envelope
    spectrum: _Real = np.fft.fft2(wave).real / (2 * _TURNS * spread**2 / slant)
    return spectrum


# --- features

BORDER: Final = 2  # pixels of black on each side
HIGHEST: Final = (8, 6)  # the largest sums of frequencies kept at orders 1 and 2
_OFFSET: Final = 1e-3  # ε: without it the root would blow up rounding errors where S is 0
_LENGTH: Final = 8.0  # of every image's features, but for the almost black
_FIRST: Final = 1 + SCALE * ANGLES  # where order 2 begins
_IMAGES: Final = 1024  # at once: their coefficients take some 20 MB


def scattering_features(images: Tensor) -> Tensor:
    """Return the features of images (n, channels, H, W), float32 of 0 … 1, on any device.

    They are float32 of shape (n, d): d = 1,000 for one channel of 28 × 28 pixels. An image's
    features depend on the other images of the call by rounding alone.
    """
    padded = torch.nn.functional.pad(images, (BORDER,) * 4)
    starts = range(0, max(len(padded), 1), _IMAGES)
    parts = [_features(padded[start : start + _IMAGES]) for start in starts]
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def feature_width(channels: int, height: int, width: int) -> int:
    """Return d, the number of features of images with so many channels and pixels."""
    high, wide = ((side + 2 * BORDER) // 2**SCALE for side in (height, width))
    # Cut to the frequencies that may be kept: no array grows with the image.
    first, second = _low_places(*(min(side, max(HIGHEST) + 1) for side in (high, wide)))
    return channels * (high * wide + SCALE * len(first) + len(second))


def _features(images: Tensor) -> Tensor:
    roots = scattering(images).clamp_min_(0).add_(_OFFSET).sqrt_().sqrt_()
    compressed = roots.sub_(_OFFSET**0.25)
    n, channels, _, high, wide = compressed.shape
    rows, columns, angles, places = _axes(channels, high, wide, images.device)
    waves = (compressed @ columns.T).transpose(-1, -2) @ rows.T  # (n, channels, 81, W', H')

    pixels, each = wide * high, n * channels
    second = angles @ waves[:, :, _FIRST:].reshape(each, ANGLES, ANGLES * pixels)
    first = waves[:, :, 1:_FIRST].reshape(each, SCALE * ANGLES, pixels)
    paths = torch.cat([first, second.reshape(each, ANGLES**2, pixels)], dim=1)
    paths = angles @ paths.reshape(each, SCALE + ANGLES, ANGLES, pixels)
    paths = paths.reshape(n, channels * (SCALE + ANGLES) * ANGLES * pixels)
    orders = torch.cat([waves[:, :, 0].flatten(1), paths], dim=1)
    low = orders.index_select(1, places)
    return low * (_LENGTH / (low.square().sum(dim=1, keepdim=True) + 1).sqrt())


@functools.lru_cache(maxsize=16)
def _axes(channels: int, high: int, wide: int, device: torch.device) -> tuple[Tensor, ...]:
    first, second = _low_places(high, wide)
    path = ANGLES * wide * high
    channel = channels * wide * high + (SCALE + ANGLES) * path * np.arange(channels)
    scales = channel[:, None, None] + path * np.arange(SCALE)[:, None] + first
    orders = [np.arange(channels * wide * high), scales, channel[:, None] + SCALE * path + second]
    transforms = (_cosines(high), _cosines(wide), _circular_waves())
    positions = torch.from_numpy(np.concatenate([order.ravel() for order in orders]))
    return *(_held(array, device) for array in transforms), positions.to(device)


def _low_places(high: int, wide: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return which numbers stay: positions among (angle, column, row), and (angle, angle, …)."""
    turns = (np.arange(ANGLES) + 1) // 2  # waves per half turn: 0, 1, 1, 2, 2, 3, 3, 4
    a, b, j, i = np.ogrid[:ANGLES, :ANGLES, :wide, :high]
    first = np.flatnonzero((turns[a] + i + j)[:, 0] <= HIGHEST[0])
    second = np.flatnonzero(turns[a] + turns[b] + i + j <= HIGHEST[1])
    return first, second


def _cosines(side: int) -> _Real:
    """Return the orthogonal cosine transform (DCT-II) of ``side`` numbers, low frequency first."""
    frequency, place = np.ogrid[:side, :side]
    waves = math.sqrt(2 / side) * np.cos(math.pi * (place + 0.5) * frequency / side)
    waves[0] /= math.sqrt(2)
    return waves


def _circular_waves() -> npt.NDArray[np.float64]:
    """Return the orthogonal Fourier basis over the angles: constant, then cosine and sine."""
    place = 2 * math.pi * np.arange(ANGLES) / ANGLES
    rows = range(1, ANGLES)
    waves = [(np.sin if row % 2 == 0 else np.cos)((row + 1) // 2 * place) for row in rows]
    table = np.stack([np.ones(ANGLES), *waves])
    basis: _Real = table / np.linalg.norm(table, axis=1, keepdims=True)
    return basis
