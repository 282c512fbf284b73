"""Our numbers in the layout of the paper's (``paper_numbers.json``).

Every number stands where the paper's stands; ``sd`` and ``trials`` beside it repeat
the names of what they belong to. None is what was not measured.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from reproduction import exhibits
from reproduction.published import DATASETS, LEVELS, METHODS, SWEEP_SAMPLES, group_counts, paper
from reproduction.records import DIGITS
from reproduction.summaries import NOT_FOUND, READINGS, label, paper_size

LABELS = {method: label(method) for method in METHODS}
SPREAD_NOTE = "sd: sample standard deviation over seeds (ddof 1); null for one trial"


def numbers(trials: pd.DataFrame, preset: str) -> dict[str, Any]:
    """Return all of the paper's numbers as our trials of one preset give them."""
    alike = paper_size(trials)
    sds, details = exhibits.largest_sd(trials, "fashion-mnist"), exhibits.asr_details(alike)
    # The hash knows the clients, not their data: the first data set that has trials will do.
    hit = details.row(exhibits.HIT).sort_values("trials", key=pd.isna, kind="stable")
    return {
        "source": f"our reproduction, preset {preset}; {SPREAD_NOTE}",
        "ca_auc_by_groups": {
            "note": f"AUC of CA(m) over m, trapezoid rule, CA in percent; {SWEEP_SAMPLES} samples",
            "groups": group_counts(),
            **{dataset: _swept(alike, dataset) for dataset in DATASETS},
        },
        "asr_auc": _asr_areas(alike),
        "ca_mnist_50": _mnist_50(trials),
        "type_estimation_failures_of_10": _failures(trials),
        "max_sd_of_ca_fashion_mnist": {
            samples: _beside(sds.row(samples), LABELS, sd=False)
            for samples in sds.cells.index.unique("row")
        },
        "flcert_groups_hit_at_m10": {
            name: _plain(hit[part])[0]
            for name, part in (("mean", "ours"), ("sd", "sd"), ("trials", "trials"))
        },
        "asr_reduction_vs_flcert": {
            "note": "points, seed by seed",
            **{
                str(m): _beside(details.row(exhibits.REDUCTION.format(m)), DATASETS)
                for m in exhibits.REDUCTION_M
            },
        },
    }


def _swept(trials: pd.DataFrame, dataset: str) -> dict[str, Any]:
    table = exhibits.groups_auc(trials, dataset)
    means, sds, counts = (
        {m: _plain(table.column(name)[part]) for m, name in LABELS.items()}
        for part in ("ours", "sd", "trials")
    )
    return {**means, "sd": sds, "trials": counts}


def _asr_areas(trials: pd.DataFrame) -> dict[str, Any]:
    table = exhibits.asr_areas(trials)
    first, second = (
        {
            dataset: _beside(table.column(name), {m: row + more for m, row in LABELS.items()})
            for dataset, name in DATASETS.items()
        }
        for more in READINGS.values()
    )
    note = "AUC of 100-ASR over m = 0..20; lost groups cast no vote"
    return {"note": note, **first, "if_lost_votes_target": second}


def _mnist_50(trials: pd.DataFrame) -> dict[str, Any]:
    table = exhibits.mnist_50(trials)
    levels = {}
    for level in LEVELS:
        methods = paper()["ca_mnist_50"]["largest_m_with_ca_over"][str(level)]
        names = {method: LABELS[method] for method in methods}
        mean, each = (table.row(row.format(level)) for row in (exhibits.OVER, exhibits.BY_TRIAL))
        levels[str(level)] = {
            **_whole(_beside(mean, names, sd=False)),
            "trial_by_trial": _beside(each, names),
        }
    return {"ca0": _beside(table.row(exhibits.CA0), LABELS), "largest_m_with_ca_over": levels}


def _failures(trials: pd.DataFrame) -> dict[str, Any]:
    table = exhibits.type_failures(trials)
    found: dict[str, Any] = {}
    for dataset, name in DATASETS.items():
        here = table.column(name)
        counted = here.assign(ours=(here["ours"] * here["trials"] / 10).round())
        found[dataset] = _whole(_beside(counted, {size: size for size in here.index}, sd=False))
    outcome = exhibits.by_types(trials).row("groups")
    return found | _beside(outcome, {"groups_when_failed": NOT_FOUND})


def _whole(found: Mapping[str, Any]) -> dict[str, Any]:
    return {name: int(n) if isinstance(n, float) else n for name, n in found.items()}


def _beside(cells: pd.DataFrame, names: Mapping[str, str], *, sd: bool = True) -> dict[str, Any]:
    """Return the means by name, and beside them ``sd`` and ``trials`` by the same names."""
    found = cells.loc[list(names.values())]
    means, sds, counts = (
        dict(zip(names, _plain(found[part]), strict=True)) for part in ("ours", "sd", "trials")
    )
    return means | ({"sd": sds} if sd else {}) | {"trials": counts}


def _plain(values: pd.Series[float]) -> Sequence[float | None]:
    """Return numbers for JSON; there are whole trials, and 0 where there are none."""
    if values.name == "trials":
        return values.fillna(0).astype(int).to_list()
    return [None if pd.isna(value) else round(value, DIGITS) for value in values]


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
