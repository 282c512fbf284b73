"""The private message: noisy sums of the vectors of each class, and noisy numbers of samples."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from carvyfl.privacy.noise import STEP, GaussianNoise, Sampler, Units, to_units

COUNT_WEIGHT = 0.3
"""How long a sample's part in the number of samples is, beside its vector of length 1."""
LARGEST = 2**31 - 1  # units travel as 32-bit integers; what is beyond is cut off


@dataclass(frozen=True)
class NoisySums:
    """What a client sends, and all that it sends.

    Parameters
    ----------
    units : array of shape (C, d + 1), int32
        Sums of the vectors of each class, and in the last column weighted numbers of samples;
        both with noise, in units of :data:`~carvyfl.privacy.noise.STEP`.
    count_weight
        The weight of the numbers of samples.
    """

    units: npt.NDArray[np.int32]
    count_weight: float = COUNT_WEIGHT

    @property
    def sums(self) -> npt.NDArray[np.float64]:
        """Noisy sums of the vectors of each class, shape (C, d)."""
        return self.units[:, :-1].astype(np.float64) * STEP

    @property
    def counts(self) -> npt.NDArray[np.float64]:
        """Noisy numbers of samples of each class, shape (C,); they may be negative."""
        return self.units[:, -1] / np.float64(_weight_units(self.count_weight))


def noise_for_sums(
    epsilon: float, delta: float, count_weight: float = COUNT_WEIGHT
) -> GaussianNoise:
    """Return the noise for :func:`noisy_sums`, for one sample added or removed.

    A sample adds a vector of length 1 at most and its weight in the count, so the squared
    sensitivity is 1 + weight², exactly, in whole units.
    """
    squared = round(1 / STEP) ** 2 + _weight_units(count_weight) ** 2
    return GaussianNoise(epsilon, delta, squared)


def noisy_sums(
    vectors: npt.NDArray[np.floating],
    labels: npt.NDArray[np.integer],
    num_classes: int,
    noise: GaussianNoise,
    sampler: Sampler,
    count_weight: float = COUNT_WEIGHT,
) -> NoisySums:
    """Sum vectors of length 1 at most by class, and add noise.

    Parameters
    ----------
    vectors : array of shape (n, d)
        One row per sample; a longer one is scaled down.
    labels : array of shape (n,)
        Classes from 0 to ``num_classes`` - 1.
    noise
        From :func:`noise_for_sums`, with the same weight.
    sampler
        :func:`~carvyfl.privacy.noise.secure_noise` where the message leaves the client,
        :func:`~carvyfl.privacy.noise.simulated_noise` in a simulation.
    """
    exact = class_sums(to_units(vectors), labels, num_classes, count_weight)
    noisy = noise.add(exact, sampler)
    return NoisySums(np.clip(noisy, -LARGEST, LARGEST).astype(np.int32), count_weight)


def class_sums(
    units: Units,
    labels: npt.NDArray[np.integer],
    num_classes: int,
    count_weight: float = COUNT_WEIGHT,
) -> Units:
    """Sum integer vectors by class; in the last column the weighted numbers of samples."""
    if len(labels) and not 0 <= labels.min() <= labels.max() < num_classes:
        raise ValueError(f"labels must be classes from 0 to {num_classes - 1}")
    total = np.zeros((num_classes, units.shape[1] + 1), np.int64)
    for c in np.unique(labels):
        of_class = labels == c
        total[c, :-1] = units[of_class].sum(axis=0)
        total[c, -1] = _weight_units(count_weight) * np.count_nonzero(of_class)
    return total


def _weight_units(count_weight: float) -> int:
    return round(count_weight / STEP)
