"""End to end: the attack success rate if every group with a malicious member answers the target.

This is the most that an attack by these clients could reach in training (not in Step 1). Honest
groups vote as they do on clean images.
"""

from __future__ import annotations

from argparse import Namespace
from typing import Any

import numpy as np

from carvyfl.core.randomness import generator
from carvyfl.paper.experiment import Experiment, Groups
from carvyfl.paper.studies.certified import draw_groupings
from carvyfl.paper.studies.common import area_below_100
from carvyfl.paper.targets import ALL_MALICIOUS
from carvyfl.voting.votes import predict, votes

TARGET = 0
ORDERS = 20
"""Orders in which clients turn malicious, for every draw of the groups."""


def measure(experiment: Experiment, args: Namespace) -> dict[str, Any]:
    """Measure the ASR of random slots and of FLCert, mean over draws and orders.

    The paper's placements: attackers disperse over the slots, a hash puts them into FLCert's
    groups.
    """
    drawn = draw_groupings(experiment, args.groups, args.draws, most=0)
    experiment.train(drawn.groups)
    found: dict[str, Any] = {"target": TARGET, "draws": args.draws, "orders": ORDERS}
    for method, groupings in (("slots", drawn.complete), ("flcert", drawn.baselines["flcert"])):
        curves = []
        for i, groups in enumerate(groupings):
            for k in range(ORDERS):
                draw = generator(experiment.config.seed, "captured", method, i, k)
                curves.append(_curve(experiment, groups, _order(groups, method, draw)))
        areas = [area_below_100(curve) for curve in curves]
        found[method] = {
            "auc": {"mean": float(np.mean(areas)), "sd": float(np.std(areas, ddof=1))},
            "asr": np.mean(curves, axis=0).round(2).tolist(),
        }
        print(f"{method}: area of 100 − ASR {found[method]['auc']}")
    return found


def _order(groups: Groups, method: str, draw: np.random.Generator) -> list[int]:
    """Return the groups of the malicious clients, in the order in which they turn malicious."""
    if method == "slots":
        return [int(g) for g in draw.permutation(len(groups))]
    group_of = {client: g for g, group in enumerate(groups) for client in group}
    return [group_of[client] for client in draw.permutation(len(group_of))]


def _curve(experiment: Experiment, groups: Groups, order: list[int]) -> list[float]:
    """Return the ASR in percent for every m: of inputs of other classes, those given the target."""
    dataset, found = experiment.prepared.dataset, []
    others, captured = dataset.test.labels != TARGET, experiment.cast(groups)
    for m in ALL_MALICIOUS:
        captured[order[:m]] = TARGET
        won = predict(votes(captured, dataset.num_classes)) == TARGET
        found.append(100 * float(won[others].mean()))
    return found
