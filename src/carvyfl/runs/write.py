"""How a run's files come into its folder: all or none, and nothing finished is lost."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator

from msgspec import UNSET
from msgspec.structs import replace

from carvyfl.core.errors import CarvyError
from carvyfl.core.files import move, write_text
from carvyfl.core.locks import wait_for_lock
from carvyfl.core.schema import plain, read
from carvyfl.runs.folder import RunFolder
from carvyfl.runs.record import RunRecord, sealed


@contextlib.contextmanager
def aside(folder: RunFolder) -> Iterator[RunFolder]:
    """Give a place to write the files of a run first, to one process at a time.

    An older record of the run stays valid meanwhile.
    """
    with wait_for_lock(folder.config_file):
        new = RunFolder(folder.path / "new.part")
        shutil.rmtree(new.path, ignore_errors=True)  # from a process that was killed
        try:
            write_text(new.config_file, folder.config_file.read_text(encoding="utf-8"))
            yield new
        finally:
            shutil.rmtree(new.path, ignore_errors=True)


def put_in_place(new: RunFolder, folder: RunFolder, record: RunRecord) -> None:
    """Move the files of a run into its folder, and write the record last.

    The record of the very same result stays, and with it a signature and the attacks on it:
    a run that is repeated loses nothing, and gets back what was damaged.
    """
    recorded = _is_recorded(folder, record)
    if not recorded:
        folder.signature_file.unlink(missing_ok=True)
        folder.record_file.unlink(missing_ok=True)
    for name in record.files.keys() - {folder.config_file.name}:
        move(new.path / name, folder.path / name)
    if not recorded:
        write_text(folder.record_file, sealed(record))


def _is_recorded(folder: RunFolder, record: RunRecord) -> bool:
    """Whether a folder has a record of this very result, whenever and wherever computed."""
    try:
        there = folder.record()
    except CarvyError:
        return False
    here = read(RunRecord, plain(record), "the record")
    there = replace(there, seconds=here.seconds, environment=here.environment, digest=here.digest)
    if there.deployment is not UNSET and here.deployment is not UNSET:
        # A server that is started again has sent nothing yet.
        own = replace(there.deployment, traffic=here.deployment.traffic)
        there = replace(there, deployment=own)
    return here == there
