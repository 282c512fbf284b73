"""Time Steps 1 and 2 on the server for 10,000 to 1,000,000 clients.

Every client sends the 2 C + 1 numbers of a bias profile; the server checks them, finds the
types, forms the groups and looks up their members and diversity. Each size runs in a fresh
process on two cores. Run with ``python -m benchmarks.scale``.
"""

from __future__ import annotations

import argparse
import itertools
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.machine import alone, begun, peak_gigabytes, write
from carvyfl.groups.grouping import Grouping
from carvyfl.groups.methods import form_groups
from carvyfl.profiles.bias_profile import bias_profile_types
from carvyfl.profiles.messages import OutputLayer, collect
from carvyfl.profiles.methods import Profiles

LEARNING_RATE, BATCH = 0.01, 16
HOSTILE = 1000  # one client in so many sends a report that cannot be used


def synthetic_reports(
    clients: int, classes: int, types: int
) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Draw what clients of class-disjoint types send after one epoch.

    Over K steps the bias of class c moves by ηK (share - p). The shares are those of K
    batches of 16 samples, each of a class chosen at random among the client's own; the
    probabilities p differ by class and by client, as a model's do, and sum to 1. So the
    own classes rise by unequal amounts and the others fall. The output weights of own classes
    rise by unequal amounts too, those of the others nowhere. Some reports hold NaN or
    infinity.

    Returns
    -------
    reports, steps, truth
        Shapes (N, 2 C + 1), (N,) and (N,); the type of a hostile client is -1.
    """
    rng = np.random.default_rng(0)
    truth = rng.integers(types, size=clients)
    steps = rng.integers(8, 33, size=clients)
    held = classes // types
    logits = 0.15 * rng.standard_normal(size=(clients, classes), dtype=np.float32)
    logits += 0.3 * rng.standard_normal(size=classes, dtype=np.float32)
    p = np.exp(logits, out=logits)
    p /= p.sum(axis=1, keepdims=True)
    samples = rng.multinomial(BATCH * steps, np.full(held, 1 / held))

    reports = np.zeros((clients, 2 * classes + 1), dtype=np.float32)
    biases, rises = reports[:, :classes], reports[:, classes:-1]
    np.negative(p, out=biases)
    own = held * truth[:, None] + np.arange(held)
    biases[np.arange(clients)[:, None], own] += samples / (BATCH * steps)[:, None]
    rises[np.arange(clients)[:, None], own] = rng.uniform(0.3, 1, size=own.shape)
    biases *= (LEARNING_RATE * steps)[:, None]
    reports[:, -1] = rng.uniform(-1, -0.7, size=clients)  # a class not held fell across features

    bad = np.arange(7, clients, HOSTILE)
    reports[bad, bad % classes] = np.where(np.arange(len(bad)) % 2, np.nan, np.inf)
    truth[bad] = -1
    return reports, steps, truth


def measure(clients: int, classes: int, types: int, groups: int) -> dict[str, Any]:
    """Run the chain once and return seconds by stage, memory and what came out."""
    reports, steps, truth = synthetic_reports(clients, classes, types)
    seconds: dict[str, float] = {}
    clock = time.perf_counter()

    def lap(stage: str) -> None:
        nonlocal clock
        now = time.perf_counter()
        seconds[stage], clock = now - clock, now

    updates = collect(
        reports,
        length=2 * classes + 1,
        lr=LEARNING_RATE,
        steps=steps,
        num_classes=classes,
        head=OutputLayer(
            bias=slice(0, classes),
            rises=slice(classes, 2 * classes),
            fall=slice(2 * classes, 2 * classes + 1),
        ),
    )
    lap("collect")
    found = bias_profile_types(updates)
    lap("types")
    number_of_groups: dict[str, int] = {}
    diversity: dict[str, float] = {}
    for name, method, number in (("fixed", "slots", groups), ("largest", "carvy", None)):
        grouping = form_groups(
            method, num_clients=clients, seed=0, profiles=Profiles(found), num_groups=number
        )
        lap(f"groups, {name}")
        _touch(grouping)
        lap(f"members, {name}")
        diversity[name] = grouping.mean_diversity(found.labels)
        lap(f"diversity, {name}")
        number_of_groups[name] = grouping.num_groups
    seconds["total"] = sum(seconds.values())
    form_groups("flcert", num_clients=clients, seed=0, num_groups=groups)
    lap("hashing, for comparison")
    return {
        "clients": clients,
        "seconds": seconds,
        "peak_gb": peak_gigabytes(),
        "reports_gb": reports.nbytes / 1e9,
        "types_exact": bool(np.array_equal(found.labels, truth)),
        "num_types": found.num_types,
        "set_aside": len(found.set_aside),
        "num_groups": number_of_groups,
        "mean_diversity": diversity,
    }


def _touch(grouping: Grouping) -> None:
    """Look up every group's members, which are worked out when first asked for."""
    if sum(map(len, grouping.groups)) + len(grouping.benched) != len(grouping.assignment):
        raise AssertionError("the groups and the bench do not hold every client once")


def print_table(sizes: list[dict[str, Any]]) -> None:
    """Print seconds by stage, memory, and how both grow from one size to the next."""
    print(f"{'seconds':<26}" + "".join(f"{size['clients']:>12,}" for size in sizes) + "   growth")
    for stage in sizes[0]["seconds"]:
        _print_row(stage, [size["seconds"][stage] for size in sizes])
    _print_row("peak memory, GB", [size["peak_gb"] for size in sizes])


def _print_row(name: str, values: list[float]) -> None:
    ratios = [f"× {b / a:.1f}" for a, b in itertools.pairwise(values)]
    print(f"{name:<26}" + "".join(f"{v:>12.3f}" for v in values) + "   " + ", ".join(ratios))


def main() -> None:
    """Measure every size, print the table and write the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clients", type=int, nargs="+", default=[10_000, 100_000, 1_000_000])
    parser.add_argument("--classes", type=int, default=10, help="a multiple of the types")
    parser.add_argument("--types", type=int, default=5)
    parser.add_argument("--groups", type=int, default=1000, help="besides Algorithm 2's own number")
    parser.add_argument("--out", type=Path, help="JSON file to write; default none")
    options = parser.parse_args()

    chain = (options.classes, options.types, options.groups)
    sizes = [alone(measure, clients, *chain) for clients in options.clients]
    growth = [
        {
            "from": small["clients"],
            "to": large["clients"],
            "seconds": large["seconds"]["total"] / small["seconds"]["total"],
            "memory": large["peak_gb"] / small["peak_gb"],
        }
        for small, large in itertools.pairwise(sizes)
    ]
    print_table(sizes)
    for size in sizes:
        print(
            f"{size['clients']:,} clients: {size['num_types']} types, "
            f"{'exact' if size['types_exact'] else 'WRONG'}; {size['set_aside']} set aside; "
            f"groups {size['num_groups']}; mean diversity {size['mean_diversity']}"
        )
    found = {"classes": options.classes, "types": options.types, "sizes": sizes, "growth": growth}
    write(options.out, begun("scale") | found)
    if not all(size["types_exact"] for size in sizes):
        sys.exit("types are not exact")


if __name__ == "__main__":
    main()
