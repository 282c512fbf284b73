"""The four steps in a row, as the estimator and the command line run them.

Each function is one arrow of: Federation → ClientTypes → Grouping → GroupModels.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy.typing as npt
import torch
from torch import nn

from carvyfl.core.errors import CarvyError, pick
from carvyfl.data.clients import Federation
from carvyfl.learning.job import GroupResult
from carvyfl.learning.models.trainable import check_model
from carvyfl.learning.planner import Progress, quiet
from carvyfl.learning.recipe import Recipe
from carvyfl.learning.scaffold.local import prepared
from carvyfl.profiles.methods import TYPE_METHODS, infer_types
from carvyfl.profiles.one_epoch import one_epoch_updates
from carvyfl.profiles.types import WITHOUT_UPDATES, ClientTypes
from carvyfl.voting.group_models import GroupModels


def check_federation_model(federation: Federation, module: nn.Module) -> None:
    """Refuse a model that cannot be trained on these clients, before anything is trained."""
    if federation.num_classes < 2:
        raise CarvyError("the data has a single class; classification needs two or more")
    first = federation.clients[0].train.inputs
    example = prepared(first[:1], federation.mean, federation.std)
    check_model(module, torch.cat([example, example]), federation.num_classes)


def find_types(
    method: str,
    federation: Federation,
    module: nn.Module,
    recipe: Recipe,
    seed: int,
    *,
    given: Sequence[int | str] | npt.NDArray[Any] | None = None,
    workers: int | None = None,
    device: str | None = None,
    progress: Progress = quiet,
) -> ClientTypes:
    """Step 1: have every client train one epoch, and infer its type from the update.

    Parameters
    ----------
    method
        A name in ``TYPE_METHODS``; ``given`` and ``oracle`` ask the clients nothing.
    federation, module, recipe, seed
        The clients; the model, its weights being w⁰; the recipe; the run's seed.
    given
        The types the operator knows, for method ``given``.
    workers, device, progress
        See :func:`~carvyfl.profiles.one_epoch.one_epoch_updates`.
    """
    pick(TYPE_METHODS, method, "type inference")
    updates = None
    if method not in WITHOUT_UPDATES:
        updates = one_epoch_updates(
            federation,
            module,
            recipe,
            seed,
            method=method,
            workers=workers,
            device=device,
            progress=progress,
        )
    return infer_types(method, updates, seed=seed, oracle=federation.types, given=given)


def gather_models(
    federation: Federation, module: nn.Module, results: Sequence[GroupResult]
) -> GroupModels:
    """Make the trained groups of a federation the ensemble that votes."""
    return GroupModels.of(
        module,
        results,
        num_classes=federation.num_classes,
        mean=federation.mean,
        std=federation.std,
    )
