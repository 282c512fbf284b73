"""Reading IDX files, the format MNIST and Fashion-MNIST are published in.

Written by hand because it is a header of a few bytes before a plain array, and
the library that reads it (torchvision) is a heavy dependency for that.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from carvyfl.core.errors import CarvyError

# The third byte of an IDX file names the type of its numbers, stored big-endian.
ELEMENT_TYPES = {0x08: "u1", 0x09: "i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}

MOST_DIMENSIONS = 32  # every version of NumPy has so many


def parse_idx(content: bytes, where: str) -> npt.NDArray[Any]:
    """Turn the (decompressed) bytes of an IDX file into an array.

    ``content`` is two zero bytes, the element type, the number of dimensions, the dimensions as
    big-endian 32-bit numbers, then the elements.

    The array has the file's shape and type, in the machine's own byte order; it is a copy, because
    torch wants writable memory.
    """
    if len(content) < 4 or content[:2] != b"\0\0" or content[2] not in ELEMENT_TYPES:
        raise CarvyError(
            f"{where}: not an IDX file (it begins with {content[:4].hex(' ') or 'nothing'}); "
            "get a fresh copy"
        )
    if content[3] > MOST_DIMENSIONS:
        raise CarvyError(f"{where}: {content[3]} dimensions; at most {MOST_DIMENSIONS} can be read")
    header = 4 + 4 * content[3]
    if len(content) < header:
        raise CarvyError(f"{where}: truncated within its header; get a fresh copy")
    shape = tuple(int(size) for size in np.frombuffer(content, ">u4", content[3], offset=4))
    element = np.dtype(ELEMENT_TYPES[content[2]])
    expected = header + math.prod(shape) * element.itemsize
    if len(content) != expected:
        kind = "truncated" if len(content) < expected else "too long"
        raise CarvyError(
            f"{where}: {kind}: {len(content)} bytes where shape {shape} needs {expected}; "
            "get a fresh copy"
        )
    try:
        values = np.frombuffer(content, element, offset=header).reshape(shape)
    except ValueError as error:  # no elements, and other dimensions that are too large
        raise CarvyError(f"{where}: no array can have shape {shape}; get a fresh copy") from error
    return values.astype(element.newbyteorder("="))
