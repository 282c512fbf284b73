"""`carvy predict`: label, votes and certified radius of new images."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import typer

from carvyfl.cli import options
from carvyfl.cli.answers import Prediction, Predictions
from carvyfl.cli.output import print_items, print_json, print_table, screen, warn
from carvyfl.core.archives import read_npy
from carvyfl.core.errors import CarvyError
from carvyfl.data.clients import as_inputs
from carvyfl.groups.basis import READINGS
from carvyfl.runs.folder import RunFolder
from carvyfl.voting.certificate import certify
from carvyfl.voting.votes import tally


def predict(
    run: Path = options.RUN,
    images: list[Path] = typer.Argument(help="PNG images or npy arrays."),
    method: str | None = options.option("Which method's models vote; default the run's first."),
    workers: int | None = options.WORKERS,
    plugin: list[Path] | None = options.PLUGIN,
    json: bool = options.JSON,
) -> None:
    """Label images with a run's models and say how many malicious clients each label withstands.

    A PNG holds one image of the size the models were trained on. An npy file
    holds one input or a stack of them: for models trained on pixels (uint8),
    whole numbers from 0 to 255 or floats from 0 to 1; for others, floats as
    the training data had them.

    [bold]Example[/bold]

      carvy predict runs/demo shirt.png shoes.npy
    """
    import torch

    from carvyfl.learning.backends import make_backend

    folder = RunFolder(run)
    record = folder.record()
    data, chosen = record.data, folder.method(method)
    stacks = [read_inputs(path, data.input_shape, data.input_type) for path in images]
    names = [
        str(path) if len(stack) == 1 else f"{path}[{i}]"
        for path, stack in zip(images, stacks, strict=True)
        for i in range(len(stack))
    ]
    # Models that were trained on a GPU can be stacked there.
    stacked = record.environment.engine == "batched" and torch.cuda.is_available()
    engine = make_backend("batched" if stacked else "loop", workers=workers)
    votes = folder.models(chosen).votes(np.concatenate(stacks), engine)
    certificate = certify(votes, basis=folder.grouping(chosen).basis)
    privacy = record.privacy.guarantee if record.privacy else None
    radii = {name: certificate.under(name).radius for name in certificate.basis.readings}
    for warning in certificate.warnings:
        warn(warning)
    rows = []
    for i, (name, counts) in enumerate(zip(names, tally(votes), strict=True)):
        answered = counts.any()
        label = int(certificate.prediction[i]) if answered else None
        proved = {reading: int(radius[i]) for reading, radius in radii.items() if answered}
        all_radii: dict[str, int | None] = {reading: proved.get(reading) for reading in READINGS}
        rows.append(Prediction(name, label, all_radii, tuple(counts.tolist())))
    if json:
        print_json(Predictions(chosen, tuple(rows), certificate.assumptions, privacy))
        return
    _print(rows, data.class_names)
    screen.print(certificate.assumptions[-1])
    if privacy is not None:
        screen.print(privacy, soft_wrap=True)


def _print(rows: Sequence[Prediction], names: Sequence[str]) -> None:
    table = []
    for row in rows:
        ranked = sorted(enumerate(row.votes), key=lambda pair: -pair[1])
        counts = ", ".join(f"{names[c]} {n}" for c, n in ranked if n)
        radii = ("none" if radius is None else radius for radius in row.radius.values())
        label = "–" if row.label is None else names[row.label]
        table.append([row.input, label, counts or "no votes", *radii])
    head = ["input", "label", "votes", *(words.label for words in READINGS.values())]
    print_table(head, table)
    screen.print("In the last columns: with up to so many malicious clients the label is")
    print_items(f"{words.label}: {words.same_as}." for words in READINGS.values())


def read_inputs(path: Path, shape: tuple[int, ...], kind: str) -> npt.NDArray[Any]:
    """Read the inputs in a PNG or npy file for models trained on inputs of a shape and a type."""
    if path.suffix.lower() == ".npy":
        array = read_npy(path)
    elif path.suffix.lower() == ".png":
        array = _read_png(path, shape)
    else:
        raise CarvyError(f"{path}: only .png and .npy files can be read; convert it first")
    for fitting in (array, array[None], array[:, None] if array.ndim else array, array[None, None]):
        if fitting.shape[1:] == shape and fitting.ndim:
            break
    else:
        wanted = f"but the models take inputs of shape {shape}; resize it first"
        raise CarvyError(f"{path} has shape {array.shape}, {wanted}")
    return as_inputs(fitting, shape, kind, str(path))


def _read_png(path: Path, shape: tuple[int, ...]) -> npt.NDArray[np.uint8]:
    from PIL import Image
    from PIL.Image import DecompressionBombError as Bomb

    if len(shape) != 3 or shape[0] not in (1, 3):
        raise CarvyError(f"{path}: the models do not take images; give an npy file")
    try:
        with Image.open(path) as image:
            if image.size != (shape[2], shape[1]):
                raise CarvyError(
                    f"{path} is {image.width}×{image.height} pixels, but the models take images "
                    f"of {shape[2]}×{shape[1]}; resize it first"
                )
            if image.mode.startswith(("I", "F")):
                raise CarvyError(f"{path}: more than 8 bits a channel; save it with 8 bits")
            pixels = np.asarray(image.convert("L" if shape[0] == 1 else "RGB"))
    except (OSError, ValueError, EOFError, SyntaxError, MemoryError, Bomb) as error:
        reason = getattr(error, "strerror", None) or "not an image, or damaged"
        raise CarvyError(f"cannot read {path}: {reason}") from error
    return pixels[None] if pixels.ndim == 2 else np.moveaxis(pixels, -1, 0)
