"""The template as an app of a test, and what the simulator makes of the same federation."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from torch import Tensor

from carvyfl.data.clients import Federation
from carvyfl.data.datasets import load
from carvyfl.data.partitions import build_federation
from carvyfl.learning.job import GroupResult, group_job
from carvyfl.learning.models import build_model
from carvyfl.learning.one_shot.training import one_shot_model, train_one_shot
from carvyfl.learning.recipe import Recipe
from carvyfl.learning.scaffold.group import train_group
from carvyfl.runs.folder import RunFolder
from support.processes import Processes

HERE = Path(__file__).parent
TESTS = HERE.parent
ROUNDS = 2
RECIPE = Recipe(rounds=ROUNDS, lr=0.05, lr_min=0.001)


PAGE = TESTS.parent / "docs" / "howto" / "flower.md"


def command(start: str) -> str:
    """Return the one command of the page on Flower that starts so."""
    commands = re.findall(rf"^\$ ({re.escape(start)}.*)$", PAGE.read_text(), re.M)
    assert len(commands) == 1, commands
    return str(commands[0])


def make_app(place: Processes) -> None:
    """Write the template and make its clients hostile where the run's setting says so."""
    place.run(command("carvy flower init"))
    app = place.folder / "federation"
    (app / "carvy_app" / "apps.py").write_text((HERE / "hostile.py").read_text())
    settings = (app / "pyproject.toml").read_text()
    settings = re.sub(r"^samples = 50.*$", 'samples = 40\nhostile = ""', settings, flags=re.M)
    settings = re.sub(r"^rounds = .*$", f"rounds = {ROUNDS}", settings, flags=re.M)
    (app / "pyproject.toml").write_text(settings)


def federation(partitions: list[int]) -> Federation:
    """Return the clients by number, where client i holds the i-th of these partitions."""
    whole = build_federation(
        load("embedded"),
        "class-disjoint",
        num_clients=len(partitions),
        samples=40,
        seed=0,
        validation=20,
    )
    clients = tuple(whole.clients[partition] for partition in partitions)
    return Federation(clients, whole.num_classes, 0.2860, 0.3530)


def simulated(
    clients: Federation, members: list[int], ids: Sequence[int] | None = None
) -> GroupResult:
    """Train one group in the simulator; ``ids`` of all clients, where they are not the numbers."""
    module = build_model("mlp", (1, 28, 28), 10, seed=0)
    job = group_job(clients, members, module, RECIPE, 0)
    numbers = job.members if ids is None else tuple(ids[number] for number in job.members)
    return train_group(replace(job, members=numbers))


def simulated_in_one_shot(clients: Federation, members: list[int]) -> GroupResult:
    """Learn one group in the simulator, from fixed features."""
    module = one_shot_model("scattering", (1, 28, 28), 10)
    ((_, result),) = train_one_shot([group_job(clients, members, module, RECIPE, 0)])
    return result


def weights(folder: Path) -> Tensor:
    """Return the models of a run, a row a group."""
    run = RunFolder(folder)
    return run.models(run.method(None)).weights


def groups(folder: Path) -> list[list[int]]:
    """Return the members of every group of a run."""
    run = RunFolder(folder)
    return [members.tolist() for members in run.grouping(run.method(None)).groups]


def lost(folder: Path) -> list[int]:
    """Return the groups that cast no vote, as the votes have it."""
    run = RunFolder(folder)
    with np.load(run.votes_file(run.method(None))) as archive:
        return np.flatnonzero((archive["votes"] == -1).all(axis=1)).tolist()
