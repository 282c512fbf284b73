"""The group store: a finished group is never trained again, and never lost."""

from __future__ import annotations

import hashlib
import json
import warnings
from pathlib import Path

from safetensors import SafetensorError, safe_open
from safetensors.torch import save

from carvyfl.errors import CarvyError
from carvyfl.files import replacing
from carvyfl.training.job import GroupResult


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

    def _path(self, key: str) -> Path:
        return self.folder / f"{key}.safetensors"

    def get(self, key: str) -> GroupResult | None:
        """Return a stored result, or None if there is none that can be trusted."""
        path = self._path(key)
        if not path.exists():
            return None
        try:
            with safe_open(path, framework="pt") as file:
                metadata = file.metadata() or {}
                weights = file.get_tensor("weights")
            record = metadata["record"]
            if metadata["checksum"] != _checksum(weights.numpy().tobytes(), record):
                raise ValueError("its checksum does not match")
            fields = json.loads(record)
            return GroupResult(
                weights,
                tuple(fields["accuracy"]),
                fields["stopped"],
                {int(number): reason for number, reason in fields["set_aside"].items()},
            )
        except (SafetensorError, OSError, KeyError, ValueError, TypeError) as error:
            warnings.warn(
                f"stored group {path} is damaged ({error}); it is trained again",
                DamagedEntryWarning,
                stacklevel=2,
            )
            return None

    def put(self, key: str, result: GroupResult) -> None:
        """Store a result; afterwards it survives whatever happens to this process."""
        record = json.dumps(
            {
                "accuracy": result.accuracy,
                "stopped": result.stopped,
                "set_aside": result.set_aside,
            }
        )
        checksum = _checksum(result.weights.numpy().tobytes(), record)
        blob = save({"weights": result.weights}, {"record": record, "checksum": checksum})
        with replacing(self._path(key)) as file:
            file.write(blob)


def _checksum(weights: bytes, record: str) -> str:
    return hashlib.blake2b(weights + record.encode(), digest_size=16).hexdigest()
