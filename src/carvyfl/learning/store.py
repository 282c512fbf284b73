"""The group store: a finished group is never trained again, and never lost."""

from __future__ import annotations

import contextlib
import hashlib
import json
import time
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from carvyfl.core.errors import CarvyError
from carvyfl.core.files import replacing
from carvyfl.learning.job import GroupJob, GroupResult, GroupState
from carvyfl.learning.models.weights import num_weights

FORMAT = "2"
"""Raised when entries change their meaning; those of format 1 had none, and count as absent."""

DAY = 24 * 60 * 60.0
"""Seconds after which a file that was never completed belongs to a process that died."""


class DamagedEntryWarning(UserWarning):
    """A stored result could not be trusted and is trained again."""


class GroupStore:
    """Results on disk, one safetensors file a group, named by the job's key.

    An entry is complete or absent (written aside, then renamed) and carries a
    checksum of its name, weights and record; a damaged one, or one that was copied over
    another, is treated as absent, with a warning. Several processes may share a folder.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise CarvyError(f"cannot use {folder} as group store: {error.strerror}") from error
        _sweep(folder)

    def get(self, key: str, job: GroupJob) -> GroupResult | None:
        """Return the stored result of a job, or None if there is none that can be trusted."""
        path = self._result(key)
        with trusting(path):
            if (found := read_entry(path)) is None:
                return None
            tensors, record = found
            _check_shapes(tensors, weights=(num_weights(job.module),))
            finite = bool(torch.isfinite(tensors["weights"]).all())
            if not finite and record["stopped"] != "diverged":
                raise ValueError("its weights are not finite")
            accuracy, set_aside = _outcome(record)
            return GroupResult(tensors["weights"], accuracy, record["stopped"], set_aside)
        return None

    def begun(self, key: str) -> bool:
        """Whether anything of a job is there: its result, or a state on the way to it."""
        return self._result(key).exists() or self._state(key).exists()

    def put(self, key: str, result: GroupResult) -> None:
        """Store a result; afterwards it survives whatever happens to this process."""
        record = {
            "accuracy": result.accuracy,
            "stopped": result.stopped,
            "set_aside": result.set_aside,
        }
        write_entry(self._result(key), {"weights": result.weights}, record)
        self._state(key).unlink(missing_ok=True)

    def get_state(self, key: str, job: GroupJob) -> GroupState | None:
        """Return the last saved state of a job that is not finished, if there is one."""
        path = self._state(key)
        with trusting(path):
            if (found := read_entry(path)) is None:
                return None
            tensors, record = found
            count, active = num_weights(job.module), len(job.members) - len(record["set_aside"])
            _check_shapes(tensors, weights=(count,), server=(count,), controls=(active, count))
            return GroupState(
                tensors["weights"], tensors["server"], tensors["controls"], *_outcome(record)
            )
        return None

    def put_state(self, key: str, state: GroupState) -> None:
        """Save how far a job is; :meth:`put` removes it."""
        tensors = {"weights": state.weights, "server": state.server, "controls": state.controls}
        record = {"accuracy": state.accuracy, "set_aside": state.set_aside}
        write_entry(self._state(key), tensors, record)

    def _result(self, key: str) -> Path:
        return self.folder / f"{key}.safetensors"

    def _state(self, key: str) -> Path:
        return self.folder / f"{key}.unfinished.safetensors"


@dataclass(frozen=True)
class StoredCheckpoints:
    """The states of unfinished jobs, kept in the store beside the results.

    Attributes
    ----------
    store, keys, jobs
        Where; the keys of the jobs, and the jobs, by their position.
    every
        Seconds between two savings of a job.
    """

    store: GroupStore
    keys: tuple[str, ...]
    jobs: tuple[GroupJob, ...]
    every: float = 60.0

    def load(self, position: int) -> GroupState | None:
        """Return the last saved state of a job, if there is one."""
        return self.store.get_state(self.keys[position], self.jobs[position])

    def save(self, position: int, state: GroupState) -> None:
        """Save how far a job is."""
        self.store.put_state(self.keys[position], state)


def write_entry(path: Path, tensors: dict[str, Tensor], record: dict[str, Any]) -> None:
    """Write tensors and a record to a file that is complete or absent, with a checksum."""
    text = json.dumps(record)
    checksum = _checksum(path.name, tensors, text)
    with replacing(path) as file:
        file.write(save(tensors, {"format": FORMAT, "record": text, "checksum": checksum}))


def read_entry(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]] | None:
    """Read an entry that :func:`write_entry` wrote; None if there is none, or one of format 1.

    Raises
    ------
    ValueError, SafetensorError, KeyError, OSError
        If it is damaged; :func:`trusting` turns that into a warning.
    """
    if not path.exists():
        return None
    with safe_open(path, framework="pt") as file:
        metadata = file.metadata() or {}
        if metadata.keys() == {"record", "checksum"}:
            return None
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    if metadata["format"] != FORMAT:
        raise ValueError(f"its format is {metadata['format']!r}, not {FORMAT}")
    if metadata["checksum"] != _checksum(path.name, tensors, metadata["record"]):
        raise ValueError("its checksum does not match, or it is another group's")
    return tensors, json.loads(metadata["record"])


def _outcome(record: dict[str, Any]) -> tuple[tuple[float, ...], dict[int, str]]:
    """Return the accuracies and the members set aside that a group's record holds."""
    set_aside = {int(number): reason for number, reason in record["set_aside"].items()}
    return tuple(record["accuracy"]), set_aside


@contextlib.contextmanager
def trusting(path: Path, again: str = "trained again") -> Iterator[None]:
    """Turn what is wrong with an entry into a warning, which says what is done instead."""
    try:
        yield
    except (SafetensorError, OSError, KeyError, ValueError, TypeError) as error:
        warnings.warn(
            f"stored entry {path} is damaged ({error}); it is {again}",
            DamagedEntryWarning,
            stacklevel=4,
        )


def _check_shapes(tensors: dict[str, Tensor], **expected: tuple[int, ...]) -> None:
    """Refuse tensors of other names or shapes, or that are not float32."""
    shapes = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    if shapes != expected or any(t.dtype != torch.float32 for t in tensors.values()):
        raise ValueError(f"it holds {shapes or 'no weights'}, not float32 {expected}")


def _sweep(folder: Path) -> None:
    """Remove files that were never completed, a day after their process wrote them last."""
    for part in folder.glob(".*.part"):
        with contextlib.suppress(OSError):  # somebody else may sweep, too
            if time.time() - part.stat().st_mtime > DAY:
                part.unlink()


def _checksum(name: str, tensors: dict[str, Tensor], record: str) -> str:
    digest = hashlib.blake2b(json.dumps([name, record]).encode(), digest_size=16)
    for name in sorted(tensors):
        digest.update(f"{name}{tuple(tensors[name].shape)}".encode())
        digest.update(tensors[name].contiguous().numpy().data)
    return digest.hexdigest()
