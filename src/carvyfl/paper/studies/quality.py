"""The default preset against the bound, and type inference, on seeds not used to choose it.

`bound`: each group's members pool their data and one model is trained on it, the best a
federated run can hope for; with the largest of the sizes. `types`: the default type inference
against the true types, ten seeds for every size. The default preset's learning rate and number
of rounds were chosen on seeds 100 and 101.
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from dataclasses import replace
from typing import Any

import numpy as np

from carvyfl.data.clients import Client, Federation, Samples
from carvyfl.groups.grouping import Grouping
from carvyfl.learning.job import GroupJob, group_job
from carvyfl.learning.recipe import Recipe
from carvyfl.paper.published import DATASETS, SAMPLES
from carvyfl.paper.studies.common import (
    add_options,
    certify_groups,
    computing,
    form_carvy,
    mean_sd,
    provenance,
    settings,
    write_record,
)
from carvyfl.pipeline import Compute, Setup, find_profiles, plan_training, train
from carvyfl.runs.execute import prepare

POOLED = Recipe(rounds=20, lr=0.02)  # twenty epochs over five times the data: it has converged
TYPES_SEEDS = range(10)


def options(parser: ArgumentParser) -> None:
    """Add the options of this study."""
    parser.add_argument("part", choices=["bound", "types"])
    add_options(parser, out="results/quality", dataset=tuple(DATASETS), samples=SAMPLES)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2], help="of the bound")


def run(args: Namespace) -> None:
    """Measure one of both and write it."""
    compute = computing(args)
    measure = against_bound if args.part == "bound" else exact_types
    record = provenance(args, compute.engine)
    for dataset in args.dataset:
        record[dataset] = measure(args, dataset, compute)
    write_record(args.out / f"{args.part}.json", record)


def against_bound(args: Namespace, dataset: str, compute: Compute) -> dict[str, Any]:
    """Return CA and its area per seed, of the default preset and of the bound."""
    formed = [
        form_carvy(settings(args, dataset=dataset, samples=max(args.samples), seed=seed), compute)
        for seed in args.seeds
    ]
    jobs: dict[tuple[str, int], list[GroupJob]] = {}
    for i, (prepared, grouping) in enumerate(formed):
        jobs["default", i] = plan_training(prepared.setup, grouping)
        jobs["pooled", i] = plan_pooled(prepared.setup, grouping)
    found: dict[str, Any] = {
        "seeds": args.seeds,
        "num_groups": [grouping.num_groups for _, grouping in formed],
        "default": {"auc": [], "ca": []},
        "pooled": {"auc": [], "ca": []},
    }
    for (name, i), results in train(jobs, compute).items():
        certificate = certify_groups(formed[i][0], results, compute)
        found[name]["auc"].append(certificate.auc())
        found[name]["ca"].append(certificate.ca().tolist())
    pairs = zip(found["default"]["auc"], found["pooled"]["auc"], strict=True)
    shares = [own / bound for own, bound in pairs]
    for name in ("default", "pooled"):
        print(f"{dataset} {name}: AUC {mean_sd(found[name]['auc'], 1)}")
    print(f"{dataset}: {np.mean(shares):.2%} of the bound, at least {min(shares):.2%}", flush=True)
    return found | {"share_of_bound": shares}


def plan_pooled(setup: Setup, grouping: Grouping) -> list[GroupJob]:
    """Describe the training of every group as one client that has all its members' data."""
    federation = setup.federation
    clients = tuple(
        Client(
            _merged([federation.clients[i].train for i in members]),
            _merged([federation.clients[i].validation for i in members]),
        )
        for members in grouping.groups
    )
    pooled: Federation = replace(federation, clients=clients, types=None)
    return [group_job(pooled, [g], setup.module, POOLED, setup.seed) for g in range(len(pooled))]


def _merged(parts: list[Samples]) -> Samples:
    return Samples(
        np.concatenate([part.inputs for part in parts]),
        np.concatenate([part.labels for part in parts]),
    )


def exact_types(args: Namespace, dataset: str, compute: Compute) -> dict[str, Any]:
    """Count the seeds for which the default type inference finds exactly the true types."""
    counts = {}
    for samples in args.samples:
        exact = 0
        for seed in TYPES_SEEDS:
            config = settings(args, dataset=dataset, samples=samples, seed=seed)
            setup = prepare(config).setup
            true = setup.federation.types
            assert true is not None  # the default partition has them
            exact += find_profiles(setup, config.grouping, compute).types.agree_with(true)
        counts[str(samples)] = exact
    print(f"{dataset}: types exact in {counts} of {len(TYPES_SEEDS)} trials", flush=True)
    return {f"exact_of_{len(TYPES_SEEDS)}": counts}
