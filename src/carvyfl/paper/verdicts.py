"""The paper's headline claims, each with a verdict computed from our records.

What counts as confirmed, in the settings that were run:

=====================  ====================================================================
claim                  confirmed if … (partly if …)
=====================  ====================================================================
twice as many          over all data sets, sizes and levels (80, 60, 40, 20 %) together,
                       CARVY-FL tolerates at least 1.75 times FLCert's clients (1.25 times)
lower spread           the largest sd of CA(m) is below FLCert's for every data set and
                       size (for at least half of them)
G = 20 is best         20 has the largest mean AUC of all G on every data set (on one)
ASR AUC 11–15 %        the mean AUC of 100 − ASR is at least 11 % above FLCert's on every
                       data set (above FLCert's on every data set); once in our reading of the
                       attack, once with control variates from the scaled model, where groups
                       lost to NaN vote for the target
clustering, CA         its AUC of CA is below a quarter of FLCert's everywhere (somewhere)
clustering, ASR        its AUC of 100 − ASR is below half of CARVY-FL's everywhere
                       (somewhere)
single model, CA       CA(1) is below 1 % everywhere (somewhere)
single model, ASR      the mean ASR reaches 95 % with three clients or fewer on every data
                       set (on one)
CA's promise           accuracy is never below CA(m), in every attack, placement and m
                       (there is no partly)
=====================  ====================================================================
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from carvyfl.paper.published import BEST_GROUPS, DATASETS, LEVELS, METHODS, SAMPLES
from carvyfl.paper.quantities import (
    asr_areas,
    ca_area,
    max_sd,
    paper_attack,
    paper_size,
    sweep_records,
    tolerated,
)
from carvyfl.paper.records import AsrRecord, CaRecord, Record, select
from carvyfl.paper.summaries import mean_attacked, spread
from carvyfl.paper.targets import PAPER_ATTACK, SCALED_ATTACK

Word = Literal["confirmed", "partly", "not confirmed", "no data"]

TWICE, MORE = 1.75, 1.25
ASR_GAIN = 11.0
FAR_BELOW_CA, FAR_BELOW_ASR = 0.25, 0.5
FALLEN_CA, FALLEN_ASR, FEW = 1.0, 95.0, 3
SLACK = 1e-3  # records keep four decimals


@dataclass(frozen=True)
class Verdict:
    """A claim of the paper and what our data say of it.

    Attributes
    ----------
    claim
        In words.
    paper
        The paper's number.
    ours
        Our number.
    verdict
        One word.
    why
        The numbers behind the verdict.
    """

    claim: str
    paper: str
    ours: str
    verdict: Word
    why: str


def verdicts(records: Sequence[Record]) -> list[Verdict]:
    """Return the verdict on every claim, from records of one preset."""
    return [judge(records) for judge in JUDGES]


def _twice(records: Sequence[Record]) -> Verdict:
    claim = "CARVY-FL tolerates about twice as many malicious clients as FLCert"
    ours = theirs = 0
    parts = []
    for dataset, samples in _settings():
        pairs = [
            [tolerated(records, dataset, samples, m, level) for m in ("carvy", "flcert")]
            for level in LEVELS
        ]
        # −1 (CA is nowhere over the level) is no client tolerated, as 0 is.
        both = [(max(0, a.mean), max(0, b.mean)) for a, b in pairs if a and b]
        if both:
            ours += int(sum(a for a, _ in both))
            theirs += int(sum(b for _, b in both))
            texts = ", ".join(f"{a:.0f} : {b:.0f}" for a, b in both)
            parts.append(f"{DATASETS[dataset]} {samples}: {texts}")
    printed = "5 : 2, 9 : 3, 9 : 4, 9 : 5 (MNIST 50), together 2.3 times"
    if not parts:
        return _no_data(claim, printed)
    ratio = ours / theirs if theirs else math.inf if ours else 0.0
    word = _grade(ratio >= TWICE, ratio >= MORE)
    levels = "/".join(map(str, LEVELS))
    why = f"largest m with mean CA over {levels} %, CARVY-FL : FLCert: {'; '.join(parts)}"
    return Verdict(claim, printed, f"{ratio:.2f} times over all settings", word, why)


def _spread(records: Sequence[Record]) -> Verdict:
    claim = "The spread over seeds is lower than FLCert's"
    found = {}
    for dataset, samples in _settings():
        ours, theirs = (max_sd(records, dataset, samples, m) for m in ("carvy", "flcert"))
        if ours and theirs:
            found[f"{DATASETS[dataset]} {samples}"] = (ours.mean, theirs.mean)
    printed = "MNIST: about 1 against 10 points; Fashion-MNIST 50: 15.0 : 8.54, 500: 13.3 : 8.95"
    return _count(
        claim,
        printed,
        {name: a < b for name, (a, b) in found.items()},
        f"largest sd of CA(m), CARVY-FL : FLCert: {_pairs(found)}",
        partly=0.5,
    )


def _best_groups(records: Sequence[Record]) -> Verdict:
    claim = "G = 20 is the best number of groups for CARVY-FL"
    best = {}
    texts = []
    for dataset, name in DATASETS.items():
        trials = select(sweep_records(paper_size(records), "carvy"), CaRecord, dataset=dataset)
        counts = sorted({r.groups for r in trials if r.groups is not None})
        if BEST_GROUPS not in counts or len(counts) < 2:
            continue
        areas = {g: spread(r.auc for r in trials if r.groups == g) for g in counts}
        means = {g: s.mean for g, s in areas.items() if s}
        top = max(means, key=lambda g: means[g])
        best[name] = top == BEST_GROUPS
        texts.append(
            f"{name}: best of {len(counts)} values is G = {top} with {means[top]:.1f}, "
            f"G = {BEST_GROUPS} has {means[BEST_GROUPS]:.1f}"
        )
    return _count(claim, "852.67 and 686.02 at G = 20, the largest", best, "; ".join(texts))


def _asr_gain(records: Sequence[Record]) -> Verdict:
    claim = "The AUC of 100 − ASR is 11 to 15 % better than FLCert's"
    return _gain(claim, _attack_areas(records))


def _asr_gain_scaled(records: Sequence[Record]) -> Verdict:
    claim = "The same, control variates from the scaled model, lost groups voting for the target"
    return _gain(claim, _attack_areas(records, SCALED_ATTACK, "asr_if_lost_votes_target"))


def _gain(claim: str, by_dataset: Mapping[str, Mapping[str, Sequence[float]]]) -> Verdict:
    gains = {}
    texts = []
    for name, areas in by_dataset.items():
        if "carvy" in areas and "flcert" in areas:
            carvy, flcert = areas["carvy"], areas["flcert"]
            means, medians = (
                (middle(carvy), middle(flcert)) for middle in (statistics.fmean, statistics.median)
            )
            gains[name] = 100 * (means[0] / means[1] - 1)
            texts.append(
                f"{name}: {means[0]:.1f} against {means[1]:.1f}, medians {medians[0]:.1f} against "
                f"{medians[1]:.1f} ({100 * (medians[0] / medians[1] - 1):+.1f} %)"
            )
    printed = "11.1 % (MNIST), 14.9 % (Fashion-MNIST)"
    if not gains:
        return _no_data(claim, printed)
    low = min(gains.values())
    ours = ", ".join(f"{gain:+.1f} % ({name})" for name, gain in gains.items())
    return Verdict(claim, printed, ours, _grade(low >= ASR_GAIN, low > 0), "; ".join(texts))


def _cluster_ca(records: Sequence[Record]) -> Verdict:
    claim = "Clustering is far below FLCert in certified accuracy"
    found = {}
    for dataset, samples in _settings():
        cluster, flcert = (
            ca_area(records, dataset, samples, method) for method in ("cluster", "flcert")
        )
        if cluster and flcert:
            found[f"{DATASETS[dataset]} {samples}"] = (cluster.mean, flcert.mean)
    below = {name: a < FAR_BELOW_CA * b for name, (a, b) in found.items()}
    why = f"AUC of CA, clustering : FLCert: {_pairs(found)}"
    return _count(claim, "12.28 : 413.08 (MNIST 500), 12.05 : 300.87 (Fashion-MNIST)", below, why)


def _cluster_asr(records: Sequence[Record]) -> Verdict:
    claim = "Clustering is far below CARVY-FL under attack"
    found = {
        name: (statistics.fmean(areas["cluster"]), statistics.fmean(areas["carvy"]))
        for name, areas in _attack_areas(records).items()
        if "cluster" in areas and "carvy" in areas
    }
    below = {name: a < FAR_BELOW_ASR * b for name, (a, b) in found.items()}
    why = f"AUC of 100 − ASR, clustering : CARVY-FL: {_pairs(found)}"
    return _count(claim, "360.69 : 877.00 (MNIST), 213.24 : 844.58 (Fashion-MNIST)", below, why)


def _single_ca(records: Sequence[Record]) -> Verdict:
    claim = "A single model has no certified accuracy from m = 1"
    found = {}
    for dataset, samples in _settings():
        here = select(records, CaRecord, dataset=dataset, samples=samples, groups=None)
        first = spread(r.ca[1] if len(r.ca) > 1 else 0.0 for r in here if r.method == "single")
        if first:
            found[f"{DATASETS[dataset]} {samples}"] = first.mean
    fallen = {name: value < FALLEN_CA for name, value in found.items()}
    why = "CA(1) in %: " + ", ".join(f"{name} {value:.1f}" for name, value in found.items())
    return _count(claim, "CA(1) nearly 0 %", fallen, why)


def _single_asr(records: Sequence[Record]) -> Verdict:
    claim = "One to three malicious clients take over a single model"
    found = {}
    attack = paper_attack(paper_size(records))
    for dataset, name in DATASETS.items():
        trials = select(attack, AsrRecord, dataset=dataset, method="single")
        curve = mean_attacked(trials, "asr")
        values = [] if curve is None else curve.mean[(curve.m >= 1) & (curve.m <= FEW)].tolist()
        if values:
            found[name] = max(values)
    fallen = {name: value >= FALLEN_ASR for name, value in found.items()}
    why = f"largest mean ASR with 1 to {FEW}: " + ", ".join(
        f"{name} {value:.1f} %" for name, value in found.items()
    )
    return _count(claim, "ASR nearly 100 % with 1 to 3", fallen, why)


def _promise(records: Sequence[Record]) -> Verdict:
    claim = "Accuracy under attack is never below CA(m)"
    trials = select(records, AsrRecord)
    if not trials:
        return _no_data(claim, "by definition of CA")
    gaps = [
        real - promised
        for record in trials
        for real, promised in zip(record.accuracy, record.ca, strict=True)
    ]
    broken = sum(gap < -SLACK for gap in gaps)
    denied = sum(not record.promise_kept for record in trials)
    kinds = sorted({f"{r.attack}/{r.placement}" for r in trials})
    why = (
        f"smallest accuracy − CA(m): {min(gaps):+.2f} points; {denied} of {len(trials)} trials "
        f"report a broken promise; attacks: {', '.join(kinds)}"
    )
    word: Word = "not confirmed" if broken or denied else "confirmed"
    ours = f"kept in {len(gaps) - broken} of {len(gaps)} measurements"
    return Verdict(claim, "by definition of CA", ours, word, why)


JUDGES: tuple[Callable[[Sequence[Record]], Verdict], ...] = (
    _twice,
    _spread,
    _best_groups,
    _asr_gain,
    _asr_gain_scaled,
    _cluster_ca,
    _cluster_asr,
    _single_ca,
    _single_asr,
    _promise,
)


def _settings() -> list[tuple[str, int]]:
    return [(dataset, samples) for dataset in DATASETS for samples in SAMPLES]


def _attack_areas(
    records: Sequence[Record], attack: str = PAPER_ATTACK, reading: str = "asr"
) -> dict[str, dict[str, list[float]]]:
    """Return the trials' AUC of 100 − ASR by data set (in print) and method."""
    found: dict[str, dict[str, list[float]]] = {name: {} for name in DATASETS.values()}
    trials = paper_attack(paper_size(records), attack)
    for dataset, name in DATASETS.items():
        for method in METHODS:
            areas = asr_areas(trials, dataset, method, reading)
            if areas:
                found[name][method] = areas
    return found


def _grade(confirmed: bool, partly: bool) -> Word:
    return "confirmed" if confirmed else "partly" if partly else "not confirmed"


def _no_data(claim: str, printed: str) -> Verdict:
    return Verdict(claim, printed, "–", "no data", "not run yet")


def _count(
    claim: str, printed: str, holds: Mapping[str, bool], why: str, *, partly: float = 0.0
) -> Verdict:
    """Judge a claim that holds or not in each setting; ``partly`` is the share it takes."""
    if not holds:
        return _no_data(claim, printed)
    held = sum(holds.values())
    word = _grade(held == len(holds), held > 0 and held >= partly * len(holds))
    ours = f"holds in {held} of {len(holds)} settings"
    return Verdict(claim, printed, ours, word, why)


def _pairs(found: Mapping[str, tuple[float, float]]) -> str:
    return ", ".join(f"{name} {a:.1f} : {b:.1f}" for name, (a, b) in found.items())
