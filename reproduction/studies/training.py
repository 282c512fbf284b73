"""Studies of training: against the paper's numbers, the bound, other precisions; its cost."""

from __future__ import annotations

import time
from argparse import Namespace
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from carvyfl.attacks.badnets import CONTROLS, BadNets
from carvyfl.attacks.campaign import measured
from carvyfl.attacks.scenario import Scenario
from carvyfl.core.files import write_text
from carvyfl.data.clients import Client, Samples
from carvyfl.groups.grouping import Grouping
from carvyfl.learning.job import GroupJob, group_job
from carvyfl.learning.recipe import Recipe
from carvyfl.pipeline import Compute, Setup, form_methods, plan_training, train
from carvyfl.profiles.methods import read_profiles
from carvyfl.settings import GroupingSettings
from carvyfl.voting.spread import mean_sd
from reproduction.experiment import TYPES, Experiment
from reproduction.markdown import markdown
from reproduction.published import LEVELS, paper
from reproduction.studies.common import (
    area_below_100,
    computing,
    provenance,
    settings,
    write_record,
)
from reproduction.targets import ALL_MALICIOUS

NAMES = {
    "carvy": "CARVY-FL, types by X-means (as published)",
    "carvy, true types": "CARVY-FL, true types",
    "flcert": "FLCert",
    "cluster": "FLCert+clustering",
    "single": "single global model",
}
"""The methods of the study of fidelity."""
POINTS = 11
"""Precisions are compared by CA(m) for m = 0 … 10."""
POOLED = Recipe(rounds=20, lr=0.02)  # twenty epochs over five times the data: it has converged
TYPES_SEEDS = range(10)


def fidelity(args: Namespace) -> None:
    """MNIST with 50 samples per client, the `paper` preset, beside what the paper prints.

    Trains every method for every seed, with X-means' types and with the true ones, and tabulates
    CA(0) and the largest m with CA over 80, 60, 40 and 20 % (-1 if not even CA(0) is). An
    interrupted study goes on where it stopped.
    """
    compute = computing(args)
    trials: dict[str, list[dict[str, Any]]] = {method: [] for method in NAMES}
    variants: dict[str, dict[str, Any]] = {
        "": {},
        ", true types": {"types": "oracle", "methods": ("carvy",)},
    }
    for seed in args.seeds:
        for label, changes in variants.items():
            config = settings(args, "paper", seed=seed, **changes)
            run = Experiment(config, compute)
            formed = {method: run.form(method, literal=True) for method in config.methods}
            jobs = {method: plan_training(run.setup, own) for method, own in formed.items()}
            for method, results in train(jobs, compute).items():
                certificate = run.certify(results, formed[method].basis)
                ca = certificate.ca().tolist()
                over = {str(level): certificate.largest_m(level) for level in LEVELS}
                trials[method + label].append(
                    {
                        "num_groups": formed[method].num_groups,
                        "rounds": float(np.mean([result.rounds for result in results])),
                        "ca": ca,
                        "ca0": ca[0],
                        "auc": certificate.auc(),
                        **{level: -1 if m is None else m for level, m in over.items()},
                    }
                )
                print(f"seed {seed} {method}{label}: CA(0) {ca[0]:.1f}", flush=True)
    text = fidelity_table(trials)
    print(text, end="")
    stem = f"{args.dataset}-{args.samples}"
    record = provenance(args, compute.engine) | {"seeds": args.seeds, "trials": trials}
    write_record(args.out / f"{stem}.json", record)
    write_text(args.out / f"{stem}.md", text)


def fidelity_table(trials: Mapping[str, Sequence[Mapping[str, Any]]]) -> str:
    """Return what was measured by method and seed beside the paper's: mean ± sd over seeds."""
    printed = paper()["ca_mnist_50"]
    over = [printed["largest_m_with_ca_over"][str(level)] for level in LEVELS]
    lines = []
    for name, title in NAMES.items():
        found = {key: [run[key] for run in trials[name]] for key in trials[name][0]}
        method = name.partition(",")[0]
        lines.append(
            [
                title,
                ", ".join(map(str, found["num_groups"])),
                f"{np.mean(found['rounds']):.0f}",
                mean_sd(found["ca0"], 1),
                str(printed["ca0"].get(method, "–")),
                " / ".join(f"{np.mean(found[str(level)]):.1f}" for level in LEVELS),
                " / ".join(str(level.get(method, "–")) for level in over),
                mean_sd(found["auc"], 0),
            ]
        )
    levels = " / ".join(map(str, LEVELS))
    head = ("method", "groups", "rounds", "CA(0)", "paper", f"m over {levels} %", "paper", "AUC")
    return markdown(head, lines)


def precision(args: Namespace) -> None:
    """Whether the precision of training shows in certified accuracy: the same runs in each.

    Trains the default preset on Fashion-MNIST with the batched engine in bf16, tf32 and fp32 for
    several seeds, and compares the CA curves seed by seed: the difference to fp32 beside the spread
    over seeds.
    """
    found = {name: _curves(args, name) for name in (*args.precisions, "fp32")}
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


def _curves(args: Namespace, precision: str) -> npt.NDArray[np.float64]:
    """Return CA(m) of every seed, shape (seeds, POINTS)."""
    compute = computing(args, precision)
    runs = [Experiment(settings(args, seed=seed), compute) for seed in args.seeds]
    jobs = {i: plan_training(run.setup, run.form()) for i, run in enumerate(runs)}
    found = np.zeros((len(runs), POINTS))
    for i, results in train(jobs, compute).items():
        ca = runs[i].certify(results).ca()[:POINTS]
        found[i, : len(ca)] = ca
    return found


def quality(args: Namespace) -> None:
    """Quality of the default preset: against the bound, and its type inference.

    On seeds that were not used to choose it: its learning rate and number of rounds were chosen on
    seeds 100 and 101.

    `bound`: each group's members pool their data and one model is trained on it, the best a
    federated run can hope for; with the largest of the sizes. `types`: the default type inference
    against the true types, ten seeds for every size.
    """
    compute = computing(args)
    measure = {"bound": _against_bound, "types": _exact_types}[args.part]
    record = provenance(args, compute.engine)
    for dataset in args.dataset:
        record[dataset] = measure(args, dataset, compute)
    write_record(args.out / f"{args.part}.json", record)


def _against_bound(args: Namespace, dataset: str, compute: Compute) -> dict[str, Any]:
    """Return CA and its area per seed, of the default preset and of the bound."""
    of_all = {"dataset": dataset, "samples": max(args.samples)}
    runs = [Experiment(settings(args, seed=seed, **of_all), compute) for seed in args.seeds]
    formed = [run.form() for run in runs]
    jobs: dict[tuple[str, int], list[GroupJob]] = {}
    for i, (own, grouping) in enumerate(zip(runs, formed, strict=True)):
        jobs["default", i] = plan_training(own.setup, grouping)
        jobs["pooled", i] = _plan_pooled(own.setup, grouping)
    trained = train(jobs, compute)
    found: dict[str, Any] = {
        "seeds": args.seeds,
        "num_groups": [grouping.num_groups for grouping in formed],
    }
    for name in ("default", "pooled"):
        certified = [run.certify(trained[name, i]) for i, run in enumerate(runs)]
        areas = [certificate.auc() for certificate in certified]
        found[name] = {"auc": areas, "ca": [own.ca().tolist() for own in certified]}
        print(f"{dataset} {name}: AUC {mean_sd(areas, 1)}")
    shares = np.divide(found["default"]["auc"], found["pooled"]["auc"])
    print(f"{dataset}: {shares.mean():.2%} of the bound, at least {shares.min():.2%}", flush=True)
    return found | {"share_of_bound": shares.tolist()}


def _plan_pooled(setup: Setup, grouping: Grouping) -> list[GroupJob]:
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


def _exact_types(args: Namespace, dataset: str, compute: Compute) -> dict[str, Any]:
    """Count the seeds for which the default type inference finds exactly the true types."""
    counts = {}
    for samples in args.samples:
        configs = (settings(args, dataset=dataset, samples=samples, seed=s) for s in TYPES_SEEDS)
        counts[str(samples)] = sum(Experiment(c, compute).types_exact for c in configs)
    print(f"{dataset}: types exact in {counts} of {len(TYPES_SEEDS)} trials", flush=True)
    return {f"exact_of_{len(TYPES_SEEDS)}": counts}


def control_variates(args: Namespace) -> None:
    """Strength of the paper's attack for each control variate that attackers may report.

    The paper does not say which they report. This trains CARVY-FL's attacked groups with each of
    the readings (true types, attackers dispersed) and measures the attack success rate.
    """
    compute = computing(args)
    planned: dict[tuple[int, str], tuple[Experiment, Scenario]] = {}
    for seed in range(args.seeds):
        experiment = Experiment(settings(args, "paper", seed=seed, types="oracle"), compute)
        grouping = experiment.form(literal=True)
        for control in CONTROLS:
            attack = BadNets(control=control)
            scenario = experiment.plan_attack(grouping, attack, "dispersed", ALL_MALICIOUS)
            planned[seed, control] = experiment, scenario
    jobs = {key: list(scenario.jobs.values()) for key, (_, scenario) in planned.items()}
    trials = []
    for (seed, control), results in train(jobs, compute).items():
        experiment, scenario = planned[seed, control]
        trained = dict(zip(scenario.jobs, results, strict=True))
        found = measured(experiment.attacked, scenario, trained)
        asr, asr_if_lost = found.asr or (), found.asr_if_lost_votes_target or ()
        hit = [result for (_, malicious), result in trained.items() if malicious]
        trials.append(
            {
                "seed": seed,
                "control": control,
                "m": found.m,
                "asr": asr,
                "asr_if_lost": asr_if_lost,
                "auc": area_below_100(asr),
                "auc_if_lost": area_below_100(asr_if_lost),
                "accuracy": found.accuracy,
                "ca": found.certified,
                "groups_lost": found.groups_lost,
                "promise_kept": found.promise_kept,
                "rounds": [result.rounds for result in hit],
                "stopped": [result.stopped for result in hit],
            }
        )
        some = {m: round(asr[m], 1) for m in (8, 9, 10, 11, 16)}
        print(seed, control, some, f"area of 100 − ASR {trials[-1]['auc']:.0f}", flush=True)
    record = provenance(args, compute.engine) | {"trials": trials}
    write_record(args.out / "control_variates.json", record)


def cost(experiment: Experiment, args: Namespace) -> dict[str, Any]:
    """End to end: the seconds of Steps 1 and 2 beside those of Step 3, estimated from a few rounds.

    All rounds of Step 3 take about as long.
    """
    setup, steps = experiment.setup, GroupingSettings(types=TYPES, groups=args.groups)
    few = replace(setup, recipe=replace(setup.recipe, rounds=args.timed))
    compute = replace(experiment.compute, store=None)  # what was kept would take no time
    marks = [time.monotonic()]
    updates = experiment.one_epoch(steps.types)
    marks.append(time.monotonic())
    profiles = read_profiles(steps.types, updates)
    marks.append(time.monotonic())
    grouping = form_methods(["slots"], steps, setup, profiles)["slots"]
    marks.append(time.monotonic())
    train({"slots": plan_training(few, grouping)}, compute)
    marks.append(time.monotonic())
    epoch, inference, forming, training = np.diff(marks).tolist()
    share = (epoch + inference + forming) / (training * setup.recipe.rounds / args.timed)
    print(f"grouping takes {share:.2%} of training")
    return {
        "one_epoch_seconds": epoch,
        "inference_seconds": inference,
        "grouping_seconds": forming,
        "rounds_timed": args.timed,
        "seconds_per_round": training / args.timed,
        "rounds": setup.recipe.rounds,
        "share_of_training": share,
    }
