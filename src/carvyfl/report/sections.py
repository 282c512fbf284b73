"""The sections of a run's report on its groups, on single images, and on attacks and privacy."""

from __future__ import annotations

import io
import itertools
import shlex
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from msgspec import UNSET

from carvyfl.attacks.placement import paper_placement
from carvyfl.core.errors import CarvyError
from carvyfl.plots.figure import Curve, Floats, Panel
from carvyfl.plots.pictures import by_type, composition
from carvyfl.plots.style import M, method_style
from carvyfl.profiles.private_shares import DELTA
from carvyfl.report.finished_run import FinishedRun, Method
from carvyfl.report.page import Html, render
from carvyfl.runs.config import load_voted_data
from carvyfl.runs.record import AttackResult
from carvyfl.voting.certificate import undercut
from carvyfl.voting.votes import NO_VOTE, Classes

_LISTED = 1000  # the groups of more clients than this are not listed client by client
_SHOWN = 6  # images at either end

Inputs = npt.NDArray[Any]


def groups(run: FinishedRun) -> Html:
    """Show how G was chosen, what clients and groups consist of, and how groups were trained."""
    from sklearn.metrics import adjusted_rand_score  # takes long to import

    count, weights = run.record.group_count, _weights(run)
    return render(
        "groups.html",
        run=run,
        count=None if count is UNSET else count,
        rand_score=adjusted_rand_score,
        panels=[weights and composition(method.grouping, *weights) for method in run.methods],
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
    counts = sorted(Counter(labels.tolist()).items())
    return ", ".join(f"{n} × {names[kind] if kind >= 0 else 'no type'}" for kind, n in counts)


def _training(method: Method) -> Panel | None:
    """Return validation accuracy over the rounds, the mean of the groups and their range."""
    by_round = enumerate(itertools.zip_longest(*method.entry.validation_accuracy), start=1)
    known = {n: [100 * a for a in shares if a is not None] for n, shares in by_round}
    rounds = [n for n, shares in known.items() if shares]
    mean, low, high = ([float(f(known[n])) for n in rounds] for f in (np.mean, min, max))
    curve = Curve("mean (lowest–highest group)", rounds, mean, low, high, method.style)
    panel = Panel(f"Training, {method.title}", "round", "validation accuracy in %", [curve])
    return panel if rounds else None


def extreme_images(run: FinishedRun, data_dir: Path | None) -> Html:
    """Show the test images with the smallest and largest margins; data as in :func:`run_report`."""
    try:
        inputs, problem = _test_inputs(run, data_dir), ""
    except CarvyError as error:
        inputs, problem = None, str(error)
    rows = [(m, what, order) for m in run.methods for what, order in _extremes(m).items()]
    return render(
        "images.html", run=run, problem=problem, inputs=inputs, png=_png, rows=rows, votes=_votes
    )


def _votes(method: Method, index: int) -> list[tuple[int, int]]:
    ballots = method.votes.groups[:, index].tolist()
    return Counter(sorted(c for c in ballots if c != NO_VOTE)).most_common()


def _test_inputs(run: FinishedRun, data_dir: Path | None) -> Inputs:
    test = load_voted_data(run.config, data_dir).test
    if test.sha256() != run.record.data.test_sha256:
        raise CarvyError(f"the data set '{run.config.dataset}' is not the one the run had")
    shape = test.inputs.shape[1:]
    if len(shape) != 3 or shape[0] not in {1, 3}:
        raise CarvyError(f"inputs of shape {'×'.join(map(str, shape))} are not images")
    return test.inputs


def _extremes(method: Method) -> dict[str, list[int]]:
    """Return inputs by margin; classes take turns, lest the easiest fills the page."""
    turns: dict[Any, Iterator[int]] = defaultdict(itertools.count)
    margins = zip(method.certificate.margin.tolist(), method.labels.tolist(), strict=True)
    inputs = [(margin, label, index) for index, (margin, label) in enumerate(margins)]
    smallest = [(m, next(turns[m, c]), c, i) for m, c, i in inputs]
    largest_first = sorted(inputs, key=lambda each: -each[0])
    largest = [(next(turns[c]), -m, c, i) for m, c, i in largest_first]
    places = {"the smallest margins": smallest, "the largest margins, class by class": largest}
    return {what: [each[-1] for each in sorted(ranked)[:_SHOWN]] for what, ranked in places.items()}


def _png(pixels: Inputs) -> bytes:
    """Encode a picture of shape (1 or 3, H, W); anything but uint8 is stretched to 0…255."""
    from PIL import Image

    if pixels.dtype != np.uint8:
        finite = np.nan_to_num(pixels.astype(np.float64))
        low, high = finite.min(), finite.max()
        pixels = np.round(255 * (finite - low) / (high - low or 1)).astype(np.uint8)
    bands = pixels[0] if len(pixels) == 1 else np.moveaxis(pixels, 0, -1)
    file = io.BytesIO()
    Image.fromarray(np.ascontiguousarray(bands)).save(file, format="PNG", optimize=True)
    return file.getvalue()


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
    """Return what is drawn together: by settings, the paper's placements, and every other one."""
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
    told_apart = (
        f", {name} = {value}"
        for name, value in result.settings.items()
        if any(other.get(name) != value for other in kind)
    )
    return result.attack + "".join(told_apart)


def _panels(results: Sequence[AttackResult]) -> tuple[Panel | None, Panel]:
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
