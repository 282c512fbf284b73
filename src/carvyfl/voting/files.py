"""Read and write votes, so that any ensemble can be certified."""

from __future__ import annotations

import csv
import math
import re
from array import array
from collections import Counter
from pathlib import Path
from typing import Any, Final

import numpy as np

from carvyfl.core.archives import read_npz, write_npz
from carvyfl.core.errors import CarvyError
from carvyfl.voting.votes import MAX_CLASSES, NO_VOTE, Ballots, Classes, Votes, check_labels, votes

Loaded = tuple[Votes, Classes | None]

_TRUTH: Final = re.compile(
    r"label|truth|target|expected"
    r"|^(y|y[\W_]?(true|test|val)|(true|actual)[\W_]?(y|class)?|gt|gold|class|classes|cls|category)$",
    re.IGNORECASE,
)
_ROW: Final = re.compile(
    r"^((.*[\W_]|sample|image|input|row)?(id|idx|index)|row|unnamed: 0)$", re.IGNORECASE
)
"""Columns with such names hold the truth, or number the inputs, rather than being a group."""


def load_votes(path: str | Path, labels_column: str | None = None) -> Loaded:
    """Read votes, and the true labels where the file has them.

    Parameters
    ----------
    path
        ``.npz``: ``votes`` (integers, groups × inputs, -1 for no vote), optional
        ``labels`` and ``num_classes``; without it the largest vote or label sets C. ``.csv``: a
        header, then one row per input; a column ``label`` if the truth is known, every other column
        is a group; an empty cell, nan or -1 is no vote, and 3.0 is 3. Nothing is ever unpickled.
    labels_column
        The csv's column with the truth; None for ``label``, if there is one.
    """
    path = Path(path)
    if (reader := {".npz": _load_npz, ".csv": _load_csv}.get(path.suffix.lower())) is None:
        raise CarvyError(f"{path}: votes are read from .npz or .csv, not '{path.suffix}'")
    try:
        if path.stat().st_size == 0:
            raise CarvyError(f"{path}: the file is empty")
        ballots, labels, num_classes = reader(path, labels_column)
    except OSError as error:
        raise CarvyError(f"{path}: cannot be read ({error.strerror or error})") from error
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


def load_members(path: str | Path) -> Any:
    """Return ``members`` of an ``.npz``, clients × groups, unchecked; None if it has none."""
    is_npz = Path(path).suffix.lower() == ".npz"
    return read_npz(Path(path), (), ("members",)).get("members") if is_npz else None


def save_votes(path: str | Path, votes: Votes, labels: Any = None) -> None:
    """Write votes, all or nothing, as a compressed ``.npz`` that :func:`load_votes` reads.

    The votes on one input lie beside each other: most agree, and pack to half as many bytes.
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


def _load_npz(path: Path, labels_column: str | None) -> tuple[Any, Any, int | None]:
    if labels_column is not None:
        raise CarvyError(f"{path}: `labels_column` is for .csv; an .npz holds the array 'labels'")
    content = read_npz(path, ("votes",), ("labels", "num_classes"))
    number = content.get("num_classes")
    if number is not None and (number.size != 1 or number.dtype.kind not in "iu"):
        raise CarvyError(f"{path}: 'num_classes' must be a single integer")
    return content["votes"], content.get("labels"), None if number is None else int(number.item())


def _load_csv(path: Path, labels_column: str | None) -> tuple[Any, Any, None]:
    truth = "label" if labels_column is None else labels_column.strip()
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            header, table = _read_table(path, csv.reader(file, strict=True), truth)
    except UnicodeDecodeError as error:
        raise CarvyError(f"{path}: not a text file in UTF-8") from error
    if not len(table):
        raise CarvyError(f"{path}: a header but no rows; give one row per input")
    if labels_column is not None and truth not in header:
        advice = "give `labels_column` as it is there"
        raise CarvyError(f"{path}, line 1: no column {truth!r}; {advice}")
    is_group = np.array([name != truth for name in header])
    labels = None if is_group.all() else table[:, ~is_group][:, 0]
    return _smallest(np.ascontiguousarray(table[:, is_group].T)), labels, None


def _read_table(path: Path, rows: Any, truth: str) -> tuple[list[str], Classes]:
    """Return the names of the columns, and all cells as numbers."""
    cells = array("q")
    blank = 0  # the line of the first blank row: allowed at the end of the file only
    try:
        header = [name.strip() for name in next(rows, [])]
        if fault := _header_fault(header, truth):
            raise CarvyError(f"{path}, line 1: {fault}")
        for row in rows:
            if not row:
                blank = blank or rows.line_num
                continue
            line, width = blank or rows.line_num, 0 if blank else len(row)
            if width != len(header):
                given = f"{width} cells where the header has {len(header)}"
                raise CarvyError(f"{path}, line {line}: {given}")
            try:
                cells.extend(_row_numbers(header, row, truth))
            except ValueError as error:
                raise CarvyError(f"{path}, line {line}, {error}") from error
    except csv.Error as error:
        raise CarvyError(f"{path}, line {rows.line_num}: not valid CSV ({error})") from error
    return header, np.frombuffer(cells, dtype=np.int64).reshape(-1, len(header))


def _row_numbers(header: list[str], row: list[str], truth: str) -> list[int]:
    """Return one row's votes and label, or say which cell is not one."""
    try:
        if "_" in "".join(row):  # Python reads 1_0 as 10
            raise ValueError
        numbers = [int(cell) if cell else NO_VOTE for cell in row]
    except ValueError:
        numbers = [_number(cell) for cell in row]
    if min(numbers) < 0 or max(numbers) >= MAX_CLASSES:  # most rows need no second look
        for name, cell, number in zip(header, row, numbers, strict=True):
            if not (0 if name == truth else NO_VOTE) <= number < MAX_CLASSES:
                wanted = "a class number" + ("" if name == truth else " (empty or -1 for no vote)")
                raise ValueError(f"column {name!r}: {cell[:40]!r} is not {wanted}")
    return numbers


def _number(cell: str) -> int:
    """Return one cell's vote; any number below NO_VOTE stands for a cell that is not one."""
    try:
        number = float(cell.replace("_", "x")) if cell.strip() else math.nan
    except ValueError:
        return NO_VOTE - 1
    if math.isnan(number):
        return NO_VOTE
    return int(number) if number.is_integer() else NO_VOTE - 1


def _header_fault(header: list[str], truth: str) -> str | None:
    """Say what is wrong with the names of the columns, if anything is."""
    groups = [name for name in header if name != truth]
    if not header:
        return "blank, where the column names should stand"
    if "" in header:
        place = f"column {header.index('') + 1} has no name"
        return f"{place}; name every group's column, and leave out a row index"
    if all(name.lstrip("+-").isdigit() for name in header):
        return "only numbers; the first line must name the columns"
    for name, count in Counter(header).items():
        if count > 1:
            return f"two columns are called {name!r}"
        if name != truth and _TRUTH.search(name):
            advice = "name the truth with `labels_column`, and call a group something else"
            return f"is column {name!r} the truth or a group? {advice}"
        if name != truth and _ROW.search(name):
            advice = "leave it out, or call a group something else"
            return f"column {name!r} numbers the inputs, it seems; {advice}"
    if not groups:
        return f"no column of votes beside {truth!r}"
    numbered = [name for name in groups if name[-1].isdigit()]
    stems = Counter(name.rstrip("0123456789") for name in numbered)
    if len(numbered) < len(groups) and stems and max(stems.values()) > 1:  # g0, g1, …, answer
        odd = next(name for name in groups if name not in numbered)
        return (
            f"columns of votes are numbered ({numbered[0]!r}, …) and {odd!r} is not: leave it out, "
            "name the truth with `labels_column`, or number a group's column"
        )
    return None
