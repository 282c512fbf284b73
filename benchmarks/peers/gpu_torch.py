"""PyTorch on the GPU: CARVY-FL's batched engine, the plain loop, and torch.func.vmap."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from typing import Any

import torch
from gpu_task import (
    BATCH,
    CLASSES,
    LR,
    SHAPE,
    Task,
    arrays,
    sizes_of_chunks,
    some_samples,
    time_serial,
    time_stacked,
)
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from benchmarks.engines import batched_round
from carvyfl.learning.models import build_model

Weights = dict[str, Tensor]
COMPILED_CHUNK = 100


class TorchMeter:
    """PyTorch's word on its device."""

    def __init__(self, device: str) -> None:
        self._cuda = device == "cuda"

    def wait(self) -> None:
        """Wait until all work is done."""
        if self._cuda:
            torch.cuda.synchronize()

    def reset(self) -> None:
        """Forget the largest memory so far."""
        if self._cuda:
            torch.cuda.reset_peak_memory_stats()

    def peak_gib(self) -> float | None:
        """Return the largest memory held by tensors."""
        return torch.cuda.max_memory_allocated() / 2**30 if self._cuda else None


def tensors(task: Task) -> tuple[Tensor, Tensor]:
    """Return all clients' inputs and labels on the task's device."""
    inputs, labels = (torch.from_numpy(array).to(task.device) for array in arrays(task))
    return inputs, labels


def model() -> nn.Module:
    """Build the compact CNN with the same initial weights for all."""
    return build_model("compact-cnn", SHAPE, CLASSES, 0)


def initial_weights(device: str = "cpu") -> Weights:
    """Return the weights that all start from, by name."""
    return {name: w.detach().clone().to(device) for name, w in model().named_parameters()}


@torch.no_grad()
def losses(weights: Weights) -> dict[str, float]:
    """Show that something was learnt: the loss before and after."""
    inputs, labels = map(torch.from_numpy, some_samples())
    net = model().eval()
    after = {name: weight.detach().float().cpu() for name, weight in weights.items()}
    both = {"loss_before": net(inputs), "loss_after": functional_call(net, after, (inputs,))}
    return {
        name: nn.functional.cross_entropy(logits, labels).item() for name, logits in both.items()
    }


def measure(variant: str, task: Task) -> dict[str, Any]:
    """Time a variant: ``carvyfl``, ``plain``, ``vmap`` or ``vmap-compiled``."""
    no_tf32()
    if variant == "carvyfl":
        return carvyfl(task)
    if variant == "plain":
        return plain(task)
    return stacked(task, compiled=variant == "vmap-compiled")


def no_tf32() -> None:
    """Let fp32 be fp32, in products and in convolutions."""
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False


def autocast(task: Task) -> contextlib.AbstractContextManager[Any]:
    """Return PyTorch's own mixed precision, or nothing."""
    if task.precision == "bf16":
        return torch.autocast(task.device, torch.bfloat16)
    return contextlib.nullcontext()


def carvyfl(task: Task) -> dict[str, Any]:
    """Time the batched engine: groups of 5, a first round and the median of three."""
    found = batched_round(task.clients, task.samples, torch.device(task.device), task.precision)
    cuda = task.device == "cuda"
    return {
        "us_per_client_step": found["us_per_client_step"],
        "seconds_per_round": found["seconds_per_round"],
        "timed": "whole rounds",
        "clients_timed": task.clients,
        "steps_timed": task.steps,
        "peak_gib": found["peak_gib"] if cuda else None,
    }


def plain(task: Task) -> dict[str, Any]:
    """Time the ordinary loop: one client after another, data on the device (FedAvg)."""
    inputs, labels = tensors(task)
    net, meter = model().to(task.device).train(), TorchMeter(task.device)
    server = initial_weights(task.device)

    def train(client: int) -> None:
        net.load_state_dict(server)
        optimizer = torch.optim.SGD(net.parameters(), lr=LR)
        order = torch.randperm(task.samples, device=task.device)
        for batch in order.split(BATCH):
            optimizer.zero_grad()
            with autocast(task):
                logits = net(inputs[client, batch])
                loss = nn.functional.cross_entropy(logits, labels[client, batch])
            loss.backward()
            optimizer.step()

    def round_(clients: int) -> None:
        total = {name: torch.zeros_like(weight) for name, weight in server.items()}
        for client in range(clients):
            train(client)
            for name, weight in net.named_parameters():
                total[name] += weight.detach()
        server.update({name: weight / clients for name, weight in total.items()})

    def rounds(clients: int, count: int) -> list[float]:
        times = []
        for _ in range(count):
            meter.wait()
            start = time.perf_counter()
            round_(clients)
            meter.wait()
            times.append(time.perf_counter() - start)
        return times

    found = time_serial(task, rounds, meter)
    return {**found, **losses(server)}


def vmapped_step(task: Task) -> Callable[[Weights, Tensor, Tensor], Weights]:
    """Make the step of SGD of many clients: weights (c, …), inputs (c, B, …), labels (c, B)."""
    net = model().to(task.device).train()

    def loss(weights: Weights, inputs: Tensor, labels: Tensor) -> Tensor:
        with autocast(task):
            logits = functional_call(net, weights, (inputs,))
            return nn.functional.cross_entropy(logits, labels)

    gradient = vmap(grad(loss), randomness="different")

    def step(weights: Weights, inputs: Tensor, labels: Tensor) -> Weights:
        gradients = gradient(weights, inputs, labels)
        return {name: weight - LR * gradients[name] for name, weight in weights.items()}

    return step


def stacked(task: Task, *, compiled: bool) -> dict[str, Any]:
    """Time torch.func.vmap over clients with stacked weights (FedAvg)."""
    torch.backends.cudnn.benchmark = True
    inputs, labels = tensors(task)
    server = initial_weights(task.device)
    step = vmapped_step(task)
    if compiled:
        step = torch.compile(step, dynamic=False)

    def train(clients: Tensor, steps: int) -> Weights:
        count = len(clients)
        weights = {name: w.expand(count, *w.shape).clone() for name, w in server.items()}
        orders = torch.rand(count, task.samples, device=task.device).argsort(1)
        for batch in orders.split(BATCH, 1)[:steps]:
            own = clients[:, None]
            weights = step(weights, inputs[own, batch], labels[own, batch])
        return weights

    def round_(chunk: int, steps: int) -> None:
        total = {name: torch.zeros_like(weight) for name, weight in server.items()}
        for clients in torch.arange(task.clients, device=task.device).split(chunk):
            for name, weights in train(clients, steps).items():
                total[name] += weights.sum(0)
        server.update({name: weight / task.clients for name, weight in total.items()})

    chunks = [min(COMPILED_CHUNK, task.clients)] if compiled else sizes_of_chunks(task.clients)
    found = time_stacked(task, round_, TorchMeter(task.device), chunks)
    return {**found, **losses(server)}
