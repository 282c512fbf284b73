"""Commands under limits of memory and time, and files that ask for more than those."""

from __future__ import annotations

import gzip
import resource
import subprocess
import zipfile
from pathlib import Path

from support.cli import CARVY, Answer

GIB = 1 << 30


def bounded(*args: object, memory: int = 4 * GIB, seconds: float = 60) -> Answer:
    """Call the installed command with so many bytes of address space and so many seconds."""

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_AS, (memory, memory))

    done = subprocess.run(
        [CARVY, *map(str, args)],
        capture_output=True,
        text=True,
        timeout=seconds,
        preexec_fn=limit,
    )
    return Answer(done.returncode, done.stdout, done.stderr)


def gzip_bomb(path: Path, size: int) -> Path:
    """Write a gzip file of so many zeros, in members of 16 MiB: a thousandth of that."""
    part = 1 << 24
    path.write_bytes(gzip.compress(bytes(part)) * (size // part))
    return path


def zip_claiming(path: Path, members: dict[str, bytes], sizes: dict[str, int], kind: int) -> Path:
    """Write an archive whose directory states false sizes for some members."""
    with zipfile.ZipFile(path, "w", kind) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
        for info in archive.infolist():
            info.file_size = sizes.get(info.filename, info.file_size)
    return path
