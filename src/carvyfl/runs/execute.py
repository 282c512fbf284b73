"""From a configuration to a finished run folder: all four steps, every method."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from msgspec import UNSET, structs

from carvyfl import pipeline
from carvyfl.core.environment import commit, environment
from carvyfl.core.errors import CarvyError
from carvyfl.core.files import write_text
from carvyfl.core.schema import plain, read
from carvyfl.data.clients import Federation
from carvyfl.data.datasets import DataSet
from carvyfl.groups.coins import Coins
from carvyfl.groups.grouping import Grouping
from carvyfl.groups.methods import GROUPINGS
from carvyfl.learning.job import GroupResult
from carvyfl.learning.one_shot.sums import SumsFile
from carvyfl.learning.one_shot.training import as_one_shot
from carvyfl.pipeline import Compute, Setup, train
from carvyfl.profiles.methods import PROFILE_METHODS, Profiles, read_profiles
from carvyfl.profiles.private_shares import private_shares
from carvyfl.profiles.types import ClientTypes
from carvyfl.profiles.vectors import load_vectors, save_vectors
from carvyfl.runs.config import RunConfig, load_data, split_data, voted_samples
from carvyfl.runs.finished import remember
from carvyfl.runs.folder import RunFolder, read_json
from carvyfl.runs.ownership import claim, cleared_on_failure, refuse_taken
from carvyfl.runs.pictures import draw_pictures
from carvyfl.runs.record import (
    FORMAT,
    Environment,
    RunRecord,
    data_entry,
    method_result,
    sha256,
    types_entry,
)
from carvyfl.runs.write import aside, put_in_place
from carvyfl.settings import RunSettings
from carvyfl.voting.certificate import Certificate, certify
from carvyfl.voting.files import save_votes

WRITERS = 3
"""Files of a run that are written at once."""


@dataclass(frozen=True)
class Prepared:
    """What a configuration stands for; the test part of ``dataset`` is what is voted on."""

    dataset: DataSet
    setup: Setup


def prepare(config: RunConfig, dataset: DataSet | None = None) -> Prepared:
    """Load the data unless they are given, split them over clients, build and check the model."""
    dataset = load_data(config) if dataset is None else dataset
    federation = split_data(config, dataset)  # which checks the labels, so it comes first
    test = voted_samples(config, dataset.test, dataset.num_classes)
    dataset = replace(dataset, test=test)
    module = config.module(dataset.train.inputs.shape[1:], dataset.num_classes, config.seed)
    setup = Setup(federation, module, config.training, config.seed)
    pipeline.check_setup(setup)
    return Prepared(dataset, setup)


def execute(
    config: RunConfig,
    out: Path,
    compute: Compute,
    coins: Coins | None = None,
    dataset: DataSet | None = None,
) -> RunFolder:
    """Run all four steps for every method and write the run folder.

    Nothing is written before settings, data and model were checked, and a new folder is removed
    if no groups can be formed. Groups already in
    the store are not trained again, so running an interrupted configuration once more
    finishes it.

    Parameters
    ----------
    out
        The run folder; it may exist if it holds this same run, or one that found nothing yet.
    coins
        Those of the configuration's commitment. They become public with the groups.
    dataset
        The configuration's data set, where it is loaded already.
    """
    started = time.monotonic()
    config.check_coins(coins)
    refuse_taken(out, config.to_dict())
    prepared = prepare(config, dataset)
    setup, settings, methods = prepared.setup, config, config.methods
    pipeline.check_methods(methods, settings, setup)
    with cleared_on_failure(out) as stay, claim(out, config.to_dict()) as folder:
        pipeline.compute_features(setup, compute, prepared.dataset.test.inputs)
        profiles = _heard_before(folder, config)
        formed = pipeline.form_all(methods, settings, setup, compute, coins, profiles)
        jobs = {
            method: pipeline.plan_training(setup, own) for method, own in formed.groupings.items()
        }
        stay()  # what is trained now is kept, so that the same command goes on
        if _noisy(config) and profiles is None and formed.profiles is not None:
            assert formed.profiles.vectors is not None
            save_vectors(folder.profiles_file, formed.profiles.vectors)
            write_text(folder.types_file, json.dumps(formed.profiles.types.to_json()))
        # Kept sums are those of this run, so no head may come from an earlier one, whose sums
        # another machine may have rounded otherwise.
        results = train(jobs, replace(compute, store=None) if config.keep_sums else compute)
        write_run(
            folder,
            config.to_dict(),
            prepared,
            formed.profiles,
            {method: (formed.groupings[method], results[method]) for method in methods},
            compute,
            about={
                "group_count": formed.count or UNSET,
                "seconds": round(time.monotonic() - started, 1),
                "environment": Environment(commit=commit(), **environment(compute.engine)),
            },
        )
        if compute.store is not None:
            remember(compute.store.folder, folder)
    return folder


def _noisy(config: RunConfig) -> bool:
    """Whether clients add noise in Step 1, so that they would send something else again."""
    return PROFILE_METHODS.pick(config.types).sends == "private-shares"


def _heard_before(folder: RunFolder, config: RunConfig) -> Profiles | None:
    """Return what this run learnt in Step 1 before it was interrupted or repeated, with noise."""
    if not (_noisy(config) and folder.types_file.is_file()):
        return None
    try:
        if folder.record_file.is_file():
            return folder.profiles()
        types = ClientTypes.from_json(read_json(folder.types_file))
        return Profiles(types, load_vectors(folder.profiles_file, len(types)))
    except CarvyError:  # a damaged file: clients must be asked again
        return None


def regrouping(
    method: str,
    config: RunConfig,
    setup: Setup,
    compute: Compute,
    coins: Coins | None = None,
    profiles: Profiles | None = None,
) -> Callable[[Federation], Grouping] | None:
    """Return Steps 1 and 2 of a method, for a federation with other data.

    None for a method that asks the clients nothing: its groups stay as they are. ``coins`` are
    those of the run; None derives simulated ones from the seed. ``profiles`` are the run's: where
    clients add noise, those with the same data sent the same.
    """
    if not GROUPINGS[method].needs_profiles:
        return None
    vectors = profiles.vectors if profiles is not None and _noisy(config) else None

    def regroup(federation: Federation) -> Grouping:
        disturbed, again = replace(setup, federation=federation), None
        if vectors is not None:
            pairs = zip(federation.clients, setup.federation.clients, strict=True)
            other = np.array([own is not before for own, before in pairs])
            sent = np.where(other[:, None], np.float32(np.nan), vectors.rows)
            messages = private_shares(federation, config.epsilon, sent)
            again = read_profiles(config.types, messages)
        formed = pipeline.form_all([method], config, disturbed, compute, coins, again)
        return formed.groupings[method]

    return regroup


def write_run(
    folder: RunFolder,
    config: dict[str, Any],
    prepared: Prepared,
    profiles: Profiles | None,
    finished: Mapping[str, tuple[Grouping, Sequence[GroupResult]]],
    compute: Compute,
    *,
    about: dict[str, Any],
) -> None:
    """Have the trained groups vote (Step 4) and write all that was found; the record comes last.

    Parameters
    ----------
    folder, config
        The run folder, claimed for this run; its settings, plain.
    profiles
        What Step 1 found, None where no method asked.
    finished
        For every method its groups and their results.
    about
        What else belongs into the record: ``seconds``, ``environment``, …
    """
    dataset, setup = prepared.dataset, prepared.setup
    data = data_entry(dataset)
    with aside(folder) as new:
        types = None if profiles is None else profiles.types
        vectors = None if profiles is None else profiles.vectors
        certificates: dict[str, Certificate] = {}
        # Thousands of models take seconds to write and hash, and their votes to compress: on
        # threads, while votes are cast and counted.
        with ThreadPoolExecutor(WRITERS) as writers:
            written = {new.config_file: writers.submit(sha256, new.config_file)}

            def keep(file: Path, write: Callable[..., None], *content: Any) -> None:
                written[file] = writers.submit(_written, file, write, *content)

            if types is not None:
                keep(new.types_file, write_text, json.dumps(types.to_json()))
            if vectors is not None:
                keep(new.profiles_file, save_vectors, vectors)
            if config["keep_sums"]:
                head = as_one_shot(setup.module).head
                shape = (len(setup.federation), head.out_features, head.in_features)
                place = SumsFile(new.sums_file, *shape)
                place.write(pipeline.each_clients_sums(setup, compute.device))
                written[new.sums_file] = writers.submit(sha256, new.sums_file)
            for method, (grouping, results) in finished.items():
                models = pipeline.gather_models(setup, results)
                named = {**_named(config), **plain(data)}
                keep(new.models_file(method), models.save, named)
                votes = pipeline.cast_votes(models, dataset.test.inputs, compute, method)
                labels = dataset.test.labels
                keep(new.votes_file(method), save_votes, votes, labels)
                keep(new.grouping_file(method), grouping.save)
                certificates[method] = certify(votes, labels, grouping.basis)
            record = RunRecord(
                format=FORMAT,
                config=read(RunSettings, config, "the configuration"),
                data=data,
                types=None if types is None else types_entry(types, setup.federation.types),
                methods={
                    method: method_result(grouping, results, certificates[method])
                    for method, (grouping, results) in finished.items()
                },
                files={},
                **about,
            )
            # Drawing imports modules, which no thread may do beside another.
            pictures = draw_pictures(new, certificates, record)
            written.update((file, writers.submit(sha256, file)) for file in pictures)
            digests = {file: own.result() for file, own in written.items()}
        files = {file.relative_to(new.path).as_posix(): digests[file] for file in new.files(record)}
        put_in_place(new, folder, structs.replace(record, files=files))


def _written(file: Path, write: Callable[..., None], *content: Any) -> str:
    """Write a file and return its SHA-256."""
    write(file, *content)
    return sha256(file)


def _named(config: dict[str, Any]) -> dict[str, Any]:
    """Return what the file of the models says of the architecture."""
    if config.get("learner") == "one-shot":
        return {name: config[name] for name in ("learner", "features", "projection", "ridge")}
    return {"model": config["model"]}
