"""How strong the paper's attack is depends on what attackers report as control variate.

The paper does not say. This trains CARVY-FL's attacked groups with each of the four
readings (MNIST, 500 samples, attackers dispersed) and prints the attack success rate:

    python scripts/control_variates.py --engine batched --data-dir DATA --out FILE
"""

from __future__ import annotations

import argparse
import json
from functools import partial
from pathlib import Path

import numpy as np

from carvyfl.attacks.badnets import CONTROLS, BadNets
from carvyfl.attacks.campaign import measured
from carvyfl.attacks.placement import dispersed
from carvyfl.attacks.scenario import plan_scenario
from carvyfl.core.environment import commit, environment
from carvyfl.core.files import write_text
from carvyfl.learning.engines import device_of, make_engine
from carvyfl.learning.planner import train_groups
from carvyfl.paper.runner import Site
from carvyfl.paper.targets import ALL_MALICIOUS, Trial
from carvyfl.runs.config import preset, updated


def main() -> None:
    """Train, measure and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dataset", default="mnist")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--engine", default="auto")
    parser.add_argument("--data-dir")
    parser.add_argument("--commit", help="commit, where git cannot tell it")
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    engine = make_engine(given.engine)
    device = device_of(engine)
    planned = []
    for seed in range(given.seeds):
        config = updated(
            preset("paper", given.dataset),
            {"data_dir": given.data_dir, "seed": seed, "types": "oracle", "training": {}},
        )
        site = Site(config, None, device)
        grouping = site.grouping(Trial("asr", given.dataset, 500, seed, "carvy"))
        jobs, order = site.jobs(grouping), dispersed(grouping, seed)
        for control in CONTROLS:
            attack = BadNets(control=control)
            scenario = plan_scenario(
                partial(lambda jobs, malicious: jobs, jobs),
                attack,
                order,
                ALL_MALICIOUS,
                site.battlefield.around,
            )
            planned.append((seed, control, site, scenario))
    results = iter(train_groups([j for *_, s in planned for j in s.jobs.values()], engine=engine))
    rows = []
    for seed, control, site, scenario in planned:
        trained = dict(zip(scenario.jobs, results, strict=False))
        found = measured(site.battlefield, scenario, trained)
        curves = {"asr": found.asr or (), "asr_if_lost": found.asr_if_lost_votes_target or ()}
        areas = {name: float(np.trapezoid(100 - np.array(c))) for name, c in curves.items()}
        rows.append(
            {
                "seed": seed,
                "control": control,
                "m": found.m,
                **curves,
                "auc": areas["asr"],
                "auc_if_lost": areas["asr_if_lost"],
                "accuracy": found.accuracy,
                "ca": found.certified,
                "groups_lost": found.groups_lost,
                "promise_kept": found.promise_kept,
                "rounds": [trained[v].rounds for v in scenario.jobs if v[1]],
                "stopped": [trained[v].stopped for v in scenario.jobs if v[1]],
            }
        )
        at = {m: round(curves["asr"][m], 1) for m in (8, 9, 10, 11, 16)}
        print(seed, control, at, {k: round(v) for k, v in areas.items()}, found.promise_kept)
    about = {**environment(engine), "commit": given.commit or commit()}
    write_text(given.out, json.dumps({"environment": about, "trials": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
