"""Read and write votes, so that any ensemble can be certified."""

from __future__ import annotations

import csv
import re
from array import array
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final, TextIO

import numpy as np

from carvyfl.core.archives import read_npz, write_npz
from carvyfl.core.errors import CarvyError
from carvyfl.voting.votes import MAX_CLASSES, NO_VOTE, Ballots, Classes, Votes, check_labels, votes

Loaded = tuple[Votes, Classes | None]

_LABEL: Final = "label"
_TRUTH = re.compile(
    r"label|truth|target|^(y|y[\W_]?true|gt|true|gold|class|classes)$", re.IGNORECASE
)
_ROW = re.compile(
    r"^((.*[\W_]|sample|image|input|row)?(id|idx|index)|row|unnamed: 0)$", re.IGNORECASE
)
"""Columns with such names hold the truth, or number the inputs, rather than being a group."""


def load_votes(path: str | Path, labels_column: str | None = None) -> Loaded:
    """Read votes, and the true labels where the file has them.

    Parameters
    ----------
    path
        ``.npz``: ``votes`` (integers, groups × inputs, -1 for no vote), optional
        ``labels`` and ``num_classes``. ``.csv``: a header, then one row per
        input; a column ``label`` if the truth is known, every other column is a
        group; an empty cell or -1 is no vote, and 3.0 is 3. Nothing is ever unpickled.
    labels_column
        The csv's column with the truth; None for ``label``, if there is one.

    Returns
    -------
    tuple[Votes, Classes | None]
        The votes, and the labels or None. Without ``num_classes`` the largest
        class that is voted for or is a label sets the number of classes.
    """
    path = Path(path)
    readers: dict[str, Callable[[Path, str | None], Loaded]]
    readers = {".npz": _load_npz, ".csv": _load_csv}
    reader = readers.get(path.suffix.lower())
    if reader is None:
        raise CarvyError(f"{path}: votes are read from .npz or .csv, not '{path.suffix}'")
    try:
        if path.stat().st_size == 0:
            raise CarvyError(f"{path}: the file is empty")
        return reader(path, labels_column)
    except OSError as error:
        raise CarvyError(f"{path}: cannot be read ({error.strerror or error})") from error


def load_members(path: str | Path) -> Any:
    """Read which groups each client can change, where a votes file says so.

    That is the array ``members`` of an ``.npz``, clients × groups, unchecked; None if there is
    none, as in any ``.csv``.
    """
    path = Path(path)
    if path.suffix.lower() != ".npz":
        return None
    return read_npz(path, (), ("members",)).get("members")


def save_votes(path: str | Path, votes: Votes, labels: Any = None) -> None:
    """Write votes as a compressed ``.npz`` that :func:`load_votes` reads.

    Votes and labels are stored in the smallest integer type that holds them, the votes on one
    input beside each other: most of them agree, so that they pack to half as many bytes.
    The file is complete or absent, even if the process is interrupted.
    """
    path = Path(path)
    if path.suffix.lower() != ".npz":
        raise CarvyError(f"{path}: votes are written as .npz, not '{path.suffix}'")
    by_input = np.asfortranarray(_smallest(votes.groups))
    content = {"votes": by_input, "num_classes": np.asarray(votes.num_classes)}
    if labels is not None:
        content["labels"] = _smallest(check_labels(labels, votes.num_inputs, votes.num_classes))
    write_npz(path, content)


def _smallest(numbers: Ballots) -> Ballots:
    low, high = int(numbers.min()), int(numbers.max())
    reach = high if low >= 0 else min(low, -high - 1)  # a signed type reaches one further down
    return numbers.astype(np.min_scalar_type(reach), copy=False)


def _checked(path: Path, ballots: Any, labels: Any, num_classes: int | None) -> Loaded:
    """Check what was read; every complaint begins with the file's name."""
    try:
        cast = votes(ballots, num_classes)
        if labels is None:
            return cast, None
        if num_classes is None:  # a class may occur among the labels and win no vote
            truth = check_labels(labels, cast.num_inputs, MAX_CLASSES)
            cast = Votes(cast.groups, max(cast.num_classes, int(truth.max()) + 1))
        return cast, check_labels(labels, cast.num_inputs, cast.num_classes)
    except CarvyError as error:
        raise CarvyError(f"{path}: {error}") from error


def _load_npz(path: Path, labels_column: str | None) -> Loaded:
    if labels_column is not None:
        raise CarvyError(f"{path}: `labels_column` is for .csv; an .npz holds the array 'labels'")
    found = read_npz(path, ("votes",), ("labels", "num_classes"))
    number = found.get("num_classes")
    if number is not None and (number.size != 1 or number.dtype.kind not in "iu"):
        raise CarvyError(f"{path}: 'num_classes' must be a single integer")
    classes = None if number is None else int(number.item())
    return _checked(path, found["votes"], found.get("labels"), classes)


def _load_csv(path: Path, labels_column: str | None) -> Loaded:
    truth = _LABEL if labels_column is None else labels_column.strip()
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            header, cells = _read_cells(path, file, truth)
    except UnicodeDecodeError as error:
        raise CarvyError(f"{path}: not a text file in UTF-8") from error
    table = np.frombuffer(cells, dtype=np.int64).reshape(-1, len(header))
    if not len(table):
        raise CarvyError(f"{path}: a header but no rows; give one row per input")
    if labels_column is not None and truth not in header:
        raise CarvyError(
            f"{path}, line 1: no column {truth!r}; give `labels_column` as it is there"
        )
    is_group = np.array([name != truth for name in header])
    labels = None if is_group.all() else table[:, ~is_group][:, 0]
    return _checked(path, _smallest(np.ascontiguousarray(table[:, is_group].T)), labels, None)


def _read_cells(path: Path, file: TextIO, truth: str) -> tuple[list[str], array[int]]:
    """Read the header and all cells, row after row, as 64-bit integers."""
    rows = csv.reader(file, strict=True)
    cells: array[int] = array("q")
    blank = 0  # the line of the first blank row: allowed at the end of the file only
    try:
        header = _check_header(path, next(rows, []), truth)
        label_at = header.index(truth) if truth in header else None
        for row in rows:
            if not row:
                blank = blank or rows.line_num
                continue
            line = blank or rows.line_num
            if blank or len(row) != len(header):
                raise CarvyError(
                    f"{path}, line {line}: {0 if blank else len(row)} cells "
                    f"where the header has {len(header)}"
                )
            numbers = _row_numbers(row)
            if numbers is None or (label_at is not None and numbers[label_at] < 0):
                raise CarvyError(f"{path}, line {line}, {_bad_cell(header, row, truth)}")
            cells.extend(numbers)
    except csv.Error as error:
        raise CarvyError(f"{path}, line {rows.line_num}: not valid CSV ({error})") from error
    return header, cells


def _row_numbers(row: Sequence[str]) -> list[int] | None:
    """Return the row's votes, or None if a cell is none; quick, for the many rows without fault."""
    try:
        numbers = [int(cell) if cell else NO_VOTE for cell in row]
    except ValueError:
        numbers = [_number(cell) for cell in row]
    return numbers if min(numbers) >= NO_VOTE and max(numbers) < MAX_CLASSES else None


def _number(cell: str) -> int:
    """Return one cell's vote; any number below NO_VOTE stands for a cell that is not one."""
    try:
        number = float(cell) if cell.strip() else float(NO_VOTE)
    except ValueError:
        return NO_VOTE - 1
    return int(number) if number.is_integer() else NO_VOTE - 1


def _bad_cell(header: Sequence[str], row: Sequence[str], truth: str) -> str:
    for name, cell in zip(header, row, strict=True):
        low = 0 if name == truth else NO_VOTE
        if not low <= _number(cell) < MAX_CLASSES:
            wanted = "a class number" + ("" if name == truth else " (empty or -1 for no vote)")
            return f"column {name!r}: {cell[:40]!r} is not {wanted}"
    raise AssertionError("called without a bad cell")


def _check_header(path: Path, row: Sequence[str], truth: str) -> list[str]:
    header = [name.strip() for name in row]
    if not header:
        raise CarvyError(f"{path}, line 1: blank, where the column names should stand")
    if "" in header:
        raise CarvyError(
            f"{path}, line 1: column {header.index('') + 1} has no name; "
            "name every group's column, and leave out a row index"
        )
    if all(name.lstrip("+-").isdigit() for name in header):
        raise CarvyError(f"{path}, line 1: only numbers; the first line must name the columns")
    before: set[str] = set()
    for name in header:
        if name in before:
            raise CarvyError(f"{path}, line 1: two columns are called {name!r}")
        before.add(name)
        if name != truth and _TRUTH.search(name):
            raise CarvyError(
                f"{path}, line 1: is column {name!r} the truth or a group? name the truth with "
                "`labels_column`, and call a group something else"
            )
        if name != truth and _ROW.search(name):
            raise CarvyError(
                f"{path}, line 1: column {name!r} numbers the inputs, it seems; leave it out, or "
                "call a group something else"
            )
    if set(header) == {truth}:
        raise CarvyError(f"{path}, line 1: no column of votes beside {truth!r}")
    return header
