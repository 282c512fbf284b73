"""The clients' part of Step 1: one epoch from w⁰, and the update Δw_k (Algorithm 1, lines 1-6)."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from carvyfl.federation.clients import Client, Federation
from carvyfl.federation.models import flat_weights, output_slices
from carvyfl.inference.reports import OutputLayer, Updates, collect
from carvyfl.training.local import Batches, FlatNet, local_epoch, one_thread
from carvyfl.training.loop import usable_cores
from carvyfl.training.planner import Progress, quiet
from carvyfl.training.recipe import Recipe

BEFORE_TRAINING = -1
"""The round number in Step 1's randomness keys: its order of samples is its own."""


def one_epoch_updates(
    federation: Federation,
    module: nn.Module,
    recipe: Recipe,
    seed: int,
    *,
    workers: int | None = None,
    progress: Progress = quiet,
) -> Updates:
    """Have every client train one epoch from w⁰ and collect what they send.

    Parameters
    ----------
    federation
        The clients.
    module
        The model; its present weights are w⁰.
    recipe
        Gives the learning rate (the first round's) and the batch size.
    seed
        The run's seed.
    workers
        Worker processes; default one per core.
    progress
        Told (clients done, all clients).

    Returns
    -------
    Updates
        Δw_k = vec(w_k⁽¹⁾ - w⁰) of every client, shape (N, P), checked one by one.
    """
    import joblib

    numbers = range(len(federation))
    updates: list[npt.NDArray[np.float32]] = []
    progress(0, len(federation))
    parallel = joblib.Parallel(n_jobs=workers or usable_cores(), return_as="generator")
    for update in parallel(
        joblib.delayed(one_epoch)(
            number,
            federation.clients[number],
            module,
            recipe,
            seed,
            federation.mean,
            federation.std,
        )
        for number in numbers
    ):
        updates.append(update)
        progress(len(updates), len(federation))
    found = output_slices(module, federation.num_classes)
    return collect(
        updates,
        length=len(flat_weights(module)),
        lr=recipe.lr,
        steps=np.array([-(-len(c.train) // recipe.batch_size) for c in federation.clients]),
        num_classes=federation.num_classes,
        head=OutputLayer() if found is None else OutputLayer(weight=found[0], bias=found[1]),
    )


def one_epoch(
    number: int,
    client: Client,
    module: nn.Module,
    recipe: Recipe,
    seed: int,
    mean: float,
    std: float,
) -> npt.NDArray[np.float32]:
    """Train one client for one epoch of plain SGD and return Δw_k, shape (P,)."""
    with one_thread():
        net = FlatNet(module)
        start = net.weights.clone()
        local_epoch(
            net,
            Batches.of(client.train, mean, std),
            torch.zeros_like(start),
            lr=recipe.lr,
            batch_size=recipe.batch_size,
            seed=seed,
            client=number,
            round_=BEFORE_TRAINING,
        )
        update: npt.NDArray[np.float32] = (net.weights - start).numpy()
    return update
