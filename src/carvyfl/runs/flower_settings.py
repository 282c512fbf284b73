"""What a federation is run with: the table ``carvy`` of a Flower app's configuration."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from carvyfl.core.errors import CarvyError
from carvyfl.groups.methods import GROUPINGS
from carvyfl.learning.recipe import Recipe
from carvyfl.pipeline import GroupingSettings
from carvyfl.profiles.methods import PROFILE_METHODS
from carvyfl.runs.config import RunConfig, fields_of

FROM_THE_CLIENTS = "the clients' own"
"""What the record says in place of a partition."""

PREFIX = "carvy."
"""Of the settings in the app's configuration, where Flower joins tables with a dot."""


@dataclass(frozen=True)
class Settings:
    """All settings of a federation; server and clients read the same ones.

    Attributes
    ----------
    out
        The run folder on the server's machine.
    keys
        A folder of the public keys the operator registered (``*.pub``), on the
        server's machine; only their holders take part. Empty: anybody may join.
    method
        How groups are formed, such as ``carvy``.
    types
        How types are found: ``bias-profile`` (a few numbers a client) or ``xmeans``
        (whole updates).
    groups
        G; 0 lets ``carvy`` find it, the other methods need it.
    model, num_classes
        A registered model, and C.
    mean, std
        Inputs enter the model as (x - mean) / std, after uint8 was scaled to 0…1.
    validation_share
        The part of a client's samples split off for validation, unless it brings its own.
    min_clients
        Fewer do not start.
    join_seconds
        How long the server waits for clients at the start: for all keys, or, without
        keys, for ``min_clients``.
    answer_seconds
        How long it waits for an answer; what comes later counts for nothing.
    misses
        Rounds in a row without an answer after which a client is set aside for good;
        five times as many rounds in all in which it kept its group waiting do the same.
    seed
        All randomness is derived from it.
    training
        The recipe of every group; its settings stand beside the others in the app's table.
    """

    out: str = "carvy-run"
    keys: str = ""
    method: str = "carvy"
    types: str = "bias-profile"
    groups: int = 0
    model: str = "compact-cnn"
    num_classes: int = 10
    mean: float = 0.0
    std: float = 1.0
    validation_share: float = 0.1
    min_clients: int = 2
    join_seconds: float = 600.0
    answer_seconds: float = 1800.0
    misses: int = 3
    seed: int = 0
    training: Recipe = field(default_factory=Recipe)

    def __post_init__(self) -> None:
        for name, least in {"groups": 0, "num_classes": 2, "min_clients": 1, "misses": 1}.items():
            value = getattr(self, name)
            if value < least:
                raise CarvyError(f"carvy.{name} must be at least {least}, not {value}")
        for name in ("join_seconds", "answer_seconds"):
            if not getattr(self, name) > 0:
                raise CarvyError(f"carvy.{name} must be above 0, not {getattr(self, name)}")
        if not math.isfinite(self.mean):
            raise CarvyError(f"carvy.mean must be a finite number, not {self.mean}")
        if not 0 < self.std < math.inf:
            raise CarvyError(f"carvy.std must be a finite number above 0, not {self.std}")
        if not 0 <= self.validation_share < 1:
            raise CarvyError(
                "carvy.validation_share must be at least 0 and below 1, "
                f"not {self.validation_share}"
            )
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

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, the recipe nested."""
        return dataclasses.asdict(self)

    @classmethod
    def of(cls, plain: Mapping[str, Any], where: str) -> Settings:
        """Rebuild settings from :meth:`to_dict`, checking names and types."""
        own = dict(plain)
        recipe = own.pop("training", {})
        return cls(
            **fields_of(cls, own, where), training=Recipe(**fields_of(Recipe, recipe, where))
        )


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
    recipe_names = {field.name for field in dataclasses.fields(Recipe)}
    recipe = {name: own.pop(name) for name in recipe_names & own.keys()}
    if recipe.get("patience") == 0:
        recipe["patience"] = None
    return Settings.of({**own, "training": recipe}, "the app's settings (carvy.*)")
