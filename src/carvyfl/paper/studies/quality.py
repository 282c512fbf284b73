"""The default preset against the bound, and type inference, on seeds not used to choose it.

`bound`: each group's members pool their data and one model is trained on it, the best a
federated run can hope for; with the largest of the sizes. `types`: the default type inference
against the true types, ten seeds for every size. The default preset's learning rate and number
of rounds were chosen on seeds 100 and 101.
"""

from __future__ import annotations

from argparse import Namespace
from dataclasses import replace
from typing import Any

import numpy as np

from carvyfl.data.clients import Client, Samples
from carvyfl.groups.grouping import Grouping
from carvyfl.learning.job import GroupJob, group_job
from carvyfl.learning.recipe import Recipe
from carvyfl.paper.experiment import Experiment
from carvyfl.paper.studies.common import computing, provenance, settings, write_record
from carvyfl.pipeline import Compute, Setup, plan_training, train
from carvyfl.voting.spread import mean_sd

POOLED = Recipe(rounds=20, lr=0.02)  # twenty epochs over five times the data: it has converged
TYPES_SEEDS = range(10)


def run(args: Namespace) -> None:
    """Measure one of both and write it."""
    compute = computing(args)
    measure = {"bound": against_bound, "types": exact_types}[args.part]
    record = provenance(args, compute.engine)
    for dataset in args.dataset:
        record[dataset] = measure(args, dataset, compute)
    write_record(args.out / f"{args.part}.json", record)


def against_bound(args: Namespace, dataset: str, compute: Compute) -> dict[str, Any]:
    """Return CA and its area per seed, of the default preset and of the bound."""
    of_all = {"dataset": dataset, "samples": max(args.samples)}
    runs = [Experiment(settings(args, seed=seed, **of_all), compute) for seed in args.seeds]
    formed = [run.form() for run in runs]
    jobs: dict[tuple[str, int], list[GroupJob]] = {}
    for i, (own, grouping) in enumerate(zip(runs, formed, strict=True)):
        jobs["default", i] = plan_training(own.setup, grouping)
        jobs["pooled", i] = plan_pooled(own.setup, grouping)
    found: dict[str, Any] = {
        "seeds": args.seeds,
        "num_groups": [grouping.num_groups for grouping in formed],
        "default": {"auc": [], "ca": []},
        "pooled": {"auc": [], "ca": []},
    }
    for (name, i), results in train(jobs, compute).items():
        certificate = runs[i].certify(results)
        found[name]["auc"].append(certificate.auc())
        found[name]["ca"].append(certificate.ca().tolist())
    own_areas, bounds = found["default"]["auc"], found["pooled"]["auc"]
    shares = [area / bound for area, bound in zip(own_areas, bounds, strict=True)]
    for name in ("default", "pooled"):
        print(f"{dataset} {name}: AUC {mean_sd(found[name]['auc'], 1)}")
    print(f"{dataset}: {np.mean(shares):.2%} of the bound, at least {min(shares):.2%}", flush=True)
    return found | {"share_of_bound": shares}


def plan_pooled(setup: Setup, grouping: Grouping) -> list[GroupJob]:
    """Describe the training of every group as one client that has all its members' data."""

    def merged(parts: list[Samples]) -> Samples:
        inputs, labels = zip(*((part.inputs, part.labels) for part in parts), strict=True)
        return Samples(np.concatenate(inputs), np.concatenate(labels))

    groups = [[setup.federation.clients[i] for i in members] for members in grouping.groups]
    clients = tuple(
        Client(merged([c.train for c in group]), merged([c.validation for c in group]))
        for group in groups
    )
    pooled = replace(setup.federation, clients=clients, types=None)
    return [group_job(pooled, [g], setup.module, POOLED, setup.seed) for g in range(len(pooled))]


def exact_types(args: Namespace, dataset: str, compute: Compute) -> dict[str, Any]:
    """Count the seeds for which the default type inference finds exactly the true types."""
    counts = {}
    for samples in args.samples:
        configs = (settings(args, dataset=dataset, samples=samples, seed=s) for s in TYPES_SEEDS)
        counts[str(samples)] = sum(Experiment(c, compute).types_exact for c in configs)
    print(f"{dataset}: types exact in {counts} of {len(TYPES_SEEDS)} trials", flush=True)
    return {f"exact_of_{len(TYPES_SEEDS)}": counts}
