"""The part of a run's report on single test images: the smallest and largest margins."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from carvyfl.core.errors import CarvyError
from carvyfl.report.finished_run import FinishedRun, Method
from carvyfl.report.page import Html, escape, heading, image, items, join, paragraph
from carvyfl.runs.config import load_voted_data
from carvyfl.voting.votes import Classes, tally

_SHOWN = 6  # images at either end
_LISTED = 4  # classes named below an image

Images = npt.NDArray[np.uint8]


def extreme_images(run: FinishedRun, data_dir: Path | None) -> Html:
    """Show the test images with the smallest and the largest margins, with their votes.

    Parameters
    ----------
    run
        The finished run.
    data_dir
        Where to look for registered data sets; None looks where the run did.
    """
    try:
        inputs = _test_inputs(run, data_dir)
        missing = Html("")
    except CarvyError as error:
        inputs = None
        missing = paragraph(f"The images cannot be shown: {error}.", kind="note")
    return join(missing, *(_method_images(run, method, inputs) for method in run.methods))


def _test_inputs(run: FinishedRun, data_dir: Path | None) -> npt.NDArray[Any]:
    dataset = load_voted_data(run.record.config, data_dir)
    if dataset.test.sha256() != run.record.data.test_sha256:
        raise CarvyError(f"the data set '{run.config.dataset}' is not the one the run had")
    shape = dataset.test.inputs.shape[1:]
    if len(shape) != 3 or shape[0] not in {1, 3}:
        raise CarvyError(f"inputs of shape {'×'.join(map(str, shape))} are not images")
    return dataset.test.inputs


def _method_images(run: FinishedRun, method: Method, inputs: npt.NDArray[Any] | None) -> Html:
    margins = method.certificate.margin.astype(np.int64)
    smallest = _ascending(margins, method.labels)[:_SHOWN].tolist()
    largest = _best_of_classes(margins, method.labels)[:_SHOWN].tolist()
    return join(
        heading(f"{method.title}: the smallest margins"),
        items((_card(run, method, inputs, index) for index in smallest), "cards"),
        heading(f"{method.title}: the largest margins, class by class"),
        items((_card(run, method, inputs, index) for index in largest), "cards"),
    )


def _ascending(values: Classes, labels: Classes) -> Classes:
    """Return the order of the values; among equal ones the classes take turns."""
    _, same = np.unique(np.stack([values, labels]), axis=1, return_inverse=True)
    order = np.argsort(same, kind="stable")
    starts = np.searchsorted(same[order], same[order])  # where each run of equals begins
    turn = np.empty(len(values), dtype=np.int64)
    turn[order] = np.arange(len(values)) - starts
    return np.lexsort((labels, turn, values))


def _best_of_classes(margins: Classes, labels: Classes) -> Classes:
    """Return the best input of every class, the largest margin first, and then the others.

    The easiest class alone would fill the page otherwise.
    """
    order = np.lexsort((-margins, labels))
    starts = np.searchsorted(labels[order], labels[order])
    rank = np.empty(len(labels), dtype=np.int64)
    rank[order] = np.arange(len(labels)) - starts
    return np.lexsort((labels, -margins, rank))


def _card(run: FinishedRun, method: Method, inputs: npt.NDArray[Any] | None, index: int) -> Html:
    names, certificate = run.class_names, method.certificate
    truth, answer = names[method.labels[index]], names[certificate.prediction[index]]
    verdict = "right" if certificate.margin[index] >= 0 else f"answered {answer}"
    picture = [] if inputs is None else [image(_png(inputs[index]), f"a test image of {truth}")]
    return join(
        *picture,
        Html(f"<b>{escape(truth)}</b>"),
        Html(f"<span>{escape(verdict)}</span><span>Δ = {certificate.margin[index]}</span>"),
        _votes(method, names, index),
    )


def _votes(method: Method, names: Sequence[str], index: int) -> Html:
    counts = tally(method.votes, index, index + 1)[0]
    order = np.argsort(-counts, kind="stable")
    voted = [int(c) for c in order if counts[c]]
    groups = method.votes.num_groups
    lines = [(f"{counts[c]} {names[c]}", 100 * int(counts[c]) / groups) for c in voted[:_LISTED]]
    rest, silent = int(sum(counts[c] for c in voted[_LISTED:])), groups - int(counts.sum())
    lines += [(f"{rest} for others", 0.0)] if rest else []
    lines += [(f"{silent} without a vote", 0.0)] if silent else []
    bar = '<span class="share" style="--share:{:.0f}%"></span>'
    return items((join(Html(bar.format(share)), line) for line, share in lines), "votes")


def _png(pixels: npt.NDArray[Any]) -> bytes:
    """Encode a picture of shape (1 or 3, H, W); anything but uint8 is stretched to 0…255."""
    from PIL import Image

    if pixels.dtype != np.uint8:
        finite = np.nan_to_num(pixels.astype(np.float64))
        low, high = finite.min(), finite.max()
        pixels = np.round(255 * (finite - low) / (high - low or 1)).astype(np.uint8)
    bands: Images = pixels[0] if len(pixels) == 1 else np.moveaxis(pixels, 0, -1)
    file = io.BytesIO()
    Image.fromarray(np.ascontiguousarray(bands)).save(file, format="PNG", optimize=True)
    return file.getvalue()
