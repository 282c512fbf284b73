"""The SCAFFOLD arithmetic, written once for every engine.

Karimireddy et al., *SCAFFOLD: Stochastic Controlled Averaging for Federated Learning* (ICML 2020),
option II; the paper's Algorithm 4. Weights and control variates are float32 of shape (P,), or
(N, P) for stacked clients. FedAvg is the same loop with every correction zero.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Task:
    """What the server sends in a round (Algorithm 4, line 1): to one member, or to all at once.

    w and c are float32 of shape (P,), or (G, P) for G groups; c_i, which a real client keeps
    itself, is of shape (P,), or (n, P) for n members. Rounds count from 0.
    """

    weights: Tensor
    server_control: Tensor
    client_control: Tensor
    lr: float
    round_: int


@dataclass(frozen=True)
class Update:
    """What a member sends back (Algorithm 4, line 3), w_i⁺ and c_i⁺, (P,); or n members, (n, P)."""

    weights: Tensor
    client_control: Tensor


# From x and c - c_i to y after K steps y ← y - η (g(y) + c - c_i), and K
Epoch = Callable[[Tensor, Tensor], tuple[Tensor, int | Tensor]]


def client_update(task: Task, epoch: Epoch, algorithm: str) -> Update:
    """Do what a client, or n stacked ones, do in a round (Algorithm 4, line 3)."""
    correction = task.server_control - task.client_control
    weights, steps = epoch(task.weights, correction)
    if algorithm == "fedavg":
        return Update(weights, task.client_control.clone())
    return Update(weights, client_control(correction, task.weights, weights, steps, task.lr))


def local_step_(weights: Tensor, gradient: Tensor, correction: Tensor, lr: float) -> None:
    """Take one local step in place: y ← y - η (g(y) + c - c_i)."""
    weights.add_(gradient, alpha=-lr).add_(correction, alpha=-lr)


def client_control(
    correction: Tensor, start: Tensor, end: Tensor, steps: int | Tensor, lr: float
) -> Tensor:
    """Return the client's new control variate c_i⁺ = c_i - c + (x - y) / (K η).

    ``correction`` is c - c_i as used in the epoch, ``start`` and ``end`` are x and y, ``steps`` is
    K. η is *the learning rate of these steps*: under a schedule, not the next round's. Then c_i⁺ is
    the mean of the K gradients the client saw.
    """
    return (start - end) / (steps * lr) - correction


def mean(vectors: Tensor, weights: Tensor | None = None) -> Tensor:
    """Return the server's aggregate of what n clients sent, shape (n, P) → (P,).

    It serves for the models and for the control variates: when everyone takes part,
    c + (1/n) Σ (c_i⁺ - c_i) is the mean of the c_i⁺.
    """
    if weights is None:
        return vectors.mean(dim=0)
    return torch.einsum("n,np->p", weights / weights.sum(), vectors)


def server_step(before: Tensor, aggregate: Tensor, step: float) -> Tensor:
    """Return x + η_g (aggregate - x); exactly the aggregate where η_g is 1."""
    return before.lerp(aggregate, step)
