"""`carvy predict`: label, votes and certified radius of new images."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import numpy as np
import numpy.typing as npt
import typer
from rich.table import Table

from carvyfl.cli import options
from carvyfl.cli.output import print_json, screen
from carvyfl.errors import CarvyError


def predict(
    run: Annotated[Path, typer.Argument(help="A folder that 'carvy run' wrote.")],
    images: Annotated[list[Path], typer.Argument(help="PNG images or npy arrays.")],
    method: Annotated[
        str | None, typer.Option(help="Which method's models vote; default the run's first.")
    ] = None,
    workers: options.Workers = None,
    json: options.Json = False,
) -> None:
    """Label images with a run's models and say how many malicious clients each label withstands.

    A PNG holds one image of the size the models were trained on. An npy file
    holds one input or a stack of them: uint8 in 0…255, or floats as the
    training data had them.
    """
    from carvyfl.certificate import certify
    from carvyfl.runs.folder import RunFolder
    from carvyfl.voting import tally

    folder = RunFolder(run)
    data = folder.record()["data"]
    chosen = folder.method(method)
    shape = tuple(data["input_shape"])
    stacks = [read_inputs(path, shape, data["input_type"]) for path in images]
    names = [
        str(path) if len(stack) == 1 else f"{path}[{i}]"
        for path, stack in zip(images, stacks, strict=True)
        for i in range(len(stack))
    ]
    votes = folder.models(chosen).votes(np.concatenate(stacks), workers=workers)
    certificate = certify(votes, basis=folder.grouping(chosen).basis)
    rows: list[dict[str, Any]] = [
        {"input": name, "label": int(label), "radius": int(radius), "votes": counts.tolist()}
        for name, label, radius, counts in zip(
            names, certificate.prediction, certificate.radius, tally(votes), strict=True
        )
    ]
    if json:
        print_json(
            {"method": chosen, "predictions": rows, "assumptions": list(certificate.assumptions)}
        )
        return
    table = Table()
    for column in ("input", "label", "votes", "stays with up to"):
        table.add_column(column, overflow="fold")
    for row in rows:
        counts = ", ".join(
            f"{data['class_names'][c]} {n}"
            for c, n in sorted(enumerate(row["votes"]), key=lambda pair: -pair[1])
            if n
        )
        radius = f"{row['radius']} malicious clients"
        table.add_row(row["input"], data["class_names"][row["label"]], counts, radius)
    screen.print(table)
    screen.print(certificate.assumptions[-1], highlight=False)


def read_inputs(path: Path, shape: tuple[int, ...], kind: str) -> npt.NDArray[Any]:
    """Read the inputs in a file, shape (n, …), of the type the models were trained on.

    Parameters
    ----------
    path
        A PNG or npy file.
    shape
        Shape of one input.
    kind
        ``uint8`` or ``float32``, as the training data.
    """
    from carvyfl.federation.clients import as_inputs

    try:
        if path.suffix.lower() == ".npy":
            array = np.load(path, allow_pickle=False)
        elif path.suffix.lower() == ".png":
            array = _read_png(path, shape)
        else:
            raise CarvyError(f"{path}: only .png and .npy files can be read")
    except (OSError, ValueError, EOFError) as error:
        raise CarvyError(f"cannot read {path}: {error}") from error
    for fitting in (array, array[None], array[:, None] if array.ndim else array, array[None, None]):
        if fitting.shape[1:] == shape and fitting.ndim:
            inputs = as_inputs(fitting, shape, str(path))
            break
    else:
        raise CarvyError(
            f"{path} has shape {array.shape}, but the models take inputs of shape {shape}; "
            "resize it first"
        )
    if kind == "uint8" and inputs.dtype != np.uint8:
        if inputs.min(initial=0) < 0 or inputs.max(initial=0) > 1:
            raise CarvyError(f"{path}: float pixels must lie between 0 and 1; use uint8 for 0…255")
    elif kind != "uint8" and inputs.dtype == np.uint8:
        raise CarvyError(f"{path}: the models were trained on floats; give the npy as float32")
    return inputs if kind != "uint8" else _as_uint8(inputs)


def _as_uint8(inputs: npt.NDArray[Any]) -> npt.NDArray[Any]:
    return inputs if inputs.dtype == np.uint8 else np.rint(inputs * 255).astype(np.uint8)


def _read_png(path: Path, shape: tuple[int, ...]) -> npt.NDArray[np.uint8]:
    from PIL import Image

    if len(shape) != 3 or shape[0] not in (1, 3):
        raise CarvyError(f"{path}: the models do not take images; give an npy file")
    with Image.open(path) as image:
        pixels = np.asarray(image.convert("L" if shape[0] == 1 else "RGB"))
    return pixels[None] if pixels.ndim == 2 else np.moveaxis(pixels, -1, 0)
