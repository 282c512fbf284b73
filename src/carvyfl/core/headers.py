"""Names, types and shapes of the arrays in a file, read without the arrays themselves."""

from __future__ import annotations

import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open

from carvyfl.core.errors import CarvyError

Shape = tuple[int, ...]

_HEADERS = {
    (1, 0): np.lib.format.read_array_header_1_0,
    (2, 0): np.lib.format.read_array_header_2_0,
}


def npz_shapes(path: Path) -> dict[str, tuple[Shape, np.dtype[Any]]]:
    """Return the shape and type of every array in an ``.npz`` file, by name."""
    found = {}
    try:
        with zipfile.ZipFile(path) as archive:
            for info in archive.infolist():
                with archive.open(info) as file:
                    version = np.lib.format.read_magic(file)
                    shape, _, dtype = _HEADERS[version](file)
                if any(n < 0 for n in shape) or dtype.hasobject:
                    raise ValueError(f"{info.filename} is no plain array")
                found[info.filename.removesuffix(".npy")] = shape, dtype
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise CarvyError(f"{path}: not a readable .npz file of plain arrays ({error})") from error
    return found


def safetensors_shapes(path: Path) -> dict[str, Shape]:
    """Return the shape of every tensor in a safetensors file, by name."""
    try:
        with safe_open(path, framework="pt") as file:
            return {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118
    except (OSError, SafetensorError) as error:
        raise CarvyError(f"cannot read the tensors in {path}: {error}") from error
