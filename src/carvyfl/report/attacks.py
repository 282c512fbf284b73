"""The part of a run's report on attacks: their success, and whether CA(m) kept its promise."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from carvyfl.attacks.placement import paper_placement
from carvyfl.plots.figure import Curve, Panel, Values
from carvyfl.plots.style import M, method_style
from carvyfl.report.charts import chart
from carvyfl.report.finished_run import FinishedRun
from carvyfl.report.page import Html, element, join, paragraph
from carvyfl.runs.record import AttackResult
from carvyfl.voting.certificate import undercut


def attacks(run: FinishedRun) -> Html:
    """Draw success and clean accuracy under every attack; say if CA(m) was ever undercut."""
    found = run.folder.attacks()
    if not found:
        command = element("code", shlex.join(["carvy", "attack", str(run.folder.path)]))
        return paragraph(join("No attack was run. To run some: ", command), kind="note")
    pieces = [_verdict(found)]
    for what, results in _compared(found):
        pieces += [
            element("h4", what),
            element("div", _success(results), _accuracy(results), kind="beside"),
        ]
    return join(*pieces)


def _compared(found: Sequence[AttackResult]) -> list[tuple[str, list[AttackResult]]]:
    """Say which results are drawn together, under which heading.

    The same attack with the same settings: with the paper's placement for every method, which
    differs between methods, and with every placement that adds something to that.
    """
    alike: dict[str, list[AttackResult]] = {}
    for result in found:
        alike.setdefault(_what(result, found), []).append(result)
    charts = []
    for what, results in alike.items():
        papers = [r for r in results if r.placement == paper_placement(r.method)]
        places = {r.placement: [o for o in results if o.placement == r.placement] for r in results}
        if len({r.placement for r in papers}) > 1:
            where = ", ".join(f"{method_style(r.method).label} {r.placement}" for r in papers)
            charts.append((f"{what}, malicious clients placed by method ({where})", papers))
            places = {p: here for p, here in places.items() if any(r not in papers for r in here)}
        charts += [(f"{what}, malicious clients {p}", here) for p, here in places.items()]
    return charts


def _what(result: AttackResult, found: Sequence[AttackResult]) -> str:
    """Name an attack, and the settings that not all of its kind share."""
    kind = [other.settings for other in found if other.attack == result.attack]
    return result.attack + "".join(
        f", {name} = {value}"
        for name, value in result.settings.items()
        if any(other.get(name) != value for other in kind)
    )


def _verdict(found: Sequence[AttackResult]) -> Html:
    """Compare accuracy with CA(m) again; the record's own verdict counts as well."""
    broken = []
    for r in found:
        under = [
            f"m = {r.m[i]}: {r.accuracy[i]:.1f} % where CA(m) is {r.certified[i]:.1f} %"
            for i in undercut(r.accuracy, r.certified)
        ]
        if under or not r.promise_kept:
            where = "; ".join(under) or "so the record says"
            broken.append(f"{method_style(r.method).label}, {r.attack}, {r.placement}: {where}.")
    if not broken:
        return paragraph("Accuracy under attack never fell below CA(m).", kind="good")
    said = (
        "The certificate was broken: accuracy under attack fell below CA(m). One of the "
        "certificate's assumptions does not hold, or there is a defect."
    )
    return join(*(paragraph(text, kind="alarm") for text in (said, *broken)))


def _success(results: Sequence[AttackResult]) -> Html:
    curves = [_curve(r, "", r.asr) for r in results if r.asr is not None]
    for r in results:
        lost = r.asr_if_lost_votes_target
        if lost is not None and lost != r.asr:
            note = ", if groups without a vote voted for the target"
            curves.append(_curve(r, note, lost, dotted=True))
    if not curves:
        return paragraph("This attack has no target class, so there is no success rate.")
    return chart(Panel("Attack success", M, "attack success rate (ASR) in %", curves))


def _accuracy(results: Sequence[AttackResult]) -> Html:
    curves = []
    for r in results:
        curves.append(_curve(r, ", under attack", r.accuracy))
        curves.append(_curve(r, ", promised: CA(m)", r.certified, dotted=True))
    title = "Accuracy under attack beside CA(m)"
    return chart(Panel(title, M, "accuracy on clean test inputs in %", curves))


def _curve(result: AttackResult, note: str, values: Values, *, dotted: bool = False) -> Curve:
    style = method_style(result.method)
    shown = style.dotted() if dotted else style
    return Curve(style.label + note, result.m, values, style=shown)
