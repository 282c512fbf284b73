"""File locks between processes; the system releases them when a process ends."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path

from filelock import FileLock, Timeout

from carvyfl.core.errors import CarvyError, refusal


@contextlib.contextmanager
def exclusive_lock(path: Path, what: str) -> Iterator[None]:
    """Lock a file, created if absent, or raise :class:`CarvyError` if another process has it.

    ``what`` is what two processes must not do at once, for the error message.
    """
    try:
        lock = FileLock(path, timeout=0).acquire()
    except Timeout as error:
        raise CarvyError(f"{what} already; wait for it, or end it first") from error
    with lock:
        yield


def update_lock(path: Path) -> AbstractContextManager[object]:
    """Wait for the lock on reading a file and replacing it; it is a file beside that one."""
    return FileLock(path.with_name(f".{path.name}.lock"))


@contextlib.contextmanager
def brief_lock(path: Path) -> Iterator[None]:
    """Hold a file for a moment, waiting for whoever else does, and leave none behind."""
    try:
        lock = FileLock(path).acquire()
    except OSError as error:
        raise CarvyError(f"cannot write {path.parent}: {refusal(error)}") from error
    with lock:
        try:
            yield
        finally:  # those who wait see that it is gone, and wait for a new one
            path.unlink(missing_ok=True)


def wait_for_lock(path: Path) -> AbstractContextManager[bool]:
    """Wait for the lock on an existing file that is never replaced."""
    # To lock it, network drives ask for a file that may be written.
    return _flock(path, fcntl.LOCK_EX, os.O_RDWR if os.access(path, os.W_OK) else os.O_RDONLY)


def shared_lock(folder: Path) -> AbstractContextManager[bool]:
    """Mark a folder as in use, for :func:`is_unlocked`; several processes may at once."""
    return _flock(folder, fcntl.LOCK_SH)


def is_unlocked(folder: Path) -> bool:
    """Return whether no process uses a folder, as far as can be known."""
    with _flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB) as locked:
        return locked


@contextlib.contextmanager
def _flock(path: Path, kind: int, flags: int = os.O_RDONLY) -> Iterator[bool]:
    """Lock what is there already, a folder too; say whether that could be done.

    A few network drives have no locks. There, commands must not share a folder, and a folder always
    counts as in use.
    """
    handle, locked = os.open(path, flags), False
    try:
        with contextlib.suppress(OSError):
            fcntl.flock(handle, kind)
            locked = True
        yield locked
    finally:
        os.close(handle)
