"""The section of a run's report on attacks and privacy: success, and whether CA(m) held."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from carvyfl.attacks.placement import paper_placement
from carvyfl.plots.figure import Curve, Panel
from carvyfl.plots.style import M, method_style
from carvyfl.profiles.private_shares import DELTA
from carvyfl.report.finished_run import FinishedRun
from carvyfl.report.page import Html, render
from carvyfl.runs.record import AttackResult
from carvyfl.voting.certificate import undercut


def attacks(run: FinishedRun) -> Html:
    """Draw success and clean accuracy under every attack; say what was private."""
    results = run.folder.attacks()
    return render(
        "attacks.html",
        run=run,
        quote=shlex.quote,
        broken=broken_promises(results),
        compared=[(title, *_panels(alike)) for title, alike in _compared(results)],
        delta=DELTA,
    )


def broken_promises(results: Sequence[AttackResult]) -> list[str]:
    """Compare accuracy with CA(m) again; the record's own verdict counts as well."""
    broken = []
    for r in results:
        under = [
            f"m = {r.m[i]}: {r.accuracy[i]:.1f} % where CA(m) is {r.certified[i]:.1f} %"
            for i in undercut(r.accuracy, r.certified)
        ]
        if under or not r.promise_kept:
            where = "; ".join(under) or "so the record says"
            broken.append(f"{method_style(r.method).label}, {r.attack}, {r.placement}: {where}.")
    return broken


def _compared(results: Sequence[AttackResult]) -> list[tuple[str, list[AttackResult]]]:
    """Say which results are drawn together, under which heading.

    With the same settings: the paper's placements, one a method, and every further placement.
    """
    by_attack: dict[str, list[AttackResult]] = {}
    for result in results:
        by_attack.setdefault(_what(result, results), []).append(result)
    charts = []
    for what, alike in by_attack.items():
        papers = [r for r in alike if r.placement == paper_placement(r.method)]
        places = {r.placement: [o for o in alike if o.placement == r.placement] for r in alike}
        if len({r.placement for r in papers}) > 1:
            where = ", ".join(f"{method_style(r.method).label} {r.placement}" for r in papers)
            charts.append((f"{what}, malicious clients placed by method ({where})", papers))
            places = {p: here for p, here in places.items() if any(r not in papers for r in here)}
        charts += [(f"{what}, malicious clients {p}", here) for p, here in places.items()]
    return charts


def _what(result: AttackResult, results: Sequence[AttackResult]) -> str:
    """Name an attack, and the settings that not all of its kind share."""
    kind = [other.settings for other in results if other.attack == result.attack]
    return result.attack + "".join(
        f", {name} = {value}"
        for name, value in result.settings.items()
        if any(other.get(name) != value for other in kind)
    )


def _panels(results: Sequence[AttackResult]) -> tuple[Panel | None, Panel]:
    """Return success rates, None for an attack without a target class, and accuracy."""
    success, accuracy = [], []
    for r in results:
        style, lost = method_style(r.method), r.asr_if_lost_votes_target
        if r.asr is not None:
            success.append(Curve(style.label, r.m, r.asr, style=style))
        if lost is not None and lost != r.asr:
            name = f"{style.label}, if groups without a vote voted for the target"
            success.append(Curve(name, r.m, lost, style=style.dotted()))
        accuracy.append(Curve(f"{style.label}, under attack", r.m, r.accuracy, style=style))
        promised = f"{style.label}, promised: CA(m)"
        accuracy.append(Curve(promised, r.m, r.certified, style=style.dotted()))
    rate, right = "attack success rate (ASR) in %", "accuracy on clean test inputs in %"
    return (
        Panel("Attack success", M, rate, success) if success else None,
        Panel("Accuracy under attack beside CA(m)", M, right, accuracy),
    )
