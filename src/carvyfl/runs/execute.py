"""From a configuration to a finished run: all four steps, every method, as one value."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
from msgspec import UNSET

from carvyfl import pipeline
from carvyfl.core.environment import commit, environment
from carvyfl.core.errors import CarvyError
from carvyfl.core.progress import Phase, silent
from carvyfl.core.schema import read
from carvyfl.data.datasets import DataSet
from carvyfl.group_count import GroupCount
from carvyfl.groups.coins import Coins
from carvyfl.groups.grouping import Grouping
from carvyfl.groups.methods import GROUPINGS
from carvyfl.learning.job import GroupResult
from carvyfl.learning.learners import LEARNERS, learner_of
from carvyfl.learning.one_shot.sums import Sums
from carvyfl.pipeline import Compute, Setup, train
from carvyfl.profiles.methods import Profiles, read_profiles
from carvyfl.profiles.private_shares import private_shares
from carvyfl.runs.config import RunConfig, load_data, split_data, voted_samples
from carvyfl.runs.folder import RunFolder
from carvyfl.runs.record import (
    FORMAT,
    Deployment,
    Environment,
    RunRecord,
    data_entry,
    method_result,
    privacy_entry,
    sha256,
    types_entry,
)
from carvyfl.runs.resume import adds_noise, claim, keep_noise, kept_noise, refuse_other
from carvyfl.runs.save import save
from carvyfl.settings import RunSettings
from carvyfl.voting.certificate import Certificate, certify
from carvyfl.voting.group_models import GroupModels
from carvyfl.voting.votes import Votes


@dataclass(frozen=True)
class Prepared:
    """What a configuration stands for; the test part of ``dataset`` is what is voted on."""

    dataset: DataSet
    setup: Setup


@dataclass(frozen=True)
class MethodRun:
    """What a run found with one method: its groups, their training, models, votes, certificate."""

    grouping: Grouping
    results: Sequence[GroupResult]
    models: GroupModels
    votes: Votes
    certificate: Certificate


@dataclass(frozen=True, kw_only=True)
class Run:
    """A run as a value: its configuration and data, and what each of the four steps found."""

    config: RunSettings
    """The settings, as the record has them."""
    prepared: Prepared
    """The data, split over clients, and the model with its initial weights."""
    profiles: Profiles | None
    """What Step 1 found, None where no method asked."""
    group_count: GroupCount | None = None
    """How G was chosen for ``carvy``, None where it was set or followed from types."""
    methods: Mapping[str, MethodRun]
    """The rest, for every method."""
    sums: Callable[[], Iterator[Sums]] | None = None
    """What every client sent, where it is to be kept: computed on the way, one after another, as
    that of all clients may not fit into memory."""
    seconds: float
    environment: Environment
    deployment: Deployment | None = None
    """How a real federation was run, None for a simulated one."""

    def record(self) -> RunRecord:
        """Return the record of the run, which names no files yet."""
        true_types = self.prepared.setup.federation.types
        return RunRecord(
            format=FORMAT,
            config=self.config,
            data=data_entry(self.prepared.dataset),
            types=None if self.profiles is None else types_entry(self.profiles.types, true_types),
            group_count=self.group_count or UNSET,
            methods={
                name: method_result(method.grouping, method.results, method.certificate)
                for name, method in self.methods.items()
            },
            deployment=self.deployment or UNSET,
            privacy=privacy_entry(self.prepared.setup.module),
            seconds=round(self.seconds, 1),
            environment=self.environment,
            files={},
        )


def prepare(
    config: RunConfig,
    dataset: DataSet | None = None,
    folder: RunFolder | None = None,
    phase: Phase = silent,
) -> Prepared:
    """Load the data unless they are given, split them over clients, build and check the model.

    ``folder`` is that of the finished run, where it is to be had again: what clients sent
    beforehand, and the model that this was for, are read from there.
    """
    dataset = load_data(config) if dataset is None else dataset
    federation = split_data(config, dataset)  # which checks the labels, so it comes first
    test = voted_samples(config, dataset.test, dataset.num_classes)
    dataset = replace(dataset, test=test)
    learner, messages = LEARNERS.pick(config.learner), None
    if folder is not None and learner.sends == "message":
        module, messages = folder.module(), folder.messages()
    else:
        module = learner.prepare(config, federation, config.seed, phase)
    setup = Setup(federation, module, config.training, config.seed, messages)
    pipeline.check_setup(setup)
    return Prepared(dataset, setup)


def execute(
    config: RunConfig,
    out: Path,
    compute: Compute,
    coins: Coins | None = None,
    dataset: DataSet | None = None,
) -> RunRecord:
    """Run all four steps for every method, write the run folder, and return its record.

    Nothing is written before settings, data and model were checked. Groups already in the store
    are not trained again, so running an interrupted configuration once more finishes it. ``out``
    may exist if it holds this same run, or one that found nothing yet. ``coins`` are those of the
    configuration's commitment, and become public with the groups; ``dataset`` is the
    configuration's, where it is loaded already.
    """
    refuse_other(out, config.to_dict())
    prepared = checked(config, coins, dataset, compute.phase)
    with claim(out, config.to_dict()) as folder:
        return save(run(config, compute, coins, prepared, folder), folder)


def checked(
    config: RunConfig,
    coins: Coins | None,
    dataset: DataSet | None = None,
    phase: Phase = silent,
) -> Prepared:
    """Prepare a run; refuse coins, or methods, that do not fit the rest."""
    config.check_coins(coins)
    prepared = prepare(config, dataset, phase=phase)
    pipeline.check_methods(config.methods, config, prepared.setup)
    return prepared


def run(
    config: RunConfig,
    compute: Compute,
    coins: Coins | None = None,
    prepared: Prepared | None = None,
    folder: RunFolder | None = None,
) -> Run:
    """Do all four steps for every method, and return what they find.

    Trained groups are kept in the store of ``compute``. ``prepared`` is what :func:`checked`
    returned, where it was called before. With ``folder``, which is claimed for this run, profiles
    with noise are kept there, and taken from there where it has them.
    """
    started = time.monotonic()
    prepared = checked(config, coins, phase=compute.phase) if prepared is None else prepared
    setup, test = prepared.setup, prepared.dataset.test
    pipeline.compute_features(setup, compute, test.inputs)
    setup = heard(setup, config, compute, folder)
    prepared = replace(prepared, setup=setup)
    profiles = None if folder is None else kept_noise(folder, config.types)
    formed = pipeline.form_all(config.methods, config, setup, compute, coins, profiles)
    if folder is not None and profiles is None and formed.profiles and adds_noise(config.types):
        keep_noise(folder, formed.profiles)
    jobs = {
        method: pipeline.plan_training(setup, grouping)
        for method, grouping in formed.groupings.items()
    }
    # Kept sums are those of this run, so no head may come from an earlier one, whose sums
    # another machine may have rounded otherwise.
    results = train(jobs, replace(compute, store=None) if config.keep_sums else compute)
    each_sums = partial(pipeline.each_clients_sums, setup, compute.device)
    return Run(
        config=read(RunSettings, config.to_dict(), "the configuration"),
        prepared=prepared,
        profiles=formed.profiles,
        group_count=formed.count,
        methods={
            method: vote(prepared, formed.groupings[method], results[method], compute, method)
            for method in config.methods
        },
        sums=each_sums if config.keep_sums else None,
        seconds=time.monotonic() - started,
        environment=Environment(commit=commit(), **environment(compute.engine)),
    )


def heard(setup: Setup, config: RunSettings, compute: Compute, folder: RunFolder | None) -> Setup:
    """Return a setup with what clients send beforehand; noise is drawn once for a run's folder."""
    if folder is None or learner_of(setup.module).sends != "message":
        return pipeline.hear(setup, compute)
    _refuse_damaged(folder, learner_of(setup.module).files)
    if folder.messages_file.is_file():
        before = _heard_before(setup, config, folder)
        entries = [learner_of(each.module).privacy(each.module) for each in (before, setup)]
        made_of = [entry and entry["made_of"] for entry in entries]
        if made_of[0] == made_of[1]:
            return before
        raise CarvyError(
            f"the messages in {folder.path} were made with a map of {made_of[0]}, and these are "
            "other `public` inputs; choose another folder with `out`"
        )
    setup = pipeline.hear(setup, compute)
    assert setup.messages is not None
    learner_of(setup.module).save(setup.module, folder.path)
    setup.messages.save(folder.messages_file)
    return setup


_ASKED_AGAIN = (
    "put it back, or choose another folder with `out`: clients that are asked again draw new "
    "noise, and spend ε again"
)


def _refuse_damaged(folder: RunFolder, files: Sequence[str]) -> None:
    """Refuse a finished run whose messages or map are not the recorded ones."""
    try:
        recorded = folder.record().files if folder.record_file.is_file() else {}
    except CarvyError:  # the record itself is damaged, and is written again
        return
    for path in (folder.messages_file, *(folder.path / name for name in files)):
        known = recorded.get(path.name)
        if known is not None and not (path.is_file() and sha256(path) == known):
            raise CarvyError(f"{path} is missing or damaged; {_ASKED_AGAIN}")


def _heard_before(setup: Setup, config: RunSettings, folder: RunFolder) -> Setup:
    """Return a setup with the model and the messages that a folder keeps."""
    federation, learner = setup.federation, learner_of(setup.module)
    shape = federation.clients[0].train.inputs.shape[1:]
    try:
        module = learner.load(config, shape, federation.num_classes, folder.path)
        messages = learner.read_messages(module, folder.messages_file, len(federation))
    except CarvyError as error:
        raise CarvyError(f"{error}; {_ASKED_AGAIN}") from error
    return replace(setup, module=module, messages=messages)


def vote(
    prepared: Prepared,
    grouping: Grouping,
    results: Sequence[GroupResult],
    compute: Compute,
    method: str,
) -> MethodRun:
    """Step 4 for one method: have its trained groups vote on the test inputs, and certify that."""
    test, models = prepared.dataset.test, pipeline.gather_models(prepared.setup, results)
    votes = pipeline.cast_votes(models, test.inputs, compute, method)
    certificate = certify(votes, test.labels, grouping.basis)
    if (privacy := privacy_entry(prepared.setup.module)) is not UNSET:
        certificate = replace(certificate, budget=(privacy.epsilon, privacy.delta))
    return MethodRun(grouping, results, models, votes, certificate)


def regrouping(
    method: str,
    config: RunConfig,
    setup: Setup,
    compute: Compute,
    coins: Coins | None = None,
    profiles: Profiles | None = None,
) -> Callable[[Setup], Grouping] | None:
    """Return Steps 1 and 2 of a method, for a setup with other data or messages.

    None for a method that asks the clients nothing: its groups stay as they are. ``coins`` are
    those of the run; None derives simulated ones from the seed. ``profiles`` are the run's: where
    clients add noise, those with the same data sent the same.
    """
    if not GROUPINGS[method].needs_profiles:
        return None
    vectors = profiles.vectors if profiles is not None and adds_noise(config.types) else None

    def regroup(poisoned: Setup) -> Grouping:
        profiles_again = None
        if vectors is not None:
            pairs = zip(poisoned.federation.clients, setup.federation.clients, strict=True)
            changed = np.array([client is not before for client, before in pairs])
            sent = np.where(changed[:, None], np.float32(np.nan), vectors.rows)
            messages = private_shares(poisoned.federation, config.epsilon, sent)
            profiles_again = read_profiles(config.types, messages)
        formed = pipeline.form_all([method], config, poisoned, compute, coins, profiles_again)
        return formed.groupings[method]

    return regroup
