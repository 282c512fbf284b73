"""Files that are complete or absent, and locks, which the system releases when a process ends."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import shutil
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import IO

from carvyfl.core.errors import CarvyError, refusal


@contextlib.contextmanager
def replacing(path: Path, mode: int = 0o666) -> Iterator[IO[bytes]]:
    """Write a file aside and rename it into place once it is complete.

    A reader sees the old file or the new one, never a part; a failure (a full disk, Ctrl-C) leaves
    nothing behind. The file is created with ``mode``, less the umask.
    """
    # Threads write too, and groups without members share a name.
    aside = path.with_name(f".{path.name}.{os.getpid()}-{threading.get_ident()}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(aside, "wb", opener=lambda name, flags: os.open(name, flags, mode)) as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(aside, path)
    except OSError as error:
        again = "then run the same command again: finished work is kept"
        raise CarvyError(f"cannot write {path}: {refusal(error)}, {again}") from error
    finally:
        with contextlib.suppress(OSError):
            aside.unlink()


def move(source: Path, target: Path) -> None:
    """Put a file into its place; a reader sees the old file or the new one, never a part."""
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        os.replace(source, target)
    except OSError as error:
        if error.errno != errno.EXDEV:  # the folder may be a link to another disk
            raise
        with open(source, "rb") as content, replacing(target) as file:
            shutil.copyfileobj(content, file)


def write_text(path: Path, text: str, mode: int = 0o666) -> None:
    """Write a text file, complete or not at all."""
    with replacing(path, mode) as file:
        file.write(text.encode())


def folder_lock(folder: Path, what: str) -> AbstractContextManager[None]:
    """Lock a folder, or raise :class:`CarvyError` that another process does ``what`` already."""
    return _flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB, os.O_RDONLY, what)


def wait_for_lock(path: Path) -> AbstractContextManager[None]:
    """Wait for the lock on an existing file that is never replaced."""
    # To lock it, network drives ask for a file that may be written.
    return _flock(path, fcntl.LOCK_EX, os.O_RDWR if os.access(path, os.W_OK) else os.O_RDONLY)


@contextlib.contextmanager
def _flock(path: Path, kind: int, flags: int, what: str = "") -> Iterator[None]:
    """Lock what is there; on a network drive without locks, commands must not share a folder."""
    handle = os.open(path, flags)
    try:
        try:
            fcntl.flock(handle, kind)
        except BlockingIOError as error:
            raise CarvyError(f"{what} already; wait for it, or end it first") from error
        except OSError:
            pass
        yield
    finally:
        os.close(handle)
