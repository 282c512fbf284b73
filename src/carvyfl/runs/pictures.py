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


def described(record: RunRecord) -> str:
    """Return two lines on what a run was: its data and clients, then their split and the model."""
    config = record.config
    options = "".join(f", {name} = {value}" for name, value in config.partition_options.items())
    split = f"{config.partition}{options}" if record.deployment is UNSET else "clients' own data"
    one_shot = config.learner == "one-shot"
    model = f"one-shot on features {config.features}" if one_shot else config.model
    return f"{record.data.name}, {population(config, record.deployment)}\n{split}; {model}"


def drawn(certificates: Mapping[str, Certificate]) -> tuple[Mapping[str, Certificate], str]:
    """Return what a picture of CA(m) shows, by method, and what it is read against.

    Methods of which nothing is proved are drawn only where it is nothing of any, by their accuracy.
    """
    proved = {method: each for method, each in certificates.items() if each.basis.readings}
    label = READINGS["given_groups"].label
    return (proved, label) if proved else (certificates, "nothing certified")


def draw_pictures(
    folder: RunFolder, certificates: Mapping[str, Certificate], record: RunRecord
) -> list[Path]:
    """Draw CA(m) of every method, and the curve that G was chosen from; return the files."""
    shown, reading = drawn(certificates)
    plot(shown, title=f"{described(record)}; {reading}").save(folder.picture)
    if record.group_count is UNSET:
        return [folder.picture]
    save(draw([record.group_count.panel], inches=(7, 4.6)), folder.choice_picture)
    return [folder.picture, folder.choice_picture]
