"""Measurements, one line of JSON each: what a trial gave and what it was computed with.

Everything that is shown (figures, tables, verdicts) is computed from these records
and from nothing else, so that it can be made again without training anything.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
from filelock import FileLock

from carvyfl.core.errors import CarvyError
from carvyfl.core.files import write_text

DIGITS = 4
"""Decimals kept in a file: of 10,000 test images, a percentage has two."""
IDENTITY = {"ca": ("method", "groups"), "asr": ("method", "attack", "placement"), "types": ()}
"""What tells the trials of a kind apart, besides preset, data set, size and seed."""


def key(measured: Any, preset: str) -> tuple[str, ...]:
    """Return what a record holds, or a trial will give; a later record of it replaces this one."""
    names = ("dataset", "samples", "seed", *IDENTITY[measured.kind])
    return (measured.kind, preset, *(str(getattr(measured, name)) for name in names))


class Record(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="kind"
):
    """What all measurements have in common.

    ``samples`` are per client. ``seconds`` is the training time that fell to this measurement,
    None if it was not taken; ``environment`` has hardware, torch, commit, command, engine and
    precision, as far as known.
    """

    preset: str
    dataset: str
    samples: int
    seed: int
    seconds: float | None
    environment: Mapping[str, Any]

    @property
    def kind(self) -> str:
        """What is measured: "ca", "asr" or "types"."""
        return str(self.__struct_config__.tag)

    def key(self) -> tuple[str, ...]:
        """Return what is measured."""
        return key(self, self.preset)


class CaRecord(Record, frozen=True, kw_only=True, tag="ca"):
    """Certified accuracy of one trial.

    ``groups`` is the G asked for in the sweep over G, None for the method's own, ``num_groups``
    the one it had. ``ca`` is CA(m) in percent for m = 0, 1, …, ending with the first zero, ``auc``
    the area under it in percent × clients. Each group has its ``rounds``, and why it ``stopped``.
    What Step 1 found is None for a method without it.
    """

    method: str
    groups: int | None
    num_groups: int
    ca: tuple[float, ...]
    auc: float
    rounds: tuple[int, ...]
    stopped: tuple[str, ...]
    types_found: int | None
    types_exact: bool | None

    def __post_init__(self) -> None:
        """Refuse a curve that is not one."""
        if not self.ca or self.ca[-1] != 0:
            raise ValueError("its 'ca' does not end with zero")


class AsrRecord(Record, frozen=True, kw_only=True, tag="asr"):
    """One trial under attack, for several numbers m of malicious clients, rising.

    ``asr`` is the attack success rate if a group that is lost to the attack casts no vote, beside
    it the rate if it votes for the attacker's target; ``accuracy`` that on clean inputs under
    attack; ``ca`` CA(m) of the same trial without attack; all in percent. ``groups_hit`` have a
    malicious member. The promise is kept if the accuracy was never below CA(m).
    """

    method: str
    attack: str
    placement: str
    num_groups: int
    m: tuple[int, ...]
    asr: tuple[float, ...]
    asr_if_lost_votes_target: tuple[float, ...]
    accuracy: tuple[float, ...]
    ca: tuple[float, ...]
    groups_hit: tuple[int, ...]
    promise_kept: bool

    def __post_init__(self) -> None:
        """Refuse curves that do not fit together."""
        if list(self.m) != sorted(set(self.m)):
            raise ValueError("its 'm' does not rise")
        for name in ("asr", "asr_if_lost_votes_target", "accuracy", "ca", "groups_hit"):
            if len(getattr(self, name)) != len(self.m):
                raise ValueError(f"its '{name}' is not as long as its 'm'")


class TypesRecord(Record, frozen=True, kw_only=True, tag="types"):
    """What Step 1 found in one trial: the type of every client, found and true.

    It is exact up to the names of the types. ``points`` are the clients' one-epoch updates on the
    first two principal components.
    """

    num_types: int
    exact: bool
    labels: tuple[int, ...]
    true: tuple[int, ...]
    points: tuple[tuple[float, float], ...]

    def __post_init__(self) -> None:
        """Refuse lists of different numbers of clients."""
        if not len(self.labels) == len(self.true) == len(self.points):
            raise ValueError("its 'labels', 'true' and 'points' differ in length")


_DECODER = msgspec.json.Decoder(CaRecord | AsrRecord | TypesRecord)


def to_json(record: Record) -> dict[str, Any]:
    """Return a record as JSON data, decimals cut to :data:`DIGITS`."""
    fields = msgspec.structs.asdict(record)
    return {"kind": record.kind} | {name: _rounded(value) for name, value in fields.items()}


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return round(value, DIGITS)
    return [_rounded(part) for part in value] if isinstance(value, tuple | list) else value


def load(path: Path) -> list[Record]:
    """Read a file of records; none if it does not exist.

    Of several records of the same measurement the last one counts.
    """
    try:
        lines = path.read_bytes().splitlines() if path.exists() else []
    except OSError as error:
        raise CarvyError(
            f"cannot read {path}: {error.strerror}; records are kept there: move it away or choose "
            "another folder with --out"
        ) from error
    found: dict[tuple[str, ...], Record] = {}
    for number, line in enumerate(lines, start=1):
        try:
            record = _DECODER.decode(line)
        except (ValueError, RecursionError) as error:
            raise CarvyError(
                f"{path}, line {number}: {error}; restore the file, or remove this line to "
                "measure its trial again"
            ) from None
        found[record.key()] = record
    return list(found.values())


def add(path: Path, records: Sequence[Record]) -> None:
    """Write records into a file, in the place of earlier ones of the same measurement.

    Commands that run side by side may add to one file: they take turns.
    """
    with FileLock(path.with_name(f".{path.name}.lock")):
        merged = {record.key(): record for record in [*load(path), *records]}
        lines = (json.dumps(to_json(record), ensure_ascii=False) for record in merged.values())
        write_text(path, "".join(f"{line}\n" for line in lines))
