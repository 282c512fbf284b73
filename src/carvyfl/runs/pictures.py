"""The pictures of a run: a function of its record and its certificates."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from msgspec import UNSET

from carvyfl.groups.basis import READINGS
from carvyfl.plots.draw import draw, save
from carvyfl.plots.pictures import plot
from carvyfl.runs.folder import RunFolder
from carvyfl.runs.record import RunRecord, population
from carvyfl.voting.certificate import Certificate


def draw_pictures(
    folder: RunFolder, certificates: Mapping[str, Certificate], record: RunRecord
) -> list[Path]:
    """Draw CA(m) of every method, and the curve that G was chosen from; return the files.

    The title says against what the certificates hold; methods of which nothing is proved are drawn
    only where it is nothing of any, by their accuracy.
    """
    title = f"{record.data.name}, {population(record.config, record.deployment)}"
    proved = {method: own for method, own in certificates.items() if own.basis.readings}
    reading = READINGS["given_groups"].label if proved else "nothing certified"
    curves = {method: own.ca() for method, own in (proved or certificates).items()}
    plot(curves, title=f"{title}; {reading}").save(folder.picture)
    if record.group_count is UNSET:
        return [folder.picture]
    save(draw([record.group_count.panel], inches=(7, 4.6)), folder.choice_picture)
    return [folder.picture, folder.choice_picture]
