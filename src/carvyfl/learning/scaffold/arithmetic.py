"""The SCAFFOLD arithmetic, written once for every engine.

Karimireddy et al., *SCAFFOLD: Stochastic Controlled Averaging for Federated
Learning* (ICML 2020), option II; the paper's Algorithm 4. Weights and control
variates are flat float32 vectors of shape (P,), or (N, P) for stacked clients:
all functions broadcast over leading axes.

FedAvg is the same loop with every correction zero.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


def correction(server_control: Tensor, client_control: Tensor) -> Tensor:
    """Return c - c_i, which a client adds to every gradient of its epoch."""
    return server_control - client_control


def local_step_(weights: Tensor, gradient: Tensor, correction: Tensor, lr: float) -> None:
    """Take one local step in place: y ← y - η (g(y) + c - c_i)."""
    weights.add_(gradient, alpha=-lr).add_(correction, alpha=-lr)


def client_control(
    correction: Tensor, start: Tensor, end: Tensor, steps: int | Tensor, lr: float
) -> Tensor:
    """Return the client's new control variate c_i⁺ = c_i - c + (x - y) / (K η).

    Parameters
    ----------
    correction
        c - c_i as used during the epoch.
    start, end
        x, the model received, and y, the model after the epoch.
    steps, lr
        K, the steps made, and η, *the learning rate they were made with*: under
        a schedule, not the next round's. Then c_i⁺ is the mean of the K
        gradients the client saw.
    """
    return (start - end) / (steps * lr) - correction


def mean(vectors: Tensor, weights: Tensor | None = None) -> Tensor:
    """Return the server's aggregate of what n clients sent, shape (n, P) → (P,).

    Without weights the equal-weight mean: a global step size equal to the number
    of clients, in the paper's words. It serves for the models and for the
    control variates: when everyone takes part, c + (1/n) Σ (c_i⁺ - c_i) is the
    mean of the c_i⁺.
    """
    if weights is None:
        return vectors.mean(dim=0)
    import torch

    return torch.einsum("n,np->p", weights / weights.sum(), vectors)


def server_step(before: Tensor, aggregate: Tensor, step: float) -> Tensor:
    """Return x + η_g (aggregate - x); exactly the aggregate where η_g is 1."""
    return before.lerp(aggregate, step)
