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
from carvyfl.learning.job import group_job
from carvyfl.paper.studies.common import computing, provenance
from carvyfl.paper.studies.heterogeneity import Cell, config_of, read_rows
from carvyfl.pipeline import Compute, cast_votes, compute_features, gather_models, train
from carvyfl.runs.execute import prepare
from carvyfl.voting.overlapping import sampled_radius
from carvyfl.voting.votes import predict

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
    prepared = prepare(config_of(args, cell.partition, cell.seed))
    setup, test = prepared.setup, prepared.dataset.test
    compute_features(setup, compute, test.inputs)
    clients = len(setup.federation)
    size = clients // cell.groups
    draw = generator(cell.seed, "subsets", size)
    jobs = [
        group_job(
            setup.federation,
            sorted(draw.choice(clients, size, replace=False).tolist()),
            setup.module,
            setup.recipe,
            setup.seed,
        )
        for _ in range(args.draws)
    ]
    unkept = replace(compute, store=None)  # a head is found faster than a file is written
    models = gather_models(setup, train({"": jobs}, unkept)[""])
    votes = cast_votes(models, test.inputs, unkept)
    right = predict(votes) == test.labels
    radius = np.where(right, sampled_radius(votes, clients, size, CONFIDENCE), -1)
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
