"""The part of a run's report on attacks: their success, and whether CA(m) kept its promise."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from carvyfl.attacks.placement import paper_placement
from carvyfl.plots.figure import Curve, Panel
from carvyfl.plots.style import DOTS, M, Style, method_style
from carvyfl.report.charts import chart
from carvyfl.report.finished import FinishedRun
from carvyfl.report.page import Html, beside, escape, heading, join, paragraph
from carvyfl.voting.certificate import undercut


@dataclass(frozen=True)
class Attacked:
    """One attack on one method, for several numbers of malicious clients.

    Attributes
    ----------
    attack, settings, placement, method
        What was done and how, where the malicious clients sat, and against which method.
    m
        The numbers of malicious clients, ascending; the lists below are as long.
    asr, asr_if_lost_votes_target
        Attack success rate in percent: as measured, and in the reading in which a
        group without a vote votes for the attacker's target. None without a backdoor.
    accuracy, certified
        Accuracy on clean test inputs under the attack, and CA(m), in percent.
    promise_kept
        Whether the attack's runner found the accuracy never below CA(m).
    """

    attack: str
    settings: dict[str, Any]
    placement: str
    method: str
    m: tuple[int, ...]
    asr: tuple[float, ...] | None
    asr_if_lost_votes_target: tuple[float, ...] | None
    accuracy: tuple[float, ...]
    certified: tuple[float, ...]
    promise_kept: bool

    @property
    def title(self) -> str:
        """The method's name in print."""
        return self.style.label

    @property
    def style(self) -> Style:
        """How the method's curves are drawn."""
        return method_style(self.method)


def attacks(run: FinishedRun) -> Html:
    """Draw success and clean accuracy under every attack; say if CA(m) was ever undercut."""
    found = _read(run)
    if not found:
        command = escape(shlex.join(["carvy", "attack", str(run.folder.path)]))
        text = Html(f"No attack was run. To run some: <code>{command}</code>")
        return paragraph(text, kind="note")
    pieces = [_verdict(found)]
    for what, results in _compared(found):
        pieces += [heading(what), beside([_success(results), _accuracy(results)])]
    return join(pieces)


def _compared(found: Sequence[Attacked]) -> list[tuple[str, list[Attacked]]]:
    """Say which results are drawn together, under which heading.

    The same attack with the same settings: with the paper's placement for every method, which
    differs between methods, and with every placement that adds something to that.
    """
    alike: dict[str, list[Attacked]] = {}
    for result in found:
        alike.setdefault(_what(result, found), []).append(result)
    charts = []
    for what, results in alike.items():
        papers = [r for r in results if r.placement == paper_placement(r.method)]
        places = {r.placement: [o for o in results if o.placement == r.placement] for r in results}
        if len({r.placement for r in papers}) > 1:
            where = ", ".join(f"{r.title} {r.placement}" for r in papers)
            charts.append((f"{what}, malicious clients placed as in the paper ({where})", papers))
            places = {p: here for p, here in places.items() if any(r not in papers for r in here)}
        charts += [(f"{what}, malicious clients {p}", here) for p, here in places.items()]
    return charts


def _what(result: Attacked, found: Sequence[Attacked]) -> str:
    """Name an attack, and the settings that not all of its kind share."""
    kind = [other.settings for other in found if other.attack == result.attack]
    own = [
        f", {name} = {value}"
        for name, value in result.settings.items()
        if any(other.get(name) != value for other in kind)
    ]
    return result.attack + "".join(own)


def _read(run: FinishedRun) -> list[Attacked]:
    names = [f.name for f in fields(Attacked)]
    found = []
    for entry in run.folder.attacks():
        values: dict[str, Any] = {
            n: tuple(v) if isinstance(v := entry[n], list) else v for n in names
        }
        found.append(Attacked(**values))
    return found


def _verdict(found: Sequence[Attacked]) -> Html:
    """Check CA's promise, whatever the record says of it."""
    broken = []
    for result in found:
        under = [
            f"m = {result.m[i]}: {result.accuracy[i]:.1f} % where CA(m) is "
            f"{result.certified[i]:.1f} %"
            for i in undercut(result.accuracy, result.certified)
        ]
        if under or not result.promise_kept:
            where = "; ".join(under) or "so the record says"
            broken.append(f"{result.title}, {result.attack}, {result.placement}: {where}.")
    if not broken:
        return paragraph("Accuracy under attack never fell below CA(m).", kind="good")
    return join(
        [
            paragraph(
                "The certificate was broken: accuracy under attack fell below CA(m). One of the "
                "certificate's assumptions does not hold, or there is a defect.",
                kind="alarm",
            ),
            *(paragraph(text, kind="alarm") for text in broken),
        ]
    )


def _success(results: Sequence[Attacked]) -> Html:
    curves = [Curve(r.title, r.m, r.asr, style=r.style) for r in results if r.asr is not None]
    curves += [
        Curve(
            f"{r.title}, if groups without a vote voted for the target",
            r.m,
            r.asr_if_lost_votes_target,
            style=replace(r.style, dash=DOTS),
        )
        for r in results
        if r.asr_if_lost_votes_target is not None and r.asr_if_lost_votes_target != r.asr
    ]
    if not curves:
        return paragraph("This attack has no target class, so there is no success rate.")
    return chart(Panel("Attack success", M, "attack success rate (ASR) in %", curves))


def _accuracy(results: Sequence[Attacked]) -> Html:
    curves = []
    for r in results:
        curves.append(Curve(f"{r.title}, under attack", r.m, r.accuracy, style=r.style))
        promised = replace(r.style, dash=DOTS)
        curves.append(Curve(f"{r.title}, promised: CA(m)", r.m, r.certified, style=promised))
    title = "Accuracy under attack beside CA(m)"
    return chart(Panel(title, M, "accuracy on clean test inputs in %", curves))
