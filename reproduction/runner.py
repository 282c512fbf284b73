"""From trials to records: plan the groups of many trials, train them together, measure.

Trials of the same data set and size form a lot. All groups of a lot, benign and
attacked, of every method and seed, go to the planner in one list: what several
trials share is trained once, and a GPU is kept busy. A lot's records are written
as soon as it is done, so an interrupted reproduction goes on where it stopped.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from carvyfl.attacks.campaign import measured
from carvyfl.attacks.scenario import Scenario, Version
from carvyfl.core.environment import commit as current_commit
from carvyfl.core.environment import environment
from carvyfl.groups.grouping import Grouping
from carvyfl.learning.job import GroupJob, GroupResult
from carvyfl.pipeline import Compute, plan_training, silent, train
from carvyfl.runs.config import RunConfig
from reproduction import records
from reproduction.experiment import Experiment, method_of_the_paper
from reproduction.published import BEST_GROUPS
from reproduction.records import AsrRecord, CaRecord, Record, TypesRecord
from reproduction.targets import PAPER_ATTACKS, Trial


@dataclass(frozen=True)
class Planned:
    """A trial with its groups: of a benign trial, or in all versions an attack needs."""

    trial: Trial
    experiment: Experiment
    grouping: Grouping
    jobs: Mapping[Version, GroupJob]
    scenario: Scenario | None


def run_trials(
    trials: Sequence[Trial],
    preset_name: str,
    folder: Path,
    compute: Compute,
    *,
    data_dir: str | None = None,
    command: str = "",
    commit: str | None = None,
    configure: Callable[[str, str], RunConfig] = method_of_the_paper,
) -> list[Record]:
    """Measure trials and keep their records in a file; those it holds already are not repeated.

    Parameters
    ----------
    trials, preset_name
        What to measure, and the settings of every trial: ``paper`` or ``default``.
    folder
        Where the records are kept, in PRESET.jsonl, one a line; all of them are returned.
    compute, data_dir
        What trains the groups, where they are kept, and where the data sets are.
    command, commit
        What was typed, and the source it ran, for the records; by default git's answer.
    configure
        (preset, data set) → the settings that every trial starts from.
    """
    out = folder / f"{preset_name}.jsonl"
    engine, store = compute.engine, compute.store
    machine = environment(engine)
    machine |= {
        "hardware": machine["gpu"] or f"{machine['processor']}, {machine['cores']} cores",
        "commit": commit or current_commit(),
        "command": command,
    }
    quietly = replace(compute, phase=silent)
    missing = missing_trials(trials, preset_name, folder)
    for (dataset, samples), lot in itertools.groupby(missing, lambda t: (t.dataset, t.samples)):
        base = replace(configure(preset_name, dataset), samples=samples, data_dir=data_dir)
        about = {"preset": preset_name, "dataset": dataset, "samples": samples}
        about["environment"] = machine
        title, together = f"{dataset}, {samples} samples", list(lot)
        experiments = {
            seed: Experiment(replace(base, seed=seed), quietly)
            for seed in {trial.seed for trial in together}
        }
        planned: list[Planned] = []
        found: list[Record] = []
        with compute.phase(f"Steps 1 and 2  {title}") as progress:
            for number, trial in enumerate(together):
                progress(number, len(together))
                if trial.kind == "types":
                    found.append(_types_record(trial, experiments[trial.seed], about))
                else:
                    planned.append(_plan(trial, experiments[trial.seed], preset_name))
        records.add(out, found)
        jobs = {number: list(entry.jobs.values()) for number, entry in enumerate(planned)}
        every = list(itertools.chain(*jobs.values()))
        begun = store is not None and any(store.begun(j.key(engine.precision)) for j in every)
        started = time.monotonic()
        results = train(jobs, compute, f"Step 3  {title}:")
        share = (time.monotonic() - started) / max(len(every), 1)
        with compute.phase(f"Step 4  {title}") as progress:
            for number, entry in enumerate(planned):
                progress(number, len(planned))
                trained = dict(zip(entry.jobs, results[number], strict=True))
                # What was trained before took its time then.
                seconds = None if begun else share * len(trained)
                found.append(_measure(entry, trained, about | {"seconds": seconds}))
        records.add(out, found)
    return records.load(out)


def missing_trials(trials: Sequence[Trial], preset_name: str, folder: Path) -> list[Trial]:
    """Return the trials that a folder of records does not hold yet."""
    done = {record.key() for record in records.load(folder / f"{preset_name}.jsonl")}
    return [trial for trial in trials if records.key(trial, preset_name) not in done]


def _plan(trial: Trial, experiment: Experiment, preset_name: str) -> Planned:
    settings = experiment.config
    if trial.groups:
        settings = replace(settings, groups=trial.groups, baseline_groups=trial.groups)
    elif not settings.baseline_groups:
        settings = replace(settings, baseline_groups=BEST_GROUPS)
    literal = preset_name == "paper" and not trial.groups
    grouping = experiment.form(trial.method, settings, literal=literal)
    if trial.kind == "ca":
        jobs = plan_training(experiment.setup, grouping)
        benign: dict[Version, GroupJob] = {(job.members, ()): job for job in jobs}
        return Planned(trial, experiment, grouping, benign, None)
    attack = PAPER_ATTACKS[trial.attack]
    scenario = experiment.plan_attack(grouping, attack, trial.placement, trial.malicious)
    return Planned(trial, experiment, grouping, scenario.jobs, scenario)


def _measure(
    entry: Planned, trained: Mapping[Version, GroupResult], about: Mapping[str, Any]
) -> Record:
    """Let the groups of a trial vote, and measure what it is about."""
    trial, experiment = entry.trial, entry.experiment
    about = {**about, "seed": trial.seed, "method": trial.method}
    about["num_groups"] = entry.grouping.num_groups
    if entry.scenario is None:
        certificate = experiment.certify(trained.values(), entry.grouping.basis)
        asked = trial.method == "carvy"
        return CaRecord(
            **about,
            groups=trial.groups,
            ca=tuple(certificate.ca().tolist()),
            auc=certificate.auc(),
            rounds=tuple(result.rounds for result in trained.values()),
            stopped=tuple(result.stopped for result in trained.values()),
            types_found=experiment.profiles.types.num_types if asked else None,
            types_exact=experiment.types_exact if asked else None,
        )
    result = measured(experiment.attacked, entry.scenario, trained)
    return AsrRecord(
        **about,
        attack=trial.attack,
        placement=trial.placement,
        m=result.m,
        asr=result.asr or (),
        asr_if_lost_votes_target=result.asr_if_lost_votes_target or (),
        accuracy=result.accuracy,
        ca=result.certified,
        groups_hit=result.groups_hit,
        promise_kept=result.promise_kept,
    )


def _types_record(trial: Trial, experiment: Experiment, about: Mapping[str, Any]) -> TypesRecord:
    from sklearn.decomposition import PCA

    started = time.monotonic()
    exact = experiment.types_exact  # runs Step 1, unless another trial of this seed needed it
    seconds, types = time.monotonic() - started, experiment.profiles.types
    points = PCA(2, random_state=0).fit_transform(experiment.updates.values)
    return TypesRecord(
        **about,
        seed=trial.seed,
        seconds=seconds,
        num_types=types.num_types,
        exact=exact,
        labels=tuple(types.labels.tolist()),
        true=tuple(experiment.true_types.tolist()),
        points=tuple((float(x), float(y)) for x, y in points),
    )
