"""The part of a run's report on single test images: the smallest and largest margins."""

from __future__ import annotations

import io
import itertools
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from carvyfl.core.errors import CarvyError
from carvyfl.report.finished_run import FinishedRun, Method
from carvyfl.report.page import Html, element, image, items, join, paragraph
from carvyfl.runs.config import load_voted_data
from carvyfl.voting.votes import NO_VOTE, tally

_SHOWN = 6  # images at either end
_LISTED = 4  # classes named below an image

Inputs = npt.NDArray[Any]


def extreme_images(run: FinishedRun, data_dir: Path | None) -> Html:
    """Show the test images with the smallest and the largest margins, with their votes.

    Registered data sets are looked for in ``data_dir``, or where the run did.
    """
    try:
        inputs = _test_inputs(run, data_dir)
        pieces = []
    except CarvyError as error:
        inputs = None
        pieces = [paragraph(f"The images cannot be shown: {error}.", kind="note")]
    for method in run.methods:
        for what, order in _extremes(method).items():
            cards = (_card(run, method, inputs, index) for index in order)
            pieces += [element("h4", f"{method.title}: {what}"), items(cards, "cards")]
    return join(*pieces)


def _test_inputs(run: FinishedRun, data_dir: Path | None) -> Inputs:
    dataset = load_voted_data(run.record.config, data_dir)
    if dataset.test.sha256() != run.record.data.test_sha256:
        raise CarvyError(f"the data set '{run.config.dataset}' is not the one the run had")
    shape = dataset.test.inputs.shape[1:]
    if len(shape) != 3 or shape[0] not in {1, 3}:
        raise CarvyError(f"inputs of shape {'×'.join(map(str, shape))} are not images")
    return dataset.test.inputs


def _extremes(method: Method) -> dict[str, list[int]]:
    """Return the inputs to show, by what they are.

    Among equal smallest margins the classes take turns. Of the largest ones the best of every
    class comes first: the easiest class alone would fill the page otherwise.
    """
    turns: dict[Any, Iterator[int]] = defaultdict(itertools.count)
    margins = zip(method.certificate.margin.tolist(), method.labels.tolist(), strict=True)
    inputs = [(margin, label, index) for index, (margin, label) in enumerate(margins)]
    largest_first = sorted(inputs, key=lambda own: -own[0])
    places = {
        "the smallest margins": [(m, next(turns[m, c]), c, i) for m, c, i in inputs],
        "the largest margins, class by class": [
            (next(turns[c]), -m, c, i) for m, c, i in largest_first
        ],
    }
    return {what: [own[-1] for own in sorted(found)[:_SHOWN]] for what, found in places.items()}


def _card(run: FinishedRun, method: Method, inputs: Inputs | None, index: int) -> Html:
    names, certificate = run.record.data.class_names, method.certificate
    truth, given = names[method.labels[index]], int(certificate.prediction[index])
    answer = "no answer" if given == NO_VOTE else f"answered {names[given]}"
    counts = tally(method.votes, index, index + 1)[0]
    voted = [c for c in np.argsort(-counts, kind="stable").tolist() if counts[c]]
    groups = method.votes.num_groups
    lines = [(f"{counts[c]} {names[c]}", 100 * counts[c] / groups) for c in voted[:_LISTED]]
    rest, silent = int(counts[voted[_LISTED:]].sum()), groups - int(counts.sum())
    lines += [(f"{rest} for others", 0.0)] if rest else []
    lines += [(f"{silent} without a vote", 0.0)] if silent else []
    return join(
        "" if inputs is None else image(_png(inputs[index]), f"a test image of {truth}"),
        element("b", truth),
        element("span", "right" if certificate.margin[index] >= 0 else answer),
        element("span", f"Δ = {certificate.margin[index]}"),
        items((join(_share(percent), line) for line, percent in lines), "votes"),
    )


def _share(percent: float) -> Html:
    return element("span", kind="share", style=f"--share:{percent:.0f}%")


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
