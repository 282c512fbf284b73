"""The part of a run's report on its clients: by type before Step 2, by group after it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from carvyfl.group_count import GroupCount
from carvyfl.plots.figure import Ints
from carvyfl.plots.style import PALETTE
from carvyfl.report.charts import chart
from carvyfl.report.finished_run import FinishedRun, Method
from carvyfl.report.page import Cell, Html, escape, folded, heading, join, paragraph, table

_TILES = 1000  # more clients than this are counted, not drawn


def client_map(run: FinishedRun) -> Html:
    """Show every client as a tile with its type's letter."""
    clients = run.config.clients
    types = np.full(clients, -1) if run.types is None else run.types.labels
    pieces = [_before(run, types)]
    for method in run.methods:
        pieces.append(heading(f"After: the groups of {method.title}"))
        pieces.append(paragraph(_grouped(run, method)))
        if clients <= _TILES:
            pieces.append(_tiles(_by_group(method), types))
            pieces.append(folded("The clients of every group", _group_table(method, types)))
        aside = method.entry.set_aside
        pieces.append(_set_aside("Reports that could not be used, by client", aside))
    return join(*pieces)


def letter(kind: int) -> str:
    """Return the letters on a type's tiles: A … Z, AA, AB, …; a question mark for no type."""
    if kind < 0:
        return "?"
    text = ""
    while kind >= 0:
        text = chr(ord("A") + kind % 26) + text
        kind = kind // 26 - 1
    return text


def _before(run: FinishedRun, types: Ints) -> Html:
    if run.types is None:
        return paragraph("No method of this run needed the clients' types.", kind="note")
    truth = None if run.record.types is None else run.record.types.true_types
    names = [*((t, name) for t, name in enumerate(run.types.names)), (-1, "no type")]
    rows = [(f"{letter(t)}: {name}", np.flatnonzero(types == t)) for t, name in names]
    rows = [(name, members) for name, members in rows if len(members)]
    pieces = [
        heading("Before: the types of Step 1"),
        paragraph(
            f"{run.types.num_types} types were found ({run.types.method})."
            + _against_truth(truth, types)
        ),
        *(paragraph(f"Warning: {text}", kind="alarm") for text in run.types.warnings),
        _set_aside("Set aside in Step 1, by client", run.types.set_aside),
    ]
    if len(types) <= _TILES:
        pieces.append(_tiles(rows, types))
    else:
        sizes: list[list[Cell]] = [[name, len(members)] for name, members in rows]
        pieces.append(folded("The size of every type", table(["type", "clients"], sizes)))
    return join(*pieces)


def group_count(count: GroupCount) -> Html:
    """Show how G was chosen."""
    return join(
        paragraph(
            f"G = {count.groups} was chosen by what it would certify, estimated with closed-form "
            "heads on a fifth of every client's samples: an area under CA(m) of "
            f"{count.chosen.auc:.0f}, against {count.balanced.auc:.0f} for balanced random groups. "
            "It depends on all clients' data, so the certificate compares with these groups only."
        ),
        *(paragraph(f"Warning: {text}", kind="alarm") for text in count.warnings),
        chart(count.panel),
    )


def _set_aside(what: str, reasons: Mapping[Any, Any]) -> Html:
    """Count the clients that were set aside, if any, and list why."""
    if not reasons:
        return Html("")
    rows = [[str(client), str(reason)] for client, reason in reasons.items()]
    return join(
        paragraph(f"{what}: {len(reasons)}.", kind="alarm"),
        folded("Which, and why", table(["client", "reason"], rows)),
    )


def _against_truth(truth: Sequence[int] | None, types: Ints) -> str:
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
    sizes = grouping.sizes
    size = f"{sizes.min()}" if sizes.min() == sizes.max() else f"{sizes.min()} to {sizes.max()}"
    text = f"G = {grouping.num_groups}; clients per group: {size}"
    if run.types is not None and run.types.num_types:
        share = 100 * grouping.mean_diversity(run.types.labels)
        text += f"; a group holds {share:.0f} % of all types on average"
    if len(grouping.benched):
        text += f"; clients in no group: {len(grouping.benched)}"
    return f"{text}."


def _by_group(method: Method) -> list[tuple[str, Ints]]:
    rows = [(f"group {g}", members) for g, members in enumerate(method.grouping.groups)]
    return [*rows, ("no group", method.grouping.benched)] if len(method.grouping.benched) else rows


def _tiles(rows: Sequence[tuple[str, Ints]], types: Ints) -> Html:
    """Draw one box of tiles per row; within it, clients of the same type stand together."""

    def ordered(members: Ints) -> Ints:
        return members[np.argsort(types[members], kind="stable")]

    boxes = (
        f'<li role="img" aria-label="{escape(f"{name}: {_counts(types[members])}")}">'
        f"<b>{escape(name)}</b>{''.join(_tile(c, int(types[c])) for c in ordered(members))}</li>"
        for name, members in rows
    )
    return Html(f'<ul class="map">{"".join(boxes)}</ul>')


def _tile(client: int, kind: int) -> str:
    colour = "none" if kind < 0 else f"t{kind % len(PALETTE)}"  # a class of the style sheet
    return f'<i class="tile {colour}" title="client {client}">{letter(kind)}</i>'


def _counts(types: Ints) -> str:
    kinds, counts = np.unique(types, return_counts=True)
    found = zip(kinds.tolist(), counts.tolist(), strict=True)
    return ", ".join(f"{count} of {letter(kind)}" for kind, count in found)


def _group_table(method: Method, types: Ints) -> Html:
    rows: list[list[Cell]] = [
        [name, len(members), _counts(types[members]), ", ".join(map(str, members))]
        for name, members in _by_group(method)
    ]
    return table(["group", "size", "types", "clients"], rows)
