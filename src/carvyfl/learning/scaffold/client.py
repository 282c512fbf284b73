"""What a client does in a round, simulated or real: an epoch of mini-batch SGD on its own data."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from carvyfl.core.randomness import derive, fold, shuffled
from carvyfl.data.clients import Inputs, Samples
from carvyfl.learning.job import GroupJob
from carvyfl.learning.models import (
    KeyedDropout,
    flat_weights,
    parameter_gradients,
    trainable_copy,
    weight_slices,
)
from carvyfl.learning.scaffold.arithmetic import Task, Update, client_update, local_step_
from carvyfl.learning.scaffold.fast_layers import with_fast_layers


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """Compute on one thread, so that sums are ordered alike on every machine and any core count."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def prepared(inputs: Inputs, mean: float, std: float, device: str | None = None) -> Tensor:
    """Turn stored inputs into what the model sees, uint8 as 0…1, then (x - mean) / std.

    With a device they are moved there as they are stored, and it computes.
    """
    x = torch.from_numpy(np.array(inputs)).to(device)  # a copy: workers see the data read-only
    x = x.float() / 255 if x.dtype == torch.uint8 else x
    return (x - mean) / std


def channels_last(x: Tensor) -> Tensor:
    """Lay images (n, C, H, W) out with channels last: CPUs convolve and pool them twice as fast."""
    if x.ndim != 4:
        return x
    n, c, h, w = x.shape
    last = x.contiguous(memory_format=torch.channels_last)
    return last.as_strided((n, c, h, w), (h * w * c, 1, w * c, c))


@dataclass(frozen=True)
class Batches:
    """A client's samples, prepared once for many epochs: float32 inputs, int64 labels."""

    inputs: Tensor
    labels: Tensor

    @classmethod
    def of(cls, samples: Samples, mean: float, std: float) -> Batches:  # noqa: D102
        return cls(prepared(samples.inputs, mean, std), torch.from_numpy(np.array(samples.labels)))

    def __len__(self) -> int:
        return len(self.labels)


class FlatNet:
    """A module, made for one CPU core, whose parameters are views of ``weights``, (P,)."""

    def __init__(self, module: nn.Module, precision: str = "fp32") -> None:
        self.module = with_fast_layers(trainable_copy(module))
        self._bf16 = precision == "bf16"
        self.weights = flat_weights(self.module)
        self.gradient = torch.zeros_like(self.weights)
        self._dropouts = [m for m in self.module.modules() if isinstance(m, KeyedDropout)]
        self._parameters = list(self.module.parameters())
        places = weight_slices(self.module).values()
        for parameter, place in zip(self._parameters, places, strict=True):
            parameter.data = self.weights[place].view(parameter.shape)

    def load(self, weights: Tensor) -> None:  # noqa: D102
        self.weights.copy_(weights)

    def backward(self, inputs: Tensor, labels: Tensor, key: Tensor) -> None:
        """Leave the gradient of the mean cross-entropy of a batch in ``gradient``."""
        for layer in self._dropouts:
            layer.key = key
        with torch.autocast("cpu", torch.bfloat16, enabled=self._bf16):
            logits = self.module(channels_last(inputs))
        with torch.no_grad():  # the loss's own gradient: (softmax - one-hot) / B
            error = logits.float().softmax(dim=1)
            error[torch.arange(len(labels)), labels] -= 1
            error /= len(labels)
        gradients = parameter_gradients(logits, error.to(logits.dtype), self._parameters)
        with torch.no_grad():
            torch.cat([gradient.reshape(-1) for gradient in gradients], out=self.gradient)

    @torch.no_grad()
    def logits(self, inputs: Tensor) -> Tensor:
        """Return the logits of prepared inputs, shape (n, C), dropout off."""
        self.module.eval()
        logits: Tensor = self.module(channels_last(inputs))
        return logits

    def accuracy(self, batches: Batches) -> float:
        """Return the share of samples classified right (0…1); NaN logits count as wrong."""
        logits = self.logits(batches.inputs)
        right = (logits.argmax(dim=1) == batches.labels) & logits.isfinite().all(dim=1)
        return float(right.float().mean())


def local_epoch(
    net: FlatNet,
    batches: Batches,
    correction: Tensor,
    *,
    lr: float,
    batch_size: int,
    seed: int,
    client: int,
    round_: int,
    pull: float = 0.0,
) -> int:
    """Train ``net`` for one epoch in place, every sample once, and return K, the steps made.

    The order of samples and the dropout masks are functions of (seed, client, round, step).
    ``correction`` is c - c_i of shape (P,), zero for plain SGD; ``pull`` is λ of a term
    λ/2 ‖y - x‖² of the loss.
    """
    net.module.train()
    start = net.weights.clone() if pull else net.weights
    order = shuffled(torch.tensor(derive(seed, "order", client, round_)), len(batches))
    dropout = torch.tensor(derive(seed, "dropout", client, round_))
    steps = -(-len(batches) // batch_size)
    for step in range(steps):
        batch = order[step * batch_size : (step + 1) * batch_size]
        net.backward(batches.inputs[batch], batches.labels[batch], fold(dropout, step))
        with torch.no_grad():
            shift = correction + pull * (net.weights - start) if pull else correction
            local_step_(net.weights, net.gradient, shift, lr)
    return steps


def honest(client: int, data: Batches, task: Task, net: FlatNet, job: GroupJob) -> Update:
    """Answer a task as the protocol says; what a malicious member sends is forged afterwards."""
    attack = job.attack_of(client)

    def epoch(start: Tensor, correction: Tensor) -> tuple[Tensor, int]:
        net.load(start)
        steps = local_epoch(
            net,
            data,
            correction if attack is None or attack.corrected else torch.zeros_like(correction),
            lr=task.lr,
            batch_size=job.recipe.batch_size,
            seed=job.seed,
            client=client,
            round_=task.round_,
            pull=0.0 if attack is None else attack.pull,
        )
        return net.weights.clone(), steps

    return client_update(task, epoch, job.recipe.algorithm)
