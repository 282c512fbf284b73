"""What a client sends, once: sums over its features (docs/concepts/one-shot.md)."""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError, safe_open

from carvyfl.core.errors import CarvyError
from carvyfl.core.files import replacing

Floats = npt.NDArray[np.float32] | npt.NDArray[np.float64]
Counts = npt.NDArray[np.int64]
MOST_SAMPLES = 10**9  # More samples of a class than this are not believed of one client
NEVER = -1e30  # The bias of a class that nobody in a group holds: it is never voted for
_DTYPES = {"I64": "<i8", "F32": "<f4"}


@dataclass(frozen=True, eq=False)
class Sums:
    """The sums of some samples with features x and labels y.

    ``second`` is S = Σ x xᵀ, (d, d); ``first`` M_c = Σ x over the samples of class c, (C, d);
    ``counts`` n_c, int64 of shape (C,).
    """

    second: Floats
    first: Floats
    counts: Counts

    @property
    def width(self) -> int:
        """d, the number of features."""
        return int(self.first.shape[1])


def counts_of(labels: npt.NDArray[np.int64], num_classes: int) -> Counts:
    """Return n_c, the number of samples of each class."""
    return np.bincount(labels, minlength=num_classes).astype(np.int64)


@np.errstate(over="ignore", invalid="ignore")  # sums that are not finite are set aside
def sums_of(
    features: Floats, labels: npt.NDArray[np.int64], num_classes: int, dtype: Any = np.float32
) -> Sums:
    """Return the sums of labelled features, shape (n, d), in the precision that is sent."""
    x = features.astype(dtype, copy=False)
    counts = counts_of(labels, num_classes)
    member = np.zeros((num_classes, len(labels)), dtype=dtype)
    member[labels, np.arange(len(labels))] = 1
    return Sums(x.T @ x, member @ x, counts)


@np.errstate(over="ignore", invalid="ignore")
def add(parts: Iterable[Sums]) -> Sums:
    """Return the sums of all parts together, in float64 and in the order of the parts."""
    remaining = iter(parts)
    if (start := next(remaining, None)) is None:
        raise CarvyError("no sums to add; a group needs at least one member")
    second, first = start.second.astype(np.float64), start.first.astype(np.float64)
    counts = start.counts.copy()
    for part in remaining:  # in place: a group of a thousand members needs no memory for each
        second += part.second
        first += part.first
        counts += part.counts
    return Sums(second, first, counts)


def fault(sums: Sums, width: int, num_classes: int) -> str | None:
    """Say why a client's sums cannot be used, or None if they can.

    Only what the arithmetic needs is asked: any numbers harm the client's own group at most.
    """
    shapes = (sums.second.shape, sums.first.shape, sums.counts.shape)
    if shapes != ((width, width), (num_classes, width), (num_classes,)):
        return f"its sums have other shapes than {num_classes} classes of {width} features need"
    if (why := counts_fault(sums.counts)) is not None:
        return why
    if {sums.second.dtype.kind, sums.first.dtype.kind} != {"f"}:
        return "its sums are not floating-point numbers"
    if not (np.isfinite(sums.second).all() and np.isfinite(sums.first).all()):
        return "its sums are not finite"
    if not np.array_equal(sums.second, sums.second.T):
        return "its matrix of second moments is not symmetric"
    return None


def counts_fault(counts: npt.NDArray[Any]) -> str | None:
    """Say why a client's class counts, shape (C,), cannot be used, or None if they can."""
    if counts.dtype != np.int64 or (counts < 0).any():
        return "its counts are not whole numbers (int64) of 0 or more"
    if not 0 < int(counts.max()) <= MOST_SAMPLES:
        return "its counts are all zero, or too large to be believed"
    return None


def triangle(second: Floats) -> Floats:
    """Return the upper triangle of S row by row, shape (d (d + 1) / 2,): S is symmetric."""
    packed: Floats = second[_upper(len(second))]
    return packed


def from_triangle(packed: Floats, width: int) -> Floats:
    """Return S, shape (d, d), from its upper triangle: symmetric whatever the numbers are."""
    second = np.empty((width, width), dtype=packed.dtype)
    upper = _upper(width)
    second[upper] = packed
    second.T[upper] = packed
    return second


@functools.lru_cache(maxsize=1)
def _upper(width: int) -> npt.NDArray[np.bool_]:
    return ~np.tri(width, k=-1, dtype=np.bool_)


@dataclass(frozen=True)
class SumsFile:
    """A safetensors file with the sums of N clients, of C classes of d features.

    ``counts`` is int64 of shape (N, C), ``first`` float32 of shape (N, C, d), ``second`` float32 of
    shape (N, d (d + 1) / 2): of a symmetric matrix the upper triangle, row by row.
    """

    path: Path
    clients: int
    classes: int
    width: int

    @property
    def _layout(self) -> dict[str, tuple[str, list[int]]]:
        """Type and shape of every tensor, in the order of the file."""
        return {
            "counts": ("I64", [self.clients, self.classes]),
            "first": ("F32", [self.clients, self.classes, self.width]),
            "second": ("F32", [self.clients, self.width * (self.width + 1) // 2]),
        }

    def write(self, sums: Iterable[Sums]) -> None:
        """Write the clients' sums in order, one client's in memory, so the header is made here."""
        header: dict[str, Any] = {}
        end = 0
        for name, (kind, shape) in self._layout.items():
            start, end = end, end + math.prod(shape) * np.dtype(_DTYPES[kind]).itemsize
            header[name] = {"dtype": kind, "shape": shape, "data_offsets": [start, end]}
        text = json.dumps(header, separators=(",", ":")).encode()
        text += b" " * (-len(text) % 8)
        with replacing(self.path) as file:
            file.write(len(text).to_bytes(8, "little") + text)
            for client, sent in zip(range(self.clients), sums, strict=True):
                for name, row in zip(
                    header, (sent.counts, sent.first, triangle(sent.second)), strict=True
                ):
                    content = row.astype(_DTYPES[self._layout[name][0]]).tobytes()
                    start = header[name]["data_offsets"][0]
                    file.seek(8 + len(text) + start + client * len(content))
                    file.write(content)

    def check(self) -> None:
        """Refuse a file with tensors of other names, types or shapes; they are not read."""
        self._read("", 0)

    def counts(self) -> Counts:
        """Return n_c of every client, int64 of shape (N, C)."""
        (counts,) = self._read("counts", slice(None))
        return counts

    def of(self, client: int) -> Sums:
        """Return the sums of a client."""
        counts, first, packed = self._read("counts first second", client)
        return Sums(from_triangle(packed, self.width), first, counts)

    def _read(self, names: str, part: int | slice) -> list[npt.NDArray[Any]]:
        try:
            with safe_open(self.path, framework="np") as file:
                slices = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118
                layout = {n: (t.get_dtype(), list(t.get_shape())) for n, t in slices.items()}
                if layout == self._layout:
                    return [slices[name][part] for name in names.split()]
        except (OSError, SafetensorError) as error:
            raise CarvyError(f"cannot read the sums in {self.path}: {error}") from error
        raise CarvyError(
            f"{self.path} does not hold the sums of {self.clients} clients with {self.classes} "
            f"classes of {self.width} features"
        )
