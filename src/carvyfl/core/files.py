"""Files that are complete or absent."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from carvyfl.core.errors import CarvyError, refusal


@contextlib.contextmanager
def replacing(path: Path, mode: int = 0o666) -> Iterator[IO[bytes]]:
    """Write a file aside and rename it into place once it is complete.

    A reader sees the old file or the new one, never a part; a failure (a full
    disk, Ctrl-C) leaves nothing behind and raises :class:`CarvyError` where the
    operating system refused. The file is created with ``mode``, less the umask.
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
        raise CarvyError(
            f"cannot write {path}: {refusal(error)}, then run the same command again: finished "
            "work is kept"
        ) from error
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
    """Write a text file, complete or not at all; see :func:`replacing`."""
    with replacing(path, mode) as file:
        file.write(text.encode())
