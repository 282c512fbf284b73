"""The most an attack could reach: every group with a malicious member answers the target class."""

from __future__ import annotations

from typing import Any

import numpy as np
from certified import draw_groupings
from lab import Groups, Lab
from scipy.integrate import trapezoid

from carvyfl.core.randomness import generator
from carvyfl.paper.summaries import ASR_LAST_M
from carvyfl.voting.votes import predict, votes

TARGET = 0
ORDERS = 20
"""Orders in which clients turn malicious, for every draw of the groups."""


def captured(lab: Lab, num_groups: int, draws: int) -> dict[str, Any]:
    """Measure the area of 100 − ASR, m = 0 … 20, of random slots and of FLCert's groups.

    The paper's placements: attackers disperse over the slots, a hash puts them into FLCert's
    groups. Honest groups vote as they do on clean pictures.
    """
    drawn = draw_groupings(lab, num_groups, draws, most=0)
    lab.train(drawn.groups)
    of_slots = [nested[0] for nested in drawn.runs["slots"]["at random"]]
    found: dict[str, Any] = {"target": TARGET, "draws": draws, "orders": ORDERS}
    for method, groupings in (("slots", of_slots), ("flcert", drawn.blind["flcert"])):
        curves = []
        for i, groups in enumerate(groupings):
            for order in range(ORDERS):
                random = generator(lab.config.seed, "captured", method, i, order)
                if method == "slots":
                    hit = random.permutation(num_groups)
                else:
                    home = {client: g for g, group in enumerate(groups) for client in group}
                    hit = np.array([home[client] for client in random.permutation(len(home))])
                curves.append([_success(lab, groups, hit[:m]) for m in range(ASR_LAST_M + 1)])
        areas = [float(trapezoid(100 - np.array(curve))) for curve in curves]
        found[method] = {
            "auc": {"mean": float(np.mean(areas)), "sd": float(np.std(areas, ddof=1))},
            "asr": np.mean(curves, axis=0).round(2).tolist(),
        }
    return found


def _success(lab: Lab, groups: Groups, hit: np.ndarray[Any, np.dtype[np.int64]]) -> float:
    """Return the ASR in percent if the groups that are hit answer the target."""
    dataset, cast = lab.setting.dataset, lab.cast(groups)
    cast[np.unique(hit)] = TARGET
    won = predict(votes(cast, dataset.num_classes)) == TARGET
    return 100 * float(won[dataset.test.labels != TARGET].mean())
