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

import itertools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

import pandas as pd

from carvyfl.paper.published import BEST_GROUPS, DATASETS, LEVELS, SAMPLES, group_counts, paper
from carvyfl.paper.summaries import (
    attacked,
    max_sd,
    mean_curve,
    own_groups,
    paper_size,
    stats,
    swept,
    tolerated,
    where,
)
from carvyfl.paper.targets import PAPER_ATTACK, SCALED_ATTACK

Word = Literal["confirmed", "partly", "not confirmed", "no data"]

TWICE, MORE = 1.75, 1.25
FAR_BELOW_CA, FAR_BELOW_ASR = 0.25, 0.5
FALLEN_CA, FALLEN_ASR = 1.0, 95.0
SLACK = 1e-3  # records keep four decimals
COMPARED = ("carvy", "flcert")
SETTING = ("name", "samples", "method")


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


def verdicts(trials: pd.DataFrame) -> list[Verdict]:
    """Return the verdict on every claim, from trials of one preset."""
    return [judge(trials) for judge in JUDGES]


def _twice(trials: pd.DataFrame) -> Verdict:
    claim = "CARVY-FL tolerates about twice as many malicious clients as FLCert"
    published = paper()["ca_mnist_50"]["largest_m_with_ca_over"].values()
    carvy, flcert = (sum(level[method] for level in published) for method in COMPARED)
    ratios = ", ".join(f"{level['carvy']} : {level['flcert']}" for level in published)
    printed = f"{ratios} (MNIST 50), together {carvy / flcert:.1f} times"
    # −1 (CA is nowhere over the level) is no client tolerated, as 0 is.
    found = [
        _by_setting(tolerated(own_groups(trials), level, *SETTING), *COMPARED).clip(lower=0)
        for level in LEVELS
    ]
    if found[0].empty:
        return _no_data(claim, printed)
    ours, theirs = pd.concat(found).sum()
    ratio = ours / theirs if theirs else math.inf if ours else 0.0
    parts = [
        f"{name}: {', '.join('{:.0f} : {:.0f}'.format(*level.loc[name]) for level in found)}"
        for name in found[0].index
    ]
    levels = "/".join(map(str, LEVELS))
    why = f"largest m with mean CA over {levels} %, CARVY-FL : FLCert: {'; '.join(parts)}"
    word = _grade(ratio >= TWICE, ratio >= MORE)
    return Verdict(claim, printed, f"{ratio:.2f} times over all settings", word, why)


def _spread(trials: pd.DataFrame) -> Verdict:
    found = _by_setting(max_sd(own_groups(trials), *SETTING), *COMPARED)
    about = paper()["claims"]["sd_of_ca_mnist"]
    fashion = ", ".join(
        f"{samples}: {sd['carvy']} : {sd['flcert']}"
        for samples, sd in paper()["max_sd_of_ca_fashion_mnist"].items()
    )
    return _count(
        "The spread over seeds is lower than FLCert's",
        f"MNIST: about {about['carvy']} against {about['flcert']} points; Fashion-MNIST {fashion}",
        found["carvy"] < found["flcert"],
        f"largest sd of CA(m), CARVY-FL : FLCert: {_pairs(found)}",
        partly=0.5,
    )


def _best_groups(trials: pd.DataFrame) -> Verdict:
    best, texts = {}, []
    for dataset, name in DATASETS.items():
        here = where(swept(paper_size(trials), "carvy"), dataset=dataset)
        means = stats(here, "auc", "groups")["mean"].to_dict()
        if BEST_GROUPS not in means or len(means) < 2:
            continue
        top = max(means, key=means.__getitem__)
        best[name] = top == BEST_GROUPS
        texts.append(
            f"{name}: best of {len(means)} values is G = {top} with {means[top]:.1f}, "
            f"G = {BEST_GROUPS} has {means[BEST_GROUPS]:.1f}"
        )
    published = " and ".join(f"{_swept_area(dataset, 'carvy'):.2f}" for dataset in DATASETS)
    return _count(
        f"G = {BEST_GROUPS} is the best number of groups for CARVY-FL",
        f"{published} at G = {BEST_GROUPS}, the largest",
        best,
        "; ".join(texts),
    )


def _asr_gain(trials: pd.DataFrame) -> Verdict:
    low, high = min(_published_gains().values()), max(_published_gains().values())
    claim = f"The AUC of 100 − ASR is {low:.0f} to {high:.0f} % better than FLCert's"
    return _gain(claim, paper_size(trials), PAPER_ATTACK, "area_asr")


def _asr_gain_scaled(trials: pd.DataFrame) -> Verdict:
    claim = "The same, control variates from the scaled model, lost groups voting for the target"
    return _gain(claim, paper_size(trials), SCALED_ATTACK, "area_asr_if_lost_votes_target")


def _gain(claim: str, trials: pd.DataFrame, attack: str, area: str) -> Verdict:
    published = _published_gains()
    printed = ", ".join(f"{gain:.1f} % ({name})" for name, gain in published.items())
    gains, texts = {}, []
    by_method = attacked(trials, attack).groupby(["name", "method"])[area]
    means, medians = (
        _by_name(found, *COMPARED) for found in (by_method.mean(), by_method.median())
    )
    for name in means.index:
        carvy, flcert = means.loc[name]
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


def _cluster_ca(trials: pd.DataFrame) -> Verdict:
    found = _by_setting(stats(own_groups(trials), "auc", *SETTING), "cluster", "flcert")
    mnist, fashion = (
        " : ".join(f"{_swept_area(dataset, method):.2f}" for method in ("cluster", "flcert"))
        for dataset in DATASETS
    )
    return _count(
        "Clustering is far below FLCert in certified accuracy",
        f"{mnist} (MNIST 500), {fashion} (Fashion-MNIST)",
        found["cluster"] < FAR_BELOW_CA * found["flcert"],
        f"AUC of CA, clustering : FLCert: {_pairs(found)}",
    )


def _cluster_asr(trials: pd.DataFrame) -> Verdict:
    areas = stats(attacked(paper_size(trials)), "area_asr", "name", "method")["mean"]
    found = _by_name(areas, "cluster", "carvy")
    published = paper()["asr_auc"]
    return _count(
        "Clustering is far below CARVY-FL under attack",
        ", ".join(
            f"{published[dataset]['cluster']:.2f} : {published[dataset]['carvy']:.2f} ({name})"
            for dataset, name in DATASETS.items()
        ),
        found["cluster"] < FAR_BELOW_ASR * found["carvy"],
        f"AUC of 100 − ASR, clustering : CARVY-FL: {_pairs(found)}",
    )


def _single_ca(trials: pd.DataFrame) -> Verdict:
    single = where(own_groups(trials), method="single")
    single = single.assign(ca1=[float(sum(ca[1:2])) for ca in single["ca"]])
    found = _by_setting(stats(single, "ca1", *SETTING), "single")["single"]
    return _count(
        "A single model has no certified accuracy from m = 1",
        f"CA(1) nearly {paper()['claims']['single_model']['ca1']} %",
        found < FALLEN_CA,
        "CA(1) in %: " + ", ".join(f"{name} {value:.1f}" for name, value in found.items()),
    )


def _single_asr(trials: pd.DataFrame) -> Verdict:
    published = paper()["claims"]["single_model"]
    few, most = published["malicious"]
    found = {}
    for dataset, name in DATASETS.items():
        single = where(attacked(paper_size(trials)), dataset=dataset, method="single")
        values = mean_curve(single, "asr")["mean"].loc[few:most]
        if len(values):
            found[name] = values.max()
    return _count(
        "One to three malicious clients take over a single model",
        f"ASR nearly {published['asr']} % with {few} to {most}",
        {name: value >= FALLEN_ASR for name, value in found.items()},
        f"largest mean ASR with {few} to {most}: "
        + ", ".join(f"{name} {value:.1f} %" for name, value in found.items()),
    )


def _promise(trials: pd.DataFrame) -> Verdict:
    claim, printed = "Accuracy under attack is never below CA(m)", "by definition of CA"
    used = where(trials, kind="asr")
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
    word: Word = "not confirmed" if broken or denied else "confirmed"
    ours = f"kept in {len(gaps) - broken} of {len(gaps)} measurements"
    return Verdict(claim, printed, ours, word, why)


JUDGES: tuple[Callable[[pd.DataFrame], Verdict], ...] = (
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


def _published_gains() -> dict[str, float]:
    """Return by how many percent the paper's AUC of 100 − ASR is above FLCert's."""
    areas = paper()["asr_auc"]
    return {
        name: 100 * (areas[dataset]["carvy"] / areas[dataset]["flcert"] - 1)
        for dataset, name in DATASETS.items()
    }


def _swept_area(dataset: str, method: str) -> float:
    """Return the paper's AUC of CA at its own G."""
    areas: list[float] = paper()["ca_auc_by_groups"][dataset][method]
    return areas[group_counts().index(BEST_GROUPS)]


def _by_setting(found: pd.DataFrame, *methods: str) -> pd.DataFrame:
    """Return means by setting (data set and samples); those that all of the methods have."""
    wide = found["mean"].unstack("method").reindex(columns=methods)
    wide = wide.reindex(list(itertools.product(DATASETS.values(), SAMPLES))).dropna()
    return wide.set_axis([f"{name} {samples}" for name, samples in wide.index])


def _by_name(means: pd.Series[float], *methods: str) -> pd.DataFrame:
    """Return means by data set; those that all of the methods have."""
    wide = means.unstack("method").reindex(columns=methods)
    return wide.reindex(list(DATASETS.values())).dropna()


def _grade(confirmed: bool, partly: bool) -> Word:
    return "confirmed" if confirmed else "partly" if partly else "not confirmed"


def _no_data(claim: str, printed: str) -> Verdict:
    return Verdict(claim, printed, "–", "no data", "not run yet")


def _count(
    claim: str,
    printed: str,
    holds: Mapping[str, bool] | pd.Series[bool],
    why: str,
    *,
    partly: float = 0.0,
) -> Verdict:
    """Judge a claim that holds or not in each setting; ``partly`` is the share it takes."""
    if not len(holds):
        return _no_data(claim, printed)
    held = sum(dict(holds).values())
    word = _grade(held == len(holds), held > 0 and held >= partly * len(holds))
    return Verdict(claim, printed, f"holds in {held} of {len(holds)} settings", word, why)


def _pairs(found: pd.DataFrame) -> str:
    return ", ".join(f"{name} {a:.1f} : {b:.1f}" for name, a, b in found.itertuples())
