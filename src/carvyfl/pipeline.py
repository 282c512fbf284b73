"""The four steps in a row: *Federation → Profiles → Grouping → GroupModels → Votes*.

The estimator, ``carvy run``, ``carvy attack``, the studies of the paper and the Flower server call
these functions; only where clients' messages come from differs. The last arrow, to a certificate,
is :func:`carvyfl.voting.certificate.certify`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TypedDict, TypeVar

import numpy as np
import torch
from torch import nn

from carvyfl.core.checks import check_length
from carvyfl.core.errors import CarvyError
from carvyfl.core.progress import Phase
from carvyfl.core.progress import silent as silent
from carvyfl.data.clients import Federation, Inputs
from carvyfl.group_count import Goal, GroupCount, choose_group_count
from carvyfl.groups.basis import NumGroups
from carvyfl.groups.coins import Coins
from carvyfl.groups.grouping import Grouping
from carvyfl.groups.methods import GROUPINGS, Beforehand, form_groups
from carvyfl.learning.backends import Backend, Cores
from carvyfl.learning.job import GroupJob, GroupResult, group_job
from carvyfl.learning.learners import learner_of
from carvyfl.learning.models import check_model
from carvyfl.learning.one_shot.sums import Sums
from carvyfl.learning.one_shot.training import client_sums
from carvyfl.learning.private.message import Messages as PrivateMessages
from carvyfl.learning.recipe import Recipe
from carvyfl.learning.scaffold.client import prepared
from carvyfl.learning.store import GroupStore, train_groups
from carvyfl.profiles.asking import all_class_means, message_form, one_epoch_updates
from carvyfl.profiles.class_counts import class_counts
from carvyfl.profiles.messages import Messages
from carvyfl.profiles.methods import PROFILE_METHODS, Profiles, read_profiles
from carvyfl.profiles.private_shares import noise_for_shares, private_shares
from carvyfl.settings import FederatedGrouping, GroupingSettings
from carvyfl.voting.group_models import GroupModels
from carvyfl.voting.votes import Votes

K = TypeVar("K")
TRAINING = "Step 3  training"


@dataclass(frozen=True)
class Setup:
    """What a run is made of, before anything is trained; the module's present weights are w⁰."""

    federation: Federation
    module: nn.Module
    recipe: Recipe
    seed: int
    messages: PrivateMessages | None = None
    """What the clients sent beforehand, where the learner has one message for all steps."""


@dataclass(frozen=True)
class Compute:
    """Where and how things are computed.

    The ``engine`` trains, and Steps 1 and 4 use its device. Trained groups are kept in the
    ``store``.
    """

    engine: Backend
    store: GroupStore | None = None
    phase: Phase = silent

    @classmethod
    def on_cores(cls, workers: int | None = None) -> Compute:
        """Compute on CPU cores, keeping nothing."""
        return cls(Cores(workers))

    @property
    def device(self) -> str | None:
        """The device that the engine computes on; None for CPU cores."""
        return self.engine.device

    @property
    def features_folder(self) -> Path | None:
        """Where the features of inputs are kept; None keeps nothing."""
        return None if self.store is None else self.store.folder / "features"


def check_setup(setup: Setup) -> None:
    """Refuse a model that cannot be trained on these clients, before anything is trained."""
    federation = setup.federation
    if federation.num_classes < 2:
        raise CarvyError("the data has a single class; classification needs two or more")
    first = federation.clients[0].train.inputs[:1]
    example = prepared(first, federation.mean, federation.std)
    check_model(setup.module, torch.cat([example, example]), federation.num_classes)


def check_methods(methods: Sequence[str], settings: GroupingSettings, setup: Setup) -> None:
    """Refuse methods that lack what they need, before anything is trained or written."""
    for method in methods:
        entry = GROUPINGS.pick(method)
        follows = "carvy" in methods and not entry.needs_profiles
        if entry.needs_groups and not (follows or settings.groups_of(entry, settings.groups)):
            early = " before any client is heard; set `groups`"
            beside = "; set `groups`, or run carvy beside it, which finds one"
            advice = early if entry.needs_profiles else beside
            raise CarvyError(f"method '{method}' needs the number of groups{advice}")
        if entry.needs_truth and setup.federation.types is None:
            raise CarvyError(
                f"method '{method}' needs the clients' true types, and these clients have none; "
                "choose a partition that knows types, such as class-disjoint or "
                "classes-per-client, or another method"
            )
    if not any(GROUPINGS[method].needs_profiles for method in methods):
        return
    profiles = PROFILE_METHODS.pick(settings.types)
    if profiles.sends == "private-shares":
        noise_for_shares(settings.epsilon)
        if settings.groups is None:
            raise CarvyError(
                f"types '{settings.types}' need the number of groups: choosing it reads exact "
                "sums of the clients' data, which are not private; set `groups`"
            )
    learner = learner_of(setup.module)
    if learner.sends == "message" and profiles.asks_clients and profiles.sends != "message":
        raise CarvyError(
            f"types '{settings.types}' ask clients for more than the message with noise, which ε "
            f"would not cover; leave out `types`, or use '{learner.types}', given or covariates"
        )
    if profiles.sends == "message":
        if learner.sends != "message":
            raise CarvyError(
                f"types '{settings.types}' are read from the message of the learner `private`; "
                "set `learner`, or leave out `types`"
            )
        return
    if profiles.sends in {"class-counts", "private-shares"}:
        return
    if profiles.sends == "update" and learner.sends != "update":
        raise CarvyError(
            f"types '{settings.types}' are read from a trained update, and {learner.name} "
            "learning has none; use `types='class-counts'`, class-means, given or oracle"
        )
    if profiles.asks_clients:
        message_form(setup.module, setup.federation.num_classes, settings.types)
    else:
        find_profiles(setup, settings, Compute.on_cores(1))


def compute_features(setup: Setup, compute: Compute, *more: Inputs) -> None:
    """Compute all fixed features of clients' and more inputs once; a store keeps them."""
    learner = learner_of(setup.module)
    features = learner.features(setup.module)
    if features is None:
        return
    with compute.phase("Features") as progress:
        features.known.learn(
            [*(client.train.inputs for client in setup.federation.clients), *more],
            device=None if learner.sends == "message" else compute.device,
            folder=compute.features_folder,
            progress=progress,
        )


def hear(setup: Setup, compute: Compute) -> Setup:
    """Have every client send its message, where the learner has one for all steps."""
    learner = learner_of(setup.module)
    if learner.sends != "message" or setup.messages is not None:
        return setup
    with compute.phase("Messages") as progress:
        messages = learner.messages(setup.module, setup.federation, progress)
    return replace(setup, messages=messages)


def find_profiles(setup: Setup, settings: GroupingSettings, compute: Compute) -> Profiles:
    """Step 1: ask every client, and read its profile from its message."""
    messages: Messages | PrivateMessages | None = None
    method = PROFILE_METHODS.pick(settings.types)
    if method.sends == "message":
        messages = setup.messages
    elif method.sends == "class-counts":
        messages = class_counts(setup.federation)
    elif method.sends == "private-shares":
        messages = private_shares(setup.federation, settings.epsilon)
    elif method.asks_clients:
        means = method.sends == "class-means"
        ask = all_class_means if means else partial(one_epoch_updates, method=settings.types)
        title = f"Step 1  {'class means' if means else 'one-epoch updates'}"
        inputs = setup.federation, setup.module, setup.recipe, setup.seed
        with compute.phase(title) as progress:
            messages = ask(*inputs, engine=compute.engine, progress=progress)
    truth, given = setup.federation.types, settings.listed
    profiles = read_profiles(settings.types, messages, seed=setup.seed, truth=truth, given=given)
    check_length("types", len(profiles), len(setup.federation))
    return profiles


def choose_groups(
    methods: Iterable[str],
    setup: Setup,
    settings: GroupingSettings,
    profiles: Profiles | None,
    compute: Compute,
) -> GroupCount | None:
    """Choose G for ``carvy``, where it is asked for, not set, and can be estimated from vectors."""
    wanted = "carvy" in methods and settings.groups is None
    if not wanted or profiles is None or profiles.vectors is None:
        return None
    with compute.phase("Step 2  number of groups") as progress:
        return choose_group_count(
            setup.federation,
            setup.module,
            profiles.vectors.rows,
            np.flatnonzero(profiles.types.labels >= 0),
            setup.seed,
            Goal(settings.aim, settings.least_accuracy),
            device=compute.device,
            folder=compute.features_folder,
            progress=progress,
            messages=setup.messages,
        )


class AskedGroups(TypedDict):
    """G and how it came about, as :func:`~carvyfl.groups.methods.form_groups` takes them."""

    num_groups: int | None
    found_from: NumGroups


def asked_groups(
    method: str, settings: FederatedGrouping, profiles: Profiles | None, chosen: int | None = None
) -> AskedGroups:
    """Return the number of groups that a method is asked for.

    ``chosen`` is the G chosen for ``carvy`` in this run, or that it has; other methods take it if
    none is set for them. It is all that they know of the clients, and one client can change it.
    """
    entry = GROUPINGS.pick(method)
    num_groups = settings.groups_of(entry, chosen)
    if num_groups == settings.groups_of(entry, settings.groups):
        return {"num_groups": num_groups, "found_from": "set"}
    heard = PROFILE_METHODS.pick(settings.types).asks_clients or (
        profiles is not None and profiles.vectors is not None  # tried on clients' held-out samples
    )
    return {"num_groups": num_groups, "found_from": "messages" if heard else "operator"}


def form_methods(
    methods: Sequence[str],
    settings: GroupingSettings,
    setup: Setup,
    profiles: Profiles | None,
    coins: Coins | None = None,
    chosen: int | None = None,
) -> dict[str, Grouping]:
    """Step 2 of a run, for every method, in their order.

    ``coins`` are what random slots are drawn from; None derives simulated ones from the seed.
    ``chosen`` is the G that was chosen for ``carvy`` (:func:`choose_groups`), if it was.
    """
    formed: dict[str, Grouping] = {}
    num_groups = chosen or settings.groups
    federation = setup.federation
    known = Beforehand(truth=federation.types, coins=coins, derived=federation.derived)
    for method in sorted(methods, key=lambda method: method != "carvy"):
        formed[method] = form_groups(
            method,
            num_clients=len(federation),
            seed=setup.seed,
            profiles=profiles,
            beforehand=known,
            **asked_groups(method, settings, profiles, num_groups),
        )
        if method == "carvy":
            num_groups = formed[method].num_groups
    if coins is not None and all(grouping.coins is None for grouping in formed.values()):
        raise CarvyError(
            "coins were given, but no method of this run draws random slots; use the method slots, "
            "or leave the coins out"
        )
    return {method: formed[method] for method in methods}


@dataclass(frozen=True)
class Formed:
    """What Steps 1 and 2 give: no profiles if none were asked for, no count if G was not chosen."""

    profiles: Profiles | None
    count: GroupCount | None
    groupings: dict[str, Grouping]

    @property
    def warnings(self) -> tuple[str, ...]:
        """What the user should know of anticlustering on these clients, in sentences."""
        vectors = None if self.profiles is None else self.profiles.vectors
        weak = () if vectors is None or "carvy" not in self.groupings else vectors.warnings
        return weak + (() if self.count is None else self.count.warnings)


def form_all(
    methods: Sequence[str],
    settings: GroupingSettings,
    setup: Setup,
    compute: Compute,
    coins: Coins | None = None,
    profiles: Profiles | None = None,
) -> Formed:
    """Do Steps 1 and 2 of a run, for every method; ``profiles`` if Step 1 is done already."""
    if profiles is None and any(GROUPINGS.pick(method).needs_profiles for method in methods):
        profiles = find_profiles(setup, settings, compute)
    count = choose_groups(methods, setup, settings, profiles, compute)
    chosen = None if count is None else count.groups
    groupings = form_methods(methods, settings, setup, profiles, coins, chosen)
    return Formed(profiles, count, groupings)


def plan_training(setup: Setup, grouping: Grouping) -> list[GroupJob]:
    """Describe the training of every group, in the order of the groups."""
    return [
        group_job(
            setup.federation,
            members.tolist(),
            setup.module,
            setup.recipe,
            setup.seed,
            setup.messages,
        )
        for members in grouping.groups
    ]


def each_clients_sums(setup: Setup, device: str | None) -> Iterator[Sums]:
    """Yield what every client sends in one-shot learning, one after another."""
    for client in range(len(setup.federation)):
        job = group_job(setup.federation, [client], setup.module, setup.recipe, setup.seed)
        yield client_sums(job, job.clients[0].train, device)


def train(
    jobs: Mapping[K, Sequence[GroupJob]], compute: Compute, title: str = TRAINING
) -> dict[K, list[GroupResult]]:
    """Step 3: train the groups of several groupings together, each distinct group once."""
    flat = [job for group_jobs in jobs.values() for job in group_jobs]
    with compute.phase(f"{title} {len(flat)} groups") as progress:
        results = train_groups(flat, store=compute.store, engine=compute.engine, progress=progress)
    remaining = iter(results)
    return {key: list(islice(remaining, len(group_jobs))) for key, group_jobs in jobs.items()}


def gather_models(setup: Setup, results: Sequence[GroupResult]) -> GroupModels:
    """Make the trained groups of a federation the models that vote."""
    federation = setup.federation
    scale = {"mean": federation.mean, "std": federation.std}
    return GroupModels.of(setup.module, results, num_classes=federation.num_classes, **scale)


def cast_votes(models: GroupModels, inputs: Inputs, compute: Compute, of: str = "") -> Votes:
    """Step 4: have every group model vote on every input; ``of`` names them for the display."""
    with compute.phase(f"Step 4  votes{of and f' of {of}'}") as progress:
        return models.votes(inputs, compute.engine, progress)
