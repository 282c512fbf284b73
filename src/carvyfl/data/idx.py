"""Reading IDX files, the format MNIST and Fashion-MNIST are published in.

Written by hand because it is a header of a few bytes before a plain array, and
the library that reads it (torchvision) is a heavy dependency for that.
"""

from __future__ import annotations

import gzip
import math
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from carvyfl.core.errors import CarvyError

GZIP_MAGIC = b"\x1f\x8b"

# The third byte of an IDX file names the type of its numbers, stored big-endian.
ELEMENT_TYPES = {0x08: "u1", 0x09: "i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}


def contents(path: Path) -> bytes:
    """Return a file's bytes, decompressed if they are gzip.

    The first bytes decide, not the suffix: distributions repack these files,
    and a web server may have decompressed one on the way.
    """
    try:
        raw = path.read_bytes()
        return gzip.decompress(raw) if raw[:2] == GZIP_MAGIC else raw
    except (gzip.BadGzipFile, zlib.error, EOFError) as error:
        raise CarvyError(f"{path}: damaged gzip file ({error}); get a fresh copy") from error
    except OSError as error:
        raise CarvyError(f"{path}: cannot be read ({error.strerror or error})") from error


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
    values = np.frombuffer(content, element, offset=header).reshape(shape)
    return values.astype(element.newbyteorder("="))
