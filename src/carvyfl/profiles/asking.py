"""The clients' part of Step 1: what they compute and send (Algorithm 1, lines 1-6).

That is something of the update Δw_k after one epoch from w⁰, or the class means at w⁰.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import nn

from carvyfl.core.environment import usable_cores
from carvyfl.core.errors import CarvyError
from carvyfl.core.parts import in_parts
from carvyfl.core.progress import quiet
from carvyfl.data.clients import Federation
from carvyfl.learning.job import GroupJob, group_job, initial_states
from carvyfl.learning.models.weights import flat_weights, output_inputs, output_slices
from carvyfl.learning.one_shot.model import OneShotModel
from carvyfl.learning.planner import Progress
from carvyfl.learning.recipe import Recipe
from carvyfl.learning.scaffold.batched import warm_up
from carvyfl.learning.scaffold.batched.local_steps import LocalSteps
from carvyfl.learning.scaffold.batched.net import StackedNet
from carvyfl.learning.scaffold.batched.training import Training
from carvyfl.learning.scaffold.local import Batches, FlatNet, local_epoch, one_thread, prepared
from carvyfl.learning.scaffold.loop.engine import in_worker
from carvyfl.profiles.class_means import class_means, class_means_of_many, message_length
from carvyfl.profiles.messages import MessageForm, Messages, OutputLayer, Rows, collect
from carvyfl.profiles.methods import PROFILE_METHODS

BEFORE_TRAINING = -1
"""The round number in Step 1's randomness keys: its order of samples is its own."""

AT_ONCE = 1024
"""Clients that a device holds at once in Step 1: more are no faster, and memory is finite."""


SAMPLES_AT_ONCE = 16384
"""Samples that a device holds at once in Step 1, unless one client has more."""


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
    recipe
        Gives the learning rate (the first round's) and the batch size.
    method
        The profile method the messages are for: clients send what it needs and no more. None
        has them send the whole update, which serves every method.
    device
        ``cuda`` to train all clients there together, in float32, instead of on workers.

    Returns
    -------
    Messages
        Δw_k = vec(w_k⁽¹⁾ - w⁰) of every client, shape (N, P), or what it made of it, checked
        one by one.
    """
    form = message_form(module, federation.num_classes, method)
    jobs = [group_job(federation, [k], module, recipe, seed) for k in range(len(federation))]
    progress(0, len(jobs))
    if device is None:
        messages = _on_workers(jobs, functools.partial(one_epoch, form=form), workers, progress)
    else:
        messages = _on_device(jobs, form, torch.device(device))
        progress(len(jobs), len(jobs))
    return collect(
        messages,
        length=form.length,
        lr=recipe.lr,
        steps=[job.steps_per_round for job in jobs],
        num_classes=federation.num_classes,
        head=form.head,
    )


def all_class_means(
    federation: Federation,
    module: nn.Module,
    recipe: Recipe,
    seed: int,
    *,
    workers: int | None = None,
    device: str | None = None,
    progress: Progress = quiet,
) -> Messages:
    """Have every client send its class means at w⁰ (:mod:`~carvyfl.profiles.class_means`).

    ``device`` is ``cuda`` to compute there instead of on workers.
    """
    classes, clients = federation.num_classes, len(federation)
    form = message_form(module, classes, "class-means")
    progress(0, clients)
    messages: Sequence[Rows] | Rows
    if device is not None and not isinstance(module, OneShotModel):
        messages = _means_on_device(federation, module, device, progress)
    else:
        jobs = [group_job(federation, [k], module, recipe, seed) for k in range(clients)]
        if isinstance(module, OneShotModel):  # fixed features are kept in this process
            messages = [own_class_means(job, classes, device) for job in jobs]
            progress(clients, clients)
        else:
            work = functools.partial(own_class_means, num_classes=classes)
            messages = _on_workers(jobs, work, workers, progress)
    return collect(
        messages,
        length=form.length,
        lr=0.0,
        steps=np.ones(clients, dtype=np.int64),
        num_classes=classes,
        head=form.head,
    )


def own_class_means(job: GroupJob, num_classes: int, device: str | None = None) -> Rows:
    """Return what the only client of a job sends of its class means."""
    module, samples = job.module, job.clients[0].train
    if isinstance(module, OneShotModel):
        features = module.features.of(samples.inputs, device)
    else:
        with one_thread():
            inputs = prepared(samples.inputs, job.mean, job.std)
            features = output_inputs(module, num_classes)(inputs).numpy()
    with one_thread():
        return class_means(features, samples.labels, num_classes)


def _means_on_device(
    federation: Federation, module: nn.Module, device: str, progress: Progress
) -> Rows:
    """Compute the class means of clients on a device: features client by client, then all sums."""
    if device == "cuda":  # a stacked net may have set it otherwise
        torch.backends.cuda.matmul.allow_tf32 = False
    samples, classes = [client.train for client in federation.clients], federation.num_classes
    features_of = output_inputs(module, classes, device)
    messages, done = [], 0
    for part in in_parts(samples, SAMPLES_AT_ONCE):
        joined = np.concatenate([client.inputs for client in part])
        inputs = prepared(joined, federation.mean, federation.std, device)
        each = torch.split(inputs, [len(client) for client in part])
        # Copied, since where in memory a client's inputs begin depends on the clients before it.
        features = torch.cat([features_of(rows.clone()) for rows in each])
        messages.append(class_means_of_many(features, [client.labels for client in part], classes))
        done += len(part)
        progress(done, len(samples))
    return np.concatenate(messages)


def _on_workers(
    jobs: Sequence[GroupJob],
    work: Callable[[GroupJob], Rows],
    workers: int | None,
    progress: Progress,
) -> list[Rows]:
    """Have the clients do their work on worker processes, one after another on each."""
    import joblib

    messages: list[Rows] = []
    parallel = joblib.Parallel(n_jobs=workers or usable_cores(), return_as="generator")
    for message in parallel(joblib.delayed(in_worker)(os.getpid(), work, job) for job in jobs):
        messages.append(message)
        progress(len(messages), len(jobs))
    return messages


def _on_device(jobs: Sequence[GroupJob], form: MessageForm, device: torch.device) -> list[Rows]:
    """Train the clients on one device, many of them together: each is a group of its own."""
    warm_up.wait()  # steps may be recorded, and nothing else should use the device meanwhile
    messages: dict[int, Rows] = {}
    net = StackedNet(jobs[0].module, device, "fp32")
    for first in range(0, len(jobs), AT_ONCE):
        part = list(jobs[first : first + AT_ONCE])
        training = Training(part, initial_states(part), net, width=AT_ONCE)
        epoch = functools.partial(_epoch_on_device, training)
        for clients, updates in training.in_parts(training.active, epoch):
            for i, update in zip(clients, updates.cpu().numpy(), strict=True):
                messages[training.cohort.number[i]] = _message(update, form)
    return [messages[k] for k in sorted(messages)]


def _epoch_on_device(training: Training, clients: list[int]) -> torch.Tensor:
    """Return the updates of some clients of a chunk, shape (n, P)."""
    start = training.weights[torch.tensor(clients, device=training.device)]
    lr, no_correction = training.recipe.lr, torch.zeros_like(start)
    steps = LocalSteps(training.net, training.cohort, clients, training.recipe.batch_size)
    return steps.epoch(start, no_correction, lr, BEFORE_TRAINING) - start


def message_form(module: nn.Module, num_classes: int, method: str | None) -> MessageForm:
    """Say what clients with this model send for a profile method (None: the whole update)."""
    found = output_slices(module, num_classes)
    head = OutputLayer() if found is None else OutputLayer(weight=found[0], bias=found[1])
    entry = None if method is None else PROFILE_METHODS.pick(method)
    if entry is not None and entry.sends == "class-means":
        if found is None:
            raise CarvyError(
                f"types '{method}' need a last layer torch.nn.Linear with {num_classes} outputs, "
                "which the model has not; use `types='class-counts'`, given or oracle"
            )
        return MessageForm(message_length(num_classes), OutputLayer(), make=None)
    form = None if entry is None else entry.form
    if form is not None:
        return form(head, num_classes)
    return MessageForm(len(flat_weights(module)), head, make=np.asarray)


def client_message(job: GroupJob, num_classes: int, method: str) -> Rows:
    """Return what the only client of a job sends in Step 1 for a profile method."""
    form = message_form(job.module, num_classes, method)
    return own_class_means(job, num_classes) if form.make is None else one_epoch(job, form)


def one_epoch(job: GroupJob, form: MessageForm) -> Rows:
    """Train the only client of a job for one epoch of plain SGD and return what it sends of Δw_k.

    Where Δw_k, shape (P,), is not finite, neither is the message, even if the numbers it is
    made of are.
    """
    with one_thread():
        net = FlatNet(job.module)
        start = net.weights.clone()
        local_epoch(
            net,
            Batches.of(job.clients[0].train, job.mean, job.std),
            torch.zeros_like(start),
            lr=job.recipe.lr,
            batch_size=job.recipe.batch_size,
            seed=job.seed,
            client=job.members[0],
            round_=BEFORE_TRAINING,
        )
        return _message((net.weights - start).numpy(), form)


def _message(update: Rows, form: MessageForm) -> Rows:
    """Return what a client sends of its update, shape (P,)."""
    if not np.isfinite(update).all():
        return np.full(form.length, np.nan if np.isnan(update).any() else np.inf, np.float32)
    assert form.make is not None
    message: Rows = form.make(update[None])[0]
    return message
