"""The strength of the paper's attack for each control variate that attackers may report.

The paper does not say which they report. This trains CARVY-FL's attacked groups with each of the
readings (true types, attackers dispersed) and measures the attack success rate.
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

from carvyfl.attacks.badnets import CONTROLS, BadNets
from carvyfl.attacks.campaign import AttackedRun, measured
from carvyfl.attacks.placement import dispersed
from carvyfl.attacks.scenario import Scenario, plan_scenario
from carvyfl.groups.grouping import Grouping
from carvyfl.paper.published import SWEEP_SAMPLES
from carvyfl.paper.studies.common import (
    add_options,
    area_below_100,
    computing,
    form_carvy,
    provenance,
    settings,
    write_record,
)
from carvyfl.paper.targets import ALL_MALICIOUS
from carvyfl.pipeline import plan_training, train


def options(parser: ArgumentParser) -> None:
    """Add the options of this study."""
    add_options(parser, out="results/attacks", dataset="mnist", samples=SWEEP_SAMPLES)
    parser.add_argument("--seeds", type=int, default=1, help="how many; default: %(default)s")


def run(args: Namespace) -> None:
    """Train, measure and write."""
    compute = computing(args)
    planned: dict[tuple[int, str], tuple[AttackedRun, Scenario]] = {}
    for seed in range(args.seeds):
        config = settings(args, "paper", seed=seed, types="oracle")
        prepared, grouping = form_carvy(config, compute)
        attacked = AttackedRun(prepared.dataset, prepared.setup, compute)
        for control, scenario in plan_attacks(attacked, grouping).items():
            planned[seed, control] = attacked, scenario
    results = train(
        {key: list(scenario.jobs.values()) for key, (_, scenario) in planned.items()}, compute
    )
    trials = []
    for (seed, control), (attacked, scenario) in planned.items():
        trained = dict(zip(scenario.jobs, results[seed, control], strict=True))
        found = measured(attacked, scenario, trained)
        asr, asr_if_lost = found.asr or (), found.asr_if_lost_votes_target or ()
        hit = [trained[version] for version in scenario.jobs if version[1]]
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


def plan_attacks(attacked: AttackedRun, grouping: Grouping) -> dict[str, Scenario]:
    """Plan the attack with every control variate, by its name."""
    jobs, order = plan_training(attacked.setup, grouping), dispersed(grouping, attacked.setup.seed)
    return {
        control: plan_scenario(
            lambda malicious: jobs,
            BadNets(control=control),
            order,
            ALL_MALICIOUS,
            attacked.context,
        )
        for control in CONTROLS
    }
