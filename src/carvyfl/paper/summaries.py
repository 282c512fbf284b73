"""Means and spreads over trials, and what the paper reads off its curves.

Spread is the sample standard deviation over seeds (divided by n − 1); a single
trial has none.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.integrate import trapezoid

from carvyfl.groups.methods import GROUPINGS
from carvyfl.paper.records import AsrRecord, CaRecord, Record

Line = npt.NDArray[np.float64]

ASR_LAST_M = 20
"""The AUC of 100 − ASR goes over m = 0 … 20."""


@dataclass(frozen=True)
class Spread:
    """Mean, sample standard deviation (None for one trial) and number of trials."""

    mean: float
    sd: float | None
    n: int


@dataclass(frozen=True, eq=False)
class MeanCurve:
    """The mean of several trials' curves; ``sd`` is None for one trial.

    Attributes
    ----------
    m
        Numbers of malicious clients, shape (k,).
    mean, sd
        In percent, shape (k,).
    n
        Number of trials.
    """

    m: Line
    mean: Line
    sd: Line | None
    n: int


def spread(values: Iterable[float]) -> Spread | None:
    """Return mean and spread of the trials' values; None if there are none."""
    array = np.fromiter(values, dtype=np.float64)
    if not len(array):
        return None
    sd = float(array.std(ddof=1)) if len(array) > 1 else None
    return Spread(float(array.mean()), sd, len(array))


def mean_ca(records: Sequence[CaRecord]) -> MeanCurve | None:
    """Return the mean of CA(m); a curve that ended earlier goes on with zeros."""
    if not records:
        return None
    last = max(len(record.ca) for record in records)
    table = np.array([np.pad(record.ca, (0, last - len(record.ca))) for record in records])
    return _curve(np.arange(last, dtype=np.float64), table)


def mean_attacked(records: Sequence[AsrRecord], field: str) -> MeanCurve | None:
    """Return the mean of a curve under attack, at the m that all trials have.

    Parameters
    ----------
    records
        The trials.
    field
        "asr", "asr_if_lost_votes_target", "accuracy", "ca" or "groups_hit".
    """
    shared = sorted(set.intersection(*(set(r.m) for r in records))) if records else []
    if not shared:
        return None
    rows = [dict(zip(record.m, getattr(record, field), strict=True)) for record in records]
    table = np.array([[row[m] for m in shared] for row in rows], dtype=np.float64)
    return _curve(np.array(shared, dtype=np.float64), table)


def _curve(m: Line, table: Line) -> MeanCurve:
    n = len(table)
    return MeanCurve(m, table.mean(axis=0), table.std(axis=0, ddof=1) if n > 1 else None, n)


def largest_m(ca: Sequence[float] | Line, percent: float) -> int:
    """Return the largest m with CA(m) > ``percent``; −1 where even CA(0) is not."""
    return int(np.count_nonzero(np.asarray(ca) > percent)) - 1  # CA never rises with m


def asr_auc(record: AsrRecord, field: str = "asr") -> float | None:
    """Return the area of 100 − ASR over m = 0 … 20, by the trapezoid rule.

    None if the trial lacks m = 0 or m = 20; numbers of clients that were left out
    in between are joined by a straight line.
    """
    points = [
        (m, 100 - value)
        for m, value in zip(record.m, getattr(record, field), strict=True)
        if m <= ASR_LAST_M
    ]
    if not points or (points[0][0], points[-1][0]) != (0, ASR_LAST_M):
        return None
    m, kept = zip(*points, strict=True)
    return float(trapezoid(kept, m))


def methods_in(records: Iterable[CaRecord] | Iterable[AsrRecord]) -> list[str]:
    """Return the methods that have records, in the order of the paper's legends."""
    found = {record.method for record in records}
    return [name for name in GROUPINGS if name in found] + sorted(found - GROUPINGS.keys())


def provenance(records: Sequence[Record]) -> str:
    """Say what computed these records: command, commit, hardware, seeds, trials, time."""

    def all_of(name: str) -> str:
        found = {str(r.environment[name]) for r in records if r.environment.get(name)}
        return ", ".join(sorted(found)) or "unknown"

    taken = [record.seconds for record in records if record.seconds is not None]
    if not taken:
        time = "time not taken"
    else:
        time = f"{duration(sum(taken))} of training"
        if len(taken) < len(records):  # an interrupted trial does not know its time
            time += f" for {len(taken)} of them, not taken for the rest"
    return (
        f"Command: {all_of('command')}; commit {all_of('commit')}; "
        f"{all_of('hardware')}, torch {all_of('torch')}, "
        f"{all_of('engine')} engine, {all_of('precision')}; "
        f"seeds {seeds_text(r.seed for r in records)}; "
        f"{len(records)} {'trial' if len(records) == 1 else 'trials'}; "
        f"{time}."
    )


def seeds_text(seeds: Iterable[int]) -> str:
    """Write seeds shortly: ``0–2, 5``."""
    parts: list[list[int]] = []
    for seed in sorted(set(seeds)):
        if parts and seed == parts[-1][-1] + 1:
            parts[-1].append(seed)
        else:
            parts.append([seed])
    return ", ".join(str(p[0]) if len(p) == 1 else f"{p[0]}–{p[-1]}" for p in parts)


def duration(seconds: float) -> str:
    """Write a time as people say it."""
    if seconds < 60:
        return f"{seconds:.0f} s"
    if seconds < 3600:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"
