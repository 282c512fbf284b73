"""A two-layer wavelet scattering transform, fixed beforehand: nothing in it is learned.

Written with ⋆ for circular convolution, ψ for Morlet wavelets at L angles and two scales, and φ for
a Gaussian, the coefficients of an image x are

    order 0:  x ⋆ φ            order 1:  |x ⋆ ψ| ⋆ φ            order 2:  ||x ⋆ ψ| ⋆ ψ'| ⋆ φ

read at every 2^J-th pixel, with ψ' coarser than ψ. They hardly move when an image is shifted or
bent by a pixel or two, and the moduli keep what the average alone would lose (Mallat, 2012; Bruna
and Mallat, 2013). Filters, borders and the order of the paths are those of kymatio 0.3.0.
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
_WAVELET_PIXELS: Final = 1 << 19  # of all periods, for which wavelets are computed at once

_Real = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class _Filters:
    """What the transform of H × W pixels needs; H₊ × W₊ with borders, both divisible by 2^J.

    Attributes
    ----------
    border
        Pixels added left, right, above and below.
    fine
        (L, H₊, W₊, 2): spectra of the fine wavelets; they are real, and stand twice, for the real
        and the imaginary parts they multiply.
    coarse
        (2, 2, L, H₊/2, W₊/2, 2): spectra of the coarse wavelets over four, cut into the quarters
        that fall onto each other when every second pixel is read.
    full_rows, full_columns
        (H', H₊) and (W', W₊): φ along an axis and reading every 2^J-th pixel, borders left out.
    half_rows, half_columns
        (H', H₊/2) and (W', W₊/2): the same for maps of which every second pixel is left.
    """

    border: tuple[int, int, int, int]
    fine: Tensor
    coarse: Tensor
    full_rows: Tensor
    full_columns: Tensor
    half_rows: Tensor
    half_columns: Tensor

    def to(self, device: torch.device) -> _Filters:
        """Return the same filters on a device."""
        return _Filters(
            self.border,
            self.fine.to(device),
            self.coarse.to(device),
            self.full_rows.to(device),
            self.full_columns.to(device),
            self.half_rows.to(device),
            self.half_columns.to(device),
        )


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
    parts = [_transform(part, filters) for part in torch.split(maps, at_once)]
    out = parts[0] if len(parts) == 1 else torch.cat(parts)
    return out.reshape(n, channels, *out.shape[1:])


def _transform(maps: Tensor, filters: _Filters) -> Tensor:
    """Return the coefficients of ``maps`` (k, 1, H, W), shape (k, 81, H', W').

    In few operations: of a single image each takes longer to begin than to be done.
    """
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
    """Return |· ⋆ ψ| at every second pixel, (k, maps, L, H₊/2, W₊/2), for each coarse wavelet ψ.

    ``spectra`` has shape (k, maps, H₊, W₊, 2), real and imaginary parts last. Reading every second
    pixel adds up the four quarters of a spectrum, so the product is never formed at full size.
    """
    k, maps, height, width, _ = spectra.shape
    quarters = spectra.reshape(k, maps, 1, 2, height // 2, 2, width // 2, 2)
    folded = quarters[:, :, :, 0, :, 0] * filters.coarse[0, 0]
    for i, j in ((0, 1), (1, 0), (1, 1)):
        folded.addcmul_(quarters[:, :, :, i, :, j], filters.coarse[i, j])
    return _modulus(torch.view_as_complex(folded))


def _modulus(spectra: Tensor) -> Tensor:
    """Return the modulus of the maps that have these spectra."""
    waves = torch.fft.ifft2(spectra)
    squares = torch.view_as_real(waves).square_()  # on a CPU three times as fast as abs
    return (squares[..., 0] + squares[..., 1]).sqrt_()


def _blur(maps: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """Return φ's average at the pixels that are kept: φ is a product, so one axis at a time."""
    return rows @ (maps @ columns.T)


@functools.lru_cache(maxsize=16)
def _filters(height: int, width: int, device: torch.device) -> _Filters:
    """Return the filters for H × W pixels on a device."""
    return _host_filters(height, width).to(device)


@functools.lru_cache(maxsize=16)
def _host_filters(height: int, width: int) -> _Filters:
    """Compute the filters for H × W pixels once for all devices, in double precision."""
    top, bottom = _border(height)
    left, right = _border(width)
    high, wide = top + height + bottom, left + width + right
    fine, coarse = (_morlet_spectra(high, wide, scale) for scale in range(SCALE))
    quarters = coarse.reshape(ANGLES, 2, high // 2, 2, wide // 2).transpose(1, 3, 0, 2, 4) / 4

    def held(array: _Real) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(array, dtype=np.float32))

    return _Filters(
        border=(left, right, top, bottom),
        fine=held(np.stack([fine, fine], axis=-1)),
        coarse=held(np.stack([quarters, quarters], axis=-1)),
        full_rows=held(_circulant(_gaussian(high), _STEP)),
        full_columns=held(_circulant(_gaussian(wide), _STEP)),
        half_rows=held(_half_average(high)),
        half_columns=held(_half_average(wide)),
    )


def _border(side: int) -> tuple[int, int]:
    """Return the pixels to add before and after a side, at least one coefficient's worth."""
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
    """Return φ for a signal of which every second pixel is left, as :func:`_circulant` has it.

    φ's spectrum is cut to the frequencies -side/4 … side/4 - 1 that such a signal has.
    """
    spectrum = np.fft.fft(_gaussian(side)).real
    kept = np.concatenate([spectrum[: side // 4], spectrum[-side // 4 :]])
    return _circulant(np.fft.ifft(kept).real, _STEP // 2)


def _circulant(wave: _Real, step: int) -> _Real:
    """Return the matrix that convolves with ``wave``, reads every ``step``-th, drops both ends."""
    side = len(wave)
    read = np.arange(step, side - step, step)[:, None]
    matrix: _Real = wave[(read - np.arange(side)) % side]
    return matrix


def _morlet_spectra(high: int, wide: int, scale: int) -> _Real:
    """Return the real spectra (L, high, wide) of the Morlet wavelets at a scale, angle by angle.

    ψ(u) = g(u) (exp(i ξᵀu) - β): g a Gaussian twice as long across the wave as along it, |ξ| = 3π/4
    over 2^scale, β such that ψ has mean 0; periodic, centred at 0.
    """
    angles = np.array([math.pi * (ANGLES // 2 - 1 - turn) / ANGLES for turn in range(ANGLES)])
    # Few large operations: NumPy lets go of the interpreter in each, and where other threads are
    # busy, getting it back takes longer than a small operation itself.
    at_once = max(_WAVELET_PIXELS // (_PERIODS**2 * high * wide), 1)
    parts = [angles[start : start + at_once] for start in range(0, ANGLES, at_once)]
    return np.concatenate([_spectra_at(high, wide, scale, part) for part in parts])


def _spectra_at(high: int, wide: int, scale: int, angles: _Real) -> _Real:
    """Return the spectra of the wavelets at a few angles."""
    spread = _SPREAD * 2**scale
    slant = 4 / ANGLES
    frequency = 3 / 4 * math.pi / 2**scale
    across, down = (wave(angles)[:, None, None, None, None] for wave in (np.cos, np.sin))
    periods = np.arange(_PERIODS)[:, None] - _PERIODS // 2
    y = (np.arange(high) + periods * high)[:, None, :, None]
    x = (np.arange(wide) + periods * wide)[None, :, None, :]
    shape = (len(angles), _PERIODS**2, high, wide)
    along = (y * across + x * down).reshape(shape)
    aside = (x * across - y * down).reshape(shape)
    bells = np.exp(-(along**2 + (slant * aside) ** 2) / (2 * spread**2))
    envelopes = bells.sum(axis=1)
    waves = (bells * np.exp(1j * frequency * along)).sum(axis=1)
    means = waves.reshape(len(angles), -1).sum(axis=1)
    means /= envelopes.reshape(len(angles), -1).sum(axis=1)
    waves -= means[:, None, None] * envelopes
    spectra: _Real = np.fft.fft2(waves).real / (2 * _TURNS * spread**2 / slant)
    return spectra
