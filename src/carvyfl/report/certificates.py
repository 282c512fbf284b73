"""The parts of a run's report on its certificate: summary, CA(m), margins, classes, words."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from carvyfl.groups.basis import READINGS, Reading
from carvyfl.plots.figure import Bar, Curve, Histogram, ca_panel
from carvyfl.plots.style import DASHES, Style
from carvyfl.report.charts import chart
from carvyfl.report.finished_run import FinishedRun, Method
from carvyfl.report.page import Html, beside, escape, items, join, paragraph, table
from carvyfl.voting.spread import Spread

Values = Sequence[float]

_BARS = 40  # a histogram has no more
_COLUMNS = 12  # of the table by class, so that it fits on paper


def summary(run: FinishedRun) -> Html:
    """Say what was run and what came out, one row per method."""
    config = run.config
    split = "the clients' own data" if run.deployment is not None else config.partition
    rows = [
        [
            method.title,
            method.certificate.num_groups,
            f"{method.entry.ca[0]:.1f} ({method.entry.ca_low[0]:.1f}–"
            f"{method.entry.ca_high[0]:.1f})",
            method.certificate.largest_m(50),
            method.entry.auc,
            ", ".join(READINGS[r].label for r in method.certificate.basis.readings) or "nothing",
        ]
        for method in run.methods
    ]
    head = ["method", "groups", "CA(0) in % (95 %)", "largest m with CA > 50 %", "AUC of CA"]
    return join(
        paragraph(
            f"{config.clients} clients with {config.samples} samples each of "
            f"{run.record.data.name} ({split}), model {config.model}, seed "
            f"{config.seed}; {run.methods[0].certificate.num_inputs} test inputs."
        ),
        paragraph(_headline(run.methods[0])),
        table([*head, "certified"], rows),
    )


def _headline(method: Method) -> Html:
    """Say in one sentence what the certificate promises."""
    curve = method.certificate.ca()
    half = method.certificate.largest_m(50)
    promise = (
        f"With up to {half} malicious clients at least {curve[half]:.1f} % are certain to be "
        "answered correctly, as these groups answer without them."
        if half
        else "No malicious client is withstood on more than half of the test inputs."
    )
    return Html(
        f"<strong>{escape(method.title)}</strong> answers {curve[0]:.1f} % of the test inputs "
        f"right. {promise}"
    )


def ca_chart(run: FinishedRun) -> Html:
    """Draw CA(m) of every method with its confidence interval."""
    curves = [
        _curve(own.title, own.style, own.entry.ca, own.entry.ca_low, own.entry.ca_high)
        for own in run.methods
    ]
    return join(
        paragraph(
            "At m: the share of test inputs that are answered correctly, and "
            f"{READINGS['given_groups'].same_as}. This holds for any grouping, whatever was "
            "sent in Step 1. The band is the 95 % interval for a finite test set, at each m "
            "by itself."
        ),
        chart(ca_panel("Certified accuracy of every method", curves)),
    )


def whole_runs_chart(run: FinishedRun) -> Html:
    """Draw what is certified against whole runs, for the methods that have it."""
    readings: tuple[Reading, Reading] = ("honest_only", "all_honest")
    found = [
        (method, reading, own)
        for method in run.methods
        for reading in readings
        if (own := getattr(method.entry.readings, reading)) is not None
    ]
    if not found:
        return paragraph(
            "Against whole runs, their grouping included, nothing is certified here: malicious "
            "clients may have chosen which honest clients sit together.",
            kind="note",
        )
    curves = [
        _curve(
            f"{method.title}, {READINGS[reading].label}",
            method.style.dotted() if reading == "all_honest" else method.style,
            own.ca,
        )
        for method, reading, own in found
    ]
    meaning = "; ".join(f"{READINGS[r].label}: {READINGS[r].same_as}" for r in readings)
    return join(
        paragraph(
            "Compared with whole runs, so that attacks on the grouping are covered as well. At "
            f"m: answered correctly, and {meaning}."
        ),
        chart(ca_panel("Certified against whole runs", curves)),
    )


def combined_chart(sets: Sequence[Sequence[FinishedRun]]) -> Html:
    """Draw CA(m) of all methods of all runs: a method keeps its colour, a run its dashes.

    Of a set of runs that differ in the seed alone the mean is drawn, with a band of one standard
    deviation.
    """
    curves = [
        _mean_curve(own.title, _style_in_run(own.style, position), runs, method)
        for position, runs in enumerate(sets)
        for method, own in enumerate(runs[0].methods)
    ]
    return chart(ca_panel("Certified accuracy of all runs", curves))


def name_of(runs: Sequence[FinishedRun]) -> str:
    """Return the name of a run, or of several that differ in the seed alone."""
    return runs[0].name if len(runs) == 1 else f"mean of {len(runs)} seeds"


def _mean_curve(title: str, style: Style, runs: Sequence[FinishedRun], method: int) -> Curve:
    found = Spread.of([run.methods[method].entry.ca for run in runs])
    band = [] if found.band is None else [side.tolist() for side in found.band]
    return _curve(f"{name_of(runs)}: {title}", style, found.mean.tolist(), *band)


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
    return join(
        paragraph(
            "How far the true class is ahead of its strongest rival. An answer is right with "
            "a margin of 0 or more, and withstands m malicious clients with 2m or more."
        ),
        beside(charts),
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
    return join(*(_class_table(run, method) for method in run.methods))


def _class_table(run: FinishedRun, method: Method) -> Html:
    shares = method.certificate.per_class_ca()
    columns = np.unique(np.linspace(0, shares.shape[1] - 1, _COLUMNS).round().astype(int))
    rows = [
        [name, *(None if np.isnan(value) else _shaded(value) for value in line[columns].tolist())]
        for name, line in zip(run.class_names, shares, strict=True)
    ]
    return table(
        ["class", *(f"m\u00a0=\u00a0{m}" for m in columns)],
        rows,
        caption=f"{method.title}, CA(m) in %",
    )


def _shaded(value: float) -> Html:
    return Html(f'<span class="heat" style="--share:{value / 100:.3f}">{value:.1f}</span>')


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
