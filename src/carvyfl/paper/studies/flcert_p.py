"""FLCert-P: random groups that overlap."""

from __future__ import annotations

import json
from argparse import Namespace
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from carvyfl.core.randomness import generator
from carvyfl.groups.basis import BLIND
from carvyfl.paper.experiment import Experiment
from carvyfl.paper.studies.common import computing, provenance
from carvyfl.paper.studies.heterogeneity import Cell, config_of, read_rows
from carvyfl.pipeline import Compute, compute_features
from carvyfl.voting.overlapping import sampled_radius
from carvyfl.voting.votes import predict, votes

CONFIDENCE = 0.999
PARTITIONS = (
    *("class-disjoint", "Dirichlet 0.1", "Dirichlet 0.3"),
    *("2 classes", "3 classes", "feature shift", "i.i.d."),
)


def flcert_p(args: Namespace) -> None:
    """FLCert-P: random groups that overlap, on the partitions of the study of heterogeneity.

    Subsets of k = N/G clients are drawn uniformly, each trains a one-shot head, and the vote of all
    subsets is certified from the sample (:mod:`carvyfl.voting.overlapping`), for all test inputs
    together with a confidence of 99.9 %. Lines have the form of the study of heterogeneity; CA(0)
    counts what the sample decides, and `accuracy` what it answers. A subset has no client's message
    to thank for its members, so the certificate covers Step 1.
    """
    compute = computing(args)
    path: Path = args.out / "flcert-p.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    about = provenance(args, compute.engine)
    done = {Cell(*row["cell"]) for row in read_rows(path)}
    for seed in args.seeds:
        for name in args.partitions:
            cell = Cell(name, seed, "flcert-p", args.groups)
            if cell in done:
                continue
            row = _measure(args, cell, compute)
            with path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(about | row) + "\n")
            print(f"{name}, seed {seed}: AUC {row['auc']:.0f}, CA {row['ca']}", flush=True)


def _measure(args: Namespace, cell: Cell, compute: Compute) -> dict[str, Any]:
    """Train the subsets of a cell and certify their votes."""
    # A head is found faster than a file is written; features are kept.
    config = config_of(args, cell.partition, cell.seed)
    experiment = Experiment(config, replace(compute, store=None))
    data, clients = experiment.prepared.dataset, len(experiment.setup.federation)
    compute_features(experiment.setup, compute, data.test.inputs)
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
