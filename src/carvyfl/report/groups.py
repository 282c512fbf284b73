"""The section of a run's report on Steps 1 to 3: types, the number of groups, groups, training."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest

import numpy as np
from msgspec import UNSET

from carvyfl.plots.figure import Curve, Floats, Panel
from carvyfl.plots.pictures import by_type, composition
from carvyfl.report.finished_run import FinishedRun, Method
from carvyfl.report.page import Html, render
from carvyfl.voting.votes import Classes

_LISTED = 1000  # the groups of more clients than this are not listed client by client


def groups(run: FinishedRun) -> Html:
    """Show how G was chosen, what clients and groups consist of, and how groups were trained."""
    from sklearn.metrics import adjusted_rand_score  # takes long to import

    count = run.record.group_count
    weights = _weights(run)
    panels = [weights and composition(method.grouping, *weights) for method in run.methods]
    return render(
        "groups.html",
        run=run,
        count=None if count is UNSET else count,
        rand_score=adjusted_rand_score,
        panels=panels,
        counted=_counted,
        few=run.config.clients <= _LISTED,
        trained=[_training(method) for method in run.methods],
    )


def _weights(run: FinishedRun) -> tuple[Floats, Sequence[str]] | None:
    """Return how much each client holds of every class, else its type; None if neither is known."""
    if run.profiles is None or run.types is None or not run.types.num_types:
        return None
    class_names = run.record.data.class_names
    amounts = run.profiles.class_amounts(len(class_names))
    by_class = None if amounts is None else (amounts, class_names)
    return by_class or by_type(run.types.labels, run.types.names)


def _counted(labels: Classes, names: Sequence[str]) -> str:
    """Say how many clients are of each type."""
    counts = zip(*(part.tolist() for part in np.unique(labels, return_counts=True)), strict=True)
    return ", ".join(f"{n} × {names[kind] if kind >= 0 else 'no type'}" for kind, n in counts)


def _training(method: Method) -> Panel | None:
    """Return validation accuracy over the rounds, the mean of the groups and their range."""
    by_round = enumerate(zip_longest(*method.entry.validation_accuracy), start=1)
    known = {n: [100 * a for a in shares if a is not None] for n, shares in by_round}
    rounds = [n for n, shares in known.items() if shares]
    mean, low, high = ([float(f(known[n])) for n in rounds] for f in (np.mean, min, max))
    curve = Curve("mean (lowest–highest group)", rounds, mean, low, high, method.style)
    panel = Panel(f"Training, {method.title}", "round", "validation accuracy in %", [curve])
    return panel if rounds else None
