"""Any heterogeneity: certified accuracy of groupings on clients that differ in many ways.

For every partition and seed, with the learner of the option: `carvy`, `balanced`, `flcert` and
`slots` at the given G; `carvy` and `balanced` with G chosen; and, for the first seeds, `carvy` at
other numbers of groups. Every cell is a line of LEARNER.jsonl, written when it is measured: an
interrupted study goes on where it stopped.
"""

from __future__ import annotations

import json
from argparse import Namespace
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from carvyfl.core.schema import plain
from carvyfl.group_count import GroupCount
from carvyfl.groups.grouping import Grouping
from carvyfl.learning.job import GroupResult
from carvyfl.paper.studies.common import computing, provenance
from carvyfl.pipeline import (
    Compute,
    cast_votes,
    choose_groups,
    compute_features,
    find_profiles,
    form_methods,
    gather_models,
    plan_training,
    train,
)
from carvyfl.runs.config import RunConfig, preset, updated
from carvyfl.runs.execute import Prepared, prepare
from carvyfl.voting.certificate import certify

PARTITIONS: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "class-disjoint": ("class-disjoint", {}),
    "Dirichlet 0.1": ("dirichlet", {"alpha": 0.1}),
    "Dirichlet 0.3": ("dirichlet", {"alpha": 0.3}),
    "Dirichlet 1": ("dirichlet", {"alpha": 1.0}),
    "Dirichlet 0.3, unequal sizes": ("dirichlet", {"alpha": 0.3, "sigma": 1.0}),
    "2 classes": ("classes-per-client", {"classes": 2}),
    "3 classes": ("classes-per-client", {"classes": 3}),
    "feature shift": ("feature-shift", {}),
    "feature shift, Dirichlet 0.3": ("feature-shift", {"alpha": 0.3}),
    "i.i.d.": ("iid", {}),
}
"""Name in print → rule and parameters."""

CHOSEN = 0
"""Stands for a number of groups that is chosen."""
SWEPT = 2
"""So many of the first seeds are measured at other numbers of groups, too."""


class Cell(NamedTuple):
    """A number to be measured; ``groups`` 0 stands for the G that is chosen."""

    partition: str
    seed: int
    method: str
    groups: int


def run(args: Namespace) -> None:
    """Measure what is missing, one seed after another, all partitions of a seed together."""
    compute = replace(computing(args), store=None)
    path: Path = args.out / f"{args.learner}{args.label and f'-{args.label}'}.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    about = provenance(args, compute.engine)
    about |= {"dataset": Path(args.dataset).stem, "samples": args.samples}
    for seed in args.seeds:
        done = {(Cell(*row["cell"])) for row in read_rows(path) if "cell" in row}
        todo = [c for c in wanted(args, seed) if c not in done]
        for some in _lots(todo, args.together):
            for row in measure(args, some, seed, compute):
                with path.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(about | row) + "\n")
                print(_line(row), flush=True)


def read_rows(path: Path) -> list[dict[str, Any]]:
    """Return what was measured."""
    return list(map(json.loads, path.read_text().splitlines())) if path.exists() else []


def wanted(args: Namespace, seed: int) -> list[Cell]:
    """Return all cells of a seed."""
    cells = []
    for name in args.partitions:
        cells += [Cell(name, seed, method, args.groups) for method in args.methods]
        if "carvy" in args.methods:
            cells += [Cell(name, seed, method, CHOSEN) for method in ("carvy", "balanced")]
        if seed in args.seeds[:SWEPT]:
            cells += [Cell(name, seed, "carvy", g) for g in args.sweep if g != args.groups]
    return cells


def _lots(cells: list[Cell], partitions: int) -> Iterator[list[Cell]]:
    """Yield the cells of a few partitions at a time."""
    names = list(dict.fromkeys(cell.partition for cell in cells))
    for first in range(0, len(names), partitions):
        some = names[first : first + partitions]
        yield [cell for cell in cells if cell.partition in some]


def measure(
    args: Namespace, cells: list[Cell], seed: int, compute: Compute
) -> Iterator[dict[str, Any]]:
    """Form the groups of all cells, train them together, and yield a row for each."""
    formed: dict[Cell, tuple[Prepared, Grouping, GroupCount | None]] = {}
    for name in dict.fromkeys(cell.partition for cell in cells):
        config = config_of(args, name, seed)
        prepared = prepare(config)
        setup, settings = prepared.setup, config.grouping
        compute_features(setup, compute, prepared.dataset.test.inputs)
        profiles = find_profiles(setup, settings, compute)
        own = [cell for cell in cells if cell.partition == name]
        count = None
        if any(cell.groups == CHOSEN for cell in own):
            count = choose_groups(["carvy"], setup, settings, profiles, compute)
        for cell in own:
            groups = cell.groups or (count.groups if count else 0)
            fixed = replace(settings, groups=groups, baseline_groups=groups)
            grouping = form_methods([cell.method], fixed, setup, profiles)[cell.method]
            formed[cell] = prepared, grouping, count if cell.groups == CHOSEN else None
    jobs = {cell: plan_training(own[0].setup, own[1]) for cell, own in formed.items()}
    trained = train(jobs, compute)
    for cell, (prepared, grouping, count) in formed.items():
        yield _row(cell, prepared, grouping, count, trained[cell], compute)


def _row(
    cell: Cell,
    prepared: Prepared,
    grouping: Grouping,
    count: GroupCount | None,
    results: list[GroupResult],
    compute: Compute,
) -> dict[str, Any]:
    test = prepared.dataset.test
    models = gather_models(prepared.setup, results)
    certificate = certify(cast_votes(models, test.inputs, compute), test.labels, grouping.basis)
    row = {
        "cell": list(cell),
        "groups": grouping.num_groups,
        "auc": round(certificate.auc(), 2),
        "ca": [round(value, 2) for value in certificate.ca().tolist()],
        "readings": grouping.basis.readings,
    }
    return row if count is None else row | {"count": plain(count)}


def config_of(args: Namespace, name: str, seed: int) -> RunConfig:
    """Return the settings of a run on a partition; G is left open."""
    rule, parameters = PARTITIONS[name]
    names = ("clients", "types", "epsilon", "model", "features", "ridge")
    layer: dict[str, Any] = {n: v for n in names if (v := getattr(args, n, None)) is not None}
    if args.rounds:
        layer["training"] = {"rounds": args.rounds}
    start = preset("one-shot" if args.learner == "one-shot" else "default", args.dataset)
    return updated(
        start,
        {
            "partition": rule,
            "partition_options": dict(parameters),
            "samples": args.samples,
            "data_dir": args.data_dir,
            "groups": None,
            "seed": seed,
            **layer,
        },
    )


def _line(row: Mapping[str, Any]) -> str:
    name, seed, method, asked = row["cell"]
    chosen = "" if asked else ", chosen"
    return (
        f"{name}, seed {seed}: {method}, G = {row['groups']}{chosen}: AUC {row['auc']:.0f}, "
        f"CA(0) {row['ca'][0]:.1f}"
    )
