"""Runs of one configuration with several seeds: where they lie, and what they have in common."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from pathlib import Path
from typing import TypeVar

from carvyfl.core.errors import CarvyError
from carvyfl.core.schema import plain
from carvyfl.core.yaml_text import to_yaml
from carvyfl.groups.basis import READINGS, Reading
from carvyfl.runs.folder import RunFolder
from carvyfl.runs.record import RunRecord
from carvyfl.voting.spread import Spread

R = TypeVar("R")
_LOCAL = frozenset({"seed", "data_dir"})
"""Settings in which runs that differ in the seed alone may differ."""


def seed_folder(out: Path, seed: int) -> Path:
    """Return the run folder of one seed."""
    return out / f"seed-{seed}"


def run_folders(paths: Iterable[Path]) -> list[Path]:
    """Replace every folder of runs over seeds by the run folders in it, by ascending seed."""
    found: list[Path] = []
    for path in paths:
        found += RunFolder(path).seeds or [path]
    if len(set(found)) < len(found):
        twice = next(path for path in found if found.count(path) > 1)
        raise CarvyError(f"{twice} is named twice; name every run once")
    return found


def seed_sets(runs: Sequence[tuple[R, RunRecord]]) -> list[list[tuple[R, RunRecord]]]:
    """Put runs together that differ in the seed alone, in the order of their first ones.

    A second run with a seed that is there already stays by itself.
    """
    sets: dict[Hashable, list[tuple[R, RunRecord]]] = {}
    for run, record in runs:
        settings = {k: v for k, v in plain(record.config).items() if k not in _LOCAL}
        key: tuple[Hashable, ...] = (to_yaml(settings), record.data.test_sha256)
        if any(record.config.seed == other.config.seed for _, other in sets.get(key, [])):
            key = (*key, len(sets))
        sets.setdefault(key, []).append((run, record))
    return list(sets.values())


def spreads(records: Sequence[RunRecord]) -> dict[str, dict[Reading, Spread]]:
    """Return CA(m) of every method over the runs, by method and reading that all runs have."""
    found: dict[str, dict[Reading, Spread]] = {}
    for method in records[0].methods:
        entries = [record.methods[method].readings for record in records]
        curves = {reading: [getattr(own, reading) for own in entries] for reading in READINGS}
        found[method] = {
            reading: Spread.of([curve.ca for curve in own])
            for reading, own in curves.items()
            if None not in own
        }
    return found
