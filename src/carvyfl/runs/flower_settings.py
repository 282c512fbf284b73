"""What a federation is run with: the table ``carvy`` of a Flower app's configuration."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Annotated, Any

import numpy as np
from msgspec import Meta

from carvyfl.core.errors import CarvyError
from carvyfl.core.schema import check, settings
from carvyfl.groups.hashing import training_id
from carvyfl.groups.methods import GROUPINGS
from carvyfl.learning.recipe import Recipe
from carvyfl.pipeline import GroupingSettings
from carvyfl.profiles.methods import PROFILE_METHODS
from carvyfl.runs.config import RunConfig

FROM_THE_CLIENTS = "the clients' own"
"""What the record says in place of a partition."""

KEYS = "registered keys"
"""What the record says that clients' names stand for, in a federation with keys."""

PREFIX = "carvy."
"""Of the settings in the app's configuration, where Flower joins tables with a dot."""


@dataclass(frozen=True)
class Settings:
    """All settings of a federation; server and clients read the same ones."""

    out: str = "carvy-run"
    """The run folder on the server's machine."""
    keys: str = ""
    """A folder of the public keys the operator registered (`*.pub`), on the server's machine; only
    their holders take part. Empty: anybody may join."""
    method: str = "carvy"
    """How groups are formed, such as `carvy`."""
    types: str = "bias-profile"
    """How types are found: `bias-profile` (a few numbers per client) or `xmeans` (whole
    updates)."""
    groups: Annotated[int, Meta(ge=0)] = 0
    """G; 0 lets `carvy` find it, the other methods need it."""
    model: str = "compact-cnn"
    """A registered model."""
    num_classes: Annotated[int, Meta(ge=2)] = 10
    """C."""
    mean: float = 0.0
    """Inputs enter the model as (x - mean) / std, after uint8 was scaled to 0…1."""
    std: float = 1.0
    """See mean."""
    validation_share: Annotated[float, Meta(ge=0, lt=1)] = 0.1
    """The part of a client's samples split off for validation, unless it brings its own."""
    min_clients: Annotated[int, Meta(ge=1)] = 2
    """Fewer do not start."""
    join_seconds: Annotated[float, Meta(gt=0)] = 600.0
    """How long the server waits for clients at the start: for all keys, or, without keys, for
    `min_clients`."""
    answer_seconds: Annotated[float, Meta(gt=0)] = 1800.0
    """How long it waits for an answer; what comes later counts for nothing."""
    misses: Annotated[int, Meta(ge=1)] = 3
    """Rounds in a row without an answer after which a client is set aside for good; five times as
    many rounds in all in which it kept its group waiting do the same."""
    deadline_seconds: Annotated[float, Meta(ge=0)] = 0.0
    """After so many seconds from the server's first start groups stop when the round they are in
    is made, and vote with the model they have; 0: no deadline."""
    seed: int = 0
    """All randomness is derived from it."""
    training: Recipe = field(default_factory=Recipe)
    """The recipe of every group; its settings stand beside the others in the app's table."""

    def __post_init__(self) -> None:
        check(self, PREFIX)
        if not math.isfinite(self.mean):
            raise CarvyError(f"carvy.mean must be a finite number, not {self.mean}")
        if not 0 < self.std < math.inf:
            raise CarvyError(f"carvy.std must be a finite number above 0, not {self.std}")
        asking = [name for name, entry in PROFILE_METHODS.items() if entry.asks_clients]
        if self.types not in asking:
            raise CarvyError(f"carvy.types is {' or '.join(asking)}, not '{self.types}'")
        method = GROUPINGS.pick(self.method)
        if method.simulation_only:
            raise CarvyError(
                f"carvy.method '{self.method}' is for simulations; use carvy or flcert"
            )
        if method.needs_groups and not self.groups:
            raise CarvyError(
                f"carvy.method '{self.method}' does not find its number of groups; set carvy.groups"
            )
        self.run_config(self.min_clients, 1)

    @property
    def grouping(self) -> GroupingSettings:
        """How Steps 1 and 2 are done."""
        return self.run_config(self.min_clients, 1).grouping

    def run_config(self, clients: int, samples: int) -> RunConfig:
        """Return these settings as a run's, for so many clients with so many samples each.

        The fields about data sets and partitions keep their defaults: clients bring
        their own data.
        """
        return RunConfig(
            clients=max(clients, self.groups, 1),
            samples=samples,
            model=self.model,
            methods=(self.method,),
            types=self.types,
            groups=self.groups or None,
            baseline_groups=self.groups or None,
            training=self.training,
            seed=self.seed,
        )

    def numbered(self, names: Iterable[str]) -> tuple[str, ...]:
        """Return the clients' names in the order of their numbers: by ids that nobody chooses."""
        return tuple(sorted(names, key=lambda name: (training_id(name, self.seed), name)))

    def recorded(self, samples: Sequence[int], dataset: str) -> dict[str, Any]:
        """Return what a run's record says of its configuration, plain.

        Parameters
        ----------
        samples
            How many samples each client trains on; 0 where it did not say.
        dataset
            The name of the test data.
        """
        known = [count for count in samples if count]
        config = self.run_config(len(samples), int(np.median(known or [1]))).to_dict()
        return config | {"dataset": dataset, "partition": FROM_THE_CLIENTS, "validation": 0}

    @classmethod
    def of(cls, plain: Mapping[str, Any], where: str) -> Settings:
        """Return settings by name, those of the recipe nested, as a value."""
        own = settings(cls, plain, where, PREFIX)
        return cls(**own | {"training": Recipe(**own.get("training", {}))})


def read_settings(run_config: Mapping[str, Any]) -> Settings:
    """Read the settings from a Flower app's configuration.

    Names are those of :class:`Settings` and of the recipe, with hyphens or underscores,
    each after ``carvy.``; ``patience = 0`` means that no group stops early.

    Raises
    ------
    CarvyError
        If a name is unknown or a value does not fit.
    """
    own = {
        name.removeprefix(PREFIX).replace("-", "_"): value
        for name, value in run_config.items()
        if name.startswith(PREFIX)
    }
    recipe_names = {field.name for field in fields(Recipe)}
    recipe = {name: own.pop(name) for name in recipe_names & own.keys()}
    if recipe.get("patience") == 0:
        recipe["patience"] = None
    return Settings.of({**own, "training": recipe}, "the app's settings")
