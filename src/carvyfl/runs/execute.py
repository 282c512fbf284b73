"""From a configuration to a finished run folder: all four steps, every method."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torch import nn

from carvyfl.core.environment import commit, environment
from carvyfl.core.errors import CarvyError
from carvyfl.core.files import write_text
from carvyfl.core.locks import at_work
from carvyfl.core.schema import plain, read
from carvyfl.data.clients import Federation
from carvyfl.data.datasets import DataSet, load
from carvyfl.data.partitions import build_federation
from carvyfl.groups.grouping import Grouping
from carvyfl.groups.methods import FOUND, TYPED, form_groups
from carvyfl.learning.engines import device_of
from carvyfl.learning.job import Engine, GroupResult, plan
from carvyfl.learning.models import build_model
from carvyfl.learning.planner import Progress, quiet, train_groups
from carvyfl.learning.scaffold.loop.engine import LoopEngine
from carvyfl.learning.store import GroupStore
from carvyfl.pipeline import check_federation_model, find_types, gather_models
from carvyfl.profiles.one_epoch import report_form
from carvyfl.profiles.types import WITHOUT_UPDATES, ClientTypes
from carvyfl.report.plots import plot_ca
from carvyfl.runs.config import RunConfig, RunSettings
from carvyfl.runs.folder import RunFolder
from carvyfl.runs.ownership import claim, refuse_taken
from carvyfl.runs.record import (
    FORMAT,
    Environment,
    RunRecord,
    data_entry,
    hashes,
    method_result,
    types_entry,
)
from carvyfl.runs.write import aside, put_in_place
from carvyfl.voting.certificate import Certificate, certify
from carvyfl.voting.files import save_votes
from carvyfl.voting.group_models import GroupModels
from carvyfl.voting.votes import Votes

Phase = Callable[[str], AbstractContextManager[Progress]]
"""Opens a stretch of work under a title and gives the function that reports its progress."""


@contextlib.contextmanager
def silent(title: str) -> Iterator[Progress]:
    """Report nothing."""
    yield quiet


@dataclass(frozen=True)
class Setting:
    """What a configuration stands for, before anything is trained.

    Attributes
    ----------
    dataset, federation, module
        The data, the clients it was split over, and the model with its w⁰.
    """

    dataset: DataSet
    federation: Federation
    module: nn.Module


def prepare(config: RunConfig) -> Setting:
    """Load the data, split it over clients, build and check the model."""
    dataset = load(config.dataset, data_dir=config.data_dir)
    federation = build_federation(
        dataset,
        config.partition,
        num_clients=config.clients,
        samples=config.samples,
        seed=config.seed,
        validation=config.validation,
        **config.partition_options,
    )
    shape = dataset.train.inputs.shape[1:]
    module = build_model(config.model, shape, dataset.num_classes, config.seed)
    check_federation_model(federation, module)
    return Setting(dataset, federation, module)


def infer(
    config: RunConfig,
    setting: Setting,
    *,
    workers: int | None = None,
    device: str | None = None,
    phase: Phase = silent,
) -> ClientTypes:
    """Step 1 of a run."""
    with phase("Step 1  one-epoch updates") as progress:
        return find_types(
            config.types,
            setting.federation,
            setting.module,
            config.training,
            config.seed,
            given=config.given_types,
            workers=workers,
            device=device,
            progress=progress,
        )


def wanted_groups(method: str, config: RunConfig, carvy_groups: int | None) -> int | None:
    """Return the G a method is asked for; None where it has its own.

    Parameters
    ----------
    method, config
        The method and the run it is part of.
    carvy_groups
        The G that ``carvy`` has; the baselines take it where none is set for them.
    """
    if method in TYPED:
        return config.groups
    return None if method == "single" else config.baseline_groups or carvy_groups


def resting(grouping: Grouping, config: RunConfig) -> Grouping:
    """Return a grouping with what its certificate rests on in this run.

    A baseline that takes the G which ``carvy`` found from the reports is blind to
    them but for that number, and one client can change the number.
    """
    own = grouping.method in TYPED or grouping.method == "single"
    beforehand = config.groups or config.baseline_groups or config.types in WITHOUT_UPDATES
    return grouping if own or beforehand else replace(grouping, basis=FOUND)


def check_methods(config: RunConfig, setting: Setting) -> None:
    """Refuse methods and types that lack what they need, before anything is trained or written."""
    for method in config.methods:
        beforehand = wanted_groups(method, config, config.groups) is not None
        found = method not in TYPED and "carvy" in config.methods
        _check_method(method, config, setting, groups_known=beforehand or found)
    if not TYPED & set(config.methods):
        return
    if config.types in WITHOUT_UPDATES:
        infer(config, setting)
    else:
        report_form(setting.module, setting.federation.num_classes, config.types)


def _check_method(method: str, config: RunConfig, setting: Setting, *, groups_known: bool) -> None:
    if not groups_known and method in TYPED - {"carvy"}:
        raise CarvyError(
            f"method '{method}' needs the number of groups before any report is seen; "
            "set it with --groups"
        )
    if not groups_known and method not in {"carvy", "single"}:
        raise CarvyError(
            f"method '{method}' needs the number of groups; set it with --groups, or run carvy "
            "beside it, which finds one"
        )
    if method == "cluster" and setting.federation.types is None:
        raise CarvyError(
            f"method 'cluster' needs the clients' true types, and under partition "
            f"'{config.partition}' they have none; choose a --partition that knows types, such as "
            "class-disjoint or classes-per-client, or another method"
        )


def form(
    method: str,
    config: RunConfig,
    setting: Setting,
    types: ClientTypes | None,
    carvy_groups: int | None,
) -> Grouping:
    """Step 2 of a run, for one method.

    Parameters
    ----------
    method, config, setting
        The method and the run it is part of.
    types
        What Step 1 found; only ``TYPED`` methods ask for it.
    carvy_groups
        The G that ``carvy`` has; the baselines take it where none is set for them.
    """
    num_groups = wanted_groups(method, config, carvy_groups)
    _check_method(method, config, setting, groups_known=num_groups is not None)
    grouping = form_groups(
        method,
        num_clients=len(setting.federation),
        seed=config.seed,
        types=types,
        oracle=setting.federation.types,
        num_groups=num_groups,
        rule=config.group_rule,
        literal=config.literal,
    )
    return resting(grouping, config)


def form_all(config: RunConfig, setting: Setting, types: ClientTypes | None) -> dict[str, Grouping]:
    """Step 2 of a run, for every method, in the order of the configuration."""
    found: dict[str, Grouping] = {}
    for method in sorted(config.methods, key=lambda method: method != "carvy"):
        carvy_groups = found["carvy"].num_groups if "carvy" in found else config.groups
        found[method] = form(method, config, setting, types, carvy_groups)
    return {method: found[method] for method in config.methods}


def execute(
    config: RunConfig,
    out: Path,
    *,
    store: GroupStore,
    engine: Engine | None = None,
    workers: int | None = None,
    phase: Phase = silent,
) -> RunFolder:
    """Run all four steps for every method and write the run folder.

    Nothing is written before settings, data and model were checked. Groups already in
    the store are not trained again, so running an interrupted configuration once more
    finishes it.

    Parameters
    ----------
    config
        What to run.
    out
        The run folder; it may exist if it holds this same run, or one that found nothing yet.
    store
        Where trained groups are kept.
    engine
        What trains the groups; default the loop engine on ``workers`` processes.
    workers
        Worker processes; default one per core.
    phase
        Opens a progress display for each stretch of work.
    """
    started = time.monotonic()
    refuse_taken(out, config.to_dict())
    setting = prepare(config)
    check_methods(config, setting)
    folder = claim(out, config.to_dict())
    engine = engine or LoopEngine(workers)
    with at_work(folder.path):
        device = device_of(engine)
        types = None
        if TYPED & set(config.methods):
            types = infer(config, setting, workers=workers, device=device, phase=phase)
        groupings = form_all(config, setting, types)
        plans = {
            method: plan(setting.federation, grouping, setting.module, config.training, config.seed)
            for method, grouping in groupings.items()
        }
        jobs = [job for jobs in plans.values() for job in jobs]
        with phase(f"Step 3  training {len(jobs)} groups") as progress:
            results = train_groups(jobs, store=store, engine=engine, progress=progress)
        finished, start = {}, 0
        for method, grouping in groupings.items():
            end = start + len(plans[method])
            finished[method], start = (grouping, results[start:end]), end
        write_run(
            folder,
            config.to_dict(),
            setting,
            types,
            finished,
            about={
                "seconds": round(time.monotonic() - started, 1),
                "environment": Environment(commit=commit(), **environment(engine)),
            },
            workers=workers,
            device=device,
            phase=phase,
        )
    return folder


def write_run(
    folder: RunFolder,
    config: dict[str, Any],
    setting: Setting,
    types: ClientTypes | None,
    finished: Mapping[str, tuple[Grouping, Sequence[GroupResult]]],
    *,
    about: dict[str, Any],
    workers: int | None = None,
    device: str | None = None,
    phase: Phase = silent,
) -> None:
    """Have the trained groups vote (Step 4) and write all that was found; the record comes last.

    Parameters
    ----------
    folder
        The run folder, claimed for this run.
    config
        The settings of the run, plain.
    setting
        The test data, what is known of the clients, and the model.
    types
        What Step 1 found, None where no method asked.
    finished
        For every method its groups and their results.
    about
        What else belongs into the record: ``seconds``, ``environment``, …
    workers, device, phase
        See :meth:`~carvyfl.voting.group_models.GroupModels.votes` and :func:`execute`.
    """
    with aside(folder) as new:
        if types is not None:
            write_text(new.types_file, json.dumps(types.to_json()))
        methods = {}
        certificates: dict[str, Certificate] = {}
        for method, (grouping, results) in finished.items():
            models = gather_models(setting.federation, setting.module, results)
            with phase(f"Step 4  votes of {method}") as progress:
                votes = models.votes(
                    setting.dataset.test.inputs, workers=workers, device=device, progress=progress
                )
            _save_method(new, method, config["model"], setting, grouping, models, votes)
            certificate = certify(votes, setting.dataset.test.labels, grouping.basis)
            certificates[method] = certificate
            methods[method] = method_result(grouping, results, certificate)
        plot_ca(
            {method: certificate.ca() for method, certificate in certificates.items()},
            new.picture,
            title=f"{setting.dataset.name}, {config['clients']} clients, "
            f"{config['samples']} samples each",
        )
        record = RunRecord(
            format=FORMAT,
            config=read(RunSettings, config, "the configuration"),
            data=data_entry(setting.dataset),
            types=None if types is None else types_entry(types, setting.federation.types),
            methods=methods,
            files=hashes(new.path, new.files(methods, typed=types is not None)),
            **about,
        )
        put_in_place(new, folder, record)


def _save_method(
    folder: RunFolder,
    method: str,
    model: str,
    setting: Setting,
    grouping: Grouping,
    models: GroupModels,
    votes: Votes,
) -> None:
    folder.grouping_file(method).parent.mkdir(parents=True, exist_ok=True)
    grouping.save(folder.grouping_file(method))
    models.save(folder.models_file(method), {"model": model, **plain(data_entry(setting.dataset))})
    save_votes(folder.votes_file(method), votes, setting.dataset.test.labels)
