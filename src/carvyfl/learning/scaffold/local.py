"""What a client does: an epoch of mini-batch SGD on its own data.

The simulator's loop engine and a real client run this same code.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from carvyfl.core.randomness import derive, fold, shuffled
from carvyfl.data.clients import Inputs, Samples
from carvyfl.learning.models.trainable import KeyedDropout, trainable_copy
from carvyfl.learning.models.weights import flat_weights
from carvyfl.learning.scaffold.arithmetic import local_step_
from carvyfl.learning.scaffold.backward import parameter_gradients
from carvyfl.learning.scaffold.loop.fast_layers import with_fast_layers

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # of glibc's malloc.h


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """Compute on one thread, so that sums are ordered alike on every machine and any core count."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def keep_freed_memory() -> None:
    """Have the C library keep freed memory for the next step instead of giving it back.

    A step allocates and frees some 20 MB; what is handed back must be faulted in again, page
    by page, at a twentieth of the step's time. At most 256 MB are kept. Where the C library is
    not glibc this does nothing.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if os.name == "posix" else None
    if mallopt is not None:
        mallopt(M_MMAP_THRESHOLD, 32 << 20)
        mallopt(M_TRIM_THRESHOLD, 256 << 20)


def prepared(inputs: Inputs, mean: float, std: float, device: str | None = None) -> Tensor:
    """Turn stored inputs into what the model sees: uint8 scaled to 0…1, then (x - mean) / std.

    With a device they are moved there as they are stored, and it computes.
    """
    x = torch.from_numpy(np.array(inputs)).to(device)  # a copy: workers see the data read-only
    x = x.float() / 255 if x.dtype == torch.uint8 else x
    return (x - mean) / std


def channels_last(x: Tensor) -> Tensor:
    """Lay images (n, C, H, W) out with channels last: CPUs convolve and pool them twice as fast.

    PyTorch takes images of one channel for laid out either way, and then goes
    on with channels first; stating the strides tells it which is meant.
    """
    if x.ndim != 4:
        return x
    n, c, h, w = x.shape
    last = x.contiguous(memory_format=torch.channels_last)
    return last.as_strided((n, c, h, w), (h * w * c, 1, w * c, c))


@dataclass(frozen=True)
class Batches:
    """A client's samples, prepared once for many epochs.

    Inputs are float32 of shape (n, …), as the model sees them; labels int64 of shape (n,).
    """

    inputs: Tensor
    labels: Tensor

    @classmethod
    def of(cls, samples: Samples, mean: float, std: float) -> Batches:
        """Prepare samples."""
        return cls(prepared(samples.inputs, mean, std), torch.from_numpy(np.array(samples.labels)))

    def __len__(self) -> int:
        return len(self.labels)

    def steps(self, batch_size: int) -> int:
        """Return K, the number of mini-batches in an epoch; the last may be short."""
        return -(-len(self) // batch_size)


class FlatNet:
    """A module whose parameters are views of one flat vector, made for one CPU core.

    The arithmetic of SCAFFOLD then touches two vectors, weights and gradient,
    instead of a list of tensors.

    ``weights``, ``gradient``: float32 of shape (P,).
    """

    def __init__(self, module: nn.Module, precision: str = "fp32") -> None:
        self.module = with_fast_layers(trainable_copy(module))
        self._bf16 = precision == "bf16"
        self.weights = flat_weights(self.module)
        self.gradient = torch.zeros_like(self.weights)
        self._dropouts = [m for m in self.module.modules() if isinstance(m, KeyedDropout)]
        self._parameters = list(self.module.parameters())
        start = 0
        for parameter in self._parameters:
            stop = start + parameter.numel()
            parameter.data = self.weights[start:stop].view(parameter.shape)
            start = stop

    def load(self, weights: Tensor) -> None:
        """Set the weights, shape (P,)."""
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
        found = parameter_gradients(logits, error.to(logits.dtype), self._parameters)
        with torch.no_grad():
            torch.cat([gradient.reshape(-1) for gradient in found], out=self.gradient)

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
    """Train one epoch in place, every sample once, and return K, the steps made.

    ``net`` holds the model received, and afterwards the model after the epoch. The order of the
    samples and the dropout masks are functions of (seed, client, round, step): see
    :mod:`carvyfl.core.randomness`.

    Parameters
    ----------
    correction
        c - c_i of shape (P,); zero for plain SGD.
    pull
        λ of a term λ/2 ‖y - x‖² of the loss, which keeps y near the model received.
    """
    net.module.train()
    start = net.weights.clone() if pull else net.weights
    order = shuffled(torch.tensor(derive(seed, "order", client, round_)), len(batches))
    dropout = torch.tensor(derive(seed, "dropout", client, round_))
    steps = batches.steps(batch_size)
    for step in range(steps):
        batch = order[step * batch_size : (step + 1) * batch_size]
        net.backward(batches.inputs[batch], batches.labels[batch], fold(dropout, step))
        with torch.no_grad():
            shift = correction + pull * (net.weights - start) if pull else correction
            local_step_(net.weights, net.gradient, shift, lr)
    return steps
