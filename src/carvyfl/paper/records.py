"""Measurements, one line of JSON each: what a trial gave and what it was computed with.

Everything that is shown (figures, tables, verdicts) is computed from these records
and from nothing else, so that it can be made again without training anything.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, TypeVar, get_type_hints

from carvyfl.core.errors import CarvyError
from carvyfl.core.files import write_text
from carvyfl.core.locks import in_turn
from carvyfl.core.registry import pick

DIGITS = 4
"""Decimals kept in a file: of 10,000 test images, a percentage has two."""


@dataclass(frozen=True, kw_only=True)
class Record:
    """What all measurements have in common.

    Attributes
    ----------
    preset
        "paper" or "default".
    dataset
        "mnist" or "fashion-mnist".
    samples
        Training samples a client.
    seed
        The trial.
    seconds
        Training time that fell to this measurement; None if it was not taken.
    environment
        Hardware, torch, commit, command, engine and precision, as far as known.
    """

    kind: ClassVar[str]
    identity: ClassVar[tuple[str, ...]]

    preset: str
    dataset: str
    samples: int
    seed: int
    seconds: float | None
    environment: Mapping[str, Any]

    def key(self) -> tuple[str, ...]:
        """Return what is measured; a later record with the same key replaces this one."""
        common = ("preset", "dataset", "samples", "seed", *self.identity)
        return (self.kind, *(str(getattr(self, name)) for name in common))


@dataclass(frozen=True, kw_only=True)
class CaRecord(Record):
    """Certified accuracy of one trial.

    Attributes
    ----------
    method
        "carvy", "flcert", "cluster", "single", …
    groups
        G asked for in the sweep over G; None for the method's own G.
    num_groups
        G it had.
    ca
        CA(m) in percent for m = 0, 1, …, ending with the first zero.
    auc
        The area under it, in percent × clients.
    rounds, stopped
        Rounds that each group trained, and why it stopped.
    types_found, types_exact
        Number of types that Step 1 found, and whether they are the true ones; None
        for a method without Step 1.
    """

    kind = "ca"
    identity = ("method", "groups")

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
            raise CarvyError("its 'ca' does not end with zero; measure this trial again")


@dataclass(frozen=True, kw_only=True)
class AsrRecord(Record):
    """One trial under attack, for several numbers of malicious clients.

    Attributes
    ----------
    method, attack, placement
        What was attacked, how, and where the malicious clients sat.
    num_groups
        G.
    m
        Numbers of malicious clients, rising; all following tuples are as long.
    asr
        Attack success rate in percent; a group lost to the attack casts no vote.
    asr_if_lost_votes_target
        The same if a lost group votes for the attacker's target.
    accuracy
        Accuracy on clean inputs under attack, in percent.
    ca
        CA(m) of the same trial without attack, in percent.
    groups_hit
        Groups with a malicious member.
    promise_kept
        Whether the accuracy was never below CA(m).
    """

    kind = "asr"
    identity = ("method", "attack", "placement")

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
            raise CarvyError("its 'm' does not rise; measure this trial again")
        for name in ("asr", "asr_if_lost_votes_target", "accuracy", "ca", "groups_hit"):
            if len(getattr(self, name)) != len(self.m):
                raise CarvyError(f"its '{name}' is not as long as its 'm'; measure it again")


@dataclass(frozen=True, kw_only=True)
class TypesRecord(Record):
    """What Step 1 found in one trial.

    Attributes
    ----------
    num_types
        How many types were found.
    exact
        Whether they are the true ones, up to their names.
    labels, true
        The type of every client: found, and true.
    points
        Every client's one-epoch update on the first two principal components.
    """

    kind = "types"
    identity = ()

    num_types: int
    exact: bool
    labels: tuple[int, ...]
    true: tuple[int, ...]
    points: tuple[tuple[float, float], ...]

    def __post_init__(self) -> None:
        """Refuse lists of different numbers of clients."""
        if not len(self.labels) == len(self.true) == len(self.points):
            raise CarvyError("its 'labels', 'true' and 'points' differ in length; measure it again")


KINDS: dict[str, type[Record]] = {
    "ca": CaRecord,
    "asr": AsrRecord,
    "types": TypesRecord,
}
R = TypeVar("R", bound=Record)


def select(records: Iterable[Record], kind: type[R], **fields: object) -> list[R]:
    """Return the records of a kind whose named fields have these values."""
    return [
        record
        for record in records
        if isinstance(record, kind)
        and all(getattr(record, name) == value for name, value in fields.items())
    ]


def to_json(record: Record) -> dict[str, Any]:
    """Return a record as JSON data, decimals cut to :data:`DIGITS`."""
    fields = {f.name: getattr(record, f.name) for f in dataclasses.fields(record)}
    return {"kind": record.kind} | {name: _rounded(value) for name, value in fields.items()}


def from_json(data: Any) -> Record:
    """Return the record that JSON data describe.

    Raises
    ------
    CarvyError
        If the kind is unknown, or a field is missing, unknown or of the wrong type.
    """
    if not isinstance(data, dict):
        raise CarvyError("is not an object; write one record a line")
    fields = {name: value for name, value in data.items() if name != "kind"}
    kind = pick(KINDS, str(data.get("kind")), "kind of record")
    hints = get_type_hints(kind)
    names = [f.name for f in dataclasses.fields(kind)]
    if wrong := sorted(set(fields) ^ set(names)):
        raise CarvyError(f"{wrong[0]} is missing or unknown; a record '{kind.kind}' has {names}")
    values = {}
    for name in names:
        try:
            values[name] = _READ[hints[name]](fields[name])
        except (TypeError, ValueError):
            raise CarvyError(
                f"its '{name}' is {str(fields[name])[:40]!r}, not {hints[name]}; measure it again"
            ) from None
    return kind(**values)


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
            record = from_json(_parsed(line))
        except CarvyError as error:
            raise CarvyError(f"{path}, line {number}: {error}") from None
        found[record.key()] = record
    return list(found.values())


def add(path: Path, records: Sequence[Record]) -> None:
    """Write records into a file, in the place of earlier ones of the same measurement.

    Commands that run side by side may add to one file: they take turns.
    """
    with in_turn(path):
        merged = {record.key(): record for record in [*load(path), *records]}
        lines = (json.dumps(to_json(record), ensure_ascii=False) for record in merged.values())
        write_text(path, "".join(f"{line}\n" for line in lines))


def _parsed(line: bytes) -> Any:
    try:
        return json.loads(line.decode())
    except (ValueError, RecursionError) as error:
        what = "UTF-8 text" if isinstance(error, UnicodeDecodeError) else "JSON"
        raise CarvyError(
            f"is not {what}; restore the file, or remove this line to measure its trial again"
        ) from None


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return round(value, DIGITS)
    return [_rounded(part) for part in value] if isinstance(value, tuple | list) else value


def _one(*kinds: type[Any]) -> Callable[[Any], Any]:
    def read(value: Any) -> Any:
        # JSON's true is Python's 1: a flag is a number only where a flag is asked for.
        if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
            raise TypeError
        if isinstance(value, float) and not math.isfinite(value):
            raise ValueError
        return float(value) if float in kinds else value

    return read


def _maybe(read: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda value: None if value is None else read(value)


def _many(read: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda value: tuple(read(part) for part in value)


def _pair(value: Any) -> tuple[float, float]:
    x, y = map(_number, value)
    return x, y


_number, _whole, _text, _flag = _one(float, int), _one(int), _one(str), _one(bool)
_READ: dict[Any, Callable[[Any], Any]] = {
    str: _text,
    int: _whole,
    float: _number,
    bool: _flag,
    int | None: _maybe(_whole),
    float | None: _maybe(_number),
    bool | None: _maybe(_flag),
    tuple[int, ...]: _many(_whole),
    tuple[float, ...]: _many(_number),
    tuple[str, ...]: _many(_text),
    tuple[tuple[float, float], ...]: _many(_pair),
    Mapping[str, Any]: _one(dict),
}
