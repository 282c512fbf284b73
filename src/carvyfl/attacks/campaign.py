"""Attacking a finished run: the same federation and groups, with some clients malicious."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from carvyfl.attacks.attack import AttackContext, Malicious, poisoned_samples
from carvyfl.attacks.placement import PLACEMENTS, WORST, given, worst_groups
from carvyfl.attacks.registry import ATTACKS
from carvyfl.attacks.scenario import (
    Ballots,
    Groups,
    Outcome,
    Scenario,
    Version,
    attack_gain,
    outcome,
    plan_scenario,
)
from carvyfl.core.checks import check_length
from carvyfl.core.errors import CarvyError
from carvyfl.data.clients import Inputs
from carvyfl.data.datasets import DataSet
from carvyfl.groups.grouping import Grouping
from carvyfl.learning.job import GroupJob, GroupResult
from carvyfl.learning.learners import learner_of
from carvyfl.learning.private.model import malicious_messages
from carvyfl.pipeline import Compute, Setup, cast_votes, gather_models, plan_training, train

Train = Callable[[Sequence[GroupJob]], list[GroupResult]]
"""Trains jobs, those trained before only once."""
Regroup = Callable[[Setup], Grouping]
"""Steps 1 and 2 on a setup in which the data, and the messages, of several clients are poisoned."""


@dataclass(frozen=True)
class AttackedRun:
    """What is attacked, and where groups are trained and votes computed."""

    dataset: DataSet
    setup: Setup
    compute: Compute

    @property
    def context(self) -> AttackContext:
        """What attackers find in the federation."""
        data = self.dataset
        return AttackContext(data.train, data.num_classes, data.mean, data.std, self.setup.seed)

    def check_attack(self, attack: Malicious) -> None:
        """Refuse an attack that does nothing to the way in which the run's groups learn."""
        learner = learner_of(self.setup.module).name
        if learner not in attack.against:
            known = ", ".join(name for name, kind in ATTACKS.items() if learner in kind.against)
            wrong = f"attack '{attack.name}' does not work against learner '{learner}'"
            raise CarvyError(f"{wrong}; these do: {known}")

    def train(self, jobs: Sequence[GroupJob]) -> list[GroupResult]:
        """Train groups, those trained before only once."""
        return train({"": jobs}, self.compute)[""]

    def votes(
        self, trained: Mapping[Version, GroupResult], inputs: Inputs
    ) -> dict[Version, Ballots]:
        """Return what every version of every group votes, shape (n,) each."""
        models = gather_models(self.setup, list(trained.values()))
        return dict(zip(trained, cast_votes(models, inputs, self.compute).groups, strict=True))


def reuse_trained(grouping: Grouping, results: Sequence[GroupResult], train: Train) -> Train:
    """Return a trainer that takes the honest groups from the ``results`` of a grouping as they are.

    Trained again, on other hardware or in another precision, groups could be others than those
    whose certificate is tried.
    """
    check_length("results", len(results), grouping.num_groups, "group")
    groups = (tuple(members.tolist()) for members in grouping.groups)
    honest = dict(zip(groups, results, strict=True))

    def finished(job: GroupJob) -> GroupResult | None:
        return None if job.malicious else honest.get(job.members)

    def trained(jobs: Sequence[GroupJob]) -> list[GroupResult]:
        others = iter(train([job for job in jobs if finished(job) is None]))
        return [finished(job) or next(others) for job in jobs]

    return trained


def attack_grouping(
    run: AttackedRun,
    grouping: Grouping,
    attack: Malicious,
    placement: str | Sequence[int],
    ms: Sequence[int],
    train: Train,
    regroup: Regroup | None = None,
) -> Outcome:
    """Attack the groups of a run at several m.

    ``placement`` is a name of :data:`~carvyfl.attacks.placement.PLACEMENTS`, or the malicious
    clients in order. ``regroup`` is Steps 1 and 2 of the method, which an attack with poisoned Step
    1 runs into; None for a method that asks the clients nothing.
    """
    run.check_attack(attack)
    if isinstance(placement, str):
        order = PLACEMENTS.pick(placement).order(grouping, run.setup.seed)
    else:
        order = given(placement, grouping)
    if not ms or min(ms) < 0:
        raise CarvyError(f"numbers of malicious clients are 0 or more, at least one, not {ms!r}")
    if max(ms) > len(order):
        most = len(order)
        raise CarvyError(f"{max(ms)} malicious clients, but only {most} can be; give a smaller m")
    if placement == WORST and attack.step_one != "honest":
        raise CarvyError(
            "placement 'worst' searches groups that stay as they are; "
            "take step_one honest, or another placement"
        )
    groups = _groups(run, grouping, attack, regroup)
    if placement == WORST:
        order = _worst_order(run, groups, grouping, attack, order, train)
    scenario = plan_scenario(groups, attack, order, ms, run.context)
    return measured(run, scenario, _trained(scenario, train))


def measured(
    run: AttackedRun, scenario: Scenario, trained: Mapping[Version, GroupResult]
) -> Outcome:
    """Let all versions vote and measure the attack."""
    data, backdoor = run.dataset, scenario.attack.backdoor(run.dataset)
    clean = run.votes(trained, data.test.inputs)
    fooled = None if backdoor is None else run.votes(trained, backdoor.inputs)
    target = 0 if backdoor is None else backdoor.target
    dropped = tuple(
        sum(client in trained[version].set_aside for version in row for client in version[1])
        for row in scenario.composed
    )
    measures = outcome(scenario, data.test.labels, data.num_classes, clean, fooled, target)
    return replace(measures, dropped=dropped)


def _trained(scenario: Scenario, train: Train) -> dict[Version, GroupResult]:
    return dict(zip(scenario.jobs, train(list(scenario.jobs.values())), strict=True))


def _groups(
    run: AttackedRun, grouping: Grouping, attack: Malicious, regroup: Regroup | None
) -> Groups:
    """Return what Steps 1 and 2 make of the federation, given who is malicious."""
    jobs = plan_training(run.setup, grouping)

    def formed(malicious: Sequence[int]) -> Sequence[GroupJob]:
        if attack.step_one == "honest" or regroup is None or not malicious:
            return jobs
        setup, clients = run.setup, list(run.setup.federation.clients)
        data = {
            client: poisoned_samples(attack, clients[client].train, rank, run.context)
            for rank, client in enumerate(malicious)
        }
        for client, samples in data.items():
            clients[client] = replace(clients[client], train=samples)
        poisoned = replace(setup, federation=replace(setup.federation, clients=tuple(clients)))
        if setup.messages is not None:
            sent = malicious_messages(setup.module, attack, data, setup.seed)
            poisoned = replace(poisoned, messages=setup.messages.replaced(sent))
        return plan_training(setup, regroup(poisoned))

    return formed


def _worst_order(
    run: AttackedRun,
    groups: Groups,
    grouping: Grouping,
    attack: Malicious,
    spread: Sequence[int],
    train: Train,
) -> list[int]:
    """Capture one client of every group that has one, and search for the order that hurts most."""
    data, backdoor = run.dataset, attack.backdoor(run.dataset)
    filled = int(np.count_nonzero(grouping.sizes))
    scenario = plan_scenario(groups, attack, spread, (0, filled), run.context)
    inputs, labels = data.test.inputs, data.test.labels
    if backdoor is not None:
        inputs, labels = backdoor.inputs, np.asarray(backdoor.target)
    votes = run.votes(_trained(scenario, train), inputs)
    benign, attacked = (np.stack([votes[version] for version in row]) for row in scenario.composed)

    def gain(ballots: Ballots) -> tuple[float, float]:
        return attack_gain(ballots, data.num_classes, labels, backdoor is not None)

    captured = [malicious[:1] for _, malicious in scenario.composed[1]]
    first = [c for group in worst_groups(benign, attacked, gain) for c in captured[group]]
    return [*first, *(client for client in spread if client not in first)]
