"""What a federation is run with: the table ``carvy`` of a Flower app's configuration."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Annotated, Any

import numpy as np
from msgspec import Meta

from carvyfl.core.errors import CarvyError
from carvyfl.core.schema import check, read, settings
from carvyfl.groups.basis import OPEN, Circumstances, Deployment, claim
from carvyfl.groups.grouping import Grouping
from carvyfl.groups.hashing import training_id
from carvyfl.groups.methods import GROUPINGS
from carvyfl.learning.learners import LEARNERS, UNSCALED
from carvyfl.learning.recipe import LATE, UNUSABLE, Recipe
from carvyfl.profiles.methods import PROFILE_METHODS
from carvyfl.profiles.types import ClientTypes
from carvyfl.runs.config import RunConfig
from carvyfl.settings import FederatedGrouping, LearningSettings, RunSettings

FROM_THE_CLIENTS = "the clients' own"
"""What the record says in place of a partition."""

SENT_FIRST = {"sums": {"class-counts"}, "message": {"message"}}
"""What clients send in Step 1, by what they send in Step 3, where they have no choice."""

PREFIX = "carvy."
"""Of the settings in the app's configuration, where Flower joins tables with a dot."""


@dataclass(frozen=True, kw_only=True)
class Settings(LearningSettings, FederatedGrouping):
    """All settings of a federation; server and clients read the same ones."""

    out: str = "carvy-run"
    """The run folder on the server's machine."""
    keys: str = ""
    """A folder of the public keys the operator registered (`*.pub`), on the server's machine; only
    their holders take part. Empty: anybody may join."""
    method: str = "carvy"
    """How groups are formed: `carvy` usually certifies most, given these groups; `slots` is
    certified against whole runs, too."""
    num_classes: Annotated[int, Meta(ge=2)] = 10
    """C."""
    mean: float = 0.0
    """Inputs enter the model as (x - mean) / std, after uint8 was scaled to 0…1."""
    std: float = 1.0
    """See mean; fixed features see inputs as they are, with 0 and 1."""
    validation_share: Annotated[float, Meta(ge=0, lt=1)] = 0.1
    """The part of a client's samples split off for validation, unless it brings its own; only
    learning in rounds validates, and splits any off."""
    min_clients: Annotated[int, Meta(ge=1)] = 2
    """Fewer do not start."""
    join_seconds: Annotated[float, Meta(gt=0)] = 600.0
    """How long the server waits for clients at the start: for all keys, or, without keys, for
    `min_clients`."""
    answer_seconds: Annotated[float, Meta(gt=0)] = 1800.0
    """How long it waits for an answer; what comes later counts for nothing."""
    misses: Annotated[int, Meta(ge=1)] = 3
    """A client that has not answered for so many times `answer_seconds` is set aside for good, and
    so is one that kept its group waiting five times as long in all."""
    deadline_seconds: Annotated[float, Meta(ge=0)] = 0.0
    """After so many seconds from the server's first start groups stop when the round they are in
    is made, and vote with the model they have; 0: no deadline."""

    def __post_init__(self) -> None:
        check(self, PREFIX)
        if not math.isfinite(self.mean):
            raise CarvyError(f"carvy.mean must be a finite number, not {self.mean}")
        if not 0 < self.std < math.inf:
            raise CarvyError(f"carvy.std must be a finite number above 0, not {self.std}")
        learner = LEARNERS.pick(self.learner)
        sent = SENT_FIRST.get(learner.sends, {"update", "class-means", "class-counts"})
        fitting = [name for name, entry in PROFILE_METHODS.items() if entry.sends in sent]
        if self.types not in fitting:
            raise CarvyError(
                f"carvy.types is {' or '.join(fitting)} with the learner {self.learner}, not "
                f"'{self.types}'"
            )
        if learner.stored_inputs and (self.mean, self.std) != UNSCALED:
            raise CarvyError(
                "fixed features see inputs as they are stored; leave out carvy.mean and carvy.std"
            )
        if self.public is not None and "public" not in learner.settings:
            raise CarvyError(f"carvy.public is not for the learner {self.learner}; leave it out")
        method = GROUPINGS.pick(self.method)
        if method.simulation_only:
            raise CarvyError(
                f"carvy.method '{self.method}' is for simulations; use carvy or flcert"
            )
        if method.needs_groups and not self.groups:
            raise CarvyError(
                f"carvy.method '{self.method}' does not find its number of groups; set carvy.groups"
            )
        self.run_config()

    @property
    def identity(self) -> dict[str, Any]:
        """What the record says of who takes part, and of what clients' names stand for."""
        stands_for = "registered keys" if self.keys else OPEN
        return {"authenticated": bool(self.keys), "identity": stands_for}

    @property
    def split_off(self) -> float:
        """The share of a client's samples that is kept from training."""
        return self.validation_share if LEARNERS[self.learner].sends == "update" else 0.0

    @property
    def lost_seconds(self) -> float:
        """How long a client may be away; afterwards it is set aside for good."""
        return self.misses * self.answer_seconds

    def run_config(self, clients: int = 0, samples: int = 1) -> RunConfig:
        """Return these settings as a run's; the fields about data keep their defaults."""
        shared = (*fields(LearningSettings), *fields(FederatedGrouping))
        known = {field.name: getattr(self, field.name) for field in shared}
        least = max(clients or self.min_clients, self.groups or 1)
        about_data: dict[str, Any] = {
            "clients": least,
            "samples": samples,
            "dataset": FROM_THE_CLIENTS,
        }
        return RunConfig(**about_data, methods=(self.method,), **known)

    def numbered(self, names: Iterable[str]) -> tuple[str, ...]:
        """Return the clients' names in the order of their numbers: by ids that nobody chooses."""
        return tuple(sorted(names, key=lambda name: (training_id(name, self.seed), name)))

    def recorded(self, samples: Sequence[int], dataset: str) -> RunSettings:
        """Return what a run's record says of its configuration.

        ``samples`` are those that each client trains on, 0 where it did not say; ``dataset`` is the
        name of the test data.
        """
        known = [count for count in samples if count]
        config = self.run_config(len(samples), int(np.median(known or [1]))).to_dict()
        about_data = {"dataset": dataset, "partition": FROM_THE_CLIENTS, "validation": 0}
        return read(RunSettings, config | about_data, "the configuration")

    @classmethod
    def of(cls, plain: Mapping[str, Any], where: str) -> Settings:
        """Return settings by name, those of the recipe nested, as a value."""
        given = settings(cls, plain, where, PREFIX)
        return cls(**given | {"training": Recipe(**given.get("training", {}))})


def read_settings(run_config: Mapping[str, Any]) -> Settings:
    """Read the settings from a Flower app's configuration.

    Names are those of :class:`Settings` and of the recipe, with hyphens or underscores,
    each after ``carvy.``; ``patience``, ``groups`` and ``projection`` of 0 mean none, as does
    ``public = ""``, and ``types = ""`` what the learner's clients send anyway.
    """
    prefixed = {name: value for name, value in run_config.items() if name.startswith(PREFIX)}
    given = {name.removeprefix(PREFIX).replace("-", "_"): v for name, v in prefixed.items()}
    learner = LEARNERS.get(given.get("learner", "scaffold"), LEARNERS["scaffold"])
    if not given.get("types"):
        given["types"] = "class-counts" if learner.sends == "sums" else learner.types
    if learner.stored_inputs:  # the app's template holds those of the CNN
        given["mean"], given["std"] = UNSCALED
    recipe_names = {field.name for field in fields(Recipe)}
    recipe = {name: given.pop(name) for name in recipe_names & given.keys()}
    if recipe.get("patience") == 0:
        recipe["patience"] = None
    for name in ("groups", "projection", "public"):  # the app's TOML knows no null
        given[name] = given.get(name) or None
    return Settings.of({**given, "training": recipe}, "the app's settings")


def certified_grouping(
    grouping: Grouping,
    types: ClientTypes | None,
    stopped: Sequence[str],
    aside: int,
    *,
    authenticated: bool,
) -> Grouping:
    """Return a grouping with what may be claimed after groups ``stopped`` for these reasons."""
    went = Deployment(
        authenticated=authenticated,
        groups=len(stopped),
        lost=sum(why in UNUSABLE for why in stopped),
        late=sum(why in LATE for why in stopped),
        clients=len(grouping.assignment),
        aside=aside + (0 if types is None else len(types.set_aside)),
    )
    return replace(grouping, basis=claim(Circumstances(grouping.basis, deployment=went)))
