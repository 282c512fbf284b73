"""Groupings on clients that differ in many ways.

What was measured of a cell is a line of a file, written at once: an interrupted study goes on where
it stopped.
"""

from __future__ import annotations

import json
from argparse import Namespace
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from carvyfl.core.files import write_text
from carvyfl.core.randomness import generator
from carvyfl.core.schema import plain
from carvyfl.group_count import GroupCount
from carvyfl.groups.basis import BLIND
from carvyfl.groups.grouping import Grouping
from carvyfl.pipeline import (
    Compute,
    choose_groups,
    find_profiles,
    form_methods,
    plan_training,
    train,
)
from carvyfl.runs.config import RunConfig, preset
from carvyfl.voting.votes import predict, votes
from reproduction.experiment import Experiment
from reproduction.markdown import markdown
from reproduction.studies.common import computing, on_heads, provenance, with_options, write_record
from reproduction.studies.subsets import sampled_radius

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
OVERLAPPING = (
    *("class-disjoint", "Dirichlet 0.1", "Dirichlet 0.3"),
    *("2 classes", "3 classes", "feature shift", "i.i.d."),
)
"""The partitions of FLCert-P."""
GAINS = (
    *("class-disjoint:20", "Dirichlet 0.1:20", "Dirichlet 0.1:33"),
    *("Dirichlet 0.3:20", "Dirichlet 0.3:50", "2 classes:20"),
    *("3 classes:20", "3 classes:33", "feature shift:20", "i.i.d.:20"),
)
"""Where gains are measured, partition and number of groups: 20, and about the best for `carvy`."""

CHOSEN = 0
"""Stands for a number of groups that is chosen."""
SWEPT = 2
"""So many of the first seeds are measured at other numbers of groups, too."""
CONFIDENCE = 0.999
"""Of what is certified from a sample of overlapping groups."""

Areas = dict[str, dict[str, list[float]]]
"""Partition and number of groups → grouping → the area under CA(m) of every seed."""


class Cell(NamedTuple):
    """A number to be measured; ``groups`` 0 stands for the G that is chosen."""

    partition: str
    seed: int
    method: str
    groups: int


def heterogeneity(args: Namespace) -> None:
    """Any heterogeneity: certified accuracy of groupings on clients that differ in many ways.

    For every partition and seed, with the learner of the option: `carvy`, `balanced`, `flcert` and
    `slots` at the given G; `carvy` and `balanced` with G chosen; and, for the first seeds, `carvy`
    at other numbers of groups. Every cell is a line of LEARNER.jsonl, written when it is measured:
    an interrupted study goes on where it stopped.
    """
    compute = replace(computing(args), store=None)
    path: Path = args.out / f"{args.learner}{args.label and f'-{args.label}'}.jsonl"
    about = provenance(args, compute.engine)
    about |= {"dataset": Path(args.dataset).stem, "samples": args.samples}
    for seed in args.seeds:
        todo = _missing(path, _wanted(args, seed))
        for row in _kept(path, about, measure(args, todo, compute, args.together)):
            name, _, method, asked = row["cell"]
            chosen = "" if asked else ", chosen"
            print(
                f"{name}, seed {seed}: {method}, G = {row['groups']}{chosen}: "
                f"AUC {row['auc']:.0f}, CA(0) {row['ca'][0]:.1f}",
                flush=True,
            )


def read_rows(path: Path) -> list[dict[str, Any]]:
    """Return what was measured."""
    return list(map(json.loads, path.read_text().splitlines())) if path.exists() else []


def _missing(path: Path, cells: Iterable[Cell]) -> list[Cell]:
    """Return the cells that a file does not hold yet."""
    done = {Cell(*row["cell"]) for row in read_rows(path)}
    return [cell for cell in cells if cell not in done]


def _kept(
    path: Path, about: Mapping[str, Any], rows: Iterable[dict[str, Any]]
) -> Iterator[dict[str, Any]]:
    """Add rows to a file, each as soon as it is there, and yield them."""
    path.parent.mkdir(parents=True, exist_ok=True)
    for row in rows:
        with path.open("a", encoding="utf-8") as file:
            file.write(json.dumps({**about, **row}) + "\n")
        yield row


def _wanted(args: Namespace, seed: int) -> list[Cell]:
    """Return all cells of a seed."""
    cells = []
    for name in args.partitions:
        cells += [Cell(name, seed, method, args.groups) for method in args.methods]
        if "carvy" in args.methods:
            cells += [Cell(name, seed, method, CHOSEN) for method in ("carvy", "balanced")]
        if seed in args.seeds[:SWEPT]:
            cells += [Cell(name, seed, "carvy", g) for g in args.sweep if g != args.groups]
    return cells


def measure(
    args: Namespace, cells: Sequence[Cell], compute: Compute, together: int = 1
) -> Iterator[dict[str, Any]]:
    """Yield a row for each cell of one seed; the groups of some partitions are trained together."""
    names = list(dict.fromkeys(cell.partition for cell in cells))
    for first in range(0, len(names), together):
        some = names[first : first + together]
        yield from _measure(args, [cell for cell in cells if cell.partition in some], compute)


def _measure(args: Namespace, cells: Sequence[Cell], compute: Compute) -> Iterator[dict[str, Any]]:
    formed: dict[Cell, tuple[Experiment, Grouping, GroupCount | None]] = {}
    for name, seed in dict.fromkeys((cell.partition, cell.seed) for cell in cells):
        experiment = on_heads(config_of(args, name, seed), compute)
        setup, steps = experiment.setup, experiment.config
        profiles = find_profiles(setup, steps, compute)
        own = [cell for cell in cells if cell.partition == name]
        count = None
        if any(cell.groups == CHOSEN for cell in own):
            count = choose_groups(["carvy"], setup, steps, profiles, compute)
        for cell in own:
            groups = cell.groups or (count.groups if count else 0)
            fixed = replace(steps, groups=groups, baseline_groups=groups)
            grouping = form_methods([cell.method], fixed, setup, profiles)[cell.method]
            formed[cell] = experiment, grouping, count if cell.groups == CHOSEN else None
    jobs = {cell: plan_training(own[0].setup, own[1]) for cell, own in formed.items()}
    trained = train(jobs, compute)
    for cell, (experiment, grouping, count) in formed.items():
        certificate = experiment.certify(trained[cell], grouping.basis)
        row = {
            "cell": list(cell),
            "groups": grouping.num_groups,
            "auc": round(certificate.auc(), 2),
            "ca": [round(value, 2) for value in certificate.ca().tolist()],
            "readings": grouping.basis.readings,
        }
        yield row if count is None else row | {"count": plain(count)}


def config_of(args: Namespace, name: str, seed: int) -> RunConfig:
    """Return the settings of a run on a partition; G is left open."""
    start = preset("one-shot" if args.learner == "one-shot" else "default", args.dataset)
    rule, parameters = PARTITIONS[name]
    split = {"partition": rule, "partition_options": dict(parameters)}
    return with_options(start, args, **split, groups=None, seed=seed)


def flcert_p(args: Namespace) -> None:
    """FLCert-P: random groups that overlap, on the partitions of the study of heterogeneity.

    Subsets of k = N/G clients are drawn uniformly, each trains a one-shot head, and the vote of all
    subsets is certified from the sample (:mod:`reproduction.studies.subsets`), for all test inputs
    together with a confidence of 99.9 %. Lines have the form of the study of heterogeneity; CA(0)
    counts what the sample decides, and `accuracy` what it answers. A subset has no client's message
    to thank for its members, so the certificate covers Step 1.
    """
    compute = computing(args)
    path: Path = args.out / "flcert-p.jsonl"
    cells = [Cell(n, s, "flcert-p", args.groups) for s in args.seeds for n in args.partitions]
    rows = (_overlapping(args, cell, compute) for cell in _missing(path, cells))
    for row in _kept(path, provenance(args, compute.engine), rows):
        name, seed, *_ = row["cell"]
        print(f"{name}, seed {seed}: AUC {row['auc']:.0f}, CA {row['ca']}", flush=True)


def _overlapping(args: Namespace, cell: Cell, compute: Compute) -> dict[str, Any]:
    """Train the subsets of a cell and certify their votes."""
    experiment = on_heads(config_of(args, cell.partition, cell.seed), compute)
    data, clients = experiment.prepared.dataset, len(experiment.setup.federation)
    size = clients // cell.groups
    draw = generator(cell.seed, "subsets", size)
    subsets = [
        tuple(sorted(draw.choice(clients, size, replace=False).tolist())) for _ in range(args.draws)
    ]
    experiment.train(subsets)
    cast = votes(experiment.cast(subsets), data.num_classes)
    right = predict(cast) == data.test.labels
    radius = np.where(right, sampled_radius(cast, clients, size, CONFIDENCE), -1)
    # As everywhere, the curve ends with the first zero, and the area follows the trapezoid rule.
    ca = [100 * float(np.mean(radius >= m)) for m in range(int(radius.max()) + 2)]
    return {
        "cell": list(cell),
        "groups": cell.groups,
        "subsets": args.draws,
        "size": size,
        "confidence": CONFIDENCE,
        "auc": round(sum(ca) - ca[0] / 2, 2),
        "accuracy": round(100 * float(np.mean(right)), 2),
        "ca": [round(value, 2) for value in ca],
        "readings": BLIND.readings,
    }


def kept_gain(args: Namespace) -> None:
    """Measure what groupings keep of what `carvy` gains over `balanced`.

    For every partition, seed and number of groups: the area under CA(m) of each grouping, given its
    groups, from one-shot heads. The share kept is (grouping - balanced) / (carvy - balanced), of
    the means over the seeds. It writes kept_gain.json and its table after every seed.
    """
    compute = replace(computing(args), store=None)
    record = provenance(args, compute.engine) | {
        name: getattr(args, name)
        for name in ("dataset", "samples", "features", "types", "methods", "seeds")
    }
    areas: Areas = {where: {method: [] for method in args.methods} for where in args.partitions}
    path = args.out / f"kept_gain{args.label and f'-{args.label}'}.json"
    for seed in args.seeds:
        cells = [
            Cell(name, seed, method, int(groups))
            for name, _, groups in (where.rpartition(":") for where in areas)
            for method in args.methods
        ]
        for row in measure(args, cells, compute):
            name, _, method, groups = row["cell"]
            areas[f"{name}:{groups}"][method].append(row["auc"])
        write_record(path, record | {"auc": areas})
        write_text(path.with_suffix(".md"), gains_table(areas))
        print(f"seed {seed}: done", flush=True)


def kept(areas: dict[str, list[float]], method: str) -> float:
    """Return the share of the gain that a method keeps, in percent."""
    seeds = len(areas[method])
    mean, carvy, balanced = (np.mean(areas[m][:seeds]) for m in (method, "carvy", "balanced"))
    return float(100 * (mean - balanced) / (carvy - balanced))


def gains_table(areas: Areas) -> str:
    """Return the areas, mean ± standard deviation over the seeds, and the shares kept."""
    rows: list[list[Any]] = []
    methods = list(next(iter(areas.values())))
    others = [method for method in methods if method not in ("carvy", "balanced")]
    for where, own in areas.items():
        name, _, groups = where.rpartition(":")
        if not own[methods[-1]]:
            continue
        spread = [
            f"{np.mean(v):.0f} ± {np.std(v, ddof=1) if len(v) > 1 else 0:.0f}" for v in own.values()
        ]
        rows.append([name, groups, *spread, *(f"{kept(own, m):.0f} %" for m in others)])
    return markdown(["clients' data", "G", *methods, *(f"kept by {m}" for m in others)], rows)
