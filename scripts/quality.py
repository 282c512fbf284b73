"""The default preset against the bound, and type inference, on seeds not used to choose it.

    python scripts/quality.py --data-dir DATA --engine batched --out results/quality

*Bound*: each group's members pool their data and one model is trained on it, the
best a federated run can hope for. *Types*: the default type inference against the
true types, ten seeds for every size. The default preset's learning rate and
number of rounds were chosen on seeds 100 and 101.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np

from carvyfl.core.environment import environment
from carvyfl.data.clients import Client, Federation, Samples
from carvyfl.learning.engines import make_engine
from carvyfl.learning.job import Engine, GroupJob, group_job, plan
from carvyfl.learning.planner import train_groups
from carvyfl.learning.recipe import Recipe
from carvyfl.pipeline import gather_models
from carvyfl.runs.config import RunConfig, preset, updated
from carvyfl.runs.execute import Setting, form, infer, prepare
from carvyfl.voting.certificate import Certificate, certify

DATASETS = ("mnist", "fashion-mnist")
SIZES = (50, 100, 200, 500)
POOLED = Recipe(rounds=20, lr=0.02)  # twenty epochs over five times the data: it has converged


def pooled(federation: Federation, groups: tuple[Any, ...]) -> Federation:
    """Make one client of each group, holding all its members' data."""

    def merged(parts: list[Samples]) -> Samples:
        return Samples(
            np.concatenate([part.inputs for part in parts]),
            np.concatenate([part.labels for part in parts]),
        )

    clients = tuple(
        Client(
            merged([federation.clients[i].train for i in members]),
            merged([federation.clients[i].validation for i in members]),
        )
        for members in groups
    )
    return dataclasses.replace(federation, clients=clients, types=None)


def compare_with_bound(dataset: str, seeds: list[int], data_dir: Path, engine: Engine) -> Any:
    """Return AUC of CA per seed, of the default preset and of the bound."""
    configs: list[RunConfig] = [
        updated(
            preset("default", dataset),
            {"samples": 500, "seed": seed, "data_dir": str(data_dir), "methods": ("carvy",)},
        )
        for seed in seeds
    ]
    settings = [prepare(config) for config in configs]
    groupings = [
        form("carvy", config, setting, infer(config, setting), None)
        for config, setting in zip(configs, settings, strict=True)
    ]
    runs: dict[str, list[list[GroupJob]]] = {"default": [], "pooled": []}
    for config, setting, grouping in zip(configs, settings, groupings, strict=True):
        federation, module = setting.federation, setting.module
        runs["default"].append(plan(federation, grouping, module, config.training, config.seed))
        merged = pooled(federation, grouping.groups)
        runs["pooled"].append(
            [group_job(merged, [g], module, POOLED, config.seed) for g in range(len(merged))]
        )
    found: dict[str, Any] = {"seeds": seeds, "num_groups": [g.num_groups for g in groupings]}
    for name, plans in runs.items():
        results = iter(train_groups([job for jobs in plans for job in jobs], engine=engine))
        certificates = [
            certificate(setting, [next(results) for _ in jobs], engine)
            for setting, jobs in zip(settings, plans, strict=True)
        ]
        found[name] = {
            "auc": [c.auc() for c in certificates],
            "ca": [c.ca().tolist() for c in certificates],
        }
    found["share_of_bound"] = [
        a / b for a, b in zip(found["default"]["auc"], found["pooled"]["auc"], strict=True)
    ]
    return found


def certificate(setting: Setting, results: list[Any], engine: Engine) -> Certificate:
    """Let trained groups vote on the test set."""
    device = engine.device
    models = gather_models(setting.federation, setting.module, results)
    return certify(
        models.votes(setting.dataset.test.inputs, device=device), setting.dataset.test.labels
    )


def exact_types(dataset: str, samples: int, seeds: range, data_dir: Path) -> int:
    """Count the seeds for which the default type inference finds exactly the true types."""
    exact = 0
    for seed in seeds:
        config = updated(
            preset("default", dataset),
            {"samples": samples, "seed": seed, "data_dir": str(data_dir)},
        )
        setting = prepare(config)
        true = setting.federation.types
        assert true is not None
        exact += infer(config, setting).agree_with(true)
    return exact


def main() -> None:
    """Measure both and write them down."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("part", choices=["bound", "types"])
    parser.add_argument("--data-dir", type=Path, required=True)
    parser.add_argument("--engine", default="auto")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--commit", default="unknown", help="noted in the results")
    parser.add_argument("--out", type=Path, default=Path("results/quality"))
    args = parser.parse_args()
    engine = make_engine(args.engine)
    record: dict[str, Any] = {"commit": args.commit, "environment": environment(engine)}
    for dataset in DATASETS:
        if args.part == "bound":
            record[dataset] = compare_with_bound(dataset, args.seeds, args.data_dir, engine)
            for name in ("default", "pooled"):
                auc = record[dataset][name]["auc"]
                print(
                    f"{dataset} {name}: AUC {np.mean(auc):.1f} ± {np.std(auc, ddof=1):.1f}",
                    flush=True,
                )
            shares = record[dataset]["share_of_bound"]
            print(
                f"{dataset}: {np.mean(shares):.2%} of the bound, at least {min(shares):.2%}",
                flush=True,
            )
        else:
            counts = {str(s): exact_types(dataset, s, range(10), args.data_dir) for s in SIZES}
            record[dataset] = {"exact_of_10": counts}
            print(f"{dataset}: types exact in {counts} of 10 trials", flush=True)
    args.out.mkdir(parents=True, exist_ok=True)
    (args.out / f"{args.part}.json").write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
