"""A federation to experiment on: groups are trained once, and their votes kept."""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from carvyfl.core.errors import CarvyError
from carvyfl.core.files import replacing
from carvyfl.core.randomness import generator
from carvyfl.groups.grouping import Grouping
from carvyfl.groups.slots import without, without_wrapped
from carvyfl.learning.job import Engine, group_job
from carvyfl.learning.planner import train_groups
from carvyfl.learning.store import GroupStore
from carvyfl.pipeline import gather_models
from carvyfl.profiles.messages import Messages
from carvyfl.profiles.one_epoch import one_epoch_updates
from carvyfl.profiles.types import ClientTypes
from carvyfl.runs.config import RunConfig
from carvyfl.runs.execute import Setting
from carvyfl.voting.certificate import margin
from carvyfl.voting.votes import tally, votes

Members = tuple[int, ...]
Groups = list[Members]
Ballots = npt.NDArray[np.integer[Any]]


@dataclasses.dataclass
class Lab:
    """A federation, and the votes of every group that was trained on it so far."""

    config: RunConfig
    setting: Setting
    engine: Engine
    store: GroupStore
    ballots: dict[Members, Ballots] = dataclasses.field(default_factory=dict)

    def updates(self, method: str | None = None) -> Messages:
        """Have every client train its epoch of Step 1 (for one type method, or for all)."""
        return one_epoch_updates(
            self.setting.federation,
            self.setting.module,
            self.config.training,
            self.config.seed,
            method=method,
            device=self.engine.device,
        )

    def train(self, wanted: Iterable[Members]) -> None:
        """Train groups, each once, and have them vote on the test set."""
        todo = sorted({members for members in wanted if members not in self.ballots})
        if not todo:
            return
        federation, module = self.setting.federation, self.setting.module
        jobs = [
            group_job(federation, members, module, self.config.training, self.config.seed)
            for members in todo
        ]
        started = time.monotonic()
        results = train_groups(jobs, store=self.store, engine=self.engine)
        models = gather_models(federation, module, results)
        device = self.engine.device
        cast = models.votes(self.setting.dataset.test.inputs, device=device).groups
        self.ballots |= dict(zip(todo, cast, strict=True))
        print(f"  {len(todo)} groups in {time.monotonic() - started:.0f} s", flush=True)

    def save(self, path: Path, about: Mapping[str, Any]) -> None:
        """Keep the votes of the groups trained so far, and what they came from."""
        known = sorted(self.ballots)
        cast = np.stack([self.ballots[members] for members in known]).astype(np.int8)
        names = np.array([" ".join(map(str, members)) for members in known])
        with replacing(path) as file:
            np.savez_compressed(file, members=names, votes=cast, about=json.dumps(about))

    def load(self, path: Path) -> dict[str, Any]:
        """Take the votes that were kept: these groups need not be trained again.

        Returns what they came from.
        """
        with np.load(path) as kept:
            about: dict[str, Any] = json.loads(str(kept["about"]))
            same_inputs = kept["votes"].shape[1] == len(self.setting.dataset.test)
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
        dataset = self.setting.dataset
        return margin(tally(votes(ballots, dataset.num_classes)), dataset.test.labels)

    def ca(self, ballots: Ballots, m: int, per_client: int = 1) -> float:
        """Return CA(m) in percent, where a client changes ``per_client`` groups."""
        return 100 * float(np.mean(self.margins(ballots) >= 2 * m * per_client))

    def held(self, ballots: Ballots, touched: npt.NDArray[np.bool_]) -> float:
        """Return the share of inputs, in percent, that stay right whatever touched groups vote."""
        return 100 * float(np.mean(self.margins(ballots[~touched]) >= touched.sum()))


def _comparable(config: dict[str, Any]) -> dict[str, Any]:
    """Return settings without what does not change a result."""
    return {key: value for key, value in config.items() if key != "data_dir"}


def members(assignment: npt.NDArray[np.int64], num_groups: int) -> Groups:
    """Return each group's clients, ascending; a group may be empty."""
    return [tuple(np.flatnonzero(assignment == g).tolist()) for g in range(num_groups)]


def without_some(method: str, full: Grouping, types: ClientTypes, order: list[int]) -> list[Groups]:
    """Return the groups of runs from which the first 0, 1, … clients of an order are gone.

    By the couplings of the proof, which have the same distribution as fresh draws and leave
    most groups as they were: those need not be trained again.
    """
    assert full.coins is not None
    assignment, labels = full.assignment, types.labels.copy()
    found = [members(assignment, full.num_groups)]
    for client in order:
        draw = generator(full.coins.key, "moving up", client)
        if method == "slots":
            assignment = without(assignment, labels, [client], draw)
        else:
            assignment = without_wrapped(assignment, labels, client, full.num_groups, draw)
        labels[client] = -1
        found.append(members(assignment, full.num_groups))
    return found
