"""The paper's headline claims, each with a verdict computed from our trials.

The functions say when a claim counts as confirmed, and (in brackets) partly confirmed.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import pandas as pd

from reproduction.published import BEST_GROUPS, DATASETS, LEVELS, SAMPLES, paper
from reproduction.summaries import (
    attacked,
    max_sd,
    mean_curve,
    own_groups,
    paper_size,
    stats,
    swept,
    swept_areas,
    tolerated,
    where,
)
from reproduction.targets import SCALED_ATTACK

Word = Literal["confirmed", "partly", "not confirmed", "no data"]

TWICE, MORE = 1.75, 1.25
FAR_BELOW_CA, FAR_BELOW_ASR = 0.25, 0.5
FALLEN_CA, FALLEN_ASR = 1.0, 95.0
SLACK = 1e-3  # records keep four decimals
SETTING = ("name", "samples", "method")


@dataclass(frozen=True)
class Verdict:
    """A claim of the paper, its number, ours, what our data say of it, and why."""

    claim: str
    paper: str
    ours: str
    verdict: Word
    why: str


def verdicts(trials: pd.DataFrame) -> list[Verdict]:
    """Return the verdict on every claim, from trials of one preset."""
    own, alike = own_groups(trials), paper_size(trials)
    attack, scaled = attacked(alike), attacked(alike, SCALED_ATTACK)
    asr_areas = {name: paper()["asr_auc"][dataset] for dataset, name in DATASETS.items()}
    gains = {name: 100 * (area["carvy"] / area["flcert"] - 1) for name, area in asr_areas.items()}
    about, sds = paper()["claims"]["sd_of_ca_mnist"], paper()["max_sd_of_ca_fashion_mnist"]
    spreads = ", ".join(f"{size}: {sd['carvy']} : {sd['flcert']}" for size, sd in sds.items())
    at_best = [swept_areas(dataset).loc[BEST_GROUPS] for dataset in DATASETS]
    mnist, fashion = (f"{area['cluster']:.2f} : {area['flcert']:.2f}" for area in at_best)
    return [
        _twice(own),
        _below(
            "The spread over seeds is lower than FLCert's",
            f"MNIST: about {about['carvy']} against {about['flcert']} points; "
            f"Fashion-MNIST {spreads}",
            "largest sd of CA(m), CARVY-FL : FLCert",
            _beside(max_sd(own, *SETTING), "carvy", "flcert"),
            partly=0.5,
        ),
        _best_groups(swept(alike, "carvy")),
        _gain(
            f"The AUC of 100 − ASR is {min(gains.values()):.0f} to {max(gains.values()):.0f} % "
            "better than FLCert's",
            gains,
            attack,
            "area_asr",
        ),
        _gain(
            "The same, control variates from the scaled model, lost groups voting for the target",
            gains,
            scaled,
            "area_asr_if_lost_votes_target",
        ),
        _below(
            "Clustering is far below FLCert in certified accuracy",
            f"{mnist} (MNIST 500), {fashion} (Fashion-MNIST)",
            "AUC of CA, clustering : FLCert",
            _beside(stats(own, "auc", *SETTING), "cluster", "flcert"),
            FAR_BELOW_CA,
        ),
        _below(
            "Clustering is far below CARVY-FL under attack",
            ", ".join(
                f"{area['cluster']:.2f} : {area['carvy']:.2f} ({name})"
                for name, area in asr_areas.items()
            ),
            "AUC of 100 − ASR, clustering : CARVY-FL",
            _beside(stats(attack, "area_asr", "name", "method"), "cluster", "carvy"),
            FAR_BELOW_ASR,
        ),
        _single_ca(where(own, method="single")),
        _single_asr(where(attack, method="single")),
        _promise(where(trials, kind="asr")),
    ]


def _twice(own: pd.DataFrame) -> Verdict:
    """Check that CARVY-FL tolerates 1.75 (1.25) times FLCert's clients, settings together."""
    claim = "CARVY-FL tolerates about twice as many malicious clients as FLCert"
    published = pd.DataFrame(paper()["ca_mnist_50"]["largest_m_with_ca_over"])
    carvy, flcert = published.sum(axis=1)[["carvy", "flcert"]]
    pairs = ", ".join(f"{level['carvy']} : {level['flcert']}" for _, level in published.items())
    printed = f"{pairs} (MNIST 50), together {carvy / flcert:.1f} times"
    # −1 (CA is nowhere over the level) is no client tolerated, as 0 is.
    found = pd.concat(
        _beside(tolerated(own, level, *SETTING), "carvy", "flcert").clip(lower=0)
        for level in LEVELS
    )
    if found.empty:
        return _no_data(claim, printed)
    ours, theirs = found.sum()
    ratio = ours / theirs if theirs else math.inf if ours else 0.0
    parts = [
        f"{name}: {', '.join(f'{a:.0f} : {b:.0f}' for _, a, b in levels.itertuples())}"
        for name, levels in found.groupby(level=0, sort=False)
    ]
    levels = "/".join(map(str, LEVELS))
    why = f"largest m with mean CA over {levels} %, CARVY-FL : FLCert: {'; '.join(parts)}"
    word = _grade(ratio >= TWICE, ratio >= MORE)
    return Verdict(claim, printed, f"{ratio:.2f} times over all settings", word, why)


def _below(
    claim: str, printed: str, what: str, found: pd.DataFrame, factor: float = 1, partly: float = 0
) -> Verdict:
    """Check that one method is below another, or a part of it, everywhere (somewhere, or half)."""
    first, second = found
    pairs = ", ".join(f"{name} {a:.1f} : {b:.1f}" for name, a, b in found.itertuples())
    return _count(claim, printed, found[first] < factor * found[second], f"{what}: {pairs}", partly)


def _best_groups(sweep: pd.DataFrame) -> Verdict:
    """Check that 20 has the largest mean AUC of all G on every data set (on one)."""
    best, texts = {}, []
    for name in DATASETS.values():
        means = stats(where(sweep, name=name), "auc", "groups")["mean"].to_dict()
        if BEST_GROUPS not in means or len(means) < 2:
            continue
        top = max(means, key=means.__getitem__)
        best[name] = top == BEST_GROUPS
        texts.append(
            f"{name}: best of {len(means)} values is G = {top} with {means[top]:.1f}, "
            f"G = {BEST_GROUPS} has {means[BEST_GROUPS]:.1f}"
        )
    published = " and ".join(f"{swept_areas(d)['carvy'][BEST_GROUPS]:.2f}" for d in DATASETS)
    claim = f"G = {BEST_GROUPS} is the best number of groups for CARVY-FL"
    return _count(claim, f"{published} at G = {BEST_GROUPS}, the largest", best, "; ".join(texts))


def _gain(claim: str, published: Mapping[str, float], used: pd.DataFrame, area: str) -> Verdict:
    """Check that the AUC of 100 − ASR is 11 % (at all) above FLCert's on every data set."""
    printed = ", ".join(f"{gain:.1f} % ({name})" for name, gain in published.items())
    areas = used.groupby(["name", "method"])[[area]]
    means, medians = (
        _beside(a, "carvy", "flcert", value=area) for a in (areas.mean(), areas.median())
    )
    gains, texts = {}, []
    for name, carvy, flcert in means.itertuples():
        middle, other = medians.loc[name]
        gains[name] = 100 * (carvy / flcert - 1)
        texts.append(
            f"{name}: {carvy:.1f} against {flcert:.1f}, medians {middle:.1f} against "
            f"{other:.1f} ({100 * (middle / other - 1):+.1f} %)"
        )
    if not gains:
        return _no_data(claim, printed)
    least = min(gains.values())
    ours = ", ".join(f"{gain:+.1f} % ({name})" for name, gain in gains.items())
    word = _grade(least >= math.floor(min(published.values())), least > 0)
    return Verdict(claim, printed, ours, word, "; ".join(texts))


def _single_ca(single: pd.DataFrame) -> Verdict:
    """Check that CA(1) is below 1 % everywhere (somewhere)."""
    single = single.assign(ca1=[float(sum(ca[1:2])) for ca in single["ca"]])
    found = _beside(stats(single, "ca1", *SETTING), "single")["single"]
    claim = "A single model has no certified accuracy from m = 1"
    printed = f"CA(1) nearly {paper()['claims']['single_model']['ca1']} %"
    why = "CA(1) in %: " + ", ".join(f"{name} {value:.1f}" for name, value in found.items())
    return _count(claim, printed, found < FALLEN_CA, why)


def _single_asr(single: pd.DataFrame) -> Verdict:
    """Check that the mean ASR reaches 95 % with three clients on every data set (on one)."""
    published = paper()["claims"]["single_model"]
    few, most = published["malicious"]
    curves = {n: mean_curve(where(single, name=n), "asr")["mean"] for n in DATASETS.values()}
    found = pd.Series({name: curve.loc[few:most].max() for name, curve in curves.items()}).dropna()
    claim = "One to three malicious clients take over a single model"
    printed = f"ASR nearly {published['asr']} % with {few} to {most}"
    largest = ", ".join(f"{name} {value:.1f} %" for name, value in found.items())
    why = f"largest mean ASR with {few} to {most}: {largest}"
    return _count(claim, printed, found >= FALLEN_ASR, why)


def _promise(used: pd.DataFrame) -> Verdict:
    """Check that accuracy is never below CA(m), in every trial and at every m."""
    claim, printed = "Accuracy under attack is never below CA(m)", "by definition of CA"
    if used.empty:
        return _no_data(claim, printed)
    points = used[["accuracy", "ca"]].explode(["accuracy", "ca"]).astype(float)
    gaps = points["accuracy"] - points["ca"]
    broken = (gaps < -SLACK).sum()
    denied = len(where(used, promise_kept=False))
    kinds = sorted(set(used["attack"] + "/" + used["placement"]))
    why = (
        f"smallest accuracy − CA(m): {gaps.min():+.2f} points; {denied} of {len(used)} trials "
        f"report a broken promise; attacks: {', '.join(kinds)}"
    )
    ours = f"kept in {len(gaps) - broken} of {len(gaps)} measurements"
    return Verdict(claim, printed, ours, _grade(not broken and not denied, False), why)


def _beside(found: pd.DataFrame, *methods: str, value: str = "mean") -> pd.DataFrame:
    """Return means by data set, or by data set and samples, where all of the methods have one."""
    wide = found[value].unstack("method").reindex(columns=methods)
    if wide.index.nlevels == 1:
        return wide.reindex(list(DATASETS.values())).dropna()
    wide = wide.reindex(list(itertools.product(DATASETS.values(), SAMPLES))).dropna()
    return wide.set_axis([f"{name} {samples}" for name, samples in wide.index])


def _grade(confirmed: bool, partly: bool) -> Word:
    return "confirmed" if confirmed else "partly" if partly else "not confirmed"


def _no_data(claim: str, printed: str) -> Verdict:
    return Verdict(claim, printed, "–", "no data", "not run yet")


def _count(
    claim: str, printed: str, holds: Mapping[str, bool] | pd.Series, why: str, partly: float = 0
) -> Verdict:
    """Judge a claim that holds or not in each setting; ``partly`` is the share it takes."""
    if not len(holds):
        return _no_data(claim, printed)
    held = sum(dict(holds).values())
    word = _grade(held == len(holds), held > 0 and held >= partly * len(holds))
    return Verdict(claim, printed, f"holds in {held} of {len(holds)} settings", word, why)
