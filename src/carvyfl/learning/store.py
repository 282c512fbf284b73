"""The group store: a finished group is never trained again, and never lost."""

from __future__ import annotations

import hashlib
import json
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from carvyfl.core.errors import CarvyError
from carvyfl.core.files import replacing
from carvyfl.learning.job import GroupResult, GroupState

T = TypeVar("T", GroupResult, GroupState)


class DamagedEntryWarning(UserWarning):
    """A stored result could not be trusted and is trained again."""


class GroupStore:
    """Results on disk, one safetensors file a group, named by the job's key.

    An entry is complete or absent (written aside, then renamed) and carries a
    checksum of weights and record; a damaged one is treated as absent, with a
    warning. Several processes may share a folder.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise CarvyError(f"cannot use {folder} as group store: {error.strerror}") from error

    def get(self, key: str) -> GroupResult | None:
        """Return a stored result, or None if there is none that can be trusted."""
        return _read(self._result(key), GroupResult)

    def begun(self, key: str) -> bool:
        """Return whether a result of a job is stored, or a state on the way to it."""
        return self._result(key).exists() or self._state(key).exists()

    def put(self, key: str, result: GroupResult) -> None:
        """Store a result; afterwards it survives whatever happens to this process."""
        _write(self._result(key), result)
        self._state(key).unlink(missing_ok=True)

    def get_state(self, key: str) -> GroupState | None:
        """Return the last saved state of a job that is not finished, if there is one."""
        return _read(self._state(key), GroupState)

    def put_state(self, key: str, state: GroupState) -> None:
        """Save how far a job is; :meth:`put` removes it."""
        _write(self._state(key), state)

    def _result(self, key: str) -> Path:
        return self.folder / f"{key}.safetensors"

    def _state(self, key: str) -> Path:
        return self.folder / f"{key}.unfinished.safetensors"


@dataclass(frozen=True)
class StoredCheckpoints:
    """The states of unfinished jobs, kept in the store beside the results."""

    store: GroupStore
    keys: tuple[str, ...]
    every: float = 60.0

    def load(self, position: int) -> GroupState | None:
        """Return the last saved state of a job, if there is one."""
        return self.store.get_state(self.keys[position])

    def save(self, position: int, state: GroupState) -> None:
        """Save how far a job is."""
        self.store.put_state(self.keys[position], state)


def _write(path: Path, value: GroupResult | GroupState) -> None:
    """Write the tensors of a value, and its other fields as a record in JSON."""
    tensors = {name: own for name, own in vars(value).items() if isinstance(own, Tensor)}
    record = json.dumps({name: own for name, own in vars(value).items() if name not in tensors})
    with replacing(path) as file:
        file.write(save(tensors, {"record": record, "checksum": _checksum(tensors, record)}))


def _read(path: Path, kind: type[T]) -> T | None:
    """Read a value that :func:`_write` wrote; None, with a warning, if it cannot be trusted."""
    if not path.exists():
        return None
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        if metadata["checksum"] != _checksum(tensors, metadata["record"]):
            raise ValueError("its checksum does not match")
        record = json.loads(metadata["record"])
        record["accuracy"] = tuple(record["accuracy"])
        record["set_aside"] = {int(k): reason for k, reason in record["set_aside"].items()}
        return kind(**tensors, **record)
    except (SafetensorError, OSError, KeyError, ValueError, TypeError) as error:
        warnings.warn(
            f"stored group {path} is damaged ({error}); it is trained again",
            DamagedEntryWarning,
            stacklevel=3,
        )
        return None


def _checksum(tensors: dict[str, Tensor], record: str) -> str:
    digest = hashlib.blake2b(record.encode(), digest_size=16)
    for name in sorted(tensors):
        digest.update(f"{name}{tuple(tensors[name].shape)}".encode())
        digest.update(tensors[name].contiguous().numpy().data)
    return digest.hexdigest()
