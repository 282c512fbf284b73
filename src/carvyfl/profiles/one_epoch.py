"""The clients' part of Step 1: one epoch from w⁰, and the update Δw_k (Algorithm 1, lines 1-6)."""

from __future__ import annotations

import os

import numpy as np
import torch
from torch import nn

from carvyfl.core.environment import usable_cores
from carvyfl.data.clients import Client, Federation
from carvyfl.learning.job import GroupState, group_job
from carvyfl.learning.models.weights import flat_weights, output_slices
from carvyfl.learning.planner import Progress, quiet
from carvyfl.learning.recipe import Recipe
from carvyfl.learning.scaffold.batched.net import StackedNet
from carvyfl.learning.scaffold.batched.training import Training
from carvyfl.learning.scaffold.local import Batches, FlatNet, local_epoch, one_thread
from carvyfl.learning.scaffold.loop.engine import in_worker
from carvyfl.profiles.messages import MessageForm, Messages, OutputLayer, Rows, collect
from carvyfl.profiles.methods import PROFILE_METHODS

BEFORE_TRAINING = -1
"""The round number in Step 1's randomness keys: its order of samples is its own."""

AT_ONCE = 1024
"""Clients that a device holds at once in Step 1: more are no faster, and memory is finite."""


def one_epoch_updates(
    federation: Federation,
    module: nn.Module,
    recipe: Recipe,
    seed: int,
    *,
    method: str | None = None,
    workers: int | None = None,
    device: str | None = None,
    progress: Progress = quiet,
) -> Messages:
    """Have every client train one epoch from w⁰ and collect what they send.

    Parameters
    ----------
    module
        The model; its present weights are w⁰.
    recipe
        Gives the learning rate (the first round's) and the batch size.
    method
        The profile method the messages are for: clients send what it needs and no more. None
        has them send the whole update, which serves every method.
    workers
        Worker processes; default one per core.
    device
        ``cuda`` to train all clients there together, in float32, instead of on workers.

    Returns
    -------
    Messages
        Δw_k = vec(w_k⁽¹⁾ - w⁰) of every client, shape (N, P), or what it made of it, checked
        one by one.
    """
    form = message_form(module, federation.num_classes, method)
    progress(0, len(federation))
    if device is None:
        messages = _on_workers(federation, module, recipe, seed, form, workers, progress)
    else:
        messages = _on_device(federation, module, recipe, seed, form, torch.device(device))
        progress(len(federation), len(federation))
    return collect(
        messages,
        length=form.length,
        lr=recipe.lr,
        steps=np.array([-(-len(c.train) // recipe.batch_size) for c in federation.clients]),
        num_classes=federation.num_classes,
        head=form.head,
    )


def _on_workers(
    federation: Federation,
    module: nn.Module,
    recipe: Recipe,
    seed: int,
    form: MessageForm,
    workers: int | None,
    progress: Progress,
) -> list[Rows]:
    """Train the clients on worker processes, one after another on each."""
    import joblib

    messages: list[Rows] = []
    parallel = joblib.Parallel(n_jobs=workers or usable_cores(), return_as="generator")
    for message in parallel(
        joblib.delayed(in_worker)(
            os.getpid(),
            one_epoch,
            number,
            client,
            module,
            recipe,
            seed,
            federation.mean,
            federation.std,
            form,
        )
        for number, client in enumerate(federation.clients)
    ):
        messages.append(message)
        progress(len(messages), len(federation))
    return messages


def _on_device(
    federation: Federation,
    module: nn.Module,
    recipe: Recipe,
    seed: int,
    form: MessageForm,
    device: torch.device,
) -> list[Rows]:
    """Train the clients on one device, a lot of them together: each is a group of its own."""
    net = StackedNet(module, device, "fp32")
    messages: list[Rows] = []
    for first in range(0, len(federation), AT_ONCE):
        lot = range(first, min(first + AT_ONCE, len(federation)))
        jobs = [group_job(federation, [k], module, recipe, seed) for k in lot]
        training = Training(jobs, [GroupState.initial(job) for job in jobs], net, width=AT_ONCE)
        messages += _lot_on_device(training, recipe, form)
    return messages


def _lot_on_device(training: Training, recipe: Recipe, form: MessageForm) -> list[Rows]:
    """Train the clients of a lot, and return what they send in their order."""
    messages: dict[int, Rows] = {}

    def epoch(part: list[int]) -> torch.Tensor:
        start = training.weights[torch.tensor(part, device=training.device)]
        end = training.epoch(part, start, torch.zeros_like(start), recipe.lr, BEFORE_TRAINING)
        return end - start

    for part, updates in training.in_parts(training.active, epoch):
        for i, update in zip(part, updates.cpu().numpy(), strict=True):
            messages[training.cohort.number[i]] = _message(update, form)
    return [messages[k] for k in sorted(messages)]


def message_form(module: nn.Module, num_classes: int, method: str | None) -> MessageForm:
    """Say what clients with this model send for a profile method (None: the whole update)."""
    found = output_slices(module, num_classes)
    head = OutputLayer() if found is None else OutputLayer(weight=found[0], bias=found[1])
    form = None if method is None else PROFILE_METHODS.pick(method).form
    if form is not None:
        return form(head, num_classes)
    return MessageForm(len(flat_weights(module)), head, make=np.asarray)


def one_epoch(
    number: int,
    client: Client,
    module: nn.Module,
    recipe: Recipe,
    seed: int,
    mean: float,
    std: float,
    form: MessageForm,
) -> Rows:
    """Train one client for one epoch of plain SGD and return what it sends of Δw_k.

    Where Δw_k, shape (P,), is not finite, neither is the message, even if the numbers it is
    made of are.
    """
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
        return _message((net.weights - start).numpy(), form)


def _message(update: Rows, form: MessageForm) -> Rows:
    """Return what a client sends of its update, shape (P,)."""
    if not np.isfinite(update).all():
        return np.full(form.length, np.nan if np.isnan(update).any() else np.inf, np.float32)
    message: Rows = form.make(update[None])[0]
    return message
