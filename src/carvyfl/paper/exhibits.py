"""What each target of ``carvy reproduce`` shows: its figures and its tables."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import pandas as pd

from carvyfl.paper import figures, tables
from carvyfl.paper.figures import Picture
from carvyfl.paper.published import DATASETS, METHODS
from carvyfl.paper.records import Record
from carvyfl.paper.tables import Table
from carvyfl.paper.targets import SCALED_ATTACK


@dataclass(frozen=True)
class Exhibit:
    """A target and what is made from the trials of one preset.

    Attributes
    ----------
    target, title
        Its name on the command line and in print.
    shown
        A function of the trials; figures and tables without trials have an empty ``source``.
    """

    target: str
    title: str
    shown: Callable[[pd.DataFrame], list[Picture | Table]]


@dataclass(frozen=True)
class Content:
    """What there is to show of a target with one preset; empty while it was not run."""

    target: str
    preset: str
    pictures: tuple[Picture, ...]
    tables: tuple[Table, ...]

    @property
    def missing(self) -> str:
        """How to get what is missing; empty if there is something to show."""
        if self.pictures or self.tables:
            return ""
        return f"not run yet: carvy reproduce {self.target} --preset {self.preset}"


EXHIBITS = (
    Exhibit(
        "ca-mnist",
        "Certified accuracy on MNIST",
        lambda trials: [
            figures.certified_accuracy(trials, "mnist"),
            tables.mnist_50(trials),
            tables.ca_areas(trials, "mnist"),
            tables.largest_sd(trials, "mnist"),
        ],
    ),
    Exhibit(
        "ca-fashion-mnist",
        "Certified accuracy on Fashion-MNIST",
        lambda trials: [
            figures.certified_accuracy(trials, "fashion-mnist"),
            tables.ca_areas(trials, "fashion-mnist"),
            tables.largest_sd(trials, "fashion-mnist"),
        ],
    ),
    Exhibit(
        "types",
        "Type estimation",
        lambda trials: [
            figures.type_map(trials, "mnist", 50),
            figures.type_map(trials, "mnist", 500),
            figures.type_map(trials, "fashion-mnist", 500),
            tables.type_failures(trials),
        ],
    ),
    Exhibit(
        "asr",
        "Attack success rate",
        lambda trials: [
            figures.attack_success(trials),
            figures.promise(trials),
            tables.asr_areas(trials),
            tables.asr_details(trials),
            *(tables.promise(trials, dataset) for dataset in DATASETS),
        ],
    ),
    Exhibit(
        "asr-scaled",
        "Attack success rate, control variates from the scaled model",
        lambda trials: [
            figures.attack_success(
                trials,
                SCALED_ATTACK,
                "asr_if_lost_votes_target",
                "Attack success rate if attackers report the control variate of their scaled "
                "model, and groups lost to NaN vote for the target",
            ),
            tables.asr_areas(trials, SCALED_ATTACK),
            tables.asr_details(trials, SCALED_ATTACK),
        ],
    ),
    Exhibit(
        "failed-types",
        "When type estimation fails",
        lambda trials: [figures.failed_types(trials), tables.failed_types(trials)],
    ),
    Exhibit(
        "groups",
        "The number of groups",
        lambda trials: [
            figures.auc_over_groups(trials),
            *(figures.sweep(trials, method) for method in METHODS),
            *(tables.groups_auc(trials, dataset) for dataset in DATASETS),
        ],
    ),
)
"""In the order of the paper."""


def content(exhibit: Exhibit, trials: pd.DataFrame, preset: str) -> Content:
    """Return what a target shows of the trials of one preset."""
    shown = [part for part in exhibit.shown(trials) if part.source]
    return Content(
        exhibit.target,
        preset,
        tuple(part for part in shown if isinstance(part, Picture)),
        tuple(part for part in shown if isinstance(part, Table)),
    )


def caption(shown: Picture | Table) -> str:
    """Return what stands below a figure or table: how to read it, and what computed it."""
    how = shown.how_to_read() if isinstance(shown, Table) else ""
    return " ".join(part for part in (shown.note, how, provenance(shown.source)) if part)


def provenance(records: Sequence[Record]) -> str:
    """Say what computed these records: command, commit, hardware, seeds, trials, time."""

    def all_of(name: str) -> str:
        found = {str(r.environment[name]) for r in records if r.environment.get(name)}
        return ", ".join(sorted(found)) or "unknown"

    taken = [record.seconds for record in records if record.seconds is not None]
    time = f"{duration(sum(taken))} of training" if taken else "time not taken"
    if 0 < len(taken) < len(records):  # an interrupted trial does not know its time
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
    found = pd.Series(sorted(set(seeds)))
    runs = found.groupby(found.diff().ne(1).cumsum())  # a gap begins a new run
    return ", ".join(
        str(a) if a == b else f"{a}–{b}" for a, b in runs.agg(["min", "max"]).to_numpy()
    )


def duration(seconds: float) -> str:
    """Write a time as people say it."""
    if seconds < 60:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 3600 else f"{seconds / 3600:.1f} h"
