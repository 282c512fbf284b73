"""Whose a run folder is, what is kept there of an interrupted run, and when a run is finished."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

from carvyfl.core.environment import commit
from carvyfl.core.errors import CarvyError
from carvyfl.core.files import folder_lock, write_text
from carvyfl.core.version import __version__
from carvyfl.core.yaml_text import read_yaml, to_yaml
from carvyfl.profiles.methods import PROFILE_METHODS, Profiles
from carvyfl.profiles.types import ClientTypes
from carvyfl.profiles.vectors import load_vectors, save_vectors
from carvyfl.runs.config import load_voted_data
from carvyfl.runs.folder import RunFolder, read_json
from carvyfl.runs.record import RunRecord, data_entry, hashes
from carvyfl.settings import RunSettings

PRECISIONS = {"loop": "fp32", "batched": "bf16", "ray": "fp32"}
"""What every engine computes in unless it is told otherwise."""


@contextlib.contextmanager
def claim(out: Path, config: dict[str, Any], option: str = "`out`") -> Iterator[RunFolder]:
    """Hold a folder for the run of these settings, and write them there.

    A folder is one configuration's, and one process's at a time; a run that fails and has put
    nothing into a new one leaves none. ``option`` is what the folder was named with, for the error
    message.
    """
    refuse_other(out, config, option)
    new = not out.exists()
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise CarvyError(_unusable(out, error, option)) from error
    with folder_lock(out, f"a run is at work in {out}"):
        refuse_other(out, config, option)  # which may have come in between
        folder, text = RunFolder(out), to_yaml(config)
        # Written once: whoever puts results into the folder locks this file meanwhile.
        if not folder.config_file.is_file() or folder.config_file.read_bytes() != text.encode():
            write_text(folder.config_file, text)
        try:
            yield folder
        except Exception:
            if new and list(out.iterdir()) == [folder.config_file]:
                folder.config_file.unlink()
                out.rmdir()
            raise


def refuse_other(out: Path, config: dict[str, Any], option: str = "`out`") -> None:
    """Refuse a folder that holds something else than the run of these settings.

    One with another run's settings and nothing else can be had: that run found nothing.
    """
    try:
        inside = {path.name for path in out.iterdir()} if out.exists() else set()
    except OSError as error:
        raise CarvyError(_unusable(out, error, option)) from error
    if out.exists() and not os.access(out, os.W_OK):
        raise CarvyError(f"{out} cannot be written to; choose another folder with {option}")
    inside = {name for name in inside if not name.endswith(".part")}  # of a process that was killed
    file = RunFolder(out).config_file
    if not inside:
        return
    if not file.is_file():
        raise CarvyError(f"{out} is not a run folder; choose another with {option}")
    text = file.read_text(encoding="utf-8", errors="replace")
    if text == to_yaml(config):
        return
    there = _settings(text)
    # Somebody's own file of settings is another text than a run's, or lacks some of them.
    as_saved = there is not None and there.keys() == config.keys() and to_yaml(there) == text
    if not as_saved or inside != {file.name}:
        raise CarvyError(
            f"{out} holds a run with other settings ({_difference(there, config)}); choose another "
            f"folder with {option}"
        )


def _unusable(out: Path, error: OSError, option: str) -> str:
    return f"cannot use {out} as run folder: {error.strerror}; choose another with {option}"


def _settings(text: str) -> dict[str, Any] | None:
    try:
        there = read_yaml(text, "config.yaml")
    except CarvyError:
        return None
    whole = isinstance(there, dict) and isinstance(there.get("training"), dict)
    return there if whole else None


def _difference(there: dict[str, Any] | None, here: dict[str, Any]) -> str:
    if there is None:
        return "its config.yaml is damaged"
    there, here = ({**plain, **plain["training"], "training": None} for plain in (there, here))
    for name, value in here.items():
        if value != there.get(name):
            return f"{name}: {there.get(name)} there, {value} here"
    return "its config.yaml is of another version, or was changed by hand"


def keep_noise(folder: RunFolder, profiles: Profiles) -> None:
    """Keep what clients added noise to: asked again, they would draw new noise, and spend ε."""
    assert profiles.vectors is not None
    save_vectors(folder.profiles_file, profiles.vectors)
    write_text(folder.types_file, json.dumps(profiles.types.to_json()))


def kept_noise(folder: RunFolder, types: str) -> Profiles | None:
    """Return the profiles with noise that a run in this folder has asked for already."""
    if not (adds_noise(types) and folder.types_file.is_file()):
        return None
    try:
        if folder.record_file.is_file():
            return folder.profiles()
        read_types = ClientTypes.from_json(read_json(folder.types_file))
        return Profiles(read_types, load_vectors(folder.profiles_file, len(read_types)))
    except CarvyError:  # a damaged file: clients must be asked again
        return None


def adds_noise(types: str) -> bool:
    """Whether clients add noise to what they send in Step 1 for these types."""
    return PROFILE_METHODS.pick(types).sends == "private-shares"


def finished_run(
    settings: RunSettings, out: Path, engine: str, precision: str | None
) -> RunRecord | None:
    """Return the record of a folder that holds the finished run of these settings, else None.

    Settings, data, package (version and commit, without changes since), engine and precision are
    those of the record, and every file is as recorded: computed again it would be the same. A
    folder that lacks any of this is left to the run, which says what is wrong or restores it. The
    engine ``auto`` takes what a GPU found as well as what CPU cores found.
    """
    folder = RunFolder(out)
    if not folder.record_file.is_file():
        return None
    try:
        record = folder.record()
        same = (
            record.config.to_dict() == settings.to_dict()
            and _same_computation(record, engine, precision)
            and hashes(out, [out / name for name in record.files]) == record.files
            and data_entry(load_voted_data(settings)) == record.data
        )
    except CarvyError:
        return None
    return record if same else None


def _same_computation(record: RunRecord, engine: str, precision: str | None) -> bool:
    """Whether this package, unchanged, computed a record in the way it would now."""
    there, here = record.environment, commit()
    return (
        there.carvyfl == __version__
        and there.commit == here
        and not (here or "").endswith("-dirty")
        and (there.engine == engine or (engine == "auto" and there.engine in ("loop", "batched")))
        and there.precision == (precision or PRECISIONS.get(there.engine))
        and not any(group.startswith("carvyfl.") for group in entry_points().groups)
    )
