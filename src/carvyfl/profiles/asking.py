"""The clients' part of Step 1: what they compute and send (Algorithm 1, lines 1-6)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from carvyfl.core.arrays import in_parts
from carvyfl.core.errors import CarvyError
from carvyfl.core.progress import Report, quiet
from carvyfl.data.clients import Federation
from carvyfl.learning.backends import Backend, Cores
from carvyfl.learning.job import GroupJob, group_job
from carvyfl.learning.learners import learner_of
from carvyfl.learning.models import flat_weights, output_inputs, output_slices
from carvyfl.learning.recipe import Recipe
from carvyfl.learning.scaffold.batched.device import load_kernels
from carvyfl.learning.scaffold.batched.engine import training_works
from carvyfl.learning.scaffold.batched.net import StackedNet
from carvyfl.learning.scaffold.batched.training import LocalSteps, Training
from carvyfl.learning.scaffold.client import Batches, FlatNet, local_epoch, one_thread, prepared
from carvyfl.profiles.class_means import class_means, class_means_of_many, message_length
from carvyfl.profiles.messages import MessageForm, Messages, OutputLayer, Rows, collect
from carvyfl.profiles.methods import PROFILE_METHODS

BEFORE_TRAINING = -1  # the round in Step 1's keys of randomness: its order of samples is its own
AT_ONCE = 1024  # clients that a device trains at once: more are no faster, and memory is finite
SAMPLES_AT_ONCE = 16384  # samples that a device holds at once, unless one client has more


def one_epoch_updates(
    federation: Federation,
    module: nn.Module,
    recipe: Recipe,
    seed: int,
    *,
    method: str | None = None,
    engine: Backend | None = None,
    progress: Report = quiet,
) -> Messages:
    """Have every client train one epoch from w⁰ and collect what it makes of its update.

    Parameters
    ----------
    recipe
        Gives the learning rate (the first round's) and the batch size.
    method
        The profile method the messages are for: clients send what it needs and no more. None
        has them send the whole update Δw_k = vec(w_k⁽¹⁾ - w⁰), which serves every method.
    engine
        Where they train; by default on all cores. On a device they train together, in float32.
    """
    form = message_form(module, federation.num_classes, method)
    jobs = _jobs(federation, module, recipe, seed)
    progress(0, len(jobs))
    messages = (engine or Cores()).map(OneEpoch(form), jobs, progress)
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
    engine: Backend | None = None,
    progress: Report = quiet,
) -> Messages:
    """Have every client send its class means at w⁰ (:mod:`~carvyfl.profiles.class_means`).

    ``engine`` is where they are computed, by default all cores.
    """
    engine, classes = engine or Cores(), federation.num_classes
    form, jobs = (
        message_form(module, classes, "class-means"),
        _jobs(federation, module, recipe, seed),
    )
    progress(0, len(jobs))
    work = ClassMeans(classes, engine.device)
    if learner_of(module).features(module) is None:
        messages = engine.map(work, jobs, progress)
    else:  # fixed features are held in this process
        messages = [work(job) for job in jobs]
        progress(len(jobs), len(jobs))
    return collect(messages, length=form.length, num_classes=classes, head=form.head)


def client_message(job: GroupJob, num_classes: int, method: str) -> Rows:
    """Return what the only client of a job sends in Step 1 for a profile method."""
    form = message_form(job.module, num_classes, method)
    return ClassMeans(num_classes)(job) if form.make is None else OneEpoch(form)(job)


def _jobs(federation: Federation, module: nn.Module, recipe: Recipe, seed: int) -> list[GroupJob]:
    """Return a job for every client by itself."""
    return [group_job(federation, [k], module, recipe, seed) for k in range(len(federation))]


def message_form(module: nn.Module, num_classes: int, method: str | None) -> MessageForm:
    """Say what clients with this model send for a profile method (None: the whole update)."""
    places = output_slices(module, num_classes)
    head = OutputLayer() if places is None else OutputLayer(weight=places[0], bias=places[1])
    entry = None if method is None else PROFILE_METHODS.pick(method)
    if entry is not None and entry.sends == "class-means":
        if places is None:
            layer = f"a last layer torch.nn.Linear with {num_classes} outputs"
            remedy = "use `types='class-counts'`, given or oracle"
            raise CarvyError(f"types '{method}' need {layer}, which the model has not; {remedy}")
        return MessageForm(message_length(num_classes), OutputLayer(), make=None)
    if entry is not None and entry.form is not None:
        return entry.form(head, num_classes)
    return MessageForm(len(flat_weights(module)), head, make=np.asarray)


@dataclass(frozen=True)
class ClassMeans:
    """What a client sends of its class means; fixed features are computed on ``device``."""

    num_classes: int
    device: str | None = None

    def __call__(self, job: GroupJob) -> Rows:
        """Return the message of the only client of a job."""
        samples, fixed = job.clients[0].train, learner_of(job.module).features(job.module)
        rows = None if fixed is None else fixed.of(samples.inputs, self.device)
        with one_thread():
            if rows is None:
                inputs = prepared(samples.inputs, job.mean, job.std)
                rows = output_inputs(job.module, self.num_classes)(inputs).numpy()
            return class_means(rows, samples.labels, self.num_classes)

    def together(
        self, jobs: Sequence[GroupJob], device: torch.device, progress: Report
    ) -> Sequence[Rows]:
        """Return the messages of many: features client by client, then all sums."""
        if device.type == "cuda":  # a stacked net may have set it otherwise
            torch.backends.cuda.matmul.allow_tf32 = False
        samples, module = [job.clients[0].train for job in jobs], jobs[0].module
        features_of = output_inputs(module, self.num_classes, str(device))
        messages: list[Rows] = []
        for part in in_parts(samples, SAMPLES_AT_ONCE):
            joined = np.concatenate([client.inputs for client in part])
            inputs = prepared(joined, jobs[0].mean, jobs[0].std, str(device))
            each = torch.split(inputs, [len(client) for client in part])
            # Copied, since where in memory a client's inputs begin depends on the clients before.
            features = torch.cat([features_of(rows.clone()) for rows in each])
            labels = [client.labels for client in part]
            messages += list(class_means_of_many(features, labels, self.num_classes))
            progress(len(messages), len(jobs))
        return messages


@dataclass(frozen=True)
class OneEpoch:
    """What a client sends of its update Δw_k, shape (P,), after one epoch of plain SGD.

    Where Δw_k is not finite, neither is the message, even if the numbers it is made of are.
    """

    form: MessageForm

    def __call__(self, job: GroupJob) -> Rows:
        """Return the message of the only client of a job."""
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
            return self._message((net.weights - start).numpy())

    def together(
        self, jobs: Sequence[GroupJob], device: torch.device, progress: Report
    ) -> Sequence[Rows]:
        """Return the messages of many, each a group of its own."""
        messages: dict[int, Rows] = {}
        net = StackedNet(jobs[0].module, device, "fp32")
        if device.type == "cuda":
            load_kernels(training_works(jobs, net))
        for first in range(0, len(jobs), AT_ONCE):
            training = Training(jobs[first : first + AT_ONCE], net, width=AT_ONCE)

            def epoch(clients: list[int], training: Training = training) -> Tensor:
                cohort, recipe = training.cohort, training.recipe
                start = training.weights[torch.tensor(clients, device=device)]
                steps = LocalSteps(net, cohort, clients, recipe.batch_size)
                no_correction = torch.zeros_like(start)
                return steps.epoch(start, no_correction, recipe.lr, BEFORE_TRAINING) - start

            for clients, updates in training.in_parts(training.active, epoch):
                for i, update in zip(clients, updates.cpu().numpy(), strict=True):
                    messages[training.cohort.number[i]] = self._message(update)
                progress(len(messages), len(jobs))
        return [messages[job.members[0]] for job in jobs]

    def _message(self, update: Rows) -> Rows:
        if not np.isfinite(update).all():
            bad = np.nan if np.isnan(update).any() else np.inf
            return np.full(self.form.length, bad, np.float32)
        assert self.form.make is not None
        message: Rows = self.form.make(update[None])[0]
        return message
