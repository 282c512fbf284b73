"""Figures, drawn without a display and readable for colour-blind people."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt

from carvyfl.core.files import replacing

M = "malicious clients m"
CA = "certified accuracy CA(m) in %"
"""The axes of a curve of CA."""

STYLE: dict[str, tuple[str, str, str]] = {
    "carvy": ("CARVY-FL", "#0072B2", "o"),
    "slots": ("random slots", "#56B4E9", "p"),
    "wrap": ("random slots, wrapped", "#E69F00", "h"),
    "flcert": ("FLCert", "#D55E00", "s"),
    "cluster": ("FLCert + clustering", "#009E73", "^"),
    "balanced": ("balanced random", "#CC79A7", "D"),
    "single": ("single global model", "#000000", "x"),
}
"""A method's name in print, its colour and its marker: the same in every figure."""


def style(method: str) -> tuple[str, str, str]:
    """Return a method's name in print, colour and marker; a new method goes by its own name."""
    return STYLE.get(method, (method, "#56B4E9", "v"))


def plot_ca(curves: Mapping[str, npt.NDArray[np.float64]], path: Path, *, title: str) -> None:
    """Draw CA(m) of every method, as in the paper's figures, and write a PNG.

    Parameters
    ----------
    curves
        CA(m) in percent for m = 0, 1, …, ending at the first zero, by method.
    path
        Where the picture goes.
    title
        What was run.
    """
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    figure = Figure(figsize=(7, 4.2), layout="constrained")
    axes = figure.add_subplot()
    last = max(len(curve) for curve in curves.values())
    for method, curve in curves.items():
        name, colour, marker = style(method)
        padded = np.pad(curve, (0, last - len(curve)))
        axes.plot(range(last), padded, marker=marker, color=colour, label=name, clip_on=False)
    axes.set(
        xlabel=M,
        ylabel=CA,
        ylim=(0, 100),
        xlim=(0, last - 1 if last > 1 else 1),
        title=title,
    )
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.grid(alpha=0.3)
    axes.legend()
    with replacing(path) as file:
        figure.savefig(file, format="png", dpi=150)
