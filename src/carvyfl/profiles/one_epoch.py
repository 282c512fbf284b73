"""The clients' part of Step 1: one epoch from w⁰, and the update Δw_k (Algorithm 1, lines 1-6)."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping

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
from carvyfl.profiles.class_sets import profile_form
from carvyfl.profiles.messages import OutputLayer, ReportForm, Rows, Updates, collect

BEFORE_TRAINING = -1
"""The round number in Step 1's randomness keys: its order of samples is its own."""

AT_ONCE = 1024
"""Clients that a device holds at once in Step 1: more are no faster, and memory is finite."""

REPORT_FORMS: Mapping[str, Callable[[OutputLayer, int], ReportForm]] = {
    "bias-profile": profile_form,
}
"""The type methods that can do with less than the whole update: name → what a client sends,
given where the output layer sits in its update, and C."""


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
    method
        The type method the reports are for: clients send what it needs and no more
        (:data:`REPORT_FORMS`). None has them send the whole update, which serves every
        method.
    workers
        Worker processes; default one per core.
    device
        ``cuda`` to train all clients there together, in float32, instead of on workers.
    progress
        Told (clients done, all clients).

    Returns
    -------
    Updates
        Δw_k = vec(w_k⁽¹⁾ - w⁰) of every client, shape (N, P), or what it made of it, checked
        one by one.

    Raises
    ------
    CarvyError
        If the method needs an output layer that the model does not have; nothing was
        trained then.
    """
    form = report_form(module, federation.num_classes, method)
    progress(0, len(federation))
    if device is None:
        reports = _on_workers(federation, module, recipe, seed, form, workers, progress)
    else:
        reports = _on_device(federation, module, recipe, seed, form, torch.device(device))
        progress(len(federation), len(federation))
    return collect(
        reports,
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
    form: ReportForm,
    workers: int | None,
    progress: Progress,
) -> list[Rows]:
    """Train the clients on worker processes, one after another on each."""
    import joblib

    reports: list[Rows] = []
    parallel = joblib.Parallel(n_jobs=workers or usable_cores(), return_as="generator")
    for report in parallel(
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
        reports.append(report)
        progress(len(reports), len(federation))
    return reports


def _on_device(
    federation: Federation,
    module: nn.Module,
    recipe: Recipe,
    seed: int,
    form: ReportForm,
    device: torch.device,
) -> list[Rows]:
    """Train the clients on one device, a lot of them together: each is a group of its own."""
    net = StackedNet(module, device, "fp32")
    reports: list[Rows] = []
    for first in range(0, len(federation), AT_ONCE):
        lot = range(first, min(first + AT_ONCE, len(federation)))
        jobs = [group_job(federation, [k], module, recipe, seed) for k in lot]
        training = Training(jobs, [GroupState.initial(job) for job in jobs], net, width=AT_ONCE)
        reports += _lot_on_device(training, recipe, form)
    return reports


def _lot_on_device(training: Training, recipe: Recipe, form: ReportForm) -> list[Rows]:
    """Train the clients of a lot, and return what they send in their order."""
    reports: dict[int, Rows] = {}

    def epoch(part: list[int]) -> torch.Tensor:
        start = training.weights[torch.tensor(part, device=training.device)]
        end = training.epoch(part, start, torch.zeros_like(start), recipe.lr, BEFORE_TRAINING)
        return end - start

    for part, updates in training.in_parts(training.active, epoch):
        for i, update in zip(part, updates.cpu().numpy(), strict=True):
            reports[training.cohort.number[i]] = _report(update, form)
    return [reports[k] for k in sorted(reports)]


def report_form(module: nn.Module, num_classes: int, method: str | None) -> ReportForm:
    """Say what clients with this model send for a type method (None: the whole update)."""
    found = output_slices(module, num_classes)
    head = OutputLayer() if found is None else OutputLayer(weight=found[0], bias=found[1])
    if method is not None and method in REPORT_FORMS:
        return REPORT_FORMS[method](head, num_classes)
    return ReportForm(len(flat_weights(module)), head, make=np.asarray)


def one_epoch(
    number: int,
    client: Client,
    module: nn.Module,
    recipe: Recipe,
    seed: int,
    mean: float,
    std: float,
    form: ReportForm,
) -> Rows:
    """Train one client for one epoch of plain SGD and return what it sends of Δw_k.

    Where Δw_k, shape (P,), is not finite, neither is the report, even if the numbers it is
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
        return _report((net.weights - start).numpy(), form)


def _report(update: Rows, form: ReportForm) -> Rows:
    """Return what a client sends of its update, shape (P,)."""
    if not np.isfinite(update).all():
        return np.full(form.length, np.nan if np.isnan(update).any() else np.inf, np.float32)
    report: Rows = form.make(update[None])[0]
    return report
