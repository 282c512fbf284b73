"""Does the batched engine's precision show in certified accuracy? The same runs in each.

    python scripts/precision.py --data-dir DATA --out results/precision

Trains the default preset on Fashion-MNIST with 200 samples a client in bf16, tf32
and fp32 for several seeds, and compares the CA curves seed by seed: the difference
to fp32 beside the spread over seeds.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np

from carvyfl.core.environment import environment
from carvyfl.learning.job import plan
from carvyfl.learning.planner import train_groups
from carvyfl.learning.scaffold.batched.engine import BatchedEngine
from carvyfl.pipeline import gather_models
from carvyfl.runs.config import preset, updated
from carvyfl.runs.execute import form, infer, prepare
from carvyfl.voting.certificate import certify


def curves(precision: str, seeds: list[int], args: argparse.Namespace) -> np.ndarray[Any, Any]:
    """Return CA(m) for m = 0 … 10 of every seed, shape (seeds, 11)."""
    plans, settings = [], []
    for seed in seeds:
        config = updated(
            preset("default", "fashion-mnist"),
            {"samples": args.samples, "seed": seed, "data_dir": str(args.data_dir)},
        )
        setting = prepare(config)
        grouping = form("carvy", config, setting, infer(config, setting), None)
        plans.append(plan(setting.federation, grouping, setting.module, config.training, seed))
        settings.append(setting)
    jobs = [job for jobs in plans for job in jobs]
    results = iter(train_groups(jobs, engine=BatchedEngine(precision=precision)))
    found = np.zeros((len(seeds), 11))
    for row, (setting, jobs) in enumerate(zip(settings, plans, strict=True)):
        models = gather_models(setting.federation, setting.module, [next(results) for _ in jobs])
        votes = models.votes(setting.dataset.test.inputs, device="cuda")
        ca = certify(votes, setting.dataset.test.labels).ca()[:11]
        found[row, : len(ca)] = ca
    return found


def main() -> None:
    """Compare the precisions and write every curve down."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data-dir", type=Path, required=True)
    parser.add_argument("--samples", type=int, default=200)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    parser.add_argument("--commit", default="unknown", help="noted in the results")
    parser.add_argument("--out", type=Path, default=Path("results/precision"))
    args = parser.parse_args()
    found = {name: curves(name, args.seeds, args) for name in ("bf16", "tf32", "fp32")}
    exact = found["fp32"]
    record: dict[str, Any] = {
        "commit": args.commit,
        "environment": environment(),
        "seeds": args.seeds,
        "samples": args.samples,
        "ca": {name: curve.tolist() for name, curve in found.items()},
        "sd_over_seeds_fp32": exact.std(axis=0, ddof=1).tolist(),
    }
    print("CA(m), m = 0 … 10: mean difference to fp32 ± its standard error; spread over seeds")
    for name in ("bf16", "tf32"):
        difference = found[name] - exact
        error = difference.std(axis=0, ddof=1) / np.sqrt(len(difference))
        record[f"{name}_minus_fp32"] = {
            "mean": difference.mean(axis=0).tolist(),
            "standard_error": error.tolist(),
            "auc_difference": (difference.sum(axis=1) - difference[:, 0] / 2).tolist(),
        }
        cells = zip(difference.mean(axis=0), error, strict=True)
        print(name, " ".join(f"{d:+.2f}±{e:.2f}" for d, e in cells))
        print(name, "AUC difference by seed:", record[f"{name}_minus_fp32"]["auc_difference"])
    print("sd  ", " ".join(f"{s:.2f}" for s in record["sd_over_seeds_fp32"]))
    args.out.mkdir(parents=True, exist_ok=True)
    (args.out / "fashion-mnist.json").write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
