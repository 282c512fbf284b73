"""The parts of a run's report on its certificate: summary, CA(m), margins, classes, words."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from carvyfl.groups.basis import READINGS, Reading
from carvyfl.plots.figure import Bar, Curve, Histogram, Values, ca_panel
from carvyfl.plots.style import DASHES, Style
from carvyfl.report.charts import chart
from carvyfl.report.finished_run import FinishedRun, Method
from carvyfl.report.page import Cell, Html, element, items, join, paragraph, table
from carvyfl.runs.record import population
from carvyfl.voting.spread import Spread

WHOLE_RUNS: tuple[Reading, Reading] = ("honest_only", "all_honest")
"""The readings that compare with whole runs, their grouping included."""

GIVEN = READINGS["given_groups"].label

NOTHING = paragraph("Nothing is certified for any malicious client.", kind="note")
"""Stands in place of a chart of CA(m)."""

_BARS = 40  # a histogram has no more
_COLUMNS = 12  # of the table by class, so that it fits on paper


def summary(run: FinishedRun) -> Html:
    """Say what was run and what came out, one row per method."""
    config = run.config
    split = "the clients' own data" if run.deployment is not None else config.partition
    learned = f"model {config.model}"
    if config.learner == "one-shot":
        learned = f"one-shot learning on features {config.features}"
    rows: list[list[Cell]] = [
        [
            method.title,
            method.area,
            f"{entry.ca[0]:.1f} ({entry.ca_low[0]:.1f}–{entry.ca_high[0]:.1f})",
            method.certificate.largest_m(50) if method.proved else None,
            entry.num_groups,
            ", ".join(READINGS[own].label for own in method.proved) or "nothing",
        ]
        for method in run.methods
        for entry in [method.entry]
    ]
    # What the methods are compared by comes first: a phone shows the first columns only.
    head = ["method", "AUC of CA", "CA(0) in\u00a0% (95\u00a0%)"]
    head += ["largest m with CA\u00a0>\u00a050\u00a0%", "groups", "certified"]
    return join(
        paragraph(
            f"{population(config, run.record.deployment)} of "
            f"{run.record.data.name} ({split}), {learned}, seed "
            f"{config.seed}; {run.methods[0].certificate.num_inputs} test inputs."
        ),
        _verdict(run),
        _headline((_best(run, "given_groups") or run.methods)[0]),
        table(head, rows),
    )


def _best(run: FinishedRun, reading: Reading) -> list[Method]:
    """Return the methods that are proved against a run, the largest area under CA(m) first."""
    own = [method for method in run.methods if getattr(method.entry.readings, reading) is not None]
    return sorted(own, key=lambda method: -getattr(method.entry.readings, reading).auc)


def _verdict(run: FinishedRun) -> Html:
    """Say which method certifies the most, whichever it is, and whether the reading matters."""
    ranked = _best(run, "given_groups")
    if len(ranked) < 2:
        return Html("")
    said = f"{ranked[0].title} certifies the most"
    if round(ranked[0].entry.auc, 1) == round(ranked[1].entry.auc, 1):
        said = f"{ranked[0].title} and {ranked[1].title} certify equally much"
    areas = ", ".join(f"{method.title} {method.entry.auc:.1f}" for method in ranked)
    best = {reading: _best(run, reading)[:1] for reading in WHOLE_RUNS}
    others = " and ".join(
        f"{READINGS[reading].label} it is {own[0].title}"
        for reading, own in best.items()
        if own and own[0] is not ranked[0]
    )
    also = f"; read {others}" if others else ""
    return paragraph(f"{said}, read {GIVEN} (area under CA(m): {areas}){also}.")


def _headline(method: Method) -> Html:
    """Say in one sentence what the certificate promises."""
    curve = method.certificate.ca()
    half = method.certificate.largest_m(50)
    clients = "1 malicious client" if half == 1 else f"{half} malicious clients"
    promise = (
        f"With up to {clients} at least {curve[half]:.1f} % are certain to be "
        "answered correctly, as these groups answer without them."
        if half
        else "No malicious client is withstood on more than half of the test inputs."
    )
    if not method.proved:
        promise = f"Nothing is certified: {method.certificate.basis.because}."
    answered = f" answers {curve[0]:.1f} % of the test inputs right. {promise}"
    return paragraph(join(element("strong", method.title), answered))


def readings() -> Html:
    """Explain the three readings, once for the whole page."""
    return join(
        paragraph(
            "CA(m) is the share of test inputs that are answered correctly with up to m malicious "
            "clients, and as in another run. Which run that is, is the reading:"
        ),
        items(join(element("b", own.label), f": {own.same_as}.") for own in READINGS.values()),
        paragraph(
            "Given these groups holds for any grouping, but malicious clients may have had a say "
            "in who sits together. The other two cover that. If malicious clients are fake, use "
            "honest only. If they may be real clients that were taken over, use all honest."
        ),
    )


def ca_chart(run: FinishedRun) -> Html:
    """Draw CA(m) of every method with its confidence interval."""
    curves = [
        _curve(own.title, own.style, own.entry.ca, own.entry.ca_low, own.entry.ca_high)
        for own in run.methods
        if own.proved
    ]
    if not curves:
        return NOTHING
    return join(
        paragraph(
            f"CA(m), {GIVEN}. The band is the 95 % interval for a finite test set, at "
            "each m by itself."
        ),
        chart(ca_panel(f"Certified accuracy of every method, {GIVEN}", curves)),
    )


def whole_runs_chart(run: FinishedRun) -> Html:
    """Draw what is certified against whole runs, for the methods that have it."""
    curves = [
        _curve(
            f"{method.title}, {READINGS[reading].label}",
            method.style.dotted() if reading == "all_honest" else method.style,
            own.ca,
        )
        for method in run.methods
        for reading in WHOLE_RUNS
        if (own := getattr(method.entry.readings, reading)) is not None
    ]
    if not curves:
        return paragraph(
            "Against whole runs, their grouping included, nothing is certified here: malicious "
            "clients may have chosen which honest clients sit together.",
            kind="note",
        )
    return join(
        paragraph(
            "CA(m), honest only and all honest: compared with whole runs, so that attacks on the "
            "grouping are covered as well."
        ),
        chart(ca_panel("Certified against whole runs", curves)),
    )


def combined_chart(sets: Sequence[Sequence[FinishedRun]]) -> Html:
    """Draw CA(m) of all methods of all runs: a method keeps its colour, a run its dashes.

    Of a set of runs that differ in the seed alone the mean is drawn, with a band of one standard
    deviation.
    """
    curves = []
    for position, runs in enumerate(sets):
        for number, method in enumerate(runs[0].methods):
            if not all(run.methods[number].proved for run in runs):
                continue
            found = Spread.of([run.methods[number].entry.ca for run in runs])
            band = [] if found.band is None else [side.tolist() for side in found.band]
            style = _style_in_run(method.style, position)
            name = f"{name_of(runs)}: {method.title}"
            curves.append(_curve(name, style, found.mean.tolist(), *band))
    return (
        chart(ca_panel(f"Certified accuracy of all runs, {GIVEN}", curves)) if curves else NOTHING
    )


def name_of(runs: Sequence[FinishedRun]) -> str:
    """Return the name of a run, or of several that differ in the seed alone."""
    return runs[0].name if len(runs) == 1 else f"mean of {len(runs)} seeds"


def _style_in_run(own: Style, run: int) -> Style:
    """Give a method's curve the run's dashes, and another marker when these are used up."""
    markers, dashes = list(DASHES), list(DASHES.values())
    turn, place = divmod(run, len(dashes))
    marker = markers[(markers.index(own.marker) + turn) % len(markers)]
    return replace(own, marker=marker, dash=dashes[place])


def _curve(name: str, style: Style, ca: Values, *interval: Values) -> Curve:
    low, high = interval or (None, None)
    return Curve(name, range(len(ca)), ca, low, high, style)


def margins(run: FinishedRun) -> Html:
    """Draw how the vote margins of the test inputs are distributed, method by method."""
    kinds = ("answered right", "answered wrong")
    charts = [
        chart(Histogram(method.title, "vote margin Δ", "test inputs", _bars(method), kinds))
        for method in run.methods
    ]
    promise = ", and withstands m malicious clients with 2m or more"
    return join(
        paragraph(
            "How far the true class is ahead of its strongest rival. An answer is right with a "
            f"margin of 0 or more{promise if any(own.proved for own in run.methods) else ''}."
        ),
        element("div", *charts, kind="beside"),
    )


def _bars(method: Method) -> list[Bar]:
    found = method.certificate.margin
    low, high = int(found.min()), int(found.max())
    width = max(1, math.ceil((high - low + 1) / _BARS))
    first = low // width  # a bar never holds right and wrong answers: 0 begins one
    bars = []
    for number, count in enumerate(np.bincount(found // width - first).tolist(), first):
        start, stop = number * width, (number + 1) * width
        name = str(start) if width == 1 else f"{start} to {stop - 1}"
        bars.append(Bar(start - 0.5, stop - 0.5, count, name, striped=start < 0))
    return bars


def per_class(run: FinishedRun) -> Html:
    """Tabulate CA(m) class by class, the cells shaded by their value."""
    tables = []
    for method in run.methods:
        shares = method.certificate.per_class_ca()[:, : None if method.proved else 1]
        columns = np.unique(np.linspace(0, shares.shape[1] - 1, _COLUMNS).round().astype(int))
        rows = [
            [name, *map(_shaded, own[columns].tolist())]
            for name, own in zip(run.record.data.class_names, shares, strict=True)
        ]
        head = ["class", *(f"m\u00a0=\u00a0{m}" for m in columns)]
        tables.append(table(head, rows, caption=f"{method.title}, CA(m) in %"))
    return join(*tables)


def _shaded(value: float) -> Html | None:
    if math.isnan(value):
        return None
    return element("span", f"{value:.1f}", kind="heat", style=f"--share:{value / 100:.3f}")


def certificates(run: FinishedRun) -> Html:
    """List the assumptions of the certificates."""
    reasons = [method.certificate.assumptions for method in run.methods]
    shared = [text for text in reasons[0] if all(text in own for own in reasons)]
    own = [
        [method.title, " ".join(text for text in texts if text not in shared) or "as above"]
        for method, texts in zip(run.methods, reasons, strict=True)
    ]
    return join(
        paragraph("CA(m) is a guarantee, not an estimate, as far as this holds:"),
        items(shared),
        table(["method", "how far its guarantee reaches"], own),
    )
