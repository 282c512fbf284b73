"""The rewritten layers and the client's gradient against PyTorch's own, left alone."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional

from carvyfl.core.randomness import IN_CACHE, MULTIPLIERS, hash_bits, keep_mask
from carvyfl.learning.models import KeyedDropout, build_model, trainable_copy
from carvyfl.learning.scaffold.client import FlatNet
from carvyfl.learning.scaffold.fast_layers import NarrowLinear, PatchConv2d, with_fast_layers


def assert_same_layer(new, layer, x):
    """The same outputs, and the same gradients of input, weight and bias."""
    ours, theirs = (x.clone().requires_grad_() for _ in range(2))
    expected = layer(theirs)
    error = torch.randn_like(expected)
    torch.testing.assert_close(new(ours), expected, rtol=1e-4, atol=1e-5)
    actual = torch.autograd.grad(new(ours), [ours, *new.parameters()], error)
    wanted = torch.autograd.grad(expected, [theirs, *layer.parameters()], error)
    torch.testing.assert_close(actual, wanted, rtol=1e-4, atol=1e-4)


@settings(max_examples=40)
@given(
    channels=st.integers(1, 2),
    kernel=st.tuples(st.integers(1, 3), st.integers(1, 2)),
    stride=st.tuples(st.integers(1, 2), st.integers(1, 3)),
    padding=st.tuples(st.integers(0, 1), st.integers(0, 2)),
    bias=st.booleans(),
    last=st.booleans(),
)
def test_a_small_convolution_is_the_product_over_its_patches(
    channels, kernel, stride, padding, bias, last
):
    layer = nn.Conv2d(channels, 5, kernel, stride, padding, bias=bias)
    x = torch.randn(3, channels, 7, 6)
    x = x.contiguous(memory_format=torch.channels_last) if last else x
    (rewritten,) = with_fast_layers(nn.Sequential(layer)).children()
    assert type(rewritten) is PatchConv2d
    assert_same_layer(rewritten, layer, x)


class Doubling(nn.Conv2d):
    """A layer of somebody's own."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return 2 * super().forward(x)


@pytest.mark.parametrize(
    "layer",
    [
        nn.Conv2d(2, 4, 2, groups=2),
        nn.Conv2d(1, 4, 2, dilation=2),
        nn.Conv2d(1, 4, 3, padding="same"),
        nn.Conv2d(1, 4, 3, padding=1, padding_mode="circular"),
        nn.Conv2d(32, 4, 3),
        Doubling(1, 4, 3),
        nn.utils.parametrizations.weight_norm(nn.Conv2d(1, 4, 3)),
    ],
)
def test_other_convolutions_stay(layer):
    assert next(with_fast_layers(nn.Sequential(layer)).children()) is layer


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("shape", [(4, 6), (2, 3, 6)])
def test_a_narrow_linear_layer_is_linear(bias, shape):
    layer = nn.Linear(6, 3, bias=bias)
    assert_same_layer(NarrowLinear(layer), layer, torch.randn(shape))


MODULES = {
    "compact-cnn": lambda: build_model("compact-cnn", (1, 12, 12), 4, 0),
    "resnet": lambda: build_model("resnet", (1, 12, 12), 4, 0),
    "mlp": lambda: build_model("mlp", (1, 12, 12), 4, 0),
    "dropout twice, pooling behind a ReLU, flattened late": lambda: nn.Sequential(
        nn.Conv2d(1, 6, 3, padding=1),
        nn.ReLU(),
        nn.Dropout(0.3),
        nn.Sequential(nn.Conv2d(6, 8, 3), nn.ReLU(), nn.MaxPool2d(2)),
        nn.ReLU(),
        nn.Dropout(0.5),
        nn.Flatten(),
        nn.Linear(200, 4),
    ),
}


@pytest.mark.parametrize("name", MODULES)
@pytest.mark.parametrize("inputs", [torch.randn(7, 1, 12, 12), torch.ones(7, 1, 12, 12)])
def test_a_clients_gradient_is_that_of_the_module_left_alone(name, inputs):
    """By autograd. All-equal images tie in every pooling window: the winner must be the same."""
    torch.manual_seed(1)
    module, labels, key = MODULES[name](), torch.arange(7) % 4, torch.tensor(987654321012)
    net, plain = FlatNet(module), trainable_copy(module).train()
    for layer in plain.modules():
        if isinstance(layer, KeyedDropout):
            layer.key = key
    functional.cross_entropy(plain(inputs), labels).backward()
    expected = torch.cat([p.grad.reshape(-1) for p in plain.parameters() if p.grad is not None])
    net.module.train()
    net.backward(inputs, labels, key)
    torch.testing.assert_close(net.gradient, expected, rtol=1e-4, atol=1e-6)


def hash_by_hand(key, counter):
    """The hash in Python's whole numbers."""

    def mix(word):
        for shift, factor in zip((16, 15), MULTIPLIERS, strict=True):
            word = ((word ^ (word >> shift)) * factor) % 2**32
        return word ^ (word >> 16)

    word = mix(mix((key + counter) % 2**32) ^ (key >> 32))
    return word - 2**32 if word >= 2**31 else word


@settings(max_examples=20)
@given(
    keys=st.lists(st.integers(0, 2**63 - 1), min_size=1, max_size=3),
    count=st.integers(0, 3 * IN_CACHE),
    data=st.data(),
)
def test_the_hash_in_stretches_is_the_hash_of_each_counter(keys, count, data):
    actual = hash_bits(torch.tensor(keys), count)
    assert actual.shape == (len(keys), count)
    if count:
        somewhere = st.integers(0, count - 1)
        for place in {0, count - 1, min(count - 1, IN_CACHE), data.draw(somewhere)}:
            assert actual[:, place].tolist() == [hash_by_hand(key, place) for key in keys]


def test_a_mask_keeps_its_share():
    shares = keep_mask(torch.tensor([1, 2**62]), 100_000, 0.25).double().mean(dim=1)
    # Four standard deviations of a share of 100,000 draws.
    assert ((shares - 0.75).abs() < 4 * (0.25 * 0.75 / 100_000) ** 0.5).all()


@pytest.mark.slow
@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="glibc's own setting")
def test_freed_memory_is_kept_for_the_next_step():
    # 48 MB at a time: more than the C library keeps by itself. Where a block lies takes it a few
    # rounds to settle, so those are not counted.
    script = """
import resource, torch
from carvyfl.learning.backends import keep_freed_memory
keep_freed_memory()
def step(): return [torch.ones(4 << 20) for _ in range(3)]  # 3 * 4,096 pages
def faults(): return resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(20): step()
before = faults()
for _ in range(20): step()
print(faults() - before)
"""
    shown = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert int(shown.stdout) < 20 * 4096 / 4
