"""MNIST with 50 samples a client, the `paper` preset, beside what the paper prints.

    python scripts/fidelity.py --data-dir DATA --out results/fidelity

Trains every method for every seed, prints CA(0) and the largest m with CA over
80, 60, 40 and 20 %, and writes the same as JSON and Markdown. The runs go
through `carvy run`'s own code and resume when started again.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np

from carvyfl.core.environment import environment
from carvyfl.learning.scaffold.batched.engine import BatchedEngine
from carvyfl.learning.scaffold.loop.engine import LoopEngine
from carvyfl.learning.store import GroupStore
from carvyfl.runs.config import preset, updated
from carvyfl.runs.execute import execute
from carvyfl.voting.certificate import Certificate

# Section 4.2.1 of the paper; None where it prints no number.
PAPER: dict[str, dict[str, float | None]] = {
    "carvy": {"ca0": 90.2, "80": 5, "60": 9, "40": 9, "20": 9},
    "flcert": {"ca0": 89.7, "80": 2, "60": 3, "40": 4, "20": 5},
    "cluster": {"ca0": 26.7, "80": None, "60": None, "40": None, "20": None},
    "single": {"ca0": None, "80": None, "60": None, "40": None, "20": None},
}
THRESHOLDS = (80, 60, 40, 20)
NAMES = {
    "carvy": "CARVY-FL, types by X-means (as published)",
    "carvy, true types": "CARVY-FL, true types",
    "flcert": "FLCert",
    "cluster": "FLCert+clustering",
    "single": "single global model",
}


def measure(certificate: Certificate) -> dict[str, float]:
    """Return CA(0), the area, and the largest m over each threshold (-1: not even m = 0)."""
    found: dict[str, float] = {"ca0": float(certificate.ca()[0]), "auc": certificate.auc()}
    for percent in THRESHOLDS:
        m = certificate.largest_m(percent)
        found[str(percent)] = -1 if m is None else m
    return found


def run_seed(seed: int, args: argparse.Namespace) -> dict[str, dict[str, Any]]:
    """Run all methods for one seed and return their measures and curves."""
    base = updated(
        preset("paper", "mnist"), {"samples": 50, "seed": seed, "data_dir": str(args.data_dir)}
    )
    true_types = updated(base, {"types": "oracle", "methods": ("carvy",)})
    store = GroupStore(args.work / "store")
    found: dict[str, dict[str, Any]] = {}
    for label, config in (("", base), (", true types", true_types)):
        folder = execute(
            config, args.work / f"seed-{seed}{label.replace(', ', '-').replace(' ', '-')}",
            store=store, engine=args.engine,
        )  # fmt: skip
        for method, entry in folder.record().methods.items():
            certificate = folder.certificate(method)
            found[method + label] = {
                "num_groups": entry.num_groups,
                "rounds": float(np.mean(entry.rounds)),
                "ca": certificate.ca().tolist(),
                **measure(certificate),
            }
    return found


def table(trials: dict[str, list[dict[str, Any]]]) -> str:
    """Lay the results out beside the paper's: mean ± standard deviation over seeds."""
    lines = [
        "| method | groups | rounds | CA(0) | paper | m over 80 / 60 / 40 / 20 % | paper | AUC |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for method, name in NAMES.items():
        runs = trials[method]
        paper = PAPER[method.partition(",")[0]]
        ca0 = [run["ca0"] for run in runs]
        auc = [run["auc"] for run in runs]
        ours = " / ".join(f"{np.mean([run[str(p)] for run in runs]):.1f}" for p in THRESHOLDS)
        printed = " / ".join(
            "–" if paper[str(p)] is None else str(paper[str(p)]) for p in THRESHOLDS
        )
        lines.append(
            f"| {name} | {', '.join(str(run['num_groups']) for run in runs)} "
            f"| {np.mean([run['rounds'] for run in runs]):.0f} "
            f"| {np.mean(ca0):.1f} ± {np.std(ca0, ddof=1):.1f} "
            f"| {paper['ca0'] if paper['ca0'] is not None else '–'} | {ours} | {printed} "
            f"| {np.mean(auc):.0f} ± {np.std(auc, ddof=1):.0f} |"
        )
    return "\n".join(lines)


def main() -> None:
    """Run the comparison."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data-dir", type=Path, required=True, help="where MNIST is")
    parser.add_argument("--out", type=Path, default=Path("results/fidelity"))
    parser.add_argument("--work", type=Path, default=Path("runs/fidelity"), help="run folders")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--engine", choices=["loop", "batched"], default="loop")
    parser.add_argument("--commit", default="unknown", help="noted in the results")
    args = parser.parse_args()
    device = "CPU"
    if args.engine == "batched":
        import torch

        device = torch.cuda.get_device_name()
    args.engine = LoopEngine() if args.engine == "loop" else BatchedEngine(precision="fp32")
    trials: dict[str, list[dict[str, Any]]] = {method: [] for method in NAMES}
    for seed in args.seeds:
        for method, run in run_seed(seed, args).items():
            trials[method].append(run)
            print(
                f"seed {seed}  {method:20}  CA(0) {run['ca0']:.1f}  AUC {run['auc']:.0f}",
                flush=True,
            )
    text = table(trials)
    print(text)
    args.out.mkdir(parents=True, exist_ok=True)
    record = {
        "command": "python scripts/fidelity.py --data-dir DATA",
        "commit": args.commit,
        "device": device,
        "precision": args.engine.precision,
        "environment": environment(args.engine),
        "seeds": args.seeds,
        "paper": PAPER,
        "trials": trials,
    }
    (args.out / "mnist-50.json").write_text(json.dumps(record, indent=1) + "\n")
    (args.out / "mnist-50.md").write_text(text + "\n")


if __name__ == "__main__":
    main()
