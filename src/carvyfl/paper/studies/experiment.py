"""What the parts of the end-to-end study share: a federation, and the votes of groups on it."""

from __future__ import annotations

import json
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from carvyfl.core.errors import CarvyError
from carvyfl.core.files import replacing
from carvyfl.groups.grouping import Grouping
from carvyfl.learning.job import group_job
from carvyfl.paper.studies.common import (
    add_options,
    computing,
    provenance,
    settings,
    write_record,
)
from carvyfl.pipeline import Compute, cast_votes, gather_models, train
from carvyfl.runs.config import RunConfig
from carvyfl.runs.execute import Prepared, prepare
from carvyfl.voting.certificate import margin
from carvyfl.voting.votes import NO_VOTE, tally, votes

Members = tuple[int, ...]
"""The clients of a group, ascending."""
Groups = list[Members]
"""All groups of a run; some may be empty."""
Ballots = npt.NDArray[np.integer[Any]]


@dataclass(frozen=True)
class Experiment:
    """A federation, and the test votes of every group that was trained on it so far.

    Attributes
    ----------
    config, prepared, compute
        The settings, what they stand for, and where to compute.
    about
        The beginning of every record: where it comes from, and the settings.
    ballots
        Members → votes on the test set, shape (n,).
    """

    config: RunConfig
    prepared: Prepared
    compute: Compute
    about: dict[str, Any]
    ballots: dict[Members, Ballots] = field(default_factory=dict)

    def train(self, wanted: Iterable[Members]) -> None:
        """Train groups, each once, and have them vote on the test set."""
        todo = sorted(set(wanted) - self.ballots.keys())
        if not todo:
            return
        setup = self.prepared.setup
        jobs = [
            group_job(setup.federation, members, setup.module, setup.recipe, setup.seed)
            for members in todo
        ]
        models = gather_models(setup, train({"": jobs}, self.compute)[""])
        cast = cast_votes(models, self.prepared.dataset.test.inputs, self.compute)
        self.ballots.update(zip(todo, cast.groups, strict=True))

    def save(self, path: Path) -> None:
        """Keep the votes of the groups trained so far, and what they came from."""
        known = sorted(self.ballots)
        names = np.array([" ".join(map(str, members)) for members in known])
        cast = self.cast(known).astype(np.int8)
        with replacing(path) as file:
            np.savez_compressed(file, members=names, votes=cast, about=json.dumps(self.about))

    def load(self, path: Path) -> dict[str, Any]:
        """Take votes that were kept, and return what they came from."""
        with np.load(path) as kept:
            about: dict[str, Any] = json.loads(str(kept["about"]))
            same_inputs = kept["votes"].shape[1] == len(self.prepared.dataset.test)
            same = _comparable(about["config"]) == _comparable(self.config.to_dict())
            if not (same and same_inputs):
                raise CarvyError(f"{path} holds votes of other settings; move it away")
            for name, cast in zip(kept["members"].tolist(), kept["votes"], strict=True):
                self.ballots[tuple(map(int, name.split()))] = cast
        return about

    def cast(self, groups: Groups) -> Ballots:
        """Return what trained groups vote, shape (G, n)."""
        return np.stack([self.ballots[members] for members in groups])

    def margins(self, ballots: Ballots) -> npt.NDArray[np.int32]:
        """Return the margin of the true class on every test input."""
        dataset = self.prepared.dataset
        return margin(tally(votes(ballots, dataset.num_classes)), dataset.test.labels)

    def ca(self, ballots: Ballots, m: int, per_client: int = 1) -> float:
        """Return CA(m) in percent, where a client changes ``per_client`` groups."""
        return 100 * float(np.mean(self.margins(ballots) >= 2 * m * per_client))

    def accuracy_against(self, ballots: Ballots, malicious: npt.NDArray[np.bool_]) -> float:
        """Return the accuracy in percent if malicious groups vote as badly as they can.

        Parameters
        ----------
        ballots
            Shape (G, n).
        malicious
            Shape (G,): which groups vote against the truth.
        """
        honest = np.where(malicious[:, None], NO_VOTE, ballots)
        return 100 * float(np.mean(self.margins(honest) >= malicious.sum()))


def _comparable(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings without what does not change a result."""
    return {name: value for name, value in config.items() if name != "data_dir"}


def members(grouping: Grouping) -> Groups:
    """Return each group's clients."""
    return [tuple(group.tolist()) for group in grouping.groups]


def with_malicious(groups: Groups, malicious: Iterable[int]) -> npt.NDArray[np.bool_]:
    """Return which groups have a malicious member, shape (G,)."""
    chosen = set(malicious)
    return np.array([not chosen.isdisjoint(group) for group in groups])


def add_experiment_options(parser: ArgumentParser) -> None:
    """Add the options that all parts of the end-to-end study have."""
    add_options(parser, out="results/end_to_end")
    parser.add_argument("--preset", default="default", help="default: %(default)s")
    parser.add_argument("--groups", type=int, default=20, help="G; default: %(default)s")
    parser.add_argument("--inputs", type=int, help="use the first test inputs only")
    parser.add_argument("--seed", type=int, default=0, help="default: %(default)s")


def prepare_experiment(args: Namespace) -> Experiment:
    """Return the federation of the options; nothing is trained yet."""
    config = settings(args, args.preset, seed=args.seed)
    compute, prepared = computing(args), prepare(config)
    if args.inputs:
        test = prepared.dataset.test.take(range(args.inputs))
        prepared = replace(prepared, dataset=replace(prepared.dataset, test=test))
    about = provenance(args, compute.engine) | {
        "config": config.to_dict(),
        "test_inputs": len(prepared.dataset.test),
    }
    return Experiment(config, prepared, compute, about)


def result_file(part: str, args: Namespace, suffix: str = "json") -> Path:
    """Return where the result of a part goes."""
    out: Path = args.out
    return out / f"{part}-{args.dataset}-{args.samples}.{suffix}"


def is_done(path: Path) -> bool:
    """Say so if a result is there already."""
    if path.exists():
        print(f"{path} is there already; delete it to run this part again")
    return path.exists()


def run_part(
    part: str,
    args: Namespace,
    measure: Callable[[Experiment, Namespace], dict[str, Any]],
    *,
    with_votes: bool = False,
) -> None:
    """Measure something and write it, unless that was done before.

    Parameters
    ----------
    part, args
        Its name and its options.
    measure
        Returns what goes into the record.
    with_votes
        Whether to take the votes that were kept, if there are any.
    """
    path, kept = result_file(part, args), result_file("votes", args, "npz")
    if is_done(path):
        return
    experiment = prepare_experiment(args)
    record = dict(experiment.about)
    if with_votes and kept.exists():
        record["votes"] = experiment.load(kept)
    write_record(path, record | measure(experiment, args))
