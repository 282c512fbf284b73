"""The high-level API: ``fit`` on clients' data, ``predict``, ``certify``."""

from __future__ import annotations

import contextlib
import os
import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from torch import nn

from carvyfl.core.checks import seed_number, whole_number
from carvyfl.core.errors import CarvyError
from carvyfl.core.registry import pick
from carvyfl.data.clients import Federation, Inputs, as_array, as_inputs
from carvyfl.data.own_data import checked_federation, federation_from_arrays
from carvyfl.group_count import GroupCount, aimed_level
from carvyfl.groups.coins import Coins
from carvyfl.groups.grouping import Grouping
from carvyfl.learning.engines import make_engine
from carvyfl.learning.job import GroupResult
from carvyfl.learning.learners import OWN_TYPES
from carvyfl.learning.models.registry import build_model
from carvyfl.learning.models.trainable import num_outputs
from carvyfl.learning.one_shot.features import Function
from carvyfl.learning.one_shot.known_features import UNSCALED
from carvyfl.learning.one_shot.model import RIDGE, one_shot_model
from carvyfl.learning.planner import Progress, quiet
from carvyfl.learning.recipe import Recipe
from carvyfl.learning.scaffold.local import prepared
from carvyfl.learning.store import GroupStore
from carvyfl.pipeline import (
    TRAINING,
    Compute,
    GroupingSettings,
    Setup,
    cast_votes,
    check_methods,
    check_setup,
    compute_features,
    form_all,
    gather_models,
    plan_training,
    train,
)
from carvyfl.profiles.methods import Profiles
from carvyfl.voting.certificate import Certificate, certify
from carvyfl.voting.group_models import GroupModels
from carvyfl.voting.votes import Votes, predict


class CarvyFL:
    """Federated learning whose predictions carry a certificate.

    Parameters
    ----------
    model
        A registered model's name, or any ``torch.nn.Module`` that maps a batch
        to logits; its present weights are the initial ones. One-shot learning does not use it.
    grouping
        A registered grouping: ``carvy`` (the default), ``slots``, ``wrap``, ``flcert``,
        ``balanced``, ``cluster`` or ``single``.
    types
        What Step 1 learns of clients: ``class-means``, ``class-counts``, or types alone:
        ``bias-profile``, ``xmeans``, ``oracle``, or the types themselves, one per client, where
        they are known. None is ``class-means``, or ``class-counts`` for one-shot learning.
    num_groups
        G; None lets ``carvy`` choose it by what it would certify.
    aim, least_accuracy
        What G is chosen for (:func:`~carvyfl.group_count.choose_group_count`).
    learner
        How every group learns: ``scaffold``, in rounds, or ``one-shot``: every client sends sums
        over its fixed features once, and a group's head follows in closed form.
    recipe
        How every group trains, for ``scaffold``.
    features
        For ``one-shot``: a registered feature map, a frozen ``torch.nn.Module`` or a function of
        inputs, bytes scaled to 0…1; ``none`` if the inputs are embeddings already.
    projection
        d: project the features to so many numbers, by a fixed random matrix; None leaves them.
    ridge
        λ of one-shot heads: larger shrinks them more.
    seed
        All randomness is derived from it, but for random slots with coins of their own.
    coins
        What random slots are drawn from: coins whose commitment was published before the
        clients' data were fixed (:func:`~carvyfl.groups.coins.draw_coins`), for one ``fit``.
        None simulates coins, from the seed.
    engine
        ``loop`` (CPU cores), ``batched`` (one GPU) or ``auto`` (a GPU where there is one).
    workers
        Worker processes; default one per core. Results do not depend on it.
    store
        A folder in which finished groups are kept and found again; None keeps nothing.
    progress
        Called with (work done, all work) while groups train; None reports nothing.

    Attributes
    ----------
    federation_, profiles_, group_count_, grouping_, results_, models_
        What ``fit`` learned: the clients as checked, their profiles and types (None where
        the grouping needs none), how G was chosen (None where it was set), the groups, what
        happened in each group's training, and the group models.
    """

    def __init__(
        self,
        model: str | nn.Module = "compact-cnn",
        *,
        grouping: str = "carvy",
        types: str | Sequence[int | str] | npt.NDArray[Any] | None = None,
        num_groups: int | None = None,
        aim: str = "auc",
        least_accuracy: float = 0.0,
        learner: str = "scaffold",
        recipe: Recipe | None = None,
        features: str | nn.Module | Function = "scattering",
        projection: int | None = None,
        ridge: float = RIDGE,
        seed: int = 0,
        coins: Coins | None = None,
        engine: str = "auto",
        workers: int | None = None,
        store: str | Path | None = None,
        progress: Progress | None = None,
    ) -> None:
        if not isinstance(model, str | nn.Module):
            raise CarvyError(
                f"model must be a name or a torch module, not {type(model).__name__}; "
                "give an instance, not its class"
            )
        if not isinstance(recipe, Recipe | None):
            raise CarvyError(
                f"recipe must be a Recipe, not {type(recipe).__name__}; write recipe=Recipe(…)"
            )
        if not isinstance(coins, Coins | None):
            raise CarvyError(
                f"coins must be Coins or None, not {type(coins).__name__}; write coins=draw_coins()"
            )
        if not isinstance(store, str | os.PathLike | None):
            raise CarvyError(f"store must be a folder's path or None, not {store!r}")
        if not (progress is None or callable(progress)):
            raise CarvyError(
                f"progress must be a function of (work done, all work) or None, not {progress!r}"
            )
        self.model = model
        self.grouping = grouping
        self.learner = learner
        self.features, self.projection, self.ridge = features, projection, ridge
        self.types = pick(OWN_TYPES, learner, "learner") if types is None else types
        self.num_groups = None if num_groups is None else whole_number(num_groups, "num_groups")
        aimed_level(aim)
        self.aim, self.least_accuracy = aim, least_accuracy
        self.recipe = Recipe() if recipe is None else recipe
        self.seed = seed_number(seed)
        self.coins = coins
        self.engine = engine
        self.workers = None if workers is None else whole_number(workers, "workers")
        self.store = store
        self.progress = quiet if progress is None else progress

    def fit(self, clients: Federation | Iterable[Any], num_classes: int | None = None) -> CarvyFL:
        """Run Steps 1 to 3 on the clients' data.

        Parameters
        ----------
        clients
            A :class:`~carvyfl.data.clients.Federation`, or one entry per
            client: (inputs, labels), a torch ``Dataset`` or a ``Client``.
        num_classes
            C. A federation knows its own, and a module has that many outputs; for a model by
            name it should be given. Else it is the largest label of all clients plus one, and
            nothing is certified: one client could reach every group's model through it.
        """
        federation = (
            checked_federation(clients, num_classes)
            if isinstance(clients, Federation)
            else federation_from_arrays(clients, num_classes=num_classes, seed=self.seed)
        )
        federation = self._with_outputs(federation)
        if self.learner == "one-shot":
            federation = replace(federation, mean=UNSCALED[0], std=UNSCALED[1])
        if federation.derived:
            warnings.warn(
                "the number of classes was taken from the clients' labels, so one client could "
                "reach every group and nothing is certified; call fit with num_classes",
                stacklevel=2,
            )
        setup = Setup(federation, self._module(federation), self.recipe, self.seed)
        check_setup(setup)
        compute, settings = self._compute(), self._settings()
        check_methods([self.grouping], settings, setup)
        compute_features(setup, compute)
        formed = form_all([self.grouping], settings, setup, compute, self.coins)
        for warning in formed.warnings:
            warnings.warn(warning, stacklevel=2)
        grouping = formed.groupings[self.grouping]
        results = train({self.grouping: plan_training(setup, grouping)}, compute)[self.grouping]
        self.federation_: Federation = federation
        self.profiles_: Profiles | None = formed.profiles
        self.group_count_: GroupCount | None = formed.count
        self.grouping_: Grouping = grouping
        self.results_: list[GroupResult] = results
        self.models_: GroupModels = gather_models(setup, results)
        return self

    def votes(self, inputs: Any) -> Votes:
        """Return what every group votes on every input, shape (G, n)."""
        if not hasattr(self, "models_"):
            raise CarvyError("this CarvyFL has not been fitted; call fit(clients) first")
        return cast_votes(self.models_, self._inputs(inputs), self._compute())

    def predict(self, inputs: Any) -> npt.NDArray[np.int64]:
        """Return the plurality vote on every input (Algorithm 5), shape (n,)."""
        return predict(self.votes(inputs))

    def certify(self, inputs: Any, labels: Any = None) -> Certificate:
        """Return the predictions with what they withstand.

        Parameters
        ----------
        inputs
            Shape (n, …), as the clients' inputs. Where those were uint8, whole numbers
            from 0 to 255 of any type, or floats from 0 to 1, mean the same pixels.
        labels
            The true classes, for certified accuracy; without them the
            certificate holds predictions and radii.
        """
        truth = None if labels is None else as_array(labels, "labels")
        return certify(self.votes(inputs), truth, self.grouping_.basis)

    def score(self, inputs: Any, labels: Any) -> float:
        """Return the accuracy (0…1) with no malicious client, CA(0) / 100."""
        return float(self.certify(inputs, labels).ca()[0]) / 100

    def _module(self, federation: Federation) -> nn.Module:
        shape = federation.clients[0].train.inputs.shape[1:]
        if self.learner == "one-shot":
            return one_shot_model(
                self.features, shape, federation.num_classes, self.ridge, self.projection
            )
        if isinstance(self.model, nn.Module):
            return self.model
        return build_model(self.model, shape, federation.num_classes, self.seed)

    def _with_outputs(self, federation: Federation) -> Federation:
        """Take C from the outputs of the user's module, not from the clients' labels."""
        if self.learner == "one-shot" or not isinstance(self.model, nn.Module):
            return federation
        if not federation.derived:
            return federation
        first = federation.clients[0].train.inputs
        outputs = num_outputs(self.model, prepared(first[:1], federation.mean, federation.std))
        if outputs is None:
            return federation  # which is refused with the reason, later
        fixed = replace(federation, num_classes=outputs, derived=())
        # a client with a label beyond the outputs is refused by its number
        return fixed if federation.num_classes <= outputs else checked_federation(fixed)

    def _settings(self) -> GroupingSettings:
        named = isinstance(self.types, str)
        return GroupingSettings(
            profiles=str(self.types) if named else "given",
            given_types=None if named else self.types,
            groups=self.num_groups,
            baseline_groups=self.num_groups,
            aim=self.aim,
            least_accuracy=self.least_accuracy,
        )

    def _compute(self) -> Compute:
        engine = make_engine(self.engine, workers=self.workers)
        store = None if self.store is None else GroupStore(Path(self.store))
        return Compute(engine, self.workers, store, self._phase)

    @contextlib.contextmanager
    def _phase(self, title: str) -> Iterator[Progress]:
        yield self.progress if title.startswith(TRAINING) else quiet

    def _inputs(self, inputs: Any) -> Inputs:
        trained = self.federation_.clients[0].train.inputs
        return as_inputs(inputs, trained.shape[1:], str(trained.dtype))
