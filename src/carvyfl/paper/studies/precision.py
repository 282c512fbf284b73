"""Whether the precision of training shows in certified accuracy: the same runs in each.

Trains the default preset on Fashion-MNIST with the batched engine in bf16, tf32 and fp32 for
several seeds, and compares the CA curves seed by seed: the difference to fp32 beside the spread
over seeds.
"""

from __future__ import annotations

from argparse import Namespace
from typing import Any

import numpy as np
import numpy.typing as npt

from carvyfl.paper.experiment import Experiment
from carvyfl.paper.studies.common import computing, provenance, settings, write_record
from carvyfl.pipeline import plan_training, train

POINTS = 11
"""CA(m) is compared for m = 0 … 10."""


def run(args: Namespace) -> None:
    """Compare the precisions and write every curve."""
    found = {name: curves(args, name) for name in (*args.precisions, "fp32")}
    exact = found["fp32"]
    spread = exact.std(axis=0, ddof=1)
    record: dict[str, Any] = provenance(args) | {
        "seeds": args.seeds,
        "samples": args.samples,
        "ca": {name: curve.tolist() for name, curve in found.items()},
        "sd_over_seeds_fp32": spread.tolist(),
    }
    print("CA(m), m = 0 … 10: mean difference to fp32 ± its standard error; spread over seeds")
    for name in args.precisions:
        difference = found[name] - exact
        mean = difference.mean(axis=0)
        error = difference.std(axis=0, ddof=1) / np.sqrt(len(difference))
        areas = (difference.sum(axis=1) - difference[:, 0] / 2).tolist()
        record[f"{name}_minus_fp32"] = {
            "mean": mean.tolist(),
            "standard_error": error.tolist(),
            "auc_difference": areas,
        }
        cells = zip(mean, error, strict=True)
        print(name, " ".join(f"{d:+.2f}±{e:.2f}" for d, e in cells))
        print(name, "AUC difference by seed:", areas)
    print("sd  ", " ".join(f"{s:.2f}" for s in spread))
    write_record(args.out / f"{args.dataset}.json", record)


def curves(args: Namespace, precision: str) -> npt.NDArray[np.float64]:
    """Return CA(m) of every seed, shape (seeds, POINTS)."""
    compute = computing(args, precision)
    runs = [Experiment(settings(args, seed=seed), compute) for seed in args.seeds]
    jobs = {i: plan_training(run.setup, run.form()) for i, run in enumerate(runs)}
    found = np.zeros((len(runs), POINTS))
    for i, results in train(jobs, compute).items():
        ca = runs[i].certify(results).ca()[:POINTS]
        found[i, : len(ca)] = ca
    return found
