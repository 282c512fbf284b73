"""The pictures of a run: a function of its record and its certificates."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt
from msgspec import UNSET

from carvyfl.groups.basis import READINGS
from carvyfl.plots.draw import draw, save
from carvyfl.plots.pictures import plot
from carvyfl.runs.folder import RunFolder
from carvyfl.runs.record import RunRecord, population
from carvyfl.voting.certificate import Certificate


def drawn_curves(
    certificates: Mapping[str, Certificate],
) -> tuple[dict[str, npt.NDArray[np.float64]], str]:
    """Return the curves of a picture of CA(m), by method, and what they are read against.

    Methods of which nothing is proved are drawn only where it is nothing of any, by their accuracy.
    """
    proved = {method: each for method, each in certificates.items() if each.basis.readings}
    reading = READINGS["given_groups"].label if proved else "nothing certified"
    return {method: each.ca() for method, each in (proved or certificates).items()}, reading


def draw_pictures(
    folder: RunFolder, certificates: Mapping[str, Certificate], record: RunRecord
) -> list[Path]:
    """Draw CA(m) of every method, and the curve that G was chosen from; return the files."""
    title = f"{record.data.name}, {population(record.config, record.deployment)}"
    curves, reading = drawn_curves(certificates)
    plot(curves, title=f"{title}; {reading}").save(folder.picture)
    if record.group_count is UNSET:
        return [folder.picture]
    save(draw([record.group_count.panel], inches=(7, 4.6)), folder.choice_picture)
    return [folder.picture, folder.choice_picture]
