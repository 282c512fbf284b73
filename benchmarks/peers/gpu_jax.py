"""JAX on the GPU: FedJAX's FedAvg, and jax.vmap over clients with lax.scan over steps."""

from __future__ import annotations

import functools
import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from gpu_task import (
    BATCH,
    LR,
    Task,
    arrays,
    sizes_of_chunks,
    some_samples,
    time_serial,
    time_stacked,
)
from jax import lax

DROPOUT = 0.25
Weights = dict[str, Any]


class JaxMeter:
    """JAX's word on its device; it cannot forget the largest memory."""

    def wait(self) -> None:
        """Do nothing: rounds wait for their own results."""

    def reset(self) -> None:
        """Do nothing."""

    def peak_gib(self) -> float | None:
        """Return the largest memory of this process."""
        found = jax.local_devices()[0].memory_stats()
        return found["peak_bytes_in_use"] / 2**30 if found else None


def measure(variant: str, task: Task) -> dict[str, Any]:
    """Time ``fedjax`` or ``vmap``."""
    jax.config.update("jax_platforms", task.device)  # no other one if it is missing
    if task.precision == "fp32":  # without it, JAX computes float32 products in TF32
        jax.config.update("jax_default_matmul_precision", "highest")
    return fedjax_(task) if variant == "fedjax" else stacked(task)


def logits(weights: Weights, x: Any, key: Any, dtype: Any) -> Any:
    """Apply the compact CNN to inputs (B, 1, 28, 28), with dropout if there is a key."""
    w = {name: weight.astype(dtype) for name, weight in weights.items()}
    x = x.astype(dtype)
    for layer in ("0", "2"):
        x = lax.conv_general_dilated(x, w[f"{layer}.weight"], (1, 1), "VALID")
        x = jax.nn.relu(x + w[f"{layer}.bias"][:, None, None])
    x = lax.reduce_window(x, -jnp.inf, lax.max, (1, 1, 2, 2), (1, 1, 2, 2), "VALID")
    if key is not None:
        kept = jax.random.bernoulli(key, 1 - DROPOUT, x.shape)
        x = jnp.where(kept, x / (1 - DROPOUT), 0)
    return (x.reshape(len(x), -1) @ w["7.weight"].T + w["7.bias"]).astype(jnp.float32)


def loss(weights: Weights, x: Any, y: Any, key: Any, dtype: Any) -> Any:
    """Return the mean cross-entropy of a batch."""
    scores = jax.nn.log_softmax(logits(weights, x, key, dtype))
    return -jnp.take_along_axis(scores, y[:, None], 1).mean()


def dtype_of(task: Task) -> Any:
    """Return what activations and products are in."""
    return jnp.bfloat16 if task.precision == "bf16" else jnp.float32


def initial_weights(task: Task) -> Weights:
    """Return the weights that all start from, by name."""
    with np.load(task.weights, allow_pickle=False) as file:
        return {name: jnp.asarray(file[name]) for name in file.files}


def losses(weights: Weights, task: Task) -> dict[str, float]:
    """Show that something was learnt: the loss before and after."""
    inputs, labels = map(jnp.asarray, some_samples())
    both = {"loss_before": initial_weights(task), "loss_after": weights}
    return {name: float(loss(own, inputs, labels, None, jnp.float32)) for name, own in both.items()}


def epoch(steps: int, dtype: Any, server: Weights, x: Any, y: Any, key: Any) -> Weights:
    """Train one client for so many steps and return its weights."""
    order_key, dropout_key = jax.random.split(key)
    order = jax.random.permutation(order_key, len(y))
    keys = jax.random.split(dropout_key, steps)

    def step(weights: Weights, batch: Any, key: Any) -> Weights:
        gradients = jax.grad(loss)(weights, x[batch], y[batch], key, dtype)
        return jax.tree.map(lambda w, g: w - LR * g, weights, gradients)

    full = min(steps, len(y) // BATCH)
    batches = order[: full * BATCH].reshape(full, BATCH)
    weights, _ = lax.scan(lambda w, item: (step(w, *item), None), server, (batches, keys[:full]))
    return step(weights, order[full * BATCH :], keys[-1]) if steps > full else weights


def stacked(task: Task) -> dict[str, Any]:
    """Time jax.vmap of a client's epoch (FedAvg)."""
    inputs, labels = (jnp.asarray(array) for array in arrays(task))
    state = {"server": initial_weights(task), "key": jax.random.key(0)}

    @functools.partial(jax.jit, static_argnums=0)
    def train(steps: int, server: Weights, x: Any, y: Any, keys: Any) -> Weights:
        one = functools.partial(epoch, steps, dtype_of(task), server)
        return jax.tree.map(lambda w: w.sum(0), jax.vmap(one)(x, y, keys))

    def round_(chunk: int, steps: int) -> None:
        state["key"], key = jax.random.split(state["key"])
        keys = jax.random.split(key, task.clients)
        total = jax.tree.map(jnp.zeros_like, state["server"])
        for first in range(0, task.clients, chunk):
            some = slice(first, first + chunk)
            trained = train(steps, state["server"], inputs[some], labels[some], keys[some])
            total = jax.tree.map(jnp.add, total, trained)
        mean = jax.tree.map(lambda w: w / task.clients, total)
        state["server"] = jax.block_until_ready(mean)

    found = time_stacked(task, round_, JaxMeter(), sizes_of_chunks(task.clients))
    return {**found, **losses(state["server"], task)}


def fedjax_(task: Task) -> dict[str, Any]:
    """Time FedJAX's own FedAvg with its backend for one device, which takes clients in turn."""
    if not hasattr(jax, "tree_map"):  # FedJAX 0.0.17 uses this name, which JAX has dropped
        jax.tree_map = jax.tree.map
    import fedjax
    from fedjax.algorithms import fed_avg

    def batch_loss(weights: Weights, batch: Any, key: Any) -> Any:
        return loss(weights, batch["x"], batch["y"], key, dtype_of(task))

    fedjax.set_for_each_client_backend("jit")
    algorithm = fed_avg.federated_averaging(
        jax.grad(batch_loss),
        fedjax.optimizers.sgd(LR),
        fedjax.optimizers.sgd(1.0),
        fedjax.ShuffleRepeatBatchHParams(batch_size=BATCH, num_epochs=1, seed=None),
    )
    data = [
        fedjax.ClientDataset({"x": x, "y": y.astype(np.int32)})
        for x, y in zip(*arrays(task), strict=True)
    ]
    state = algorithm.init(initial_weights(task))

    def rounds(clients: int, count: int) -> list[float]:
        nonlocal state
        times = []
        for number in range(count):
            start = time.perf_counter()
            keys = jax.random.split(jax.random.PRNGKey(number), clients)
            cohort = [(str(i), data[i], keys[i]) for i in range(clients)]
            state, _ = algorithm.apply(state, cohort)
            jax.block_until_ready(state.params)
            times.append(time.perf_counter() - start)
        return times

    found = time_serial(task, rounds, JaxMeter())
    return {**found, **losses(state.params, task)}
