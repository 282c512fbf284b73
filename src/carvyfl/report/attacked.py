"""The part of a run's report on attacks: their success, and whether CA(m) kept its promise."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

from carvyfl.errors import CarvyError
from carvyfl.report.certified import M
from carvyfl.report.charts import Curve, Look, line_chart
from carvyfl.report.finished import FinishedRun, method_look
from carvyfl.report.page import Html, beside, escape, heading, join, paragraph

_ROUNDING = 1e-6  # percent; shares of the same test set differ by far more or not at all

_DOTS = "1 6"  # unlike the dashes of any method


@dataclass(frozen=True)
class Attacked:
    """One attack on one method, for several numbers of malicious clients.

    Attributes
    ----------
    attack, placement, method
        What was done, where the malicious clients sat, and against which method.
    m
        The numbers of malicious clients, ascending; the lists below are as long.
    asr, asr_if_diverged_votes_target
        Attack success rate in percent: as measured, and in the reading in which a
        group model that diverged votes for the attacker's target.
    accuracy, ca
        Accuracy on clean test inputs under the attack, and CA(m), in percent.
    promise_kept
        Whether the attack's runner found the accuracy never below CA(m).
    """

    attack: str
    placement: str
    method: str
    m: tuple[int, ...]
    asr: tuple[float, ...]
    asr_if_diverged_votes_target: tuple[float, ...]
    accuracy: tuple[float, ...]
    ca: tuple[float, ...]
    promise_kept: bool

    @property
    def title(self) -> str:
        """The method's name in print."""
        return method_look(self.method)[0]

    @property
    def look(self) -> Look:
        """How the method's curves are drawn."""
        return method_look(self.method)[1]


def attacks(run: FinishedRun) -> Html:
    """Draw success and clean accuracy under every attack; say if CA(m) was ever undercut."""
    found = _read(run)
    if not found:
        command = escape(shlex.join(["carvy", "attack", str(run.folder.path)]))
        text = Html(f"No attack was run. To run some: <code>{command}</code>")
        return paragraph(text, kind="note")
    pairs = dict.fromkeys((result.attack, result.placement) for result in found)
    pieces = [_verdict(found)]
    for attack, placement in pairs:
        results = [r for r in found if (r.attack, r.placement) == (attack, placement)]
        what = f"{attack}, malicious clients {placement}"
        pieces += [heading(what), beside([_success(results), _accuracy(results)])]
    return join(pieces)


def _read(run: FinishedRun) -> list[Attacked]:
    plain = run.record.get("attacks") or []
    try:
        return [_result(entry) for entry in plain]
    except (KeyError, TypeError, ValueError) as error:
        raise CarvyError(
            f"{run.folder.record_file} is damaged: an attack's result is not complete; "
            "run the attacks again"
        ) from error


def _result(entry: dict[str, Any]) -> Attacked:
    kinds = {"str": str, "bool": bool}

    def value(name: str, kind: str) -> Any:
        if kind in kinds:
            return kinds[kind](entry[name])
        number = int if "int" in kind else float
        return tuple(number(item) for item in entry[name])

    result = Attacked(**{f.name: value(f.name, str(f.type)) for f in fields(Attacked)})
    curves = (result.asr, result.asr_if_diverged_votes_target, result.accuracy, result.ca)
    if not result.m or any(len(curve) != len(result.m) for curve in curves):
        raise ValueError("lists of different lengths")
    return result


def _verdict(found: Sequence[Attacked]) -> Html:
    """Check CA's promise, whatever the record says of it."""
    broken = []
    for result in found:
        under = [
            f"m = {m}: {accuracy:.1f} % where CA(m) is {ca:.1f} %"
            for m, accuracy, ca in zip(result.m, result.accuracy, result.ca, strict=True)
            if accuracy < ca - _ROUNDING
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
    curves = [Curve(r.title, r.m, r.asr, look=r.look) for r in results]
    curves += [
        Curve(
            f"{r.title}, if diverged groups voted for the target",
            r.m,
            r.asr_if_diverged_votes_target,
            look=Look(r.look.colour, r.look.marker, _DOTS),
        )
        for r in results
        if r.asr_if_diverged_votes_target != r.asr
    ]
    return line_chart(
        curves,
        title="Attack success",
        x_label=M,
        y_label="attack success rate (ASR) in %",
        y_range=(0, 100),
    )


def _accuracy(results: Sequence[Attacked]) -> Html:
    curves = []
    for r in results:
        curves.append(Curve(f"{r.title}, under attack", r.m, r.accuracy, look=r.look))
        promised = Look(r.look.colour, r.look.marker, _DOTS)
        curves.append(Curve(f"{r.title}, promised: CA(m)", r.m, r.ca, look=promised))
    return line_chart(
        curves,
        title="Accuracy under attack beside CA(m)",
        x_label=M,
        y_label="accuracy on clean test inputs in %",
        y_range=(0, 100),
    )
