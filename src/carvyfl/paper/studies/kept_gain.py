"""What groupings keep of what `carvy` gains over `balanced`."""

from __future__ import annotations

from argparse import Namespace
from dataclasses import replace
from typing import Any

import numpy as np

from carvyfl.core.files import write_text
from carvyfl.paper.markdown import markdown
from carvyfl.paper.studies.common import computing, provenance, write_record
from carvyfl.paper.studies.heterogeneity import Cell, measure

WHERE = (
    "class-disjoint:20",
    "Dirichlet 0.1:20",
    "Dirichlet 0.1:33",
    "Dirichlet 0.3:20",
    "Dirichlet 0.3:50",
    "2 classes:20",
    "3 classes:20",
    "3 classes:33",
    "feature shift:20",
    "i.i.d.:20",
)
"""Partition and number of groups: 20, and about the best for `carvy`."""
Areas = dict[str, dict[str, list[float]]]


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
        for name in dict.fromkeys(where.rpartition(":")[0] for where in areas):
            counts = [int(w.rpartition(":")[2]) for w in areas if w.rpartition(":")[0] == name]
            cells = [Cell(name, seed, method, g) for g in counts for method in args.methods]
            for row in measure(args, cells, seed, compute):
                _, _, method, groups = row["cell"]
                areas[f"{name}:{groups}"][method].append(row["auc"])
        write_record(path, record | {"auc": areas})
        write_text(path.with_suffix(".md"), table(areas))
        print(f"seed {seed}: done", flush=True)


def kept(areas: dict[str, list[float]], method: str) -> float:
    """Return the share of the gain that a method keeps, in percent."""
    seeds = len(areas[method])
    mean, carvy, balanced = (np.mean(areas[m][:seeds]) for m in (method, "carvy", "balanced"))
    return float(100 * (mean - balanced) / (carvy - balanced))


def table(areas: Areas) -> str:
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
