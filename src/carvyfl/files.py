"""Files that are complete or absent."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from carvyfl.errors import CarvyError


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[IO[bytes]]:
    """Write a file aside and rename it into place once it is complete.

    A reader sees the old file or the new one, never a part; a failure (a full
    disk, Ctrl-C) leaves nothing behind and raises :class:`CarvyError` where the
    operating system refused.
    """
    # Threads write too, and groups without members share a name.
    aside = path.with_name(f".{path.name}.{os.getpid()}-{threading.get_ident()}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(aside, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(aside, path)
    except OSError as error:
        raise CarvyError(
            f"cannot write {path}: {error.strerror or error}; free some space or choose another "
            "folder, then run the same command again: finished work is kept"
        ) from error
    finally:
        with contextlib.suppress(OSError):
            aside.unlink()


def write_text(path: Path, text: str) -> None:
    """Write a text file, complete or not at all."""
    with replacing(path) as file:
        file.write(text.encode())


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
    import fcntl

    with _made(path) as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise CarvyError(f"{what} already; wait for it, or end it first") from error
        yield


@contextlib.contextmanager
def in_turn(path: Path) -> Iterator[None]:
    """Wait until no other process is between reading this file and writing it anew."""
    import fcntl

    with _made(path.with_name(f".{path.name}.lock")) as file:
        # A few network drives know no locks; there, commands must not share a folder.
        with contextlib.suppress(OSError):
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _made(path: Path) -> IO[bytes]:
    """Open a file that is there to be held; it is made where there is none."""
    path.parent.mkdir(parents=True, exist_ok=True)
    return open(path, "wb")
