"""Whose a run folder is: one configuration's, from its first file on."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from carvyfl.core.errors import CarvyError
from carvyfl.core.files import write_text
from carvyfl.core.locks import brief_lock, is_unlocked, shared_lock
from carvyfl.core.yaml_text import read_yaml, to_yaml
from carvyfl.runs.config import RunConfig
from carvyfl.runs.folder import RunFolder

TURN = ".claim.part"
"""The file that is held while a folder is looked at."""


@contextlib.contextmanager
def claim(out: Path, config: dict[str, Any], option: str = "`out`") -> Iterator[RunFolder]:
    """Hold a folder for the run of this configuration, refusing one that holds something else.

    Of different runs that are started together on one folder exactly one goes on: they look at
    the folder in turn, and it is held by the first before the next one looks.
    ``option`` is what the folder was named with, for the error message.
    """
    folder = RunFolder(out)
    _refuse_foreign(out, option)
    with contextlib.ExitStack() as held:
        with brief_lock(out / TURN):
            _refuse_taken(folder, config, option)
            text = to_yaml(config)
            # Written once: who writes the results of a run holds this file meanwhile.
            if not folder.config_file.is_file() or folder.config_file.read_bytes() != text.encode():
                write_text(folder.config_file, text)
            held.enter_context(shared_lock(out))
        yield folder


@contextlib.contextmanager
def cleared_on_failure(out: Path) -> Iterator[Callable[[], None]]:
    """Remove a run folder that was not there before, if the run that claims it inside fails.

    Yields a function that is called as soon as the folder shall stay. A run that is interrupted
    leaves its settings, and what others have put there stays.
    """
    folder, stays = RunFolder(out), False
    new = [path for path in (folder.config_file, out, *out.parents) if not path.exists()]

    def stay() -> None:
        nonlocal stays
        stays = True

    try:
        yield stay
    except Exception:
        if folder.config_file in new and not stays:
            _clear(folder, new)
        raise


def refuse_taken(out: Path, config: dict[str, Any]) -> None:
    """Refuse a folder that holds something else than this configuration's run.

    Another run's folder can be had as long as that run has found nothing and is not at work.
    """
    _refuse_foreign(out, "`out`")
    if (folder := RunFolder(out)).config_file.is_file():
        with brief_lock(out / TURN):
            _refuse_taken(folder, config, "`out`")


def _refuse_foreign(out: Path, option: str) -> None:
    """Refuse what is no run's folder."""
    if out.is_dir() and not os.access(out, os.W_OK):
        raise CarvyError(f"{out} cannot be written to; choose another folder with {option}")
    try:
        foreign = out.exists() and (not out.is_dir() or any(map(_is_foreign, out.iterdir())))
        if foreign and not RunFolder(out).config_file.is_file():
            raise CarvyError(f"{out} is not a run folder; choose another with {option}")
    except OSError as error:
        raise CarvyError(
            f"cannot use {out} as run folder: {error.strerror}; choose another with {option}"
        ) from error


def _refuse_taken(folder: RunFolder, config: dict[str, Any], option: str) -> None:
    """Refuse a folder that holds another configuration than this one."""
    if not folder.config_file.is_file():
        return
    held = folder.config_file.read_text(encoding="utf-8", errors="replace")
    if held != to_yaml(config) and not _is_abandoned(folder, held):
        raise CarvyError(
            f"{folder.path} holds a run with other settings ({_difference(held, config)}); "
            f"choose another folder with {option}"
        )


def _is_abandoned(folder: RunFolder, held: str) -> bool:
    """Whether a folder holds the settings of a run and nothing else, and nobody is at work.

    The settings must be as a run saves them: somebody's own file would be a loss.
    """
    inside = {path.name for path in folder.path.iterdir() if _is_foreign(path)}
    if inside != {folder.config_file.name} or (there := _settings(held)) is None:
        return False
    saved = list(there) == list(RunConfig().to_dict()) and to_yaml(there) == held
    return saved and is_unlocked(folder.path)


def _clear(folder: RunFolder, new: list[Path]) -> None:
    """Remove the new settings of a run that failed and the new folders, if they hold nothing else.

    The first of ``new`` is the file of the settings; folders come after what is in them.
    """
    file, *folders = new
    with contextlib.suppress(OSError, CarvyError):  # a folder that is not empty, a full disk
        with brief_lock(folder.path / TURN):
            if _is_abandoned(folder, file.read_text(encoding="utf-8")):
                file.unlink()
        for path in folders:
            path.rmdir()


def _settings(held: str) -> dict[str, Any] | None:
    """Read a saved configuration, None where it is none."""
    try:
        there = read_yaml(held, "config.yaml")
    except CarvyError:
        return None
    whole = isinstance(there, dict) and isinstance(there.get("training"), dict)
    return there if whole else None


def _is_foreign(path: Path) -> bool:
    """Whether a file is anybody else's: not what a killed process left half-written."""
    return not path.name.endswith(".part")


def _difference(held: str, here: dict[str, Any]) -> str:
    """Name the first setting in which a saved configuration differs, for people."""
    there = _settings(held)
    if there is None:
        return "its config.yaml is damaged"
    there, here = ({**plain, **plain["training"], "training": None} for plain in (there, here))
    name = next((name for name in here if here[name] != there.get(name)), None)
    if name is None:
        return "its config.yaml is of another version, or was changed by hand"
    return f"{name}: {there.get(name)} there, {here[name]} here"
