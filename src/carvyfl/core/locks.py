"""Locks between processes: files and folders that one of them holds for a while."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from carvyfl.core.errors import CarvyError


@contextlib.contextmanager
def held(path: Path, what: str) -> Iterator[None]:
    """Hold a file that one process at a time can hold; it is let go when the process ends.

    Parameters
    ----------
    path
        The file; it is made where there is none.
    what
        What must not be done twice at a time, for the error message.
    """
    with _made(path) as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise CarvyError(f"{what} already; wait for it, or end it first") from error
        yield


@contextlib.contextmanager
def in_turn(path: Path) -> Iterator[None]:
    """Wait until no other process is between reading this file and writing it anew."""
    with _made(path.with_name(f".{path.name}.lock")) as file:
        _wait_for(file)
        yield


@contextlib.contextmanager
def brief_lock(path: Path) -> Iterator[None]:
    """Hold a file for a moment, waiting for whoever else does, and leave none behind."""
    while True:
        with _made(path) as file:
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
def writing(unchanging: Path) -> Iterator[None]:
    """Wait until no other process holds this file, which is there and is never written anew."""
    # To lock it, network drives ask for a file that may be written.
    with open(unchanging, "r+b" if os.access(unchanging, os.W_OK) else "rb") as file:
        _wait_for(file)
        yield


def _wait_for(file: IO[bytes]) -> None:
    # A few network drives know no locks; there, commands must not share a folder.
    with contextlib.suppress(OSError):
        fcntl.flock(file, fcntl.LOCK_EX)


@contextlib.contextmanager
def at_work(folder: Path) -> Iterator[None]:
    """Hold a folder against other runs; the system lets go of it when the process ends."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        # A few network drives know no locks; there, a folder is never taken for idle.
        with contextlib.suppress(OSError):
            fcntl.flock(handle, fcntl.LOCK_SH)
        yield
    finally:
        os.close(handle)


def is_idle(folder: Path) -> bool:
    """Whether no run is at work in a folder, as far as can be known."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    finally:
        os.close(handle)
    return True


def _made(path: Path) -> IO[bytes]:
    """Open a file that is there to be held; it is made where there is none."""
    path.parent.mkdir(parents=True, exist_ok=True)
    return open(path, "wb")
