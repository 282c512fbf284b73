"""Time other ways to compute a client's step on a CPU core, against the loop engine's own.

python -m benchmarks.cpu_trials [--rounds 40]

The compact CNN, a batch of 16 images of 28 x 28, one thread. All ways take turns in one process, a
few steps each, and are timed in CPU seconds of the thread; printed are the medians, and their ratio
to the loop engine's. The others leave dropout out, which favours them; their gradients are compared
with plain PyTorch's first.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Iterator
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional

from carvyfl.learning.backends import cpu_has_bf16, keep_freed_memory
from carvyfl.learning.models import build_model, trainable_copy
from carvyfl.learning.scaffold.client import FlatNet, channels_last
from carvyfl.learning.scaffold.fast_layers import with_fast_layers

BATCH, MEMBERS, STEPS = 16, 5, 20
Gradient = Callable[[], list[Tensor]]


def loss_gradient(logits: Tensor, labels: Tensor, parameters: list[nn.Parameter]) -> list[Tensor]:
    """Return the gradient of the mean cross-entropy of a batch."""
    return list(torch.autograd.grad(functional.cross_entropy(logits, labels), parameters))


def blocked(module: nn.Module, x: Tensor) -> Tensor:
    """Compute a sequence of layers in oneDNN's own blocked layout, up to flattening."""
    y = x.to_mkldnn()
    for layer in module.children():
        if isinstance(layer, nn.Flatten):
            y = y.to_dense().flatten(1)
        elif isinstance(layer, nn.Conv2d):
            y = functional.conv2d(y, layer.weight, layer.bias, layer.stride, layer.padding)
        else:
            y = layer(y)
    return y


def ways(module: nn.Module, inputs: Tensor, labels: Tensor) -> Iterator[tuple[str, Gradient]]:
    """Yield the ways to compute a gradient, by name."""
    key = torch.tensor(1)

    def engine(net: FlatNet) -> list[Tensor]:
        net.backward(inputs, labels, key)
        return [net.gradient]

    own = FlatNet(module)
    own.module.train()
    yield "loop engine", partial(engine, own)
    plain = trainable_copy(module).eval()  # dropout is the same work everywhere, and is left out
    fast = with_fast_layers(trainable_copy(module)).eval()

    def autograd(way: Callable[[Tensor], Tensor], net: nn.Module, *, last: bool = True) -> Gradient:
        parameters = list(net.parameters())
        arrange = channels_last if last else Tensor.contiguous
        return lambda: loss_gradient(way(arrange(inputs)), labels, parameters)

    yield "plain PyTorch, channels first", autograd(plain, plain, last=False)
    yield "plain PyTorch, channels last", autograd(plain, plain)
    yield "oneDNN's blocked layout", autograd(partial(blocked, plain), plain, last=False)
    yield "torch.compile, channels last", autograd(torch.compile(plain), plain)
    yield "torch.compile of the fast layers", autograd(torch.compile(fast), fast)
    if cpu_has_bf16():
        half = FlatNet(module, "bf16")
        half.module.eval()
        yield "loop engine, bf16", partial(engine, half)
    # The members of a group share their weights at the first step of a round.
    several = inputs.repeat(MEMBERS, 1, 1, 1)
    targets = labels.repeat(MEMBERS, 1)
    names = [name for name, _ in plain.named_parameters()]

    def member_loss(values: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        return functional.cross_entropy(torch.func.functional_call(plain, values, (x,)), y)

    member_gradients = torch.func.vmap(torch.func.grad(member_loss), (None, 0, 0))

    def together() -> list[Tensor]:
        found = member_gradients(
            dict(plain.named_parameters()), several.view(MEMBERS, BATCH, *inputs.shape[1:]), targets
        )
        return [found[name][0] for name in names]

    yield f"first step of {MEMBERS} members together", together


def flat(gradients: list[Tensor]) -> Tensor:
    """Return gradients as one vector."""
    return torch.cat([gradient.detach().reshape(-1) for gradient in gradients])


def main() -> None:
    """Measure and print."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--rounds", type=int, default=40)
    rounds = arguments.parse_args().rounds
    torch.set_num_threads(1)
    keep_freed_memory()
    torch.manual_seed(0)
    module = build_model("compact-cnn", (1, 28, 28), 10, seed=0)
    inputs, labels = torch.randn(BATCH, 1, 28, 28), torch.randint(10, (BATCH,))
    usable: dict[str, Gradient] = {}
    reference = None
    for name, gradient in ways(module, inputs, labels):
        try:
            found = flat(gradient())
        except Exception as error:  # a way that this build does not offer is part of the result
            print(f"{name}: not possible: {str(error).splitlines()[0][:150]}")
            continue
        usable[name] = gradient
        if name == "plain PyTorch, channels first":
            reference = found
        elif reference is not None:
            error_norm = float((found - reference).norm() / reference.norm())
            print(f"{name}: gradient differs by {error_norm:.1e}")
    times: dict[str, list[float]] = {name: [] for name in usable}
    for _ in range(rounds):
        for name, gradient in usable.items():
            began = time.thread_time()
            for _ in range(STEPS):
                gradient()
            members = MEMBERS if "members" in name else 1
            times[name].append((time.thread_time() - began) / STEPS / members)
    base = statistics.median(times["loop engine"])
    print(f"\n{'way':<40} ms/client-step  ratio")
    for name, own in times.items():
        middle = statistics.median(own)
        print(f"{name:<40} {1e3 * middle:14.2f}  {middle / base:5.2f}")


if __name__ == "__main__":
    main()
