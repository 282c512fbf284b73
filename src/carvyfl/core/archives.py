"""Compressed files and arrays, read in bounded memory.

A few kilobytes can unpack to gigabytes, and the header of an array can claim any shape. What
a file says of its size is checked before memory is taken, and unpacking stops at a limit.
"""

from __future__ import annotations

import contextlib
import gzip
import io
import lzma
import math
import os
import tarfile
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePosixPath
from tokenize import TokenError
from typing import IO, Any

import numpy.typing as npt
from numpy.lib import format as npy

from carvyfl.core.errors import CarvyError, printable
from carvyfl.core.memory import memory

ALWAYS_UNPACKED = 1 << 30
"""So many bytes may be unpacked from a file of any size."""

MOST_UNPACKED = 200
"""So many times its own size may be unpacked from a larger file; images reach 2 to 20."""

_GZIP_MAGIC = b"\x1f\x8b"

_ZIP_MAGIC = b"PK\x03\x04"
_CHUNK = 1 << 22
_PIECE = 1 << 12  # LZMA makes 30 MB of it at most
_METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_LZMA)
_HEADERS = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}
# What NumPy, tarfile and zipfile raise on files that are damaged, foreign or hold pickled objects.
_UNREADABLE = (
    ValueError,
    KeyError,
    TypeError,
    EOFError,
    MemoryError,
    OverflowError,
    RuntimeError,
    SyntaxError,
    TokenError,
    tarfile.TarError,
    zipfile.BadZipFile,
    zlib.error,
    lzma.LZMAError,
)


def contents(path: Path) -> bytes:
    """Return a file's bytes, decompressed if they are gzip.

    The first bytes decide, not the suffix: distributions repack these files,
    and a web server may have decompressed one on the way.
    """
    with _opened(path) as file:
        packed = file.seek(0, os.SEEK_END)
        file.seek(0)
        zipped = file.read(len(_GZIP_MAGIC)) == _GZIP_MAGIC
        file.seek(0)
        if not zipped:
            return file.read()
        chunks, size, unpacking = [], 0, gzip.GzipFile(fileobj=file)
        try:
            while chunk := unpacking.read(_CHUNK):
                chunks.append(chunk)
                size += len(chunk)
                _check_unpacked(size, packed, str(path))
        except (gzip.BadGzipFile, zlib.error, EOFError) as error:
            raise CarvyError(f"{path}: damaged gzip file ({error}); get a fresh copy") from error
    return b"".join(chunks)


def read_tar(path: Path, names: Sequence[str]) -> dict[str, bytes]:
    """Read files of a tar archive, gzipped or not; others in it are left alone.

    A file is known by its name without folders. Nothing is written, so it does not matter
    which path a member claims. Links and sparse files, which claim bytes that are not there,
    are refused.
    """
    content, found = contents(path), dict[str, bytes]()
    try:
        with tarfile.open(fileobj=io.BytesIO(content), mode="r:") as archive:
            for member in archive:
                name = PurePosixPath(member.name).name
                if name not in names:
                    continue
                plain = member.type in (tarfile.REGTYPE, tarfile.AREGTYPE)
                if not plain or member.issparse() or member.size > len(content):
                    raise ValueError(f"{name} is not a plain file")
                if name in found:
                    raise ValueError(f"{name} is there twice")
                file = archive.extractfile(member)
                assert file is not None  # it is for links and folders alone
                found[name] = file.read()
    except _UNREADABLE as error:
        raise CarvyError(
            f"{path}: damaged, or not a tar archive of plain files ({_reason(error)})"
        ) from error
    missing = [name for name in names if name not in found]
    if missing:
        raise CarvyError(f"{path}: {', '.join(missing)} missing in the archive; get a fresh copy")
    return found


def _check_unpacked(size: int, packed: int, where: str) -> None:
    """Refuse ``size`` bytes out of a file of ``packed`` bytes where that is beyond the limit."""
    limit = min(max(ALWAYS_UNPACKED, MOST_UNPACKED * packed), memory())
    if size > limit:
        raise CarvyError(
            f"{where}: {packed:,} bytes unpack to more than {limit:,}, which is taken for an "
            "attack; if it is not, store the file uncompressed"
        )


def read_npz(
    source: Path | IO[bytes], names: Sequence[str], optional: Sequence[str] = (), where: str = ""
) -> dict[str, npt.NDArray[Any]]:
    """Read arrays of an ``.npz`` archive; nothing is unpickled.

    Parameters
    ----------
    source
        The archive.
    names, optional
        The arrays it must hold, and those that it may hold. Others are left alone.
    where
        What the error message calls it; by default the path.
    """
    if isinstance(source, Path):
        with _opened(source) as file:
            return read_npz(file, names, optional, str(source))
    try:
        if source.read(len(npy.MAGIC_PREFIX)) == npy.MAGIC_PREFIX:
            raise CarvyError(f"{where}: a bare array, not a readable .npz archive of numpy.savez")
        with zipfile.ZipFile(source) as archive:
            members = {info.filename.removesuffix(".npy"): info for info in archive.infolist()}
            missing = [name for name in names if name not in members]
            if missing:
                held = printable(", ".join(map(repr, members)) or "nothing")
                raise CarvyError(
                    f"{where}: {', '.join(missing)} missing; it needs "
                    f"{', '.join(map(repr, names))}, and the archive holds {held}"
                )
            chosen = {name: members[name] for name in (*names, *optional) if name in members}
            packed = source.seek(0, os.SEEK_END)
            _check_unpacked(sum(info.file_size for info in chosen.values()), packed, where)
            return {name: _member(archive, info) for name, info in chosen.items()}
    except (OSError, *_UNREADABLE) as error:
        raise CarvyError(
            f"{where}: damaged, or not a readable .npz archive of plain arrays ({_reason(error)})"
        ) from error


def read_npy(path: Path) -> npt.NDArray[Any]:
    """Read an ``.npy`` file; nothing is unpickled."""
    with _opened(path) as file:
        try:
            if file.read(len(_ZIP_MAGIC)) == _ZIP_MAGIC:
                raise CarvyError(f"{path}: an archive of arrays; save one alone, with numpy.save")
            size = file.seek(0, os.SEEK_END)
            file.seek(0)
            _check_header(file, size)
            file.seek(0)
            return _values(file)
        except _UNREADABLE as error:
            raise CarvyError(f"{path}: damaged, or no plain array ({_reason(error)})") from error


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[IO[bytes]]:
    try:
        with path.open("rb") as file:
            yield file
    except OSError as error:
        raise CarvyError(f"{path}: cannot be read ({error.strerror or error})") from error


class _InPieces:
    """A member of an archive, a few bytes at a time.

    ``zipfile`` unpacks no more than it is asked for where the method is deflate. Of LZMA it
    unpacks all that it has read, whatever size the archive states.
    """

    def __init__(self, member: IO[bytes]) -> None:
        self._member = member
        self.tell = member.tell

    def read(self, size: int) -> bytes:
        return self._member.read(min(size, _PIECE))


def _member(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> npt.NDArray[Any]:
    if info.compress_type not in _METHODS:  # a byte of bzip2 can stand for a megabyte
        raise ValueError(f"{info.filename!r} is not packed as NumPy does it")
    with archive.open(info) as file:
        _check_header(_InPieces(file), info.file_size)
    with archive.open(info) as file:  # again: its check sum is that of all bytes in a row
        return _values(_InPieces(file) if info.compress_type == zipfile.ZIP_LZMA else file)


def _values(file: Any) -> npt.NDArray[Any]:
    found: npt.NDArray[Any] = npy.read_array(file, allow_pickle=False)
    return found


def _check_header(file: Any, size: int) -> None:
    """Refuse an array, in a file of ``size`` bytes, that claims more bytes than there are."""
    version = npy.read_magic(file)
    if version not in _HEADERS:
        raise ValueError("it has named fields")
    shape, _, kind = _HEADERS[version](file)
    claimed, there = math.prod(shape) * kind.itemsize, size - file.tell()
    if min(shape, default=0) < 0 or claimed > there:
        raise ValueError(f"shape {shape} takes {claimed:,} bytes, but {there:,} follow")


def _reason(error: BaseException) -> str:
    lines = str(error).splitlines()
    return printable(lines[0] if lines else type(error).__name__)
