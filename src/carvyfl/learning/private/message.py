"""The private message of one client, and the messages of many as the server reads them.

The message is that of :mod:`carvyfl.privacy.class_sums`: the sums M_c of the vectors of each class
and the numbers n_c of samples, weighted by 0.3, with noise in every number, as 32-bit integers. Its
sensitivity is √1.09: a sample adds a vector x of length 1 at most to one row of M, and 0.3 to one
entry of 0.3 n; so adding or removing it moves the message by √(‖x‖² + 0.3²) ≤ √1.09. One that is
replaced is removed and another one added, twice that at most. Vectors are rounded to whole units
before they are summed and sums of integers are exact, so the bound holds for what is computed (with
1229/4096 for 0.3), not only on paper.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from carvyfl.core.errors import CarvyError
from carvyfl.core.files import replacing
from carvyfl.privacy.class_sums import COUNT_WEIGHT, LARGEST, NoisySums, class_sums, noisy_sums
from carvyfl.privacy.noise import STEP, GaussianNoise, Sampler, to_units

ABOUT = "about"  # the metadata of a file of messages

Floats = npt.NDArray[np.float64]


def message(
    vectors: Floats,
    labels: npt.NDArray[np.integer],
    num_classes: int,
    noise: GaussianNoise | None,
    sampler: Sampler,
) -> NoisySums:
    """Return what a client sends of its samples; without ``noise`` the exact sums, for comparison.

    ``vectors`` (n, d) are those of a :class:`~carvyfl.learning.private.map.Map`, ``labels`` (n,)
    their classes; ``noise`` comes from :func:`carvyfl.privacy.noise_for_sums`.
    """
    if noise is not None:
        return noisy_sums(vectors, labels, num_classes, noise, sampler)
    exact = class_sums(to_units(vectors), labels, num_classes)
    return NoisySums(np.clip(exact, -LARGEST, LARGEST).astype(np.int32))


def fault(units: npt.NDArray[Any], num_classes: int, width: int) -> str | None:
    """Say why a message cannot be used, or None if it can.

    Any 32-bit integers are finite multiples of the step that no group's sums overflow from: they
    harm the client's own group at most.
    """
    if units.dtype != np.int32:
        return f"its message is not of 32-bit integers, but {units.dtype}"
    if units.shape != (num_classes, width + 1):
        return f"its message is not of {num_classes} classes of {width} numbers and a count"
    return None


@dataclass(frozen=True, eq=False)
class Messages:
    """Messages of K clients, int32 of shape (K, C, d + 1), and the noise that all of them add.

    ``sigma`` is the standard deviation of the noise in the sums, 0 without; the settings give it,
    no client does. ``set_aside`` says, by position, whose message could not be used; its units are
    zeros, which count nowhere.
    """

    units: npt.NDArray[np.int32]
    sigma: float
    set_aside: Mapping[int, str] = field(default_factory=dict)

    @classmethod
    def of(cls, sent: Iterable[npt.NDArray[np.int32]], noise: GaussianNoise | None) -> Messages:
        """Stack the units of messages, (C, d + 1) each, of one client at least."""
        return cls(np.stack([*sent]), 0.0 if noise is None else noise.scale * STEP)

    def __len__(self) -> int:
        return len(self.units)

    def of_clients(self, clients: slice | npt.NDArray[np.int64]) -> Messages:
        """Return the messages of these clients, in this order."""
        numbers = np.arange(len(self))[clients].tolist() if self.set_aside else []
        aside = {k: self.set_aside[n] for k, n in enumerate(numbers) if n in self.set_aside}
        return Messages(self.units[clients], self.sigma, aside)

    def replaced(self, sent: Mapping[int, npt.NDArray[Any]]) -> Messages:
        """Return the messages with others at these positions; one that cannot be used is zeros."""
        units, set_aside = self.units.copy(), dict(self.set_aside)
        for position, message in sent.items():
            set_aside.pop(position, None)
            why = fault(message, units.shape[1], units.shape[2] - 1)
            units[position] = message if why is None else 0
            if why is not None:
                set_aside[position] = why
        return Messages(units, self.sigma, set_aside)

    @property
    def digest(self) -> str:
        """A hash of all that a group's head depends on."""
        state = hashlib.blake2b(f"{self.units.shape} {self.sigma!r} ".encode(), digest_size=20)
        state.update(repr(sorted(self.set_aside.items())).encode())
        state.update(np.ascontiguousarray(self.units).data)
        return state.hexdigest()

    def save(self, path: Path) -> None:
        """Write the messages as a safetensors file, complete or absent."""
        # One text: the same messages give the same bytes, and several would come in any order.
        about = {"sigma": self.sigma, "set_aside": sorted(self.set_aside.items())}
        metadata = {ABOUT: json.dumps(about)}
        with replacing(path) as file:
            file.write(save({"units": np.ascontiguousarray(self.units)}, metadata))

    @classmethod
    def load(
        cls, path: Path, clients: int, num_classes: int, width: int, noise: GaussianNoise
    ) -> Messages:
        """Read what :meth:`save` wrote; messages of another form are refused."""
        sigma = noise.scale * STEP
        wanted = {"units": ("I32", (clients, num_classes, width + 1))}
        try:
            with safe_open(path, framework="np") as file:
                parts = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118
                shapes = {n: (p.get_dtype(), tuple(p.get_shape())) for n, p in parts.items()}
                about = json.loads((file.metadata() or {})[ABOUT])
                right = shapes == wanted and about["sigma"] == sigma
                units = file.get_tensor("units") if right else None
                numbers = {int(k): str(why) for k, why in about["set_aside"]}
        except (OSError, SafetensorError, ValueError, TypeError, KeyError) as error:
            raise CarvyError(f"cannot read the messages in {path}: {error}") from error
        if units is None or not set(numbers) <= set(range(clients)) or units[[*numbers]].any():
            raise CarvyError(f"{path} does not hold the messages of {clients} clients of this run")
        return cls(units, sigma, numbers)

    @property
    def sums(self) -> Floats:
        """The noisy sums M of each client and class, (K, C, d)."""
        return self.units[..., :-1] * np.float64(STEP)

    @property
    def counts(self) -> Floats:
        """The noisy numbers n of samples, (K, C); they may be negative."""
        return self.units[..., -1] / np.float64(round(COUNT_WEIGHT / STEP))

    @property
    def count_sigma(self) -> float:
        """The standard deviation of the noise in the numbers of samples."""
        return self.sigma / COUNT_WEIGHT
