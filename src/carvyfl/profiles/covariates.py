"""Profiles that the operator knows: covariates of the clients, such as region, device or size."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from carvyfl.core.arrays import plain_array
from carvyfl.core.errors import CarvyError
from carvyfl.profiles.types import ClientTypes, given_types
from carvyfl.profiles.vectors import Vectors

Table = Sequence[Sequence[float]] | npt.NDArray[np.float64]


def covariate_vectors(table: Table) -> Vectors:
    """Return the columns of a table (N, d), scaled to mean 0 and variance 1, as what is compared.

    A column that is the same for all clients counts for nothing.
    """
    rows = checked_table(table)
    spread = rows.std(axis=0)
    scaled = (rows - rows.mean(axis=0)) / np.where(spread > 0, spread, 1.0)
    return Vectors(scaled.astype(np.float32), by_chance=0.0)


def covariate_types(table: Table) -> ClientTypes:
    """Give clients with the same row the same type, named by the row."""
    rows = checked_table(table)
    return given_types([", ".join(f"{x:g}" for x in row) for row in rows.tolist()], "covariates")


def checked_table(table: Table) -> npt.NDArray[np.float64]:
    """Return covariates as float64 of shape (N, d), refusing anything but finite numbers."""
    try:
        rows = plain_array(table, "covariates", np.float64)
    except (TypeError, ValueError) as error:
        raise CarvyError("covariates must be a table of numbers, a row for each client") from error
    if rows.ndim != 2 or 0 in rows.shape or not np.isfinite(rows).all():
        remedy = "give finite numbers, a row for each client"
        raise CarvyError(f"covariates of shape {rows.shape}: {remedy}")
    return rows


def read_covariates(path: Path) -> list[list[float]]:
    """Read a CSV file with a header and a row for each client, in order.

    A column of numbers is taken as it is; any other becomes a column of 0 and 1 for each value.
    """
    try:
        with path.open(newline="", encoding="utf-8") as file:
            lines = [line for line in csv.reader(file) if line]
    except OSError as error:
        raise CarvyError(f"cannot read the covariates in {path}: {error.strerror}") from error
    except (UnicodeDecodeError, csv.Error) as error:
        raise CarvyError(f"{path}: not a CSV file of text ({error})") from error
    if len(lines) < 2:
        raise CarvyError(f"{path}: give a header, and a row for each client")
    for number, line in enumerate(lines, start=1):
        if len(line) != len(lines[0]):
            fault = f"{len(line)} cells where the header has {len(lines[0])}"
            raise CarvyError(f"{path}, row {number}: {fault}")
    columns: list[list[float]] = []
    for cells in zip(*lines[1:], strict=True):
        try:
            columns.append([float(cell) for cell in cells])
        except ValueError:
            columns += [[float(cell == value) for cell in cells] for value in sorted(set(cells))]
    return [list(row) for row in zip(*columns, strict=True)]
