"""Trials as a data frame, and what the paper reads off them.

Spread is the sample standard deviation over seeds (divided by n − 1); a single trial has none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from math import nan

import msgspec
import pandas as pd
from scipy.integrate import trapezoid

from carvyfl.attacks.placement import paper_placement
from carvyfl.groups.methods import GROUPINGS
from carvyfl.plots.style import method_style
from reproduction.published import DATASETS, SWEEP_SAMPLES, group_counts, paper
from reproduction.records import AsrRecord, CaRecord, Record, TypesRecord
from reproduction.targets import PAPER_ATTACK

ASR_LAST_M = 20
"""The AUC of 100 − ASR goes over m = 0 … 20."""
READINGS = {"asr": "", "asr_if_lost_votes_target": ", lost groups vote for the target"}
"""Both readings of a vote that an attack destroyed, and what they add to a method's name."""
FOUND, NOT_FOUND = "CARVY-FL, types found", "CARVY-FL, types not found"
_AREAS = {f"area_{reading}": reading for reading in READINGS}
_FIELDS = [name for kind in (CaRecord, AsrRecord, TypesRecord) for name in kind.__struct_fields__]
_COLUMNS = list(dict.fromkeys(["kind", "ca0", *_AREAS, *_FIELDS]))


def frame(records: Iterable[Record]) -> pd.DataFrame:
    """Return a row for every record, of any kind, of one preset.

    Columns are the fields of all kinds of records, missing where a kind has none; groups is 0
    for the method's own G, and m counts the points of CA. Besides: kind, label and name (method
    and data set in print), ca0 (CA(0)), and area_asr and area_asr_if_lost_votes_target (AUC of
    100 − ASR).
    """
    rows = []
    for record in records:
        row = msgspec.structs.asdict(record) | {"kind": record.kind}
        if isinstance(record, CaRecord):
            row |= {"m": tuple(range(len(record.ca))), "ca0": record.ca[0]}
        if isinstance(record, AsrRecord):
            row |= {area: asr_auc(record, reading) for area, reading in _AREAS.items()}
        rows.append(row)
    trials = pd.DataFrame(rows, columns=_COLUMNS)
    numbers = ["num_groups", "auc", "ca0", "seconds", *_AREAS]
    return trials.astype(dict.fromkeys(numbers, float)).assign(
        groups=trials["groups"].fillna(0).astype(int),
        label=trials["method"].map(label, na_action="ignore").astype(object),  # even if all NaN
        name=trials["dataset"].map(DATASETS).astype(object),
    )


def label(method: str) -> str:
    """Return a method's name in print."""
    return method_style(method).label


def asr_auc(record: AsrRecord, field: str = "asr") -> float:
    """Return the area of 100 − ASR over m = 0 … 20, by the trapezoid rule.

    NaN if the trial lacks m = 0 or m = 20; numbers of clients that were left out
    in between are joined by a straight line.
    """
    asr = pd.Series(getattr(record, field), index=record.m, dtype=float).loc[:ASR_LAST_M]
    if not {0, ASR_LAST_M} <= set(asr.index):
        return nan
    return float(trapezoid(100 - asr, asr.index))


# Parts of the trials.


def where(trials: pd.DataFrame, **fields: object) -> pd.DataFrame:
    """Return the trials whose named columns have these values."""
    wanted = pd.Series(True, trials.index)
    for name, value in fields.items():
        wanted &= trials[name] == value
    return trials[wanted]


def own_groups(trials: pd.DataFrame, **fields: object) -> pd.DataFrame:
    """Return the trials of certified accuracy with the method's own G."""
    return where(trials, kind="ca", groups=0, **fields)


def swept(trials: pd.DataFrame, *methods: str) -> pd.DataFrame:
    """Return these methods' trials of the sweep over the paper's values of G, of one size."""
    found = trials[trials["method"].isin(methods) & trials["groups"].isin(group_counts())]
    return largest_size(where(found, kind="ca"))


def attacked(trials: pd.DataFrame, attack: str = PAPER_ATTACK) -> pd.DataFrame:
    """Return the trials under the paper's attack, placed as the paper does, of one size."""
    found = where(trials, kind="asr", attack=attack)
    return largest_size(found[found["placement"] == found["method"].map(paper_placement)])


def paper_size(trials: pd.DataFrame) -> pd.DataFrame:
    """Return the trials with as many samples per client as the paper's attacks and sweep have."""
    return where(trials, samples=SWEEP_SAMPLES)


def largest_size(trials: pd.DataFrame) -> pd.DataFrame:
    """Return the trials with the most samples per client: the paper's, once they were run."""
    return where(trials, samples=trials["samples"].max())


def by_outcome(trials: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """Return CARVY-FL's trials on Fashion-MNIST by the outcome of Step 1, and FLCert's."""
    here = largest_size(own_groups(trials, dataset="fashion-mnist"))
    return {
        FOUND: where(here, method="carvy", types_exact=True),
        NOT_FOUND: where(here, method="carvy", types_exact=False),
        label("flcert"): where(here, method="flcert"),
    }


def methods_in(trials: pd.DataFrame) -> list[str]:
    """Return the methods that have trials, in the order of the paper's legends."""
    found = set(trials["method"])
    return [name for name in GROUPINGS if name in found] + sorted(found - GROUPINGS.keys())


# What is read off them: mean, sd and number of trials.


def stats(trials: pd.DataFrame, value: str, *by: str) -> pd.DataFrame:
    """Return mean, sd and number of trials of a column, for every group of trials."""
    groups = trials.dropna(subset=value).groupby(list(by))[value]
    # Series.mean adds as numpy does; GroupBy.mean may differ in the last digit that is printed.
    return pd.DataFrame(
        {"mean": groups.agg(pd.Series.mean), "sd": groups.std(), "trials": groups.count()}
    )


def mean_curve(trials: pd.DataFrame, value: str = "ca") -> pd.DataFrame:
    """Return mean, sd and number of trials of a column of curves at every m, which is the index.

    CA of a trial that ended earlier goes on with zeros; under attack, only the m that all trials
    have are kept.
    """
    pairs = zip(trials["m"], trials[value], strict=True)
    curves = pd.DataFrame([dict(zip(m, values, strict=True)) for m, values in pairs], dtype=float)
    ended = (trials["kind"] == "ca").all()
    curves = (curves.fillna(0) if ended else curves.dropna(axis=1)).sort_index(axis=1)
    return pd.DataFrame({"mean": curves.mean(), "sd": curves.std(), "trials": len(curves)})


def largest_m(ca: pd.Series[float], percent: float) -> int:
    """Return the largest m with CA(m) > ``percent``; −1 where even CA(0) is not."""
    return int((ca > percent).sum()) - 1  # CA never rises with m


def of_mean_curve(
    trials: pd.DataFrame, read: Callable[[pd.DataFrame], float], *by: str
) -> pd.DataFrame:
    """Read a number off the mean curve of CA, for every group of trials; it has no sd."""
    groups = trials.groupby(list(by))
    found = [read(mean_curve(part)) for _, part in groups]
    return groups.size().to_frame("trials").assign(mean=found, sd=nan)[["mean", "sd", "trials"]]


def tolerated(trials: pd.DataFrame, level: float, *by: str) -> pd.DataFrame:
    """Return the largest m at which the mean of CA(m) is over ``level`` %; −1 for none."""
    return of_mean_curve(trials, lambda curve: largest_m(curve["mean"], level), *by)


def max_sd(trials: pd.DataFrame, *by: str) -> pd.DataFrame:
    """Return the largest sd of CA(m) over m; NaN for fewer than two trials."""
    return of_mean_curve(trials, lambda curve: float(curve["sd"].max()), *by)


def at(trials: pd.DataFrame, value: str, m: int) -> pd.DataFrame:
    """Return the trials with a column ``at``: a curve at one m, NaN where a trial lacks it."""
    pairs = zip(trials["m"], trials[value], strict=True)
    found = [dict(zip(ms, values, strict=True)).get(m, nan) for ms, values in pairs]
    return trials.assign(at=pd.Series(found, trials.index, dtype=float))


def asr_reduction(trials: pd.DataFrame, m: int, reading: str = "asr") -> pd.DataFrame:
    """Return FLCert's ASR at m less CARVY-FL's by data set, over the seeds that both have."""
    by_seed = at(trials, reading, m).groupby(["name", "seed", "method"])["at"].last()
    both = by_seed.unstack("method").reindex(columns=["flcert", "carvy"])
    return stats((both["flcert"] - both["carvy"]).reset_index(name="at"), "at", "name")


def swept_areas(dataset: str) -> pd.DataFrame:
    """Return the paper's AUC of CA by G and method."""
    return pd.DataFrame(paper()["ca_auc_by_groups"][dataset], group_counts())
