"""The value that Step 2 hands on: who trains with whom."""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from carvyfl.core.arrays import data_frame, plain_array
from carvyfl.core.errors import CarvyError
from carvyfl.core.files import write_text
from carvyfl.groups.basis import READINGS, Basis
from carvyfl.groups.coins import Coins

if TYPE_CHECKING:
    from pandas import DataFrame

Ints = npt.NDArray[np.int64]

_ROWS, _LISTED = 200, 16  # groups in a table, and names in a row, before the rest is counted


@dataclass(frozen=True, eq=False)
class Grouping:
    """A partition of the clients, or of some of them, into groups.

    Attributes
    ----------
    assignment
        int64 of shape (N,), read-only: the group 0 … G-1 of every client; -1 for
        a client in no group.
    num_groups
        G, the number of groups and therefore of votes. No group is empty, unless the groups
        were drawn with coins: an empty one casts no vote.
    method
        The name of the method that formed it.
    basis
        Which runs a certificate on these groups may compare with, and why.
    coins
        What the groups were drawn from, where a certificate asks for it; None elsewhere.
    """

    assignment: Ints
    num_groups: int
    method: str
    basis: Basis
    coins: Coins | None = None

    def __post_init__(self) -> None:
        assignment = _read_only(whole_numbers(self.assignment, "assignment"))
        object.__setattr__(self, "assignment", assignment)
        check_num_groups(self.num_groups, len(assignment), "clients")
        if len(wrong := np.flatnonzero((assignment < -1) | (assignment >= self.num_groups))):
            fault = f"client {wrong[0]} is assigned to group {assignment[wrong[0]]}"
            last = self.num_groups - 1
            raise CarvyError(f"{fault}, but groups are 0 to {last} (-1 for none)")
        if len(empty := np.flatnonzero(self.sizes == 0)) and self.coins is None:
            fault = f"group {empty[0]} of {self.num_groups} has no client"
            raise CarvyError(f"{fault}; use fewer groups or another grouping")

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Grouping):
            return NotImplemented
        rest = attrgetter("num_groups", "method", "basis", "coins")
        return rest(self) == rest(other) and np.array_equal(self.assignment, other.assignment)

    def __hash__(self) -> int:
        return hash((self.assignment.tobytes(), self.num_groups, self.method))

    def __str__(self) -> str:
        return self.table()

    def __repr__(self) -> str:
        sizes = " to ".join(map(str, sorted({int(self.sizes.min()), int(self.sizes.max())})))
        benched = f", {len(self.benched)} in none" if len(self.benched) else ""
        groups = f"{len(self.assignment)} clients in {self.num_groups} groups of {sizes}"
        return f"Grouping({self.method!r}, {groups}{benched})"

    @cached_property
    def sizes(self) -> Ints:
        """The number of clients in each group, shape (G,)."""
        grouped = self.assignment[self.assignment >= 0]
        return _read_only(np.bincount(grouped, minlength=self.num_groups))

    @cached_property
    def groups(self) -> tuple[Ints, ...]:
        """Each group's clients, ascending."""
        ends = np.cumsum(self.sizes).tolist()
        by_group = np.argsort(self.assignment, kind="stable")[len(self.assignment) - ends[-1] :]
        _read_only(by_group)  # and with it every piece
        return tuple(by_group[a:b] for a, b in itertools.pairwise([0, *ends]))

    @cached_property
    def benched(self) -> Ints:
        """The clients that sit in no group, ascending."""
        return _read_only(np.flatnonzero(self.assignment == -1))

    def members(self, group: int) -> Ints:
        """Return one group's clients, ascending."""
        if not 0 <= group < self.num_groups:
            raise CarvyError(f"there is no group {group}; groups are 0 to {self.num_groups - 1}")
        return self.groups[group]

    def diversity(self, types: npt.ArrayLike) -> npt.NDArray[np.float64]:
        """Return the share (0…1) of all types that is present in each group, shape (G,).

        ``types`` has the type of every client, shape (N,), grouped or not; -1 counts as no type.
        """
        labels = check_labels(types, len(self.assignment))
        typed = labels >= 0
        kinds, numbers = np.unique(labels[typed], return_inverse=True)
        if not len(kinds):
            raise CarvyError("no client has a type, so the groups' diversity is undefined")
        groups = self.assignment[typed]
        pairs = np.unique((groups * len(kinds) + numbers)[groups >= 0])  # of group and type
        return np.bincount(pairs // len(kinds), minlength=self.num_groups) / len(kinds)

    def mean_diversity(self, types: npt.ArrayLike) -> float:
        """Return the mean of :meth:`diversity` over the groups; 1 is the best."""
        return float(self.diversity(types).mean())

    def table(self, types: npt.ArrayLike | None = None) -> str:
        """Return the groups as lines of text, the first 200 of them.

        ``types``, shape (N,), adds what each group holds, "2×3" for three clients of type 2.
        """
        labels = None if types is None else check_labels(types, len(self.assignment))
        rows = [("group", "size", "clients", "" if labels is None else "types")]
        named = [(str(g), members) for g, members in enumerate(self.groups[:_ROWS])]
        for name, members in named + [("none", self.benched)] * bool(len(self.benched)):
            kinds = "" if labels is None else _count_types(labels[members])
            rows.append((name, str(len(members)), _listed(map(str, members)), kinds))
        wide = [max(len(row[column]) for row in rows) for column in range(3)]
        certified = ", ".join(READINGS[reading].label for reading in self.basis.readings)
        lines = [
            f"grouping '{self.method}': {len(self.assignment)} clients, G = {self.num_groups}",
            f"certified: {certified or 'nothing'}; {self.basis.because}",
        ]
        for name, size, clients, kinds in rows:
            line = f"{name:>{wide[0]}}  {size:>{wide[1]}}  {clients:<{wide[2]}}  {kinds}"
            lines.append(line.rstrip())
        if self.num_groups > _ROWS:
            lines.append(f"… and {self.num_groups - _ROWS:,} more groups")
        if labels is not None and (labels >= 0).any():
            lines.append(f"mean diversity {self.mean_diversity(labels):.3f}")
        return "\n".join(lines)

    def to_frame(self, types: npt.ArrayLike | None = None) -> DataFrame:
        """Return a pandas data frame with a row per client: ``client``, ``group`` (-1: none).

        ``types``, where given, are the clients' types, shape (N,); they become a third column.
        """
        columns = {"client": np.arange(len(self.assignment)), "group": self.assignment}
        if types is not None:
            columns["type"] = check_labels(types, len(self.assignment))
        return data_frame(columns)

    def to_json(self) -> dict[str, Any]:
        """Return the grouping as plain JSON values."""
        return {
            "method": self.method,
            "num_groups": self.num_groups,
            "basis": self.basis.to_json(),
            "coins": None if self.coins is None else self.coins.to_json(),
            "assignment": self.assignment.tolist(),
        }

    @staticmethod
    def from_json(data: Any, where: str = "grouping") -> Grouping:
        """Rebuild a grouping from :meth:`to_json`, checking everything; errors say ``where``."""
        try:
            basis, coins = data["basis"], data["coins"]
            because, changed = basis["because"], [basis[reading] for reading in READINGS]
            assignment, num_groups, method = data["assignment"], data["num_groups"], data["method"]
        except (KeyError, TypeError) as error:
            raise CarvyError(f"{where}: no complete grouping; form the groups again") from error
        if not isinstance(method, str):
            raise CarvyError(f"{where}: method or basis is damaged; form the groups again")
        if type(num_groups) is not int:
            raise CarvyError(f"{where}: num_groups is {num_groups!r}, not a whole number")
        try:
            drawn = None if coins is None else Coins.from_json(coins, "coins")
            return Grouping(assignment, num_groups, method, Basis(because, *changed), drawn)
        except CarvyError as error:
            raise CarvyError(f"{where}: {error}") from error

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the grouping as JSON; the file is complete or unchanged."""
        write_text(Path(path), json.dumps(self.to_json()) + "\n")

    @staticmethod
    def load(path: str | os.PathLike[str]) -> Grouping:
        """Read a grouping that :meth:`save` wrote; a damaged file is refused."""
        try:
            data = json.loads(Path(path).read_text(encoding="utf-8"))
        except OSError as error:
            raise CarvyError(f"{path}: cannot read the grouping: {error.strerror}") from error
        except (ValueError, RecursionError) as error:  # neither UTF-8 nor JSON
            raise CarvyError(f"{path}: damaged, form the groups again: {error}") from error
        return Grouping.from_json(data, str(path))


def check_num_groups(num_groups: int, num_clients: int, whom: str) -> None:
    """Refuse a number of groups that would leave a group empty, or none at all."""
    if not 1 <= num_groups <= num_clients:
        fault = f"{num_groups} groups cannot be formed of {num_clients} {whom}"
        raise CarvyError(f"{fault}; choose from 1 to {num_clients}")


def check_labels(labels: npt.ArrayLike, num_clients: int | None = None) -> Ints:
    """Return types as int64 of shape (N,), refusing anything but numbers from -1 up."""
    checked = whole_numbers(labels, "types")
    if len(checked) and checked.min() < -1:
        raise CarvyError(f"types run from 0 up, with -1 for none, but one is {checked.min()}")
    if num_clients is not None and len(checked) != num_clients:
        raise CarvyError(f"{len(checked)} types were given for {num_clients} clients")
    return checked


def whole_numbers(values: npt.ArrayLike, what: str) -> Ints:
    """Return a flat list of whole numbers as int64 of shape (N,), refusing anything else."""
    try:
        array = plain_array(values, what)
    except ValueError as error:  # rows of different lengths
        raise CarvyError(f"{what} must be a flat list of whole numbers") from error
    whole = array.dtype.kind in "iu" and np.can_cast(array.dtype, np.int64)
    if array.ndim != 1 or (len(array) and not whole):
        actual = f"{array.dtype} of shape {array.shape}"
        raise CarvyError(f"{what} must be a flat list of whole numbers, not {actual}")
    return array.astype(np.int64)


def _read_only(array: Ints) -> Ints:
    array.flags.writeable = False
    return array


def _count_types(labels: Ints) -> str:
    kinds = zip(*(column.tolist() for column in np.unique(labels, return_counts=True)), strict=True)
    named = [("?" if kind < 0 else str(kind), count) for kind, count in kinds]
    return _listed(name if count == 1 else f"{name}×{count}" for name, count in named)


def _listed(words: Iterable[str]) -> str:
    """Return the first words, and how many more there are."""
    every = list(words)
    more = [f"… {len(every) - _LISTED} more"] if len(every) > _LISTED else []
    return " ".join([*every[:_LISTED], *more])
