"""The run folder: everything a run found, in files that explain themselves.

========================  =====================================================
``config.yaml``           the resolved configuration; ``carvy run --config`` takes it
``run.json``              the record, with the SHA-256 of every other file: written last, so a
                          folder with it is complete
``run.json.sig``          its signature, where ``carvy sign`` was called
``types.json``            Step 1, where a method needed it
``groups/METHOD.json``    Step 2
``models/METHOD.safetensors``  Step 3
``votes/METHOD.npz``      Step 4, with the test labels; ``carvy certify`` takes it
``ca.png``                certified accuracy of every method
========================  =====================================================
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from carvyfl.certificate import Certificate, certify
from carvyfl.config import RunConfig, checked, updated
from carvyfl.ensemble import GroupModels
from carvyfl.errors import CarvyError, pick
from carvyfl.federation.models import build_model
from carvyfl.grouping.grouping import Grouping
from carvyfl.grouping.methods import GROUPINGS
from carvyfl.inference import ClientTypes
from carvyfl.votes_io import load_votes

FORMAT = 1
"""Raised when files change their meaning."""


@dataclass(frozen=True)
class RunFolder:
    """A run folder, finished or not; the files are read when asked for."""

    path: Path

    @property
    def config_file(self) -> Path:
        """The resolved configuration."""
        return self.path / "config.yaml"

    @property
    def record_file(self) -> Path:
        """The record; it exists once the run is complete."""
        return self.path / "run.json"

    @property
    def signature_file(self) -> Path:
        """An Ed25519 signature of the record, where somebody signed it."""
        return self.path / "run.json.sig"

    @property
    def types_file(self) -> Path:
        """The types of Step 1."""
        return self.path / "types.json"

    @property
    def picture(self) -> Path:
        """The certified accuracy of every method."""
        return self.path / "ca.png"

    def grouping_file(self, method: str) -> Path:
        """Return where the groups of a method are."""
        return self.path / "groups" / f"{method}.json"

    def models_file(self, method: str) -> Path:
        """Return where the group models of a method are."""
        return self.path / "models" / f"{method}.safetensors"

    def votes_file(self, method: str) -> Path:
        """Return where the votes of a method on the test set are."""
        return self.path / "votes" / f"{method}.npz"

    def files(self, methods: Iterable[str], *, typed: bool) -> list[Path]:
        """Return every file of a finished run but the record and its signature.

        Parameters
        ----------
        methods
            The methods that were run.
        typed
            Whether one of them needed types.
        """
        own = [self.config_file, *([self.types_file] if typed else []), self.picture]
        for method in methods:
            own += [self.grouping_file(method), self.models_file(method), self.votes_file(method)]
        return own

    def record(self) -> dict[str, Any]:
        """Read the record of a finished run."""
        if not self.record_file.is_file():
            raise CarvyError(self._why_no_record())
        record = read_json(self.record_file)
        if not isinstance(record, dict) or "format" not in record:
            raise self._damaged()
        if record["format"] != FORMAT:
            raise CarvyError(
                f"{self.record_file} has format {record['format']}, this version reads "
                f"{FORMAT}; use the version of carvyfl that wrote it"
            )
        if not _is_complete(record):
            raise self._damaged()
        return record

    def _why_no_record(self) -> str:
        if not self.path.exists():
            return f"{self.path} does not exist; name a folder that 'carvy run --out' wrote"
        if not self.config_file.is_file():
            return f"{self.path} is no run folder; name one that 'carvy run --out' wrote"
        return f"the run in {self.path} is not finished; run the same command again to finish it"

    def _damaged(self) -> CarvyError:
        return CarvyError(f"{self.record_file} is damaged; {_RESTORE}")

    def config(self) -> RunConfig:
        """Return the configuration of a finished run."""
        return updated(RunConfig(), checked(self.record()["config"], str(self.record_file)))

    def method(self, name: str | None) -> str:
        """Return the method of that name, or the first one of the run."""
        methods = self.record()["methods"]
        if name is None:
            return str(next(iter(methods)))
        pick(methods, name, f"method in {self.path}")
        return name

    def grouping(self, method: str) -> Grouping:
        """Read the groups of a method."""
        with _restorable():
            return Grouping.load(self.grouping_file(method))

    def types(self) -> ClientTypes | None:
        """Read the types of Step 1, None if no method needed any."""
        if not self.types_file.exists():
            return None
        plain = read_json(self.types_file)
        with _restorable():
            return ClientTypes.from_json(plain)

    def certificate(self, method: str) -> Certificate:
        """Compute a method's certificate anew, from its votes and its grouping."""
        with _restorable():
            votes, labels = load_votes(self.votes_file(method))
        return certify(votes, labels, self.grouping(method).basis)

    def models(self, method: str) -> GroupModels:
        """Read the group models of a method."""
        record = self.record()
        data = record["data"]
        module = build_model(
            record["config"]["model"], tuple(data["input_shape"]), data["num_classes"], seed=0
        )
        with _restorable():
            models = GroupModels.load(
                self.models_file(method),
                module,
                num_classes=data["num_classes"],
                mean=data["mean"],
                std=data["std"],
            )
            wanted = record["methods"][method]["num_groups"]
            if len(models) != wanted:
                raise CarvyError(
                    f"{self.models_file(method)} holds {len(models)} models, not {wanted}"
                )
        return models


_RESTORE = "run the same 'carvy run' again to restore it"


@contextlib.contextmanager
def _restorable() -> Iterator[None]:
    """Say of any file of a finished run that cannot be read how to get it back."""
    try:
        yield
    except CarvyError as error:
        raise CarvyError(f"{error}; {_RESTORE}") from error


# What is read from a record: a type stands for a value, [type] for a list that is not empty,
# a mapping for one that holds at least these names.
_NUMBER = int | float
_METHOD = {
    "num_groups": int,
    "ca": [_NUMBER],
    "ca_low": [_NUMBER],
    "ca_high": [_NUMBER],
    "auc": _NUMBER,
    "rounds": [int],
    "stopped": [str],
    "benched": list,
    "set_aside": dict,
    "certificate": {"kind": str, "because": str},
    "end_to_end": dict | None,
}
_READING = {"groups_per_client": int, "ca": [_NUMBER]}
_END_TO_END = {"honest_only": _READING, "all_honest": _READING}
_TYPES = {"method": str, "num_types": int, "sizes": [int], "warnings": list, "set_aside": dict}
_RECORD = {
    "config": {"model": str, "clients": int, "samples": int},
    "data": {
        "name": str,
        "input_shape": [int],
        "input_type": str,
        "num_classes": int,
        "class_names": [str],
        "mean": _NUMBER,
        "std": _NUMBER,
    },
    "methods": dict,
    "types": dict | None,
}


def _fits(value: Any, form: Any) -> bool:
    if isinstance(form, dict):
        return isinstance(value, dict) and all(
            name in value and _fits(value[name], part) for name, part in form.items()
        )
    if isinstance(form, list):
        return isinstance(value, list) and value != [] and all(_fits(v, form[0]) for v in value)
    return isinstance(value, form)


def _is_complete(record: dict[str, Any]) -> bool:
    """Whether a record has all that is read from it, so that nothing fails half-way."""
    return (
        _fits(record, _RECORD)
        and (record["types"] is None or _fits(record["types"], _TYPES))
        and record["methods"] != {}
        and all(name in GROUPINGS and _fits(m, _METHOD) for name, m in record["methods"].items())
        and all(
            m["end_to_end"] is None or _fits(m["end_to_end"], _END_TO_END)
            for m in record["methods"].values()
        )
    )


def read_json(path: Path) -> Any:
    """Read a JSON file, or say in one line why not."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise CarvyError(f"cannot read {path}: {error.strerror}") from error
    except ValueError as error:
        raise CarvyError(f"{path} is damaged: not valid JSON; {_RESTORE}") from error
