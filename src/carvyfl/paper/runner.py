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
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from carvyfl.attacks.campaign import Battlefield, measured
from carvyfl.attacks.placement import PLACEMENTS, paper_placement
from carvyfl.attacks.scenario import Scenario, Version, plan_scenario
from carvyfl.core.environment import commit as current_commit
from carvyfl.core.environment import environment
from carvyfl.groups.grouping import Grouping
from carvyfl.learning.job import Engine, GroupJob, GroupResult, plan
from carvyfl.learning.planner import train_groups
from carvyfl.learning.store import GroupStore
from carvyfl.paper import records
from carvyfl.paper.published import BEST_GROUPS
from carvyfl.paper.records import AsrRecord, CaRecord, Record, TypesRecord
from carvyfl.paper.targets import PAPER_ATTACKS, Trial
from carvyfl.profiles.messages import Updates
from carvyfl.profiles.methods import infer_types
from carvyfl.profiles.one_epoch import one_epoch_updates
from carvyfl.profiles.types import ClientTypes
from carvyfl.runs.config import RunConfig, preset
from carvyfl.runs.execute import Phase, Setting, form, prepare, silent
from carvyfl.voting.certificate import certify
from carvyfl.voting.votes import votes


@dataclass(frozen=True)
class Site:
    """One federation of a preset, and what Step 1 finds there, computed when first asked for.

    Attributes
    ----------
    config
        The preset for this data set, size and seed.
    workers, device
        Where Step 1 is computed.
    """

    config: RunConfig
    workers: int | None
    device: str | None

    @cached_property
    def setting(self) -> Setting:
        """The data, the clients and the model."""
        return prepare(self.config)

    @cached_property
    def updates(self) -> Updates:
        """The one-epoch updates, whole: they serve every method and the scatter plots."""
        return one_epoch_updates(
            self.setting.federation,
            self.setting.module,
            self.config.training,
            self.config.seed,
            workers=self.workers,
            device=self.device,
        )

    @cached_property
    def types(self) -> ClientTypes:
        """What the preset's type inference makes of them."""
        return infer_types(
            self.config.types,
            self.updates,
            seed=self.config.seed,
            oracle=self.setting.federation.types,
        )

    @property
    def true_types(self) -> npt.NDArray[np.int64]:
        """The types by which the data were dealt out."""
        true = self.setting.federation.types
        assert true is not None  # all of the paper's partitions know them
        return true

    @property
    def types_exact(self) -> bool:
        """Whether the types found are the true ones, up to their names."""
        return self.types.agree_with(self.true_types)

    def grouping(self, trial: Trial) -> Grouping:
        """Step 2 of a trial."""
        config = self.config
        if trial.groups:
            config = replace(
                config, groups=trial.groups, baseline_groups=trial.groups, literal=False
            )
        elif not config.baseline_groups:
            config = replace(config, baseline_groups=BEST_GROUPS)
        types = self.types if trial.method == "carvy" else None
        return form(trial.method, config, self.setting, types, None)

    def jobs(self, grouping: Grouping) -> list[GroupJob]:
        """Return the benign training of every group."""
        setting, config = self.setting, self.config
        return plan(setting.federation, grouping, setting.module, config.training, config.seed)

    @property
    def battlefield(self) -> Battlefield:
        """The federation, as attacks see it."""
        return Battlefield(self.config, self.setting, self.workers, self.device)


@dataclass(frozen=True)
class Planned:
    """A trial with its groups: of a benign trial, or in all versions an attack needs."""

    trial: Trial
    site: Site
    grouping: Grouping
    jobs: Mapping[Version, GroupJob]
    scenario: Scenario | None


def run_trials(
    trials: Sequence[Trial],
    preset_name: str,
    folder: Path,
    *,
    engine: Engine,
    store: GroupStore,
    data_dir: str | None = None,
    workers: int | None = None,
    command: str = "",
    commit: str | None = None,
    phase: Phase = silent,
    configure: Callable[[str, str], RunConfig] = preset,
) -> list[Record]:
    """Measure trials and keep their records in a file; those it holds already are not repeated.

    Parameters
    ----------
    trials
        What to measure.
    preset_name
        ``paper`` or ``default``: the settings of every trial.
    folder
        Where the records are kept, in PRESET.jsonl, one a line.
    engine, store
        What trains the groups, and where they are kept.
    data_dir
        Where the data sets are.
    workers
        Worker processes for what is not trained on a device.
    command, commit
        What was typed, and the source it ran, for the records; by default git's answer.
    phase
        Opens a progress display.
    configure
        (preset, data set) → the settings that every trial starts from.

    Returns
    -------
    list of Record
        All records of the file.
    """
    device = engine.device
    missing = missing_trials(trials, preset_name, folder)
    out = folder / f"{preset_name}.jsonl"
    about = environment(engine)
    about |= {
        "hardware": about["gpu"] or f"{about['processor']}, {about['cores']} cores",
        "commit": commit or current_commit(),
        "command": command,
    }
    for (dataset, samples), lot in itertools.groupby(missing, lambda t: (t.dataset, t.samples)):
        base = replace(configure(preset_name, dataset), samples=samples, data_dir=data_dir)
        sites: dict[int, Site] = {}
        title = f"{dataset}, {samples} samples"
        own = list(lot)
        planned: list[Planned] = []
        found: list[Record] = []
        with phase(f"Steps 1 and 2  {title}") as progress:
            for number, trial in enumerate(own):
                progress(number, len(own))
                site = sites.setdefault(
                    trial.seed, Site(replace(base, seed=trial.seed), workers, device)
                )
                if trial.kind == "types":
                    found.append(_types_record(trial, preset_name, site, about))
                else:
                    planned.append(_plan(trial, site))
        records.add(out, found)
        jobs = [job for entry in planned for job in entry.jobs.values()]
        begun = any(store.begun(job.key(engine.precision)) for job in jobs)
        started = time.monotonic()
        with phase(f"Step 3  {title}: {len(jobs)} groups") as progress:
            results = train_groups(jobs, store=store, engine=engine, progress=progress)
        share = (time.monotonic() - started) / max(len(jobs), 1)
        rest = iter(results)
        with phase(f"Step 4  {title}") as progress:
            for number, entry in enumerate(planned):
                progress(number, len(planned))
                trained = dict(zip(entry.jobs, rest, strict=False))
                # What was trained before took its time then.
                seconds = None if begun else share * len(trained)
                record = _measure(entry, trained, preset_name, seconds, about)
                found.append(record)
        records.add(out, found)
    return records.load(out)


def missing_trials(trials: Sequence[Trial], preset_name: str, folder: Path) -> list[Trial]:
    """Return the trials that a folder of records does not hold yet."""
    done = {record.key() for record in records.load(folder / f"{preset_name}.jsonl")}
    return [trial for trial in trials if _key(trial, preset_name) not in done]


def _key(trial: Trial, preset_name: str) -> tuple[str, ...]:
    """Return the key of the record that a trial gives (:meth:`Record.key`)."""
    common = (trial.kind, preset_name, trial.dataset, str(trial.samples), str(trial.seed))
    if trial.kind == "types":
        return common
    if trial.kind == "ca":
        return (*common, trial.method, str(trial.groups or None))
    return (*common, trial.method, trial.attack, paper_placement(trial.method))


def _plan(trial: Trial, site: Site) -> Planned:
    grouping = site.grouping(trial)
    jobs = site.jobs(grouping)
    if trial.kind == "ca":
        return Planned(trial, site, grouping, {(job.members, ()): job for job in jobs}, None)
    order = PLACEMENTS[paper_placement(trial.method)](grouping, trial.seed)
    attack = PAPER_ATTACKS[trial.attack]
    scenario = plan_scenario(
        lambda malicious: jobs, attack, order, trial.malicious, site.battlefield.around
    )
    return Planned(trial, site, grouping, scenario.jobs, scenario)


def _measure(
    entry: Planned,
    trained: Mapping[Version, GroupResult],
    preset_name: str,
    seconds: float | None,
    about: Mapping[str, Any],
) -> Record:
    """Let the groups of a trial vote, and measure what it is about."""
    trial, site = entry.trial, entry.site
    setting = site.setting
    test = setting.dataset.test
    common: dict[str, Any] = {
        "preset": preset_name,
        "dataset": trial.dataset,
        "samples": trial.samples,
        "seed": trial.seed,
        "seconds": seconds,
        "environment": about,
        "method": trial.method,
        "num_groups": entry.grouping.num_groups,
    }
    if entry.scenario is None:
        clean = site.battlefield.votes(trained, test.inputs)
        together = votes(np.stack(list(clean.values())), setting.dataset.num_classes)
        certificate = certify(together, test.labels, entry.grouping.basis)
        found = trial.method == "carvy"
        return CaRecord(
            **common,
            groups=trial.groups or None,
            ca=tuple(certificate.ca().tolist()),
            auc=certificate.auc(),
            rounds=tuple(result.rounds for result in trained.values()),
            stopped=tuple(result.stopped for result in trained.values()),
            types_found=site.types.num_types if found else None,
            types_exact=site.types_exact if found else None,
        )
    result = measured(site.battlefield, entry.scenario, trained)
    return AsrRecord(
        **common,
        attack=trial.attack,
        placement=paper_placement(trial.method),
        m=result.m,
        asr=result.asr or (),
        asr_if_lost_votes_target=result.asr_if_lost_votes_target or (),
        accuracy=result.accuracy,
        ca=result.certified,
        groups_hit=result.groups_hit,
        promise_kept=result.promise_kept,
    )


def _types_record(
    trial: Trial, preset_name: str, site: Site, about: Mapping[str, Any]
) -> TypesRecord:
    from sklearn.decomposition import PCA

    started = time.monotonic()
    exact = site.types_exact  # trains for Step 1, unless another trial of this seed needed it
    seconds = time.monotonic() - started
    points = PCA(2, random_state=0).fit_transform(site.updates.values)
    return TypesRecord(
        preset=preset_name,
        dataset=trial.dataset,
        samples=trial.samples,
        seed=trial.seed,
        seconds=seconds,
        environment=about,
        num_types=site.types.num_types,
        exact=exact,
        labels=tuple(site.types.labels.tolist()),
        true=tuple(site.true_types.tolist()),
        points=tuple((float(x), float(y)) for x, y in points),
    )
