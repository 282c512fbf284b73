"""One federation, and everything that is computed on it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from carvyfl.attacks.attack import Malicious
from carvyfl.attacks.campaign import AttackedRun
from carvyfl.attacks.placement import PLACEMENTS
from carvyfl.attacks.scenario import Scenario, plan_scenario
from carvyfl.groups.anticluster import anticluster
from carvyfl.groups.basis import FOREIGN_VOTES, Basis
from carvyfl.groups.grouping import Grouping
from carvyfl.learning.job import GroupResult, group_job
from carvyfl.pipeline import (
    Compute,
    Setup,
    cast_votes,
    form_methods,
    gather_models,
    plan_training,
    train,
)
from carvyfl.profiles.asking import one_epoch_updates
from carvyfl.profiles.messages import Messages
from carvyfl.profiles.methods import PROFILE_METHODS, Profiles, read_profiles
from carvyfl.runs.config import RunConfig, preset
from carvyfl.runs.execute import Prepared, prepare
from carvyfl.settings import GroupingSettings
from carvyfl.voting.certificate import Certificate, certify, margin
from carvyfl.voting.votes import NO_VOTE, tally, votes

Members = tuple[int, ...]
"""The clients of a group, ascending."""
Groups = list[Members]
"""All groups of a run; some may be empty."""
Ballots = npt.NDArray[np.integer[Any]]


TYPES = "bias-profile"
"""How the studies find types, where the paper's own way is not what they are about."""


def method_of_the_paper(preset_name: str, dataset: str) -> RunConfig:
    """Return a preset with the paper's Steps 1 and 2: types, and G by Algorithm 2."""
    config = preset(preset_name, dataset)
    return replace(config, types=TYPES) if config.types == "class-means" else config


@dataclass(frozen=True)
class Experiment:
    """A federation, what Step 1 finds there, and the test votes of groups trained on it.

    All is computed when first asked for. ``inputs`` says how many test inputs are voted on, None
    for all; ``ballots`` are the votes, shape (n,), of the groups that :meth:`train` trained.
    """

    config: RunConfig
    compute: Compute
    inputs: int | None = None
    ballots: dict[Members, Ballots] = field(default_factory=dict)

    @cached_property
    def prepared(self) -> Prepared:
        """The data, the clients and the model."""
        prepared = prepare(self.config)
        if not self.inputs:
            return prepared
        test = prepared.dataset.test.take(range(self.inputs))
        return replace(prepared, dataset=replace(prepared.dataset, test=test))

    @property
    def setup(self) -> Setup:
        """The clients, the model, the recipe and the seed."""
        return self.prepared.setup

    @cached_property
    def updates(self) -> Messages:
        """The one-epoch updates, whole: they serve every profile method and the scatter plots."""
        return self.one_epoch(None)

    def one_epoch(self, method: str | None) -> Messages:
        """Have every client train one epoch, and send what a profile method needs."""
        setup, compute = self.setup, self.compute
        with compute.phase("Step 1  one-epoch updates") as progress:
            return one_epoch_updates(
                setup.federation,
                setup.module,
                setup.recipe,
                setup.seed,
                method=method,
                engine=compute.engine,
                progress=progress,
            )

    @cached_property
    def profiles(self) -> Profiles:
        """What the settings' profile method reads from the updates."""
        method, seed = self.config.types, self.config.seed
        sent = self.updates if PROFILE_METHODS.pick(method).asks_clients else None
        return read_profiles(method, sent, seed=seed, truth=self.setup.federation.types)

    @property
    def true_types(self) -> npt.NDArray[np.int64]:
        """The types by which the data were dealt out."""
        true = self.setup.federation.types
        assert true is not None  # all of the paper's partitions know them
        return true

    @property
    def types_exact(self) -> bool:
        """Whether the types found are the true ones, up to their names."""
        return self.profiles.types.agree_with(self.true_types)

    def form(
        self,
        method: str = "carvy",
        settings: GroupingSettings | None = None,
        *,
        literal: bool = False,
    ) -> Grouping:
        """Step 2 of one method; its settings are by default those of the configuration.

        With ``literal``, `carvy` deals clients out as Algorithm 2 says word for word.
        """
        steps = settings or self.config
        if method != "carvy":
            return form_methods([method], steps, self.setup, None)[method]
        grouping = form_methods([method], steps, self.setup, self.profiles)[method]
        return dealt_literally(grouping, self.profiles, self.setup.seed) if literal else grouping

    @property
    def attacked(self) -> AttackedRun:
        """The federation, as attacks see it."""
        return AttackedRun(self.prepared.dataset, self.setup, self.compute)

    def plan_attack(
        self, grouping: Grouping, attack: Malicious, placement: str, ms: Sequence[int]
    ) -> Scenario:
        """Plan an attack by clients that behave in Step 1."""
        jobs = plan_training(self.setup, grouping)
        order = PLACEMENTS[placement].order(grouping, self.setup.seed)
        return plan_scenario(lambda malicious: jobs, attack, order, ms, self.attacked.context)

    def certify(self, results: Iterable[GroupResult], basis: Basis = FOREIGN_VOTES) -> Certificate:
        """Have trained groups vote on the test set, and certify their votes."""
        test = self.prepared.dataset.test
        models = gather_models(self.setup, list(results))
        return certify(cast_votes(models, test.inputs, self.compute), test.labels, basis)

    def train(self, wanted: Iterable[Members]) -> None:
        """Train groups, each once, and have them vote on the test set."""
        setup, todo = self.setup, sorted(set(wanted) - self.ballots.keys())
        if not todo:
            return
        jobs = [
            group_job(setup.federation, members, setup.module, setup.recipe, setup.seed)
            for members in todo
        ]
        models = gather_models(setup, train({"": jobs}, self.compute)[""])
        cast = cast_votes(models, self.prepared.dataset.test.inputs, self.compute)
        self.ballots.update(zip(todo, cast.groups, strict=True))

    def cast(self, groups: Groups) -> Ballots:
        """Return what trained groups vote, shape (G, n)."""
        return np.stack([self.ballots[members] for members in groups])

    def _true_margins(self, ballots: Ballots) -> npt.NDArray[np.int32]:
        dataset = self.prepared.dataset
        return margin(tally(votes(ballots, dataset.num_classes)), dataset.test.labels)

    def ca(self, groups: Groups, m: int, per_client: int = 1) -> float:
        """Return CA(m) of trained groups in percent, where a client changes ``per_client``."""
        return 100 * float(np.mean(self._true_margins(self.cast(groups)) >= 2 * m * per_client))

    def accuracy_against(self, groups: Groups, malicious: npt.NDArray[np.bool_]) -> float:
        """Return the accuracy in percent if malicious ones of trained groups vote against it.

        ``malicious`` says which they are, shape (G,).
        """
        honest = np.where(malicious[:, None], NO_VOTE, self.cast(groups))
        return 100 * float(np.mean(self._true_margins(honest) >= malicious.sum()))


def dealt_literally(grouping: Grouping, profiles: Profiles, seed: int) -> Grouping:
    """Return as many groups, dealt as Algorithm 2 says: each type starts at the first group."""
    assignment = anticluster(profiles.types.labels, seed=seed, literal=True)
    return replace(grouping, assignment=assignment)


def members(grouping: Grouping) -> Groups:
    """Return each group's clients."""
    return [tuple(group.tolist()) for group in grouping.groups]


def with_malicious(groups: Groups, malicious: Iterable[int]) -> npt.NDArray[np.bool_]:
    """Return which groups have a malicious member, shape (G,)."""
    chosen = set(malicious)
    return np.array([not chosen.isdisjoint(group) for group in groups])
