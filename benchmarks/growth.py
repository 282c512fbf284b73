"""How time and memory grow when clients, samples, model size or groups grow by ten."""

from __future__ import annotations

from typing import Any

import torch

from benchmarks.engines import batched_round

BASE = {"clients": 100, "samples": 64, "group_size": 5}


def bench_growth(device: torch.device, precision: str) -> list[dict[str, Any]]:
    """Measure one round at a base size and with one quantity ten times as large.

    Returns
    -------
    list of dict
        For each quantity: seconds per round and peak GiB before and after, and the
        ratios; a ratio of ten is linear growth, less is better.
    """
    variants: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
        ("clients", BASE, BASE | {"clients": 1000}),
        ("clients, from 300", BASE | {"clients": 300}, BASE | {"clients": 3000}),
        ("samples", BASE, BASE | {"samples": 640}),
        # 50 groups of 20 clients against 500 of 2: the same clients, ten times the groups.
        (
            "groups",
            BASE | {"clients": 1000, "group_size": 20},
            BASE | {"clients": 1000, "group_size": 2},
        ),
        ("model (mlp to compact-cnn)", BASE | {"model": "mlp"}, BASE),
    ]
    rows = []
    for name, small, large in variants:
        before, after = (
            batched_round(device=device, precision=precision, **sizes) for sizes in (small, large)
        )
        rows.append(
            {
                "quantity": name,
                "seconds": [before["seconds_per_round"], after["seconds_per_round"]],
                "gib": [before["peak_gib"], after["peak_gib"]],
                "time_ratio": after["seconds_per_round"] / before["seconds_per_round"],
                "memory_ratio": after["peak_gib"] / before["peak_gib"],
            }
        )
    return rows
