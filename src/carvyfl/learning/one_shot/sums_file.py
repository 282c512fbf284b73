"""Every client's sums in one safetensors file, written and read a client at a time.

``counts`` is int64 of shape (N, C), ``first`` float32 of shape (N, C, d), and ``second`` float32 of
shape (N, d (d + 1) / 2): of a symmetric matrix the upper triangle, row by row.
"""

from __future__ import annotations

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
from carvyfl.learning.one_shot.model import OneShotModel
from carvyfl.learning.one_shot.sums import Sums, from_triangle, triangle

Shape = tuple[int, ...]

_DTYPES: dict[str, np.dtype[Any]] = {"I64": np.dtype("<i8"), "F32": np.dtype("<f4")}


@dataclass(frozen=True)
class SumsFile:
    """A file with the sums of N clients, of C classes of d features."""

    path: Path
    clients: int
    classes: int
    width: int

    @classmethod
    def fitting(cls, path: Path, clients: int, module: OneShotModel) -> SumsFile:
        """Return a file with the sums of so many clients for a model."""
        return cls(path, clients, module.head.out_features, module.head.in_features)

    @property
    def _layout(self) -> dict[str, tuple[str, Shape]]:
        """Type and shape of every tensor, in the order of the file."""
        return {
            "counts": ("I64", (self.clients, self.classes)),
            "first": ("F32", (self.clients, self.classes, self.width)),
            "second": ("F32", (self.clients, self.width * (self.width + 1) // 2)),
        }

    def write(self, sums: Iterable[Sums]) -> None:
        """Write the clients' sums, in their order; no more than one client's are in memory.

        The header is written here, since the library wants all tensors at once.
        """
        header, starts, end = {}, {}, 0
        for name, (kind, shape) in self._layout.items():
            starts[name] = end
            end += math.prod(shape) * _DTYPES[kind].itemsize
            header[name] = {"dtype": kind, "shape": shape, "data_offsets": [starts[name], end]}
        text = json.dumps(header, separators=(",", ":")).encode()
        text += b" " * (-len(text) % 8)
        with replacing(self.path) as file:
            file.write(len(text).to_bytes(8, "little") + text)
            for client, own in zip(range(self.clients), sums, strict=True):
                rows = (own.counts, own.first, triangle(own.second))
                for name, row in zip(starts, rows, strict=True):
                    content = row.astype(_DTYPES[self._layout[name][0]]).tobytes()
                    file.seek(8 + len(text) + starts[name] + client * len(content))
                    file.write(content)

    def check(self) -> None:
        """Refuse a file with tensors of other names, types or shapes; they are not read."""
        try:
            with safe_open(self.path, framework="np") as file:
                slices = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118
                found = {n: (own.get_dtype(), tuple(own.get_shape())) for n, own in slices.items()}
        except (OSError, SafetensorError) as error:
            raise CarvyError(f"cannot read the sums in {self.path}: {error}") from error
        if found != self._layout:
            raise CarvyError(
                f"{self.path} does not hold the sums of {self.clients} clients with {self.classes} "
                f"classes of {self.width} features"
            )

    def counts(self) -> npt.NDArray[np.int64]:
        """Return n_c of every client, int64 of shape (N, C)."""
        found: npt.NDArray[np.int64] = self._read("counts", slice(None))["counts"]
        return found

    def of(self, client: int) -> Sums:
        """Return the sums of a client."""
        row = self._read("counts first second", client)
        return Sums(from_triangle(row["second"], self.width), row["first"], row["counts"])

    def _read(self, names: str, part: int | slice) -> dict[str, npt.NDArray[Any]]:
        self.check()
        with safe_open(self.path, framework="np") as file:
            return {name: file.get_slice(name)[part] for name in names.split()}
