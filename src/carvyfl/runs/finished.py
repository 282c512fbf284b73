"""Find a run that is finished already, without computing anything."""

from __future__ import annotations

import contextlib
from importlib.metadata import entry_points
from pathlib import Path

from carvyfl.core.environment import commit
from carvyfl.core.errors import CarvyError
from carvyfl.core.files import write_text
from carvyfl.core.version import __version__
from carvyfl.runs.config import load_voted_data
from carvyfl.runs.folder import RunFolder
from carvyfl.runs.record import RunRecord, data_entry, sha256
from carvyfl.settings import RunSettings

PRECISIONS = {"loop": "fp32", "batched": "bf16", "ray": "fp32"}
"""What every engine computes in unless it is told otherwise."""


def remember(store: Path, folder: RunFolder) -> None:
    """Note in the store that this very record was computed here, if the store can be written."""
    note = _note(store, folder.record())
    with contextlib.suppress(CarvyError):  # the note only saves time
        if not note.is_file():
            write_text(note, "")


def _note(store: Path, record: RunRecord) -> Path:
    return store / "finished" / record.digest


def finished_run(
    settings: RunSettings, out: Path, store: Path, engine: str, precision: str | None
) -> RunFolder | None:
    """Return the run folder if it holds the finished run of these settings, else None.

    Computing it again would give the same record, which then stays: the settings, the package
    (its version and commit, without changes since), the engine and its precision, and the data
    are those of the record, and every file is as recorded. The store must remember the record:
    one that somebody changed and sealed again was not computed here. Only then is it taken; a
    folder that lacks any of this is left to the run, which says what is wrong or restores it.
    Where other packages register variants, whose versions no record holds, nothing is taken.

    The engine ``auto`` takes what a GPU found as well as what CPU cores found; no precision is
    the engine's own.
    """
    folder = RunFolder(out)
    try:
        if not folder.record_file.is_file():
            return None
        record = folder.record()
        same = (
            _note(store, record).is_file()
            and folder.config_file.read_text(encoding="utf-8") == settings.to_yaml()
            and record.config.to_dict() == settings.to_dict()
            and _same_computation(record, engine, precision)
            and all(sha256(out / name) == own for name, own in record.files.items())
            and data_entry(load_voted_data(settings)) == record.data
        )
    except (CarvyError, OSError, UnicodeDecodeError):
        return None
    return folder if same else None


def _same_computation(record: RunRecord, engine: str, precision: str | None) -> bool:
    """Whether a record was computed by this package as it is, and as it would be now."""
    own, here = record.environment, commit()
    return (
        own.carvyfl == __version__
        and own.commit == here
        and not (here or "").endswith("-dirty")
        and (own.engine == engine or (engine == "auto" and own.engine in ("loop", "batched")))
        and own.precision == (precision or PRECISIONS.get(str(own.engine)))
        and not any(group.startswith("carvyfl.") for group in entry_points().groups)
    )
