"""File locks between processes; the system releases them when a process ends."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path

from filelock import FileLock

from carvyfl.core.errors import CarvyError


def update_lock(path: Path) -> AbstractContextManager[object]:
    """Wait for the lock on reading a file and replacing it; it is a file beside that one."""
    return FileLock(path.with_name(f".{path.name}.lock"))


@contextlib.contextmanager
def folder_lock(folder: Path, what: str) -> Iterator[None]:
    """Lock an existing folder, or raise :class:`CarvyError` if another process has it.

    ``what`` is what two processes must not do at once, for the error message.
    """
    with contextlib.ExitStack() as held:
        try:
            held.enter_context(_flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB, os.O_RDONLY))
        except BlockingIOError as error:
            raise CarvyError(f"{what} already; wait for it, or end it first") from error
        yield


def wait_for_lock(path: Path) -> AbstractContextManager[None]:
    """Wait for the lock on an existing file that is never replaced."""
    # To lock it, network drives ask for a file that may be written.
    return _flock(path, fcntl.LOCK_EX, os.O_RDWR if os.access(path, os.W_OK) else os.O_RDONLY)


@contextlib.contextmanager
def _flock(path: Path, kind: int, flags: int) -> Iterator[None]:
    """Lock what is there already, a folder too.

    A few network drives have no locks. There, commands must not share a folder.
    """
    handle = os.open(path, flags)
    try:
        try:
            fcntl.flock(handle, kind)
        except BlockingIOError:
            raise
        except OSError:
            pass
        yield
    finally:
        os.close(handle)
