"""The section of a run's report on single test images: the smallest and largest margins."""

from __future__ import annotations

import io
import itertools
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from carvyfl.core.errors import CarvyError
from carvyfl.report.finished_run import FinishedRun, Method
from carvyfl.report.page import Html, render
from carvyfl.runs.config import load_voted_data
from carvyfl.voting.votes import NO_VOTE

_SHOWN = 6  # images at either end

Inputs = npt.NDArray[Any]


def extreme_images(run: FinishedRun, data_dir: Path | None) -> Html:
    """Show the test images with the smallest and the largest margins, with votes and radius.

    Registered data sets are looked for in ``data_dir``, or where the run did.
    """
    try:
        inputs, problem = _test_inputs(run, data_dir), ""
    except CarvyError as error:
        inputs, problem = None, str(error)
    return render(
        "images.html",
        run=run,
        problem=problem,
        inputs=inputs,
        png=_png,
        rows=[(m, what, order) for m in run.methods for what, order in _extremes(m).items()],
        votes=_votes,
    )


def _votes(method: Method, index: int) -> list[tuple[int, int]]:
    """Return the classes voted for on an input, with their votes, the most first."""
    ballots = method.votes.groups[:, index].tolist()
    return Counter(sorted(c for c in ballots if c != NO_VOTE)).most_common()


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
