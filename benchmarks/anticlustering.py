"""Compare anticlustering of profile vectors with other methods, and time it at scale.

For 100 and 1,000 clients it is compared with full exchange to a local optimum, with random
groups and, where it can be imported, with the package ``anti-clustering``; for 10,000 to
1,000,000 clients it runs alone, each size in a fresh process on two cores. Imbalances are
given as shares of what random groups are expected to have. Run with
``python -m benchmarks.anticlustering --out results/bench/anticlustering.json``; ``--sizes`` leaves
the comparison out.
"""

from __future__ import annotations

import argparse
import importlib
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.spatial.distance import cdist

from benchmarks.machine import alone, begun, peak_gigabytes, write
from carvyfl.groups.exchange import anticluster_profiles, imbalance, random_imbalance

Floats = npt.NDArray[np.floating]
Ints = npt.NDArray[np.int64]
Method = Callable[[Floats, int, int], Ints]

SMALL = {100: (32, (10, 20, 50), 5), 1000: (128, (100, 200, 500), 2)}  # numbers, groups, seeds
SIZES = [(10_000, 100), (10_000, 2_000), (100_000, 1_000), (100_000, 20_000)]
LARGE = [(1_000_000, 10_000), (1_000_000, 200_000)]


def gaussian(clients: int, numbers: int) -> Floats:
    """Draw profiles without structure, the hardest to balance."""
    return np.random.default_rng(0).standard_normal((clients, numbers), dtype=np.float32)


def skewed(clients: int, numbers: int) -> Floats:
    """Draw shares of labels as clients with few labels each have them."""
    return np.random.default_rng(0).dirichlet(np.full(numbers, 0.1), size=clients)


def types(clients: int, numbers: int) -> Floats:
    """Draw profiles around those of 20 types."""
    rng = np.random.default_rng(0)
    centres = 2 * rng.standard_normal((20, numbers), dtype=np.float32)
    return centres[rng.integers(20, size=clients)] + 0.3 * gaussian(clients, numbers)


def ours(vectors: Floats, num_groups: int, seed: int) -> Ints:
    """Call the function under test."""
    return anticluster_profiles(vectors, num_groups, seed=seed)


def full_exchange(vectors: Floats, num_groups: int, seed: int) -> Ints:
    """Swap each client with the best of all others until no swap helps, from a random start."""
    x = vectors.astype(np.float64) - vectors.mean(axis=0, dtype=np.float64)
    groups = np.random.default_rng(seed).permutation(len(x)) % num_groups
    sums = np.stack([x[groups == g].sum(axis=0) for g in range(num_groups)])
    moved = True
    while moved:
        moved = False
        for i in range(len(x)):
            v = x - x[i]
            change = 2 * np.einsum("nd,nd->n", v, v + sums[groups[i]] - sums[groups])
            j = int(change.argmin())
            if change[j] < -1e-9:
                sums[groups[i]] += v[j]
                sums[groups[j]] -= v[j]
                groups[i], groups[j] = groups[j], groups[i]
                moved = True
    return groups


def at_random(vectors: Floats, num_groups: int, seed: int) -> Ints:
    """Draw groups whose sizes differ by at most one."""
    return np.random.default_rng(seed).permutation(len(vectors)) % num_groups


def package() -> Method | None:
    """Return the exchange heuristic of ``anti-clustering``, or None where it is not installed.

    It is handed squared distances: for groups of equal size, their sum inside the groups is
    largest where our imbalance is least. So both look for the same groups.
    """
    try:
        found = importlib.import_module("anti_clustering")
    except ImportError:
        return None

    def solve(vectors: Floats, num_groups: int, seed: int) -> Ints:
        method = found.ExchangeHeuristicAntiClustering(random_seed=seed)
        together = method._solve(cdist(vectors, vectors, "sqeuclidean"), num_groups)
        together = together | together.T | np.eye(len(vectors), dtype=bool)
        return np.unique(together.argmax(axis=1), return_inverse=True)[1]

    return solve


def compare(clients: int) -> list[dict[str, Any]]:
    """Return share of the random imbalance and seconds, means over seeds, by method."""
    numbers, every_number, seeds = SMALL[clients]
    methods: dict[str, Method | None] = {
        "ours": ours,
        "full exchange": full_exchange,
        "random": at_random,
        # It works out the whole criterion anew for every swap: hours for 1,000 clients.
        "anti-clustering": package() if clients <= 100 else None,
    }
    rows = []
    for draw in (gaussian, skewed):
        vectors = draw(clients, numbers)
        for num_groups in every_number:
            by_chance = random_imbalance(vectors, num_groups)
            row: dict[str, Any] = {"clients": clients, "numbers": numbers, "groups": num_groups}
            row |= {"profiles": draw.__name__, "seeds": seeds, "share": {}, "seconds": {}}
            for name, method in methods.items():
                if method is None:
                    continue
                clock = time.perf_counter()
                formed = [method(vectors, num_groups, seed) for seed in range(seeds)]
                row["seconds"][name] = (time.perf_counter() - clock) / seeds
                shares = [imbalance(vectors, groups, num_groups) / by_chance for groups in formed]
                row["share"][name] = float(np.mean(shares))
            print(
                f"{clients:>9,} {num_groups:>8,} {draw.__name__:<9}"
                + "".join(
                    f"{name} {row['share'][name]:.4f} ({s:.3f} s)  "
                    for name, s in row["seconds"].items()
                ),
                flush=True,
            )
            rows.append(row)
    return rows


def scale(clients: int, num_groups: int, profiles: str) -> dict[str, Any]:
    """Form groups of many clients once; return seconds, memory and share."""
    vectors = {"gaussian": gaussian, "types": types}[profiles](clients, 64)
    clock = time.perf_counter()
    groups = anticluster_profiles(vectors, num_groups, seed=0)
    seconds = time.perf_counter() - clock
    peak = peak_gigabytes()
    share = imbalance(vectors, groups, num_groups) / random_imbalance(vectors, num_groups)
    print(
        f"{clients:>9,} {num_groups:>8,} {profiles:<9}ours {share:.5f} ({seconds:.1f} s, "
        f"{peak:.2f} GB)",
        flush=True,
    )
    return {
        "clients": clients,
        "numbers": 64,
        "groups": num_groups,
        "profiles": profiles,
        "share": share,
        "seconds": seconds,
        "peak_gb": peak,
    }


def main() -> None:
    """Run every comparison and size, print a line each and write the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, help="JSON file to write; default none")
    parser.add_argument("--sizes", action="store_true", help="time many clients alone")
    options = parser.parse_args()

    figures: dict[str, Any] = begun("anticlustering") | {
        "load_before": os.getloadavg()[0],
        "not_compared": ["anticlust (R)"] + ([] if package() else ["anti-clustering (PyPI)"]),
    }
    print("  clients   groups profiles share of the random imbalance (time)")
    if not options.sizes:
        figures["compared"] = [row for clients in SMALL for row in compare(clients)]
    runs = [(*size, "gaussian") for size in SIZES + LARGE] + [(*size, "types") for size in LARGE]
    figures["sizes"] = [alone(scale, *run) for run in runs]
    figures["load_after"] = os.getloadavg()[0]
    print(f"not compared: {', '.join(figures['not_compared'])}")
    print(f"load: {figures['load_before']:.1f} before, {figures['load_after']:.1f} after")
    write(options.out, figures)


if __name__ == "__main__":
    main()
