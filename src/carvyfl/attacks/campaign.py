"""Attacking a finished run: the same federation and groups, with some clients malicious."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from carvyfl.attacks.attack import Malicious, Surroundings
from carvyfl.attacks.placement import PLACEMENTS, dispersed, given, worst_groups
from carvyfl.attacks.scenario import (
    Groups,
    Outcome,
    Scenario,
    Version,
    backdoor_wins,
    error_wins,
    outcome,
    plan_scenario,
)
from carvyfl.core.errors import CarvyError, pick
from carvyfl.data.clients import Inputs
from carvyfl.groups.grouping import Grouping
from carvyfl.groups.methods import TYPED
from carvyfl.learning.job import GroupJob, GroupResult, plan
from carvyfl.pipeline import gather_models
from carvyfl.runs.config import RunConfig
from carvyfl.runs.execute import Setting, form, infer

Ballots = npt.NDArray[np.integer[Any]]
Train = Callable[[Sequence[GroupJob]], list[GroupResult]]
"""Trains jobs, those trained before only once."""

WORST = "worst"


@dataclass(frozen=True)
class Battlefield:
    """What is attacked, and where votes are computed.

    Attributes
    ----------
    config, setting
        The run and what it stands for.
    workers, device
        Where votes are computed.
    """

    config: RunConfig
    setting: Setting
    workers: int | None = None
    device: str | None = None

    @property
    def around(self) -> Surroundings:
        """What attackers find in the federation."""
        dataset = self.setting.dataset
        return Surroundings(
            dataset.train, dataset.num_classes, dataset.mean, dataset.std, self.config.seed
        )

    def votes(
        self, trained: Mapping[Version, GroupResult], inputs: Inputs
    ) -> dict[Version, Ballots]:
        """Return what every version of every group votes, shape (n,) each."""
        setting = self.setting
        models = gather_models(setting.federation, setting.module, list(trained.values()))
        rows = models.votes(inputs, workers=self.workers, device=self.device).groups
        return dict(zip(trained, rows, strict=True))


def keeping(finished: Mapping[tuple[int, ...], GroupResult], train: Train) -> Train:
    """Return a trainer that takes honest groups from a finished run, as they are.

    Trained again, they could be others: on other hardware, in another precision. Then the
    certificate that is tried would not be the run's.

    Parameters
    ----------
    finished
        The members of every group of the run → its result.
    train
        Trains the others.
    """

    def is_kept(job: GroupJob) -> bool:
        return not job.malicious and job.members in finished

    def trained(jobs: Sequence[GroupJob]) -> list[GroupResult]:
        others = iter(train([job for job in jobs if not is_kept(job)]))
        return [finished[job.members] if is_kept(job) else next(others) for job in jobs]

    return trained


def attack_method(
    field: Battlefield,
    method: str,
    grouping: Grouping,
    attack: Malicious,
    placement: str | Sequence[int],
    ms: Sequence[int],
    train: Train,
) -> Outcome:
    """Attack one method of a run at several m.

    Parameters
    ----------
    field
        The run.
    method, grouping
        The method, and the groups it formed.
    attack
        What the malicious clients do.
    placement
        A name of :data:`~carvyfl.attacks.placement.PLACEMENTS`, ``worst``, or the
        malicious clients themselves, in order.
    ms
        Numbers of malicious clients.
    train
        Trains groups, such as :func:`~carvyfl.learning.planner.train_groups`.
    """
    seed = field.config.seed
    if isinstance(placement, str):
        pick({**PLACEMENTS, WORST: None}, placement, "placement")
        order = PLACEMENTS.get(placement, dispersed)(grouping, seed)
    else:
        order = given(placement, grouping)
    if not ms or min(ms) < 0:
        raise CarvyError(f"numbers of malicious clients are 0 or more, at least one, not {ms!r}")
    if max(ms) > len(order):
        raise CarvyError(
            f"{max(ms)} malicious clients, but only {len(order)} can be; give a smaller m"
        )
    if placement == WORST and attack.step_one != "honest":
        raise CarvyError(
            "placement 'worst' searches groups that stay as they are; "
            "take step_one honest, or another placement"
        )
    groups = _groups(field, method, grouping, attack)
    if placement == WORST:
        order = _worst_order(field, groups, grouping, attack, order, train)
    scenario = plan_scenario(groups, attack, order, ms, field.around)
    trained = _trained(scenario, train)
    return measured(field, scenario, trained)


def measured(
    field: Battlefield, scenario: Scenario, trained: Mapping[Version, GroupResult]
) -> Outcome:
    """Let all versions vote and measure the attack."""
    dataset, attack = field.setting.dataset, scenario.attack
    clean = field.votes(trained, dataset.test.inputs)
    backdoor, fooled = attack.backdoor(dataset), None
    if backdoor is not None:
        fooled = (field.votes(trained, backdoor.inputs).__getitem__, backdoor.target)
    found = outcome(scenario, dataset.test.labels, dataset.num_classes, clean.__getitem__, fooled)
    dropped = tuple(
        sum(client in trained[version].set_aside for version in row for client in version[1])
        for row in scenario.composed
    )
    return replace(found, dropped=dropped)


def _trained(scenario: Scenario, train: Train) -> dict[Version, GroupResult]:
    return dict(zip(scenario.jobs, train(list(scenario.jobs.values())), strict=True))


def _groups(field: Battlefield, method: str, grouping: Grouping, attack: Malicious) -> Groups:
    """Return what Steps 1 and 2 make of the federation, given who is malicious."""
    setting, config = field.setting, field.config

    def jobs(formed: Grouping) -> list[GroupJob]:
        return plan(setting.federation, formed, setting.module, config.training, config.seed)

    as_they_are = jobs(grouping)
    if attack.step_one == "honest" or method not in TYPED:
        return lambda malicious: as_they_are

    def poisoned(malicious: Sequence[int]) -> Sequence[GroupJob]:
        if not malicious:
            return as_they_are
        clients = list(setting.federation.clients)
        for rank, client in enumerate(malicious):
            data = attack.poisoned(clients[client].train, rank, field.around)
            clients[client] = replace(clients[client], train=data)
        federation = replace(setting.federation, clients=tuple(clients))
        disturbed = replace(setting, federation=federation)
        types = infer(config, disturbed, workers=field.workers, device=field.device)
        return jobs(form(method, config, disturbed, types, None))

    return poisoned


def _worst_order(
    field: Battlefield,
    groups: Groups,
    grouping: Grouping,
    attack: Malicious,
    spread: Sequence[int],
    train: Train,
) -> list[int]:
    """Capture one client of every group that has one, and search for the order that hurts most."""
    dataset, filled = field.setting.dataset, int(np.count_nonzero(grouping.sizes))
    scenario = plan_scenario(groups, attack, spread, (0, filled), field.around)
    trained = _trained(scenario, train)
    inputs, wins = dataset.test.inputs, error_wins(dataset.test.labels, dataset.num_classes)
    backdoor = attack.backdoor(dataset)
    if backdoor is not None:
        inputs, wins = backdoor.inputs, backdoor_wins(backdoor.target, dataset.num_classes)
    votes = field.votes(trained, inputs)
    benign, attacked = (np.stack([votes[version] for version in row]) for row in scenario.composed)
    captured = [malicious[:1] for _, malicious in scenario.composed[1]]
    first = [client for g in worst_groups(benign, attacked, wins) for client in captured[g]]
    return [*first, *(client for client in spread if client not in set(first))]
