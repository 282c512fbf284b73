"""What each target of ``carvy reproduce`` shows: its figures and its tables."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from carvyfl.paper import figures, tables
from carvyfl.paper.figures import Picture
from carvyfl.paper.grid import Table
from carvyfl.paper.published import DATASETS, METHODS
from carvyfl.paper.records import Record
from carvyfl.paper.summaries import provenance
from carvyfl.paper.targets import SCALED_ATTACK


@dataclass(frozen=True)
class Exhibit:
    """A target and what is made from the records of one preset.

    Attributes
    ----------
    target, title
        Its name on the command line and in print.
    pictures, tables
        Functions of the records; those without trials have an empty ``source``.
    """

    target: str
    title: str
    pictures: Callable[[Sequence[Record]], list[Picture]]
    tables: Callable[[Sequence[Record]], list[Table]]


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
        lambda found: [figures.certified_accuracy(found, "mnist")],
        lambda found: [
            tables.mnist_50(found),
            tables.ca_areas(found, "mnist"),
            tables.largest_sd(found, "mnist"),
        ],
    ),
    Exhibit(
        "ca-fashion-mnist",
        "Certified accuracy on Fashion-MNIST",
        lambda found: [figures.certified_accuracy(found, "fashion-mnist")],
        lambda found: [
            tables.ca_areas(found, "fashion-mnist"),
            tables.largest_sd(found, "fashion-mnist"),
        ],
    ),
    Exhibit(
        "types",
        "Type estimation",
        lambda found: [
            figures.type_map(found, "mnist", 50),
            figures.type_map(found, "mnist", 500),
            figures.type_map(found, "fashion-mnist", 500),
        ],
        lambda found: [tables.type_failures(found)],
    ),
    Exhibit(
        "asr",
        "Attack success rate",
        lambda found: [figures.attack_success(found), figures.promise(found)],
        lambda found: [
            tables.asr_areas(found),
            tables.asr_details(found),
            *(tables.promise(found, dataset) for dataset in DATASETS),
        ],
    ),
    Exhibit(
        "asr-scaled",
        "Attack success rate, control variates from the scaled model",
        lambda found: [
            figures.attack_success(
                found,
                SCALED_ATTACK,
                "asr_if_lost_votes_target",
                "Attack success rate if attackers report the control variate of their scaled "
                "model, and groups lost to NaN vote for the target",
            )
        ],
        lambda found: [
            tables.asr_areas(found, SCALED_ATTACK),
            tables.asr_details(found, SCALED_ATTACK),
        ],
    ),
    Exhibit(
        "failed-types",
        "When type estimation fails",
        lambda found: [figures.failed_types(found)],
        lambda found: [tables.failed_types(found)],
    ),
    Exhibit(
        "groups",
        "The number of groups",
        lambda found: [
            figures.auc_over_groups(found),
            *(figures.sweep(found, method) for method in METHODS),
        ],
        lambda found: [tables.groups_auc(found, dataset) for dataset in DATASETS],
    ),
)
"""In the order of the paper."""


def content(exhibit: Exhibit, records: Sequence[Record], preset: str) -> Content:
    """Return what a target shows of the records of one preset."""
    return Content(
        exhibit.target,
        preset,
        tuple(picture for picture in exhibit.pictures(records) if picture.source),
        tuple(table for table in exhibit.tables(records) if table.source),
    )


def caption(shown: Picture | Table) -> str:
    """Return what stands below a figure or table: how to read it, and what computed it."""
    how = shown.how_to_read() if isinstance(shown, Table) else ""
    return " ".join(part for part in (shown.note, how, provenance(shown.source)) if part)
