"""Our numbers in the layout of the paper's (``paper_numbers.json``).

Every number stands where the paper's stands; ``sd`` and ``trials`` beside it repeat
the names of what they belong to. None is what was not measured.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from carvyfl.paper.published import (
    DATASETS,
    LEVELS,
    METHODS,
    SAMPLES,
    SWEEP_SAMPLES,
    group_counts,
    paper,
)
from carvyfl.paper.quantities import (
    REDUCTION_M,
    asr_area,
    asr_reduction,
    ca_area,
    failed_types_records,
    groups_hit,
    max_sd,
    paper_attack,
    paper_size,
    tolerated,
)
from carvyfl.paper.records import DIGITS, CaRecord, Record, TypesRecord, select
from carvyfl.paper.summaries import Spread, largest_m, spread

SPREAD_NOTE = "sd: sample standard deviation over seeds (ddof 1); null for one trial"


def numbers(records: Sequence[Record], preset: str) -> dict[str, Any]:
    """Return all of the paper's numbers as our records of one preset give them."""
    alike = paper_attack(paper_size(records))
    return {
        "source": f"our reproduction, preset {preset}; {SPREAD_NOTE}",
        "ca_auc_by_groups": _areas_by_groups(records),
        "asr_auc": _asr_areas(records),
        "ca_mnist_50": _mnist_50(records),
        "type_estimation_failures_of_10": _failures(records),
        "max_sd_of_ca_fashion_mnist": {
            str(samples): _beside(
                {m: max_sd(records, "fashion-mnist", samples, m) for m in METHODS}, sd=False
            )
            for samples in SAMPLES
        },
        "flcert_groups_hit_at_m10": _groups_hit(records),
        "asr_reduction_vs_flcert": {
            "note": "points, seed by seed",
            **{
                str(m): _beside({dataset: asr_reduction(alike, dataset, m) for dataset in DATASETS})
                for m in REDUCTION_M
            },
        },
    }


def _areas_by_groups(records: Sequence[Record]) -> dict[str, Any]:
    found: dict[str, Any] = {
        "note": f"AUC of CA(m) over m, trapezoid rule, CA in percent; {SWEEP_SAMPLES} samples",
        "groups": group_counts(),
    }
    for dataset in DATASETS:
        columns = {
            method: [ca_area(records, dataset, SWEEP_SAMPLES, method, g) for g in group_counts()]
            for method in METHODS
        }
        found[dataset] = {m: [s and _cut(s.mean) for s in column] for m, column in columns.items()}
        found[dataset]["sd"] = {m: [s and _cut(s.sd) for s in c] for m, c in columns.items()}
        found[dataset]["trials"] = {m: [s.n if s else 0 for s in c] for m, c in columns.items()}
    return found


def _asr_areas(records: Sequence[Record]) -> dict[str, Any]:
    used = paper_attack(paper_size(records))
    found: dict[str, Any] = {"note": "AUC of 100-ASR over m = 0..20; lost groups cast no vote"}
    readings = {"asr": found, "asr_if_lost_votes_target": {}}
    for reading, place in readings.items():
        for dataset in DATASETS:
            place[dataset] = _beside({m: asr_area(used, dataset, m, reading) for m in METHODS})
    return {**found, "if_lost_votes_target": readings["asr_if_lost_votes_target"]}


def _mnist_50(records: Sequence[Record]) -> dict[str, Any]:
    used = select(records, CaRecord, dataset="mnist", samples=50, groups=None)
    trials = {method: select(used, CaRecord, method=method) for method in METHODS}
    levels = {}
    for level in LEVELS:
        printed = paper()["ca_mnist_50"]["largest_m_with_ca_over"][str(level)]
        levels[str(level)] = {
            **_beside({m: tolerated(used, "mnist", 50, m, level) for m in printed}, sd=False),
            "trial_by_trial": _beside(
                {m: spread(float(largest_m(r.ca, level)) for r in trials[m]) for m in printed}
            ),
        }
    return {
        "ca0": _beside({m: spread(r.ca[0] for r in found) for m, found in trials.items()}),
        "largest_m_with_ca_over": levels,
    }


def _failures(records: Sequence[Record]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for dataset in DATASETS:
        trials = {str(s): select(records, TypesRecord, dataset=dataset, samples=s) for s in SAMPLES}
        found[dataset] = {
            samples: sum(not r.exact for r in runs) if runs else None
            for samples, runs in trials.items()
        }
        found[dataset]["trials"] = {samples: len(runs) for samples, runs in trials.items()}
    _, failed, _ = failed_types_records(records)
    groups = {"groups_when_failed": spread(float(r.num_groups) for r in failed)}
    return found | _beside(groups)


def _groups_hit(records: Sequence[Record]) -> dict[str, Any]:
    """Count on the first data set that has trials: the hash knows the clients, not their data."""
    used = paper_attack(paper_size(records))
    found = {dataset: groups_hit(used, dataset) for dataset in DATASETS}
    first = next((s for s in found.values() if s is not None), None)
    return {
        "mean": first and _cut(first.mean),
        "sd": first and _cut(first.sd),
        "trials": first.n if first else 0,
    }


def _beside(found: Mapping[str, Spread | None], *, sd: bool = True) -> dict[str, Any]:
    """Return the means by name, and beside them ``sd`` and ``trials`` by the same names."""
    means: dict[str, Any] = {name: s and _cut(s.mean) for name, s in found.items()}
    if sd:
        means["sd"] = {name: s and _cut(s.sd) for name, s in found.items()}
    means["trials"] = {name: s.n if s else 0 for name, s in found.items()}
    return means


def _cut(value: float | None) -> float | None:
    return None if value is None else round(value, DIGITS)


def as_text(data: Any, indent: str = "") -> str:
    """Write JSON with a line for every innermost list or object, as the paper's file has it."""
    children = data.values() if isinstance(data, dict) else data if isinstance(data, list) else ()
    if not any(isinstance(child, dict | list) for child in children):
        return json.dumps(data, ensure_ascii=False)
    deeper = f"{indent}  "
    if isinstance(data, dict):
        lines = [f"{json.dumps(key)}: {as_text(value, deeper)}" for key, value in data.items()]
    else:
        lines = [as_text(value, deeper) for value in data]
    opening, closing = "{}" if isinstance(data, dict) else "[]"
    body = ",\n".join(f"{deeper}{line}" for line in lines)
    return f"{opening}\n{body}\n{indent}{closing}"
