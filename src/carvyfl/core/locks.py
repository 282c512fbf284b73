"""File locks between processes; the system releases them when a process ends."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from carvyfl.core.errors import CarvyError


@contextlib.contextmanager
def exclusive_lock(path: Path, what: str) -> Iterator[None]:
    """Lock a file, created if absent, or raise :class:`CarvyError` if another process has it.

    ``what`` is what two processes must not do at once, for the error message.
    """
    with _created(path) as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise CarvyError(f"{what} already; wait for it, or end it first") from error
        yield


@contextlib.contextmanager
def update_lock(path: Path) -> Iterator[None]:
    """Wait for the lock on reading a file and replacing it; it is a file beside that one."""
    with _created(path.with_name(f".{path.name}.lock")) as file:
        _wait_for(file)
        yield


@contextlib.contextmanager
def brief_lock(path: Path) -> Iterator[None]:
    """Hold a file for a moment, waiting for whoever else does, and leave none behind."""
    while True:
        with _created(path) as file:
            _wait_for(file)
            try:
                current = os.path.samestat(os.fstat(file.fileno()), os.stat(path))
            except FileNotFoundError:
                current = False
            if not current:  # whoever held it has removed it: others hold a new one
                continue
            try:
                yield
            finally:
                path.unlink(missing_ok=True)
            return


@contextlib.contextmanager
def wait_for_lock(path: Path) -> Iterator[None]:
    """Wait for the lock on an existing file that is never replaced."""
    # To lock it, network drives ask for a file that may be written.
    with open(path, "r+b" if os.access(path, os.W_OK) else "rb") as file:
        _wait_for(file)
        yield


@contextlib.contextmanager
def shared_lock(folder: Path) -> Iterator[None]:
    """Mark a folder as in use, for :func:`is_unlocked`; several processes may at once."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        # A few network drives have no locks; there, a folder always counts as in use.
        with contextlib.suppress(OSError):
            fcntl.flock(handle, fcntl.LOCK_SH)
        yield
    finally:
        os.close(handle)


def is_unlocked(folder: Path) -> bool:
    """Return whether no process uses a folder, as far as can be known."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    finally:
        os.close(handle)
    return True


def _wait_for(file: IO[bytes]) -> None:
    # A few network drives have no locks; there, commands must not share a folder.
    with contextlib.suppress(OSError):
        fcntl.flock(file, fcntl.LOCK_EX)


def _created(path: Path) -> IO[bytes]:
    path.parent.mkdir(parents=True, exist_ok=True)
    return open(path, "wb")
