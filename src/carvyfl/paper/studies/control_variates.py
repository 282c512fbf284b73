"""The strength of the paper's attack for each control variate that attackers may report.

The paper does not say which they report. This trains CARVY-FL's attacked groups with each of the
readings (true types, attackers dispersed) and measures the attack success rate.
"""

from __future__ import annotations

from argparse import Namespace

from carvyfl.attacks.badnets import CONTROLS, BadNets
from carvyfl.attacks.campaign import measured
from carvyfl.attacks.scenario import Scenario
from carvyfl.paper.experiment import Experiment
from carvyfl.paper.studies.common import (
    area_below_100,
    computing,
    provenance,
    settings,
    write_record,
)
from carvyfl.paper.targets import ALL_MALICIOUS
from carvyfl.pipeline import train


def run(args: Namespace) -> None:
    """Train, measure and write."""
    compute = computing(args)
    planned: dict[tuple[int, str], tuple[Experiment, Scenario]] = {}
    for seed in range(args.seeds):
        experiment = Experiment(settings(args, "paper", seed=seed, types="oracle"), compute)
        grouping = experiment.form()
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
