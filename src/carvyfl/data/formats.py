"""Reading IDX files (MNIST, Fashion-MNIST) and the binary edition of CIFAR-10.

Both are a few bytes before plain arrays; torchvision, which reads them, is a heavy dependency.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from carvyfl.core.errors import CarvyError

# The third byte of an IDX file names the type of its numbers, stored big-endian.
ELEMENT_TYPES = {0x08: "u1", 0x09: "i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}
MOST_DIMENSIONS = 32  # every version of NumPy has so many

CIFAR_SHAPE = (3, 32, 32)
CIFAR_RECORD = 1 + math.prod(CIFAR_SHAPE)  # bytes: a label, then three planes, row by row
CIFAR_TRAIN = tuple(f"data_batch_{number}.bin" for number in range(1, 6))
CIFAR_TEST = "test_batch.bin"


def parse_idx(content: bytes, where: str) -> npt.NDArray[Any]:
    """Turn the (decompressed) bytes of an IDX file into an array, writable as torch wants it.

    They are two zero bytes, the element type, the number of dimensions, the dimensions as
    big-endian 32-bit numbers, then the elements.
    """
    if len(content) < 4 or content[:2] != b"\0\0" or content[2] not in ELEMENT_TYPES:
        start = content[:4].hex(" ") or "nothing"
        raise CarvyError(f"{where}: not an IDX file (it begins with {start}); get a fresh copy")
    if content[3] > MOST_DIMENSIONS:
        raise CarvyError(f"{where}: {content[3]} dimensions; at most {MOST_DIMENSIONS} can be read")
    header = 4 + 4 * content[3]
    if len(content) < header:
        raise CarvyError(f"{where}: truncated within its header; get a fresh copy")
    shape = tuple(np.frombuffer(content, ">u4", content[3], offset=4).tolist())
    element = np.dtype(ELEMENT_TYPES[content[2]])
    expected = header + math.prod(shape) * element.itemsize
    if len(content) != expected:
        kind = "truncated" if len(content) < expected else "too long"
        sizes = f"{len(content)} bytes where shape {shape} needs {expected}"
        raise CarvyError(f"{where}: {kind}: {sizes}; get a fresh copy")
    try:
        values = np.frombuffer(content, element, offset=header).reshape(shape)
    except ValueError as error:  # no elements, and other dimensions that are too large
        raise CarvyError(f"{where}: no array can have shape {shape}; get a fresh copy") from error
    return values.astype(element.newbyteorder("="))


def read_cifar(files: Mapping[str, bytes]) -> dict[str, npt.NDArray[np.uint8]]:
    """Turn CIFAR-10's six files into the four arrays of a data set."""
    arrays = {}
    for part, names in (("train", CIFAR_TRAIN), ("test", (CIFAR_TEST,))):
        for name in names:
            if not files[name] or len(files[name]) % CIFAR_RECORD:
                fault = f"{len(files[name])} bytes are not whole records of {CIFAR_RECORD}"
                raise CarvyError(f"{name}: {fault}; get a fresh copy")
        content = b"".join(files[name] for name in names)
        records = np.frombuffer(content, np.uint8).reshape(-1, CIFAR_RECORD)
        arrays[f"x_{part}"] = records[:, 1:].reshape(-1, *CIFAR_SHAPE)
        arrays[f"y_{part}"] = records[:, 0]
    return arrays
