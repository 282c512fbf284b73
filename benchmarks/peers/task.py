"""The task that every contender solves: the same clients, model, clock and report.

The driver says through the environment what is wanted, so that worker
processes of any framework see it too: ``PEERS_DATA`` (the clients' samples),
``PEERS_ROUNDS`` and ``PEERS_ALGORITHM``.
"""

from __future__ import annotations

import functools
import json
import os
import time

import numpy as np
import torch
from torch import Tensor, nn

BATCH, LR = 16, 0.01
ROUNDS = int(os.environ.get("PEERS_ROUNDS", "2"))
ALGORITHM = os.environ.get("PEERS_ALGORITHM", "fedavg")


@functools.cache
def arrays() -> dict[str, np.ndarray]:
    """Return uint8 ``inputs`` (N, n, 1, 28, 28), ``labels`` (N, n), and ``mean`` and ``std``."""
    with np.load(os.environ["PEERS_DATA"], allow_pickle=False) as file:
        return dict(file)


def num_clients() -> int:
    """Return N."""
    return len(arrays()["labels"])


def client(number: int) -> tuple[Tensor, Tensor]:
    """Return a client's normalised inputs (n, 1, 28, 28) and its labels (n,)."""
    data = arrays()
    inputs = torch.from_numpy(data["inputs"][number]).float() / 255
    normalised = (inputs - float(data["mean"])) / float(data["std"])
    return normalised, torch.from_numpy(data["labels"][number])


def model() -> nn.Module:
    """Build the compact CNN with the same initial weights for all."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 32, 3),
        nn.ReLU(),
        nn.Conv2d(32, 64, 3),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Dropout(0.25),
        nn.Flatten(),
        nn.Linear(64 * 12 * 12, 10),
    )


class Clock:
    """Counts the seconds of every round from when it is made."""

    def __init__(self) -> None:
        self.seconds: list[float] = []
        self._last = time.perf_counter()

    def tick(self, rounds: int = 1) -> None:
        """Note that so many rounds, timed together, have ended."""
        now = time.perf_counter()
        self.seconds += [(now - self._last) / rounds] * rounds
        self._last = now


@torch.no_grad()
def loss(net: nn.Module, clients: range | tuple[int, ...]) -> float:
    """Return the mean cross-entropy of a model on at most 20 samples of each of the clients."""
    net.eval()
    total = 0.0
    for number in clients:
        inputs, labels = client(number)
        total += nn.functional.cross_entropy(net(inputs[:20]), labels[:20]).item()
    return total / len(clients)


def report(clock: Clock, final_loss: float) -> None:
    """Print what the driver reads: the seconds of all rounds, and proof that something was learnt.

    The clock has ticked after every round; the loss is that of the trained model on its clients.
    """
    print(json.dumps({"seconds": clock.seconds, "loss": final_loss}), flush=True)
