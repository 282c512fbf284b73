"""The part of a run's report on Step 3: how the groups trained."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from carvyfl.plots.figure import Curve, Panel
from carvyfl.report.charts import chart
from carvyfl.report.finished_run import FinishedRun, Method
from carvyfl.report.page import Html, beside, folded, join, paragraph, table

Percent = npt.NDArray[np.float64]


def training(run: FinishedRun) -> Html:
    """Draw validation accuracy over the rounds: every group, and their mean."""
    return join(
        paragraph(
            "Each thin line is a group, the thick line the mean of the groups still training, "
            "the band their range."
        ),
        beside(_method_training(method) for method in run.methods),
    )


def _method_training(method: Method) -> Html:
    recorded = method.entry.validation_accuracy
    groups = [100 * np.array(accuracy, dtype=np.float64) for accuracy in recorded]  # None: NaN
    rounds = max(map(len, groups))
    padded = np.full((len(groups), rounds), np.nan)
    for own, accuracy in zip(padded, groups, strict=True):
        own[: len(accuracy)] = accuracy
    measured = np.flatnonzero(np.isfinite(padded).any(axis=0))
    if len(measured):
        columns = padded[:, measured]
        curve = Curve(
            "mean (lowest–highest group)",
            (measured + 1).tolist(),
            np.nanmean(columns, axis=0).tolist(),
            np.nanmin(columns, axis=0).tolist(),
            np.nanmax(columns, axis=0).tolist(),
            method.style,
        )
        known = [np.flatnonzero(np.isfinite(own)) for own in groups]
        faint = [
            ((at + 1).tolist(), own[at].tolist()) for at, own in zip(known, groups, strict=True)
        ]
        panel = Panel(method.title, "round", "validation accuracy in %", [curve], faint=faint)
        drawn = chart(panel)
    else:
        drawn = paragraph(f"{method.title}: no validation accuracy was measured.", kind="note")
    return Html(f"<div>{drawn}{folded('Every group', _group_table(method, groups))}</div>")


def _group_table(method: Method, groups: list[Percent]) -> Html:
    rows = [
        [
            str(g),
            method.entry.rounds[g],
            _STOPPED.get(method.entry.stopped[g], method.entry.stopped[g]),
            float(own[-1]) if len(own) and np.isfinite(own[-1]) else None,
        ]
        for g, own in enumerate(groups)
    ]
    return table(["group", "rounds", "stopped", "last validation accuracy in %"], rows)


_STOPPED = {
    "rounds": "all rounds made",
    "patience": "early",
    "closed-form": "in closed form",
    "diverged": "diverged: casts no vote",
    "empty": "without members: casts no vote",
    "deadline": "at the operator's deadline",
    "untrained": "at the operator's deadline without a round: casts no vote",
}
