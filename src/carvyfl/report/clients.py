"""The parts of a run's report on Steps 1 to 3: types, the number of groups, groups, training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import zip_longest
from typing import Any

import numpy as np

from carvyfl.group_count import GroupCount
from carvyfl.plots.draw import Stacks
from carvyfl.plots.figure import Curve, Panel
from carvyfl.plots.style import PALETTE
from carvyfl.report.charts import chart
from carvyfl.report.finished_run import FinishedRun, Method
from carvyfl.report.page import Cell, Html, element, folded, join, paragraph, table
from carvyfl.voting.votes import Classes

_TILES = 1000  # more clients than this are counted, not drawn
_STOPPED = {
    "rounds": "all rounds made",
    "patience": "early",
    "closed-form": "in closed form",
    "diverged": "diverged: casts no vote",
    "empty": "without members: casts no vote",
    "deadline": "at the operator's deadline",
    "untrained": "at the operator's deadline without a round: casts no vote",
}


def client_map(run: FinishedRun) -> Html:
    """Show every client as a tile with its type's letter, by type and by group."""
    clients = run.config.clients
    types = np.full(clients, -1) if run.types is None else run.types.labels
    pieces = [_before(run, types)]
    for method in run.methods:
        pieces.append(element("h4", f"After: the groups of {method.title}"))
        pieces.append(paragraph(_grouped(run, method)))
        if clients <= _TILES:
            groups = [(f"group {g}", members) for g, members in enumerate(method.grouping.groups)]
            benched = method.grouping.benched
            groups += [("no group", benched)] if len(benched) else []
            rows: list[list[Cell]] = [
                [name, len(members), _counts(types[members]), ", ".join(map(str, members))]
                for name, members in groups
            ]
            listed = table(["group", "size", "types", "clients"], rows)
            pieces += [_tiles(groups, types), folded("The clients of every group", listed)]
        aside = method.entry.set_aside
        pieces.append(_set_aside("Reports that could not be used, by client", aside))
    return join(*pieces)


def letter(kind: int) -> str:
    """Return the letters on a type's tiles: A … Z, AA, AB, …; a question mark for no type."""
    if kind < 0:
        return "?"
    return (letter(kind // 26 - 1) if kind >= 26 else "") + chr(ord("A") + kind % 26)


def _before(run: FinishedRun, types: Classes) -> Html:
    if run.types is None:
        return paragraph("No method of this run needed the clients' types.", kind="note")
    truth = None if run.record.types is None else run.record.types.true_types
    names = [*enumerate(run.types.names), (-1, "no type")]
    stacks = [(f"{letter(t)}: {name}", np.flatnonzero(types == t)) for t, name in names]
    stacks = [(name, members) for name, members in stacks if len(members)]
    sizes: list[list[Cell]] = [[name, len(members)] for name, members in stacks]
    return join(
        element("h4", "Before: the types of Step 1"),
        paragraph(
            f"{run.types.num_types} types were found ({run.types.method})."
            + _against_truth(truth, types)
        ),
        _warnings(run.types.warnings),
        _set_aside("Set aside in Step 1, by client", run.types.set_aside),
        _tiles(stacks, types)
        if len(types) <= _TILES
        else folded("The size of every type", table(["type", "clients"], sizes)),
    )


def _warnings(texts: Sequence[str]) -> Html:
    return join(*(paragraph(f"Warning: {text}", kind="alarm") for text in texts))


def _set_aside(what: str, reasons: Mapping[Any, Any]) -> Html:
    """Count the clients that were set aside, if any, and list why."""
    if not reasons:
        return Html("")
    rows = [[str(client), str(reason)] for client, reason in reasons.items()]
    return join(
        paragraph(f"{what}: {len(reasons)}.", kind="alarm"),
        folded("Which, and why", table(["client", "reason"], rows)),
    )


def _against_truth(truth: Sequence[int] | None, types: Classes) -> str:
    """Compare with the true types that a simulation knows."""
    from sklearn.metrics import adjusted_rand_score

    if truth is None or len(truth) != len(types):
        return ""
    score = float(adjusted_rand_score(truth, types))
    if score == 1:
        return " They divide the clients exactly as the true types of this simulation do."
    return f" Against the true types of this simulation: adjusted Rand index {score:.2f} of 1."


def _grouped(run: FinishedRun, method: Method) -> str:
    grouping = method.grouping
    sizes = " to ".join(map(str, sorted({grouping.sizes.min(), grouping.sizes.max()})))
    text = f"G = {grouping.num_groups}; clients per group: {sizes}"
    if run.types is not None and run.types.num_types:
        share = 100 * grouping.mean_diversity(run.types.labels)
        text += f"; a group holds {share:.0f} % of all types on average"
    if len(grouping.benched):
        text += f"; clients in no group: {len(grouping.benched)}"
    return f"{text}."


def _tiles(stacks: Stacks, types: Classes) -> Html:
    """Draw one box of tiles per stack; within it, clients of the same type stand together."""
    boxes = []
    for name, members in stacks:
        ordered = members[np.argsort(types[members], kind="stable")]
        tiles = (_tile(client, int(types[client])) for client in ordered)
        said = f"{name}: {_counts(types[members])}"
        boxes.append(element("li", element("b", name), *tiles, role="img", aria_label=said))
    return element("ul", *boxes, kind="map")


def _tile(client: int, kind: int) -> Html:
    colour = "none" if kind < 0 else f"t{kind % len(PALETTE)}"  # a class of the style sheet
    return element("i", letter(kind), kind=f"tile {colour}", title=f"client {client}")


def _counts(types: Classes) -> str:
    found = zip(*(part.tolist() for part in np.unique(types, return_counts=True)), strict=True)
    return ", ".join(f"{count} of {letter(kind)}" for kind, count in found)


def group_count(count: GroupCount, warnings: Sequence[str]) -> Html:
    """Show how G was chosen, and what the user should know of it."""
    return join(
        paragraph(
            f"G = {count.groups} was chosen by what it would certify, estimated with closed-form "
            "heads on a fifth of every client's samples: an area under CA(m) of "
            f"{count.chosen.auc:.0f}, against {count.balanced.auc:.0f} for balanced random groups. "
            "It depends on all clients' data, so the certificate compares with these groups only."
        ),
        _warnings(warnings),
        chart(count.panel),
    )


def training(run: FinishedRun) -> Html:
    """Draw validation accuracy over the rounds: every group, and their mean."""
    return join(
        paragraph(
            "Each thin line is a group, the thick line the mean of the groups still training, "
            "the band their range."
        ),
        element("div", *map(_method_training, run.methods), kind="beside"),
    )


def _method_training(method: Method) -> Html:
    entry = method.entry
    groups = [100 * np.array(own, dtype=np.float64) for own in entry.validation_accuracy]
    padded = np.array(list(zip_longest(*groups, fillvalue=np.nan))).T  # None became NaN, too
    measured = np.flatnonzero(np.isfinite(padded).any(axis=0))
    drawn = paragraph(f"{method.title}: no validation accuracy was measured.", kind="note")
    if len(measured):
        columns = padded[:, measured]
        band = (np.nanmin(columns, axis=0).tolist(), np.nanmax(columns, axis=0).tolist())
        mean = np.nanmean(columns, axis=0).tolist()
        rounds = (measured + 1).tolist()
        curve = Curve("mean (lowest–highest group)", rounds, mean, *band, style=method.style)
        known = [np.flatnonzero(np.isfinite(own)) for own in groups]
        faint = [
            ((at + 1).tolist(), own[at].tolist()) for at, own in zip(known, groups, strict=True)
        ]
        y_label = "validation accuracy in %"
        drawn = chart(Panel(method.title, "round", y_label, [curve], faint=faint))
    rows = [
        [
            str(g),
            entry.rounds[g],
            _STOPPED.get(entry.stopped[g], entry.stopped[g]),
            float(own[-1]) if len(own) and np.isfinite(own[-1]) else None,
        ]
        for g, own in enumerate(groups)
    ]
    head = ["group", "rounds", "stopped", "last validation accuracy in %"]
    return element("div", drawn, folded("Every group", table(head, rows)))
