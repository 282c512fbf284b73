"""A table as a grid of cells: a number of the paper, ours, and the difference.

People read it wide (three columns for each column of the grid), programs read it long
(a CSV line for each cell).
"""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from carvyfl.paper.records import Record
from carvyfl.paper.summaries import Spread


@dataclass(frozen=True)
class Cell:
    """A number of the paper and ours; either may be missing."""

    paper: float | None
    ours: Spread | None

    @property
    def difference(self) -> float | None:
        """Ours less the paper's."""
        return None if self.paper is None or self.ours is None else self.ours.mean - self.paper


@dataclass(frozen=True)
class Table:
    """A grid of cells.

    Attributes
    ----------
    name
        What its files are called.
    title
        What it shows.
    corner
        What the rows are.
    rows, columns
        Their names, in order.
    cells
        By row and column; a missing one is empty.
    source
        The records it was computed from; none: there is nothing to show yet.
    note
        What a reader should know about it.
    digits
        Decimal places.
    parts
        What the two compared numbers and their difference are.
    """

    name: str
    title: str
    corner: str
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    cells: Mapping[tuple[str, str], Cell]
    source: tuple[Record, ...]
    note: str = ""
    digits: int = 1
    parts: tuple[str, str, str] = ("paper", "ours", "difference")

    def head(self) -> list[str]:
        """Return the names of the wide form's columns."""
        return [
            self.corner,
            *(f"{name}: {part}" for name in self.columns for part in self._shown(name)),
        ]

    def body(self) -> list[list[str]]:
        """Return the wide form's lines, numbers as people read them."""
        lines = []
        for row in self.rows:
            line = [row]
            for column in self.columns:
                cell = self.cell(row, column)
                texts = (
                    self.printed(row, column),
                    self.ours(row, column),
                    "–" if cell.difference is None else _text(cell.difference, self.digits, "+"),
                )
                named = zip(self.parts, texts, strict=True)
                line += [text for part, text in named if part in self._shown(column)]
            lines.append(line)
        return lines

    def how_to_read(self) -> str:
        """Say what our numbers are."""
        any_sd = any(cell.ours and cell.ours.sd is not None for cell in self.cells.values())
        mean = "Mean ± sample standard deviation over seeds; in" if any_sd else "In"
        return f"{mean} brackets the number of trials."

    def cell(self, row: str, column: str) -> Cell:
        """Return a cell; an empty one if there is none."""
        return self.cells.get((row, column), Cell(None, None))

    def _shown(self, column: str) -> tuple[str, ...]:
        """Return the parts worth showing: without a number of the paper's, only ours."""
        compared = any(self.cell(row, column).paper is not None for row in self.rows)
        return self.parts if compared else self.parts[1:2]

    def printed(self, row: str, column: str) -> str:
        """Return the paper's number as people read it."""
        found = self.cell(row, column).paper
        return "–" if found is None else _text(found, self.digits)

    def ours(self, row: str, column: str) -> str:
        """Return our number as people read it: mean ± sd (trials)."""
        found = self.cell(row, column).ours
        if found is None:
            return "–"
        sd = "" if found.sd is None else f" ± {found.sd:.{self.digits}f}"
        return f"{_text(found.mean, self.digits)}{sd} ({found.n})"

    def markdown(self) -> str:
        """Return the wide form as a Markdown table."""
        return markdown(self.head(), self.body())

    def csv(self) -> str:
        """Return the long form: row, column, paper, mean, sd, trials, difference."""
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        first, ours, difference = self.parts
        writer.writerow([self.corner, "column", first, ours, "sd", "trials", difference])
        for row in self.rows:
            for column in self.columns:
                cell = self.cell(row, column)
                found = cell.ours
                numbers = (None, None) if found is None else (found.mean, found.sd)
                values = [cell.paper, *numbers, found and found.n, cell.difference]
                writer.writerow([row, column, *map(_plain, values)])
        return text.getvalue()


def markdown(head: Sequence[str], body: Sequence[Sequence[str]]) -> str:
    """Return a Markdown table; all columns but the first are aligned to the right."""
    rule = ["---", *["---:"] * (len(head) - 1)]
    return "".join(f"| {' | '.join(line)} |\n" for line in [head, rule, *body])


def _plain(value: float | None) -> str:
    return "" if value is None else f"{value:.4f}".rstrip("0").rstrip(".")


def _text(value: float, digits: int, sign: str = "") -> str:
    text = f"{value:{sign}.{digits}f}"
    return text.lstrip("+-") if float(text) == 0 else text.replace("-", "−")
