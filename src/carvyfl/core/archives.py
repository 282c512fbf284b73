"""Files of arrays: read in bounded memory, whatever they claim, and written.

What a file says of its size is checked before memory is taken, and unpacking stops at a limit.
"""

from __future__ import annotations

import contextlib
import gzip
import io
import math
import os
import tarfile
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import IO, TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from numpy.lib import format as npy
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from carvyfl.core.environment import memory
from carvyfl.core.errors import CarvyError, printable, reason
from carvyfl.core.files import replacing

if TYPE_CHECKING:
    from torch import Tensor

ALWAYS_UNPACKED = 1 << 30  # bytes that may be unpacked from a file of any size
MOST_UNPACKED = 200  # times its size may be unpacked from a larger file; images reach 2 to 20

Shape = tuple[int, ...]

_GZIP_MAGIC, _ZIP_MAGIC = b"\x1f\x8b", b"PK\x03\x04"
_CHUNK = 1 << 22
_PIECE = 1 << 12  # LZMA makes 30 MB of it at most
_METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_LZMA)
_HEADERS = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}


def contents(path: Path) -> bytes:
    """Return a file's bytes, decompressed if they are gzip, whatever its name says."""
    with _opened(path, "damaged gzip file; get a fresh copy") as file:
        packed = _size(file)
        zipped = file.read(len(_GZIP_MAGIC)) == _GZIP_MAGIC
        file.seek(0)
        if not zipped:
            return file.read()
        chunks, size = [], 0
        with gzip.GzipFile(fileobj=file) as unpacked:
            while chunk := unpacked.read(_CHUNK):
                chunks.append(chunk)
                size += len(chunk)
                _check_unpacked(size, packed, str(path))
        return b"".join(chunks)


def read_tar(path: Path, names: Sequence[str]) -> dict[str, bytes]:
    """Read plain files of a tar archive, gzipped or not, by their names without folders."""
    content, files = contents(path), dict[str, bytes]()
    with (
        _refusing(str(path), "damaged, or not a tar archive of plain files"),
        tarfile.open(fileobj=io.BytesIO(content), mode="r:") as archive,
    ):
        for member in archive:
            name = PurePosixPath(member.name).name
            if name not in names:
                continue
            plain = member.type in (tarfile.REGTYPE, tarfile.AREGTYPE)
            if not plain or member.issparse() or member.size > len(content):  # claims bytes
                raise ValueError(f"{name} is not a plain file")
            if name in files:
                raise ValueError(f"{name} is there twice")
            file = archive.extractfile(member)
            assert file is not None  # it is for links and folders alone
            files[name] = file.read()
    if missing := [name for name in names if name not in files]:
        raise CarvyError(f"{path}: {', '.join(missing)} missing in the archive; get a fresh copy")
    return files


def read_npz(
    source: Path | IO[bytes], names: Sequence[str], optional: Sequence[str] = (), where: str = ""
) -> dict[str, npt.NDArray[Any]]:
    """Read arrays of an ``.npz`` archive, which errors call ``where``; nothing is unpickled."""
    problem = "damaged, or not a readable .npz archive of plain arrays"
    if isinstance(source, Path):
        with _opened(source, problem) as file:
            return read_npz(file, names, optional, str(source))
    with _refusing(where, problem):
        if source.read(len(npy.MAGIC_PREFIX)) == npy.MAGIC_PREFIX:
            raise CarvyError(f"{where}: a bare array, not a readable .npz archive of numpy.savez")
        with zipfile.ZipFile(source) as archive:
            members = {info.filename.removesuffix(".npy"): info for info in archive.infolist()}
            if missing := [name for name in names if name not in members]:
                held = printable(", ".join(map(repr, members)) or "nothing")
                raise CarvyError(
                    f"{where}: {', '.join(missing)} missing; it needs "
                    f"{', '.join(map(repr, names))}, and the archive holds {held}"
                )
            chosen = {name: members[name] for name in (*names, *optional) if name in members}
            size = sum(info.file_size for info in chosen.values())
            _check_unpacked(size, _size(source), where)
            return {name: _member(archive, info) for name, info in chosen.items()}


def write_npz(path: Path, arrays: Mapping[str, npt.NDArray[Any]]) -> None:
    """Write an ``.npz`` archive, complete or not at all; equal arrays are equal files.

    ``numpy.savez_compressed`` packs harder, and takes five times as long.
    """
    with (
        replacing(path) as file,
        zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive,
    ):
        for name, array in arrays.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                npy.write_array(member, array, allow_pickle=False)


def read_npy(path: Path) -> npt.NDArray[Any]:
    """Read an ``.npy`` file; nothing is unpickled."""
    with _opened(path, "damaged, or no plain array") as file:
        if file.read(len(_ZIP_MAGIC)) == _ZIP_MAGIC:
            raise CarvyError(f"{path}: an archive of arrays; save one alone, with numpy.save")
        _check_header(file, _size(file))
        file.seek(0)
        return npy.read_array(file, allow_pickle=False)


def npz_shapes(path: Path) -> dict[str, tuple[Shape, np.dtype[Any]]]:
    """Return the shape and type of every array in an ``.npz`` file, by name, from the headers."""
    shapes = {}
    problem = "not a readable .npz file of plain arrays"
    with _opened(path, problem) as content, zipfile.ZipFile(content) as archive:
        for info in archive.infolist():
            with archive.open(info) as file:
                shape, kind = _header(file)
            if min(shape, default=0) < 0 or kind.hasobject:
                raise ValueError(f"{info.filename} is no plain array")
            shapes[info.filename.removesuffix(".npy")] = shape, kind
    return shapes


def write_tensors(path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> None:
    """Write tensors of the CPU, views as well, to a safetensors file, complete or not at all."""
    # The library would write the memory of a view, whatever its strides.
    arrays = {name: np.asarray(tensor.numpy(), order="C") for name, tensor in tensors.items()}
    with replacing(path) as file:
        file.write(save(arrays, dict(metadata)))


def safetensors_shapes(path: Path) -> dict[str, Shape]:
    """Return the shape of every tensor in a safetensors file, by name, from the header."""
    try:
        with safe_open(path, framework="pt") as file:
            return {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118
    except (OSError, SafetensorError) as error:
        raise CarvyError(f"cannot read the tensors in {path}: {error}") from error


@contextlib.contextmanager
def _opened(path: Path, problem: str) -> Iterator[IO[bytes]]:
    try:
        file = path.open("rb")
    except OSError as error:
        raise CarvyError(f"{path}: cannot be read ({error.strerror or error})") from error
    with file, _refusing(str(path), problem):
        yield file


@contextlib.contextmanager
def _refusing(where: str, problem: str) -> Iterator[None]:
    try:
        yield
    except CarvyError:
        raise
    except MemoryError as error:
        raise CarvyError(f"{where}: there is not enough memory to read it") from error
    except Exception as error:  # a damaged or hostile file makes its reader fail in any way
        raise CarvyError(f"{where}: {problem} ({reason(error)})") from error


def _size(file: IO[bytes]) -> int:
    size = file.seek(0, os.SEEK_END)
    file.seek(0)
    return size


def _check_unpacked(size: int, packed: int, where: str) -> None:
    limit = min(max(ALWAYS_UNPACKED, MOST_UNPACKED * packed), memory())
    if size > limit:
        raise CarvyError(
            f"{where}: {packed:,} bytes unpack to more than {limit:,}, which is taken for an "
            "attack; if it is not, store the file uncompressed"
        )


class _InPieces:
    """A member, read a few bytes at a time: of LZMA ``zipfile`` unpacks all that it has read."""

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
        whole: Any = _InPieces(file) if info.compress_type == zipfile.ZIP_LZMA else file
        return npy.read_array(whole, allow_pickle=False)


def _header(file: Any) -> tuple[Shape, np.dtype[Any]]:
    version = npy.read_magic(file)
    if version not in _HEADERS:
        raise ValueError("it has named fields")
    shape, _, kind = _HEADERS[version](file)
    return shape, kind


def _check_header(file: Any, size: int) -> None:
    """Refuse an array, in a file of ``size`` bytes, that claims more bytes than there are."""
    shape, kind = _header(file)
    claimed, there = math.prod(shape) * kind.itemsize, size - file.tell()
    if min(shape, default=0) < 0 or claimed > there:
        raise ValueError(f"shape {shape} takes {claimed:,} bytes, but {there:,} follow")
