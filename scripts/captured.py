"""The most an attack could reach: every group with a malicious member answers the target class.

An attack decides what hit groups answer; which groups are hit, it does not. This composes the
votes that ``scripts/end_to_end`` kept (preset default, Fashion-MNIST, 500 samples; their groups
are honest) with wholly captured groups and prints the area of 100 − ASR over m = 0 … 20:

    python scripts/captured.py --data-dir DATA --out results/attacks/captured.json
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np
import numpy.typing as npt
from scipy.integrate import trapezoid

from carvyfl.attacks.placement import dispersed, random_order
from carvyfl.environment import commit
from carvyfl.federation.datasets import load
from carvyfl.files import write_text
from carvyfl.grouping import form_groups
from carvyfl.grouping.coins import coins_from_seed
from carvyfl.grouping.grouping import Grouping
from carvyfl.inference.types import given_types
from carvyfl.randomness import derive
from carvyfl.voting import predict, votes

VOTES = Path("results/end_to_end/votes-fashion-mnist-500.npz")
TARGET, GROUPS, DRAWS, ORDERS = 0, 20, 5, 20
Array = npt.NDArray[np.int64]


def success(cast: Array, grouping: Grouping, order: list[int], labels: Array) -> list[float]:
    """Return the ASR in percent for m = 0 … 20 if the first m clients capture their groups."""
    rates = []
    for m in range(21):
        captured = cast.copy()
        captured[np.unique(grouping.assignment[order[:m]])] = TARGET
        hit = predict(votes(captured, 10)) == TARGET
        rates.append(100 * float(hit[labels != TARGET].mean()))
    return rates


def main() -> None:
    """Draw the groupings of the study again, capture, measure and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data-dir")
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    labels = load("fashion-mnist", data_dir=given.data_dir).test.labels
    with np.load(VOTES) as kept:
        known = dict(zip(kept["members"].tolist(), kept["votes"], strict=True))
    # The types that Step 1 found there: two classes each, in order.
    types = given_types([f"classes {2 * t}+{2 * t + 1}" for t in range(5) for _ in range(20)])
    curves: dict[str, list[list[float]]] = {"carvy": [], "flcert": []}
    for draw in range(DRAWS):
        drawn = {
            "carvy": form_groups(
                "slots",
                num_clients=100,
                seed=0,
                types=types,
                num_groups=GROUPS,
                coins=coins_from_seed(derive(0, "end to end", draw)),
            ),
            "flcert": form_groups(
                "flcert", num_clients=100, seed=derive(0, "flcert", draw), num_groups=GROUPS
            ),
        }
        for method, grouping in drawn.items():
            groups = [" ".join(str(client) for client in sorted(g)) for g in grouping.groups]
            cast = np.stack([known[group] for group in groups]).astype(np.int64)
            place = dispersed if method == "carvy" else random_order
            curves[method] += [
                success(cast, grouping, place(grouping, seed), labels) for seed in range(ORDERS)
            ]
    found = {}
    for method, rates in curves.items():
        areas = [float(trapezoid(100 - np.array(rate))) for rate in rates]
        found[method] = {
            "auc": {"mean": float(np.mean(areas)), "sd": float(np.std(areas, ddof=1))},
            "asr": np.mean(rates, axis=0).round(2).tolist(),
        }
        print(f"{method}: {found[method]['auc']}")
    about = {"votes": str(VOTES), "commit": commit(), "draws": DRAWS, "orders": ORDERS}
    write_text(given.out, json.dumps({**about, **found}, indent=1) + "\n")


if __name__ == "__main__":
    main()
