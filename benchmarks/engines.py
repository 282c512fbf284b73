"""How fast clients train: the engines, the plain loop, and the device's own limits.

A client-step is one mini-batch of 16 through the compact CNN, forward and
backward, with the optimiser's step. Every figure of a run is measured in that
run, on the same device.
"""

from __future__ import annotations

import functools
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.flop_counter import FlopCounterMode

from carvyfl.core.errors import CarvyError
from carvyfl.data.clients import Client, Federation, Samples
from carvyfl.learning.backends import Gpus, keep_freed_memory
from carvyfl.learning.job import group_job
from carvyfl.learning.models import build_model
from carvyfl.learning.recipe import Recipe
from carvyfl.learning.scaffold.batched.net import StackedNet
from carvyfl.learning.scaffold.batched.training import Training
from carvyfl.learning.scaffold.client import (
    Batches,
    FlatNet,
    channels_last,
    local_epoch,
    one_thread,
)
from carvyfl.learning.store import train_groups

BATCH = 16
SHAPE, CLASSES = (1, 28, 28), 10


def federation(clients: int, samples: int) -> Federation:
    """Make clients of random images: the time of a step does not depend on what they show."""
    rng = np.random.default_rng(0)
    pool = rng.integers(0, 256, (4096, *SHAPE), dtype=np.uint8)
    labels = rng.integers(0, CLASSES, 4096)

    def draw(size: int) -> Samples:
        chosen = rng.integers(0, 4096, size)
        return Samples(pool[chosen], labels[chosen])

    return Federation(
        tuple(Client(draw(samples), draw(16)) for _ in range(clients)), CLASSES, 0.286, 0.353
    )


def flops_per_client_step(module: nn.Module) -> int:
    """Count the floating-point operations of one client-step, as PyTorch's own counter does."""
    counter = FlopCounterMode(display=False)
    with counter:
        logits = module(torch.zeros(BATCH, *SHAPE))
        functional.cross_entropy(logits, torch.zeros(BATCH, dtype=torch.int64)).backward()
    module.zero_grad()
    return int(counter.get_total_flops())


def seconds(work: Callable[[], Any], device: torch.device, repeat: int = 3) -> float:
    """Return the median time of a piece of work, after a first run that does not count."""
    times = []
    for _ in range(repeat + 1):
        _wait(device)
        start = time.perf_counter()
        work()
        _wait(device)
        times.append(time.perf_counter() - start)
    return statistics.median(times[1:])


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


def matmul_rate(device: torch.device, precision: str, size: int = 8192) -> float:
    """Measure operations per second of a large matrix product on random data."""
    dtype = torch.bfloat16 if precision == "bf16" else torch.float32
    a, b = (torch.randn(size, size, device=device).to(dtype) for _ in range(2))
    torch.backends.cuda.matmul.allow_tf32 = precision == "tf32"
    try:
        return 2 * size**3 / seconds(lambda: a @ b, device, repeat=9)
    finally:
        torch.backends.cuda.matmul.allow_tf32 = False


def copy_rate(device: torch.device) -> float:
    """Measure bytes per second of a large copy, read plus written."""
    source = torch.randint(0, 255, (1 << 30,), dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    return 2 * source.numel() / seconds(lambda: target.copy_(source), device, repeat=5)


def _plain_epoch(device: torch.device, steps: int) -> Callable[[], None]:
    """Prepare the ordinary PyTorch training loop, one client after another."""
    module = build_model("compact-cnn", SHAPE, CLASSES, 0).to(device)
    optimiser = torch.optim.SGD(module.parameters(), lr=0.01)
    inputs = torch.randn(BATCH, *SHAPE, device=device)
    labels = torch.randint(0, CLASSES, (BATCH,), device=device)

    def epoch() -> None:
        for _ in range(steps):
            optimiser.zero_grad()
            functional.cross_entropy(module(inputs), labels).backward()
            optimiser.step()

    return epoch


def _loop_epoch(samples: int) -> Callable[[], object]:
    """Prepare the loop engine's client: an epoch of samples / 16 client-steps."""
    clients = federation(1, samples)
    net = FlatNet(build_model("compact-cnn", SHAPE, CLASSES, 0))
    data = Batches.of(clients.clients[0].train, clients.mean, clients.std)
    shift = torch.zeros_like(net.weights)
    return lambda: local_epoch(
        net, data, shift, lr=0.01, batch_size=BATCH, seed=0, client=0, round_=0
    )


def _convolutions(module: nn.Sequential) -> Callable[[], object]:
    """Prepare the convolutions of a client-step alone, as PyTorch computes them fastest."""
    calls: list[Callable[[], object]] = []
    x = torch.randn(BATCH, *SHAPE)
    for layer in module:
        y = layer(x).detach()
        if isinstance(layer, nn.Conv2d):
            image, error = channels_last(x), channels_last(y)
            weight = layer.weight.detach().contiguous(memory_format=torch.channels_last)
            # The first layer's input needs no gradient.
            wanted = [bool(calls), True, True]
            calls += [
                functools.partial(functional.conv2d, image, weight, layer.bias),
                functools.partial(
                    torch.ops.aten.convolution_backward,
                    error,
                    image,
                    weight,
                    [len(weight)],
                    list(layer.stride),
                    list(layer.padding),
                    list(layer.dilation),
                    False,
                    [0, 0],
                    layer.groups,
                    wanted,
                ),
            ]
        x = y

    @torch.no_grad()
    def run_all() -> None:
        for call in calls:
            call()

    return run_all


def interleaved_medians(works: dict[str, Callable[[], object]], repeat: int) -> dict[str, float]:
    """Return the median time of each function on one core; they are called in turns.

    The thread's own CPU seconds count, so that neither a burst of other load nor the time
    waited for the core falls on one of them alone.
    """
    times: dict[str, list[float]] = {name: [] for name in works}
    for _ in range(repeat + 1):
        for name, work in works.items():
            start = time.thread_time()
            work()
            times[name].append(time.thread_time() - start)
    return {name: statistics.median(taken[1:]) for name, taken in times.items()}


def step_parts(repeat: int) -> dict[str, float]:
    """Return where the loop engine's step goes: median CPU µs of every layer, both ways."""
    net = FlatNet(build_model("compact-cnn", SHAPE, CLASSES, 0))
    net.module.train()
    times: dict[str, list[float]] = {}
    mark = 0.0

    def lap(name: str, *_: object) -> None:
        nonlocal mark
        times.setdefault(name, []).append(time.thread_time() - mark)
        mark = time.thread_time()

    def watch(name: str, after: str, _: nn.Module, __: object, output: Tensor) -> None:
        lap(f"{name} forward")
        # The gradient of this output is there after the next layer's backward pass.
        output.register_hook(functools.partial(lap, f"{after} backward"))

    layers = [m for m in net.module.children() if not isinstance(m, nn.Identity)]
    names = [*(f"{i} {type(layer).__name__}" for i, layer in enumerate(layers, 1)), "loss"]
    for layer, name, after in zip(layers, names, names[1:], strict=False):
        layer.register_forward_hook(functools.partial(watch, name, after))
    inputs, labels = torch.randn(BATCH, *SHAPE), torch.randint(0, CLASSES, (BATCH,))
    for step in range(repeat):
        mark = time.thread_time()
        net.backward(inputs, labels, torch.tensor(step))
        lap(f"{names[0]} backward")
    return {name: 1e6 * statistics.median(taken) for name, taken in times.items()}


def batched_round(
    clients: int,
    samples: int,
    device: torch.device,
    precision: str,
    *,
    model: str = "compact-cnn",
    group_size: int = 5,
) -> dict[str, float]:
    """Time a whole round of the batched engine, aggregation included.

    Returns
    -------
    dict
        ``us_per_client_step``, ``seconds_per_round`` and ``peak_gib`` of the device.
    """
    module = build_model(model, SHAPE, CLASSES, 0)
    everyone = federation(clients, samples)
    recipe = Recipe(batch_size=BATCH)
    jobs = [
        group_job(everyone, range(i, min(i + group_size, clients)), module, recipe, 0)
        for i in range(0, clients, group_size)
    ]
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
    training = Training(jobs, StackedNet(module, device, precision), 1000)
    taken = seconds(training.round, device)
    steps = sum(job.steps_per_round for job in jobs)
    peak = torch.cuda.max_memory_allocated() / 2**30 if device.type == "cuda" else float("nan")
    return {"us_per_client_step": 1e6 * taken / steps, "seconds_per_round": taken, "peak_gib": peak}


def sweep_step(samples: int, device: torch.device, precision: str) -> float:
    """Time a real sweep: 20 groupings of 100 clients, 30 rounds, and return µs per client-step.

    It is what a user waits for: keys of jobs, moving the data, validation, and taking the
    models back are in it.
    """
    module = build_model("compact-cnn", SHAPE, CLASSES, 0)
    everyone = federation(2000, samples)
    jobs = [
        group_job(everyone, range(i, i + 5), module, Recipe(batch_size=BATCH, rounds=30), 0)
        for i in range(0, 2000, 5)
    ]
    engine = Gpus(device.type, precision)
    train_groups([replace(job, recipe=Recipe(rounds=1)) for job in jobs[:100]], engine=engine)
    _wait(device)
    start = time.perf_counter()
    train_groups(jobs, engine=engine)
    taken = time.perf_counter() - start
    return 1e6 * taken / (30 * sum(job.steps_per_round for job in jobs))


def bench_cpu() -> dict[str, Any]:
    """Measure the loop engine on one core against the plain loop and the core's GEMM rate.

    ``convolutions_share_of_gemm_rate`` is the share that PyTorch's own calls for the
    convolutions, and nothing else, reach.
    """
    steps, size = 4, 1024
    module = build_model("compact-cnn", SHAPE, CLASSES, 0)
    assert isinstance(module, nn.Sequential)
    flops = flops_per_client_step(module)
    a, b, product = (torch.randn(size, size) for _ in range(3))
    keep_freed_memory()
    with one_thread():
        taken = interleaved_medians(
            {
                "gemm": lambda: torch.mm(a, b, out=product),
                "plain": _plain_epoch(torch.device("cpu"), steps),
                "loop": _loop_epoch(steps * BATCH),
                "convolutions": _convolutions(module),
            },
            repeat=50,
        )
        parts = step_parts(repeat=200)
    rate = 2 * size**3 / taken["gemm"]
    plain, step = taken["plain"] / steps, taken["loop"] / steps
    return {
        "flop_per_client_step": flops,
        "gemm_gflops_one_core": rate / 1e9,
        "plain_loop_us_per_client_step": 1e6 * plain,
        "loop_us_per_client_step": 1e6 * step,
        "convolutions_us_per_client_step": 1e6 * taken["convolutions"],
        "loop_speed_over_plain": plain / step,
        "loop_share_of_gemm_rate": flops / step / rate,
        "plain_share_of_gemm_rate": flops / plain / rate,
        "convolutions_share_of_gemm_rate": flops / taken["convolutions"] / rate,
        "parts_us_per_client_step": parts,
    }


def bench_gpu(clients: Sequence[int], samples: int, precisions: Sequence[str]) -> dict[str, Any]:
    """Measure the batched engine against the plain loop and the GPU's own limits."""
    if not torch.cuda.is_available():
        raise CarvyError("no CUDA device here; use --device cpu")
    device = torch.device("cuda")
    flops = flops_per_client_step(build_model("compact-cnn", SHAPE, CLASSES, 0))
    plain = seconds(_plain_epoch(device, 200), device) / 200
    matmul = {name: matmul_rate(device, name) for name in ("bf16", "tf32", "fp32")}
    found: dict[str, Any] = {
        "flop_per_client_step": flops,
        "samples_per_client": samples,
        "plain_loop_us_per_client_step": 1e6 * plain,
        "matmul_tflops": {name: rate / 1e12 for name, rate in matmul.items()},
        "copy_gb_per_second": copy_rate(device) / 1e9,
        "precision": precisions[0],
    }
    for precision in precisions:
        rounds = {str(n): batched_round(n, samples, device, precision) for n in clients}
        step = {n: entry["us_per_client_step"] for n, entry in rounds.items()}
        found[f"batched_{precision}"] = {
            "rounds": rounds,
            "us_per_client_step": step,
            "speed_over_plain": {n: 1e6 * plain / us for n, us in step.items()},
            "share_of_matmul_rate": {
                n: flops / (us * 1e-6) / matmul[precision] for n, us in step.items()
            },
        }
    found["us_per_client_step"] = found[f"batched_{precisions[0]}"]["us_per_client_step"]
    found["sweep_us_per_client_step"] = {
        str(size): sweep_step(size, device, precisions[0]) for size in (200, 500)
    }
    return found


def prediction_seconds(models: int, inputs: int, device: torch.device) -> float:
    """Time the votes of some models on some images, from host memory to host memory."""
    from carvyfl.learning.models import flat_weights
    from carvyfl.voting.group_models import GroupModels

    module = build_model("compact-cnn", SHAPE, CLASSES, 0)
    weights: Tensor = flat_weights(module).repeat(models, 1)
    ensemble = GroupModels(module, weights, np.ones(models, dtype=bool), CLASSES, 0.286, 0.353)
    images = np.random.default_rng(0).integers(0, 256, (inputs, *SHAPE), dtype=np.uint8)
    return seconds(lambda: ensemble.votes(images, Gpus(device.type)), device)
