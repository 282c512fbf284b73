"""The GPU kernels against PyTorch's own operations.

On a GPU they run compiled; elsewhere in Triton's interpreter, where Triton is installed.
"""

from __future__ import annotations

import os

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from carvyfl.core.randomness import derive, keep_mask, keep_threshold
from carvyfl.data.clients import Samples
from carvyfl.learning.backends import Gpus
from carvyfl.learning.job import group_job
from carvyfl.learning.models import build_model, flat_weights
from carvyfl.learning.recipe import Recipe
from carvyfl.learning.scaffold.arithmetic import local_step_
from carvyfl.learning.scaffold.batched import net, ops
from carvyfl.learning.scaffold.batched.engine import training_works
from carvyfl.learning.scaffold.batched.net import StackedNet
from carvyfl.learning.scaffold.batched.training import Pool
from carvyfl.learning.scaffold.group import train_group
from support.federations import image_federation

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
if DEVICE == "cpu":
    os.environ["TRITON_INTERPRET"] = "1"  # read when Triton is imported
pytest.importorskip("triton", reason="Triton comes with CUDA builds of torch")

from carvyfl.learning.scaffold.batched import kernels  # noqa: E402 - now with the interpreter
from carvyfl.learning.scaffold.batched.kernels import convolution, layers, steps  # noqa: E402

SLOW = pytest.mark.slow  # in the interpreter


@pytest.fixture(autouse=True)
def exact_reference(monkeypatch):
    """Keep cuDNN from computing the reference in TF32."""
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)


def close(actual, expected):
    error = (actual.double() - expected.double()).norm() / expected.double().norm()
    assert float(error) < 1e-5


def clients_apart(values):
    """Lay each client's numbers out contiguously, but the clients apart, as in flat weights."""
    flat = torch.randn(len(values), values[0].numel() + 7, device=DEVICE)
    view = flat[:, 3:-4].view(values.shape)
    view.copy_(values.detach())
    return view


@pytest.mark.parametrize(
    "sizes",
    [
        pytest.param((7, 7, 32, 40, 3, 3, 1, 0, True, False), marks=SLOW),
        (8, 8, 1, 32, 3, 3, 1, 0, False, True),
        (8, 6, 3, 16, 3, 3, 1, 1, True, True),
        (8, 8, 16, 32, 3, 3, 2, 1, True, False),
        (8, 8, 16, 32, 1, 1, 2, 0, False, False),
        pytest.param((3, 4, 70, 90, 3, 3, 1, 1, True, False), marks=SLOW),
        pytest.param((9, 7, 5, 24, 5, 5, 2, 2, True, False), marks=SLOW),
    ],
)
def test_convolution_and_its_gradients(sizes):
    torch.manual_seed(0)
    g, n, batch = convolution.Geometry(*sizes), 2, 3
    before = torch.randn(n, batch, g.H, g.W, g.C, device=DEVICE, requires_grad=True)
    images = before.relu() if g.relu_before else before * 1
    weights = torch.randn(n, g.CO, g.C, g.KH, g.KW, device=DEVICE, requires_grad=True)
    bias = torch.randn(n, g.CO, device=DEVICE, requires_grad=True)
    side = images.permute(1, 0, 4, 2, 3).reshape(batch, n * g.C, g.H, g.W)
    y = functional.conv2d(side, weights.flatten(0, 1), bias.flatten(), g.stride, g.padding, 1, n)
    y = y.view(batch, n, g.CO, g.OH, g.OW).permute(1, 0, 3, 4, 2)
    grad = torch.randn(y.shape, device=DEVICE)
    dx, dw, db = torch.autograd.grad(y, (before, weights, bias), grad)
    x, b = images.detach(), bias.detach()
    taps = convolution.to_taps(clients_apart(weights), torch.float32)
    close(convolution.convolve(x, taps, b, g)[0], (y.relu() if g.relu_after else y).detach())
    # With relu_after the gradient that arrives is that of the ReLU's input already.
    close(convolution.input_gradient(grad, taps, x, g), dx)
    actual_dw, actual_db = convolution.weight_gradient(x, grad, g)
    close(actual_dw, dw)
    close(actual_db, db)


def test_split_outputs_add_up_and_nothing_is_left_of_infinity():
    torch.manual_seed(0)
    g = convolution.Geometry(6, 5, 2, 16, 3, 3, 1, 1)
    x, bias = torch.randn(2, 3, 6, 5, 2, device=DEVICE), torch.randn(2, 16, device=DEVICE)
    weights = torch.randn(2, 16, 2, 3, 3, device=DEVICE)
    bias[0, :2] = torch.tensor([torch.finfo(torch.float32).max, -torch.inf])
    taps = convolution.to_taps(weights, torch.float32)
    expected, _ = convolution.convolve(x, taps, bias, g)
    high, rest = convolution.convolve(x, taps, bias, g, split=True)
    assert high.dtype == rest.dtype == torch.bfloat16
    finite = high.isfinite()
    assert not rest[~finite].any()
    assert (~finite).sum() >= 3 * 6 * 5
    error = (high.float() + rest.float() - expected)[finite] / expected[finite]
    assert error.abs().max() < 2**-15
    tensor, left = convolution.split_taps(torch.tensor([torch.inf, 3.4e38, 1.001]))
    assert left[:2].tolist() == [0, 0]
    assert float(tensor[2].float() + left[2].float()) == pytest.approx(1.001, rel=2**-15)


@pytest.mark.parametrize(
    ("batch", "inputs", "outputs"), [(16, 150, 10), (3, 20, 140), (70, 130, 1), (2, 2500, 3)]
)
@pytest.mark.parametrize("drop", [0.0, 0.3])
def test_linear_layer_and_its_gradients(batch, inputs, outputs, drop):
    torch.manual_seed(0)
    keys = torch.tensor([derive(0, "dropout", i, 0) for i in range(2)], device=DEVICE)
    dropping = (keys, keep_threshold(drop), 1 / (1 - drop)) if drop else None
    mask = keep_mask(keys, batch * inputs, drop).view(2, batch, inputs) / (1 - drop)
    x = torch.randn(2, batch, inputs, device=DEVICE, requires_grad=True)
    weights = torch.randn(2, outputs, inputs, device=DEVICE, requires_grad=True)
    bias = clients_apart(torch.randn(2, outputs))
    y = (x * mask) @ weights.transpose(1, 2) + bias[:, None]
    grad = torch.randn(y.shape, device=DEVICE)
    dx, dw = torch.autograd.grad(y, (x, weights), grad)
    apart = clients_apart(weights)
    close(layers.linear(x.detach(), apart, bias, dropping), y.detach())
    close(layers.linear_input_gradient(grad, x.detach(), apart, dropping), dx)
    actual_dw, actual_db = layers.linear_weight_gradient(grad, x.detach(), apart, dropping)
    close(actual_dw, dw)
    close(actual_db, grad.sum(1))


@pytest.mark.parametrize("channels_first", [True, False])
@pytest.mark.parametrize("size", [(7, 9, 5), (8, 18, 70)])
def test_relu_and_pooling(size, channels_first):
    torch.manual_seed(0)
    height, width, channels = size
    x = torch.randn(4, height, width, channels, device=DEVICE, requires_grad=True)
    y = functional.max_pool2d(x.permute(0, 3, 1, 2).relu(), 2)
    y = y if channels_first else y.permute(0, 2, 3, 1)
    grad = torch.randn(y.shape, device=DEVICE)
    (dx,) = torch.autograd.grad(y, x, grad)
    actual, winner = layers.relu_pool(x.detach(), channels_first)
    assert torch.equal(actual, y.detach())
    assert torch.equal(layers.relu_pool_gradient(grad, winner, height, width, channels_first), dx)


@pytest.mark.parametrize(
    ("sizes", "channels_first"),
    [((9, 8, 3, 20, 3, 3, 1, 0), True), ((8, 8, 2, 16, 3, 3, 2, 1), False)],
)
def test_pooling_within_a_convolution_is_pooling_after_it(sizes, channels_first):
    torch.manual_seed(0)
    g, n, batch = convolution.Geometry(*sizes), 2, 3
    images = torch.randn(n, batch, g.H, g.W, g.C, device=DEVICE)
    taps = torch.randn(n, g.KH * g.KW, g.C, g.CO, device=DEVICE)
    bias = torch.randn(n, g.CO, device=DEVICE)
    actual, winner = convolution.convolve_and_pool(images, taps, bias, g, channels_first)
    apart = convolution.convolve(images, taps, bias, g)[0].flatten(0, 1)
    expected, expected_winner = layers.relu_pool(apart, channels_first)
    close(actual.flatten(0, 1), expected)
    assert torch.equal(winner.flatten(0, 1), expected_winner)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ((7, 8, 1, 20, 3, 3, 1, 0, False, True), (5, 6, 20, 16, 3, 3, 1, 0, True)),
        pytest.param(
            (9, 7, 3, 70, 3, 3, 2, 1, False, True), (5, 4, 70, 24, 3, 3, 1, 1, True), marks=SLOW
        ),
    ],
)
def test_weights_before_a_convolution_get_their_gradient_through_it(first, second):
    torch.manual_seed(0)
    e, g, n, batch = convolution.Geometry(*first), convolution.Geometry(*second), 2, 3
    images = torch.randn(n, batch, e.H, e.W, e.C, device=DEVICE)
    w0 = torch.randn(n, e.CO, e.C, e.KH, e.KW, device=DEVICE, requires_grad=True)
    b0 = torch.randn(n, e.CO, device=DEVICE, requires_grad=True)
    w = torch.randn(n, g.CO, g.C, g.KH, g.KW, device=DEVICE)

    def one(tensor, weight, bias, sizes):
        out = functional.conv2d(
            tensor.permute(0, 3, 1, 2), weight, bias, sizes.stride, sizes.padding
        )
        return out.permute(0, 2, 3, 1)

    x = torch.stack([one(*tensor, e) for tensor in zip(images, w0, b0, strict=True)]).relu()
    y = torch.stack([one(tensor, weight, None, g) for tensor, weight in zip(x, w, strict=True)])
    grad = torch.randn(y.shape, device=DEVICE)
    expected = torch.autograd.grad(y, (w0, b0), grad)
    taps = convolution.to_taps(w, torch.float32)
    actual = convolution.earlier_weight_gradient(grad, taps, x.detach(), g, images, e)
    for tensor, other in zip(actual, expected, strict=True):
        close(tensor, other)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # NumPy's, in the interpreter
@pytest.mark.parametrize(("batch", "classes"), [(5, 3), (16, 10), (3, 5000)])
def test_the_gradient_of_the_loss_is_that_of_the_mean_cross_entropy(batch, classes):
    torch.manual_seed(0)
    logits = (3 * torch.randn(2, batch, classes, device=DEVICE)).requires_grad_()
    labels = torch.randint(classes, (2, batch), device=DEVICE)
    mask = torch.ones(2, batch, device=DEVICE)
    mask[1, 2:] = 0
    losses = [
        functional.cross_entropy(tensor[there > 0], right[there > 0])
        for tensor, right, there in zip(logits, labels, mask, strict=True)
    ]
    (expected,) = torch.autograd.grad(losses[0] + losses[1], logits)
    actual = steps.loss_gradient(logits.detach(), labels, mask)
    close(actual, expected)
    assert not actual[1, 2:].any()
    spoilt = logits.detach().clone()
    spoilt[0, 0, 1] = torch.inf
    there = steps.loss_gradient(spoilt, labels, mask)
    assert there[0, 0].isnan().all()
    assert torch.equal(there[1], actual[1])


@pytest.mark.parametrize("whole", [True, False])
def test_batches_are_drawn_and_scaled_as_by_pytorch(whole, monkeypatch):
    random = np.random.default_rng(0)
    samples = [
        Samples(
            random.integers(0, 256, (size, 1, 5, 3), dtype=np.uint8)
            if whole
            else random.normal(size=(size, 1, 5, 3)).astype(np.float32),
            random.integers(0, 4, size),
        )
        for size in (7, 6, 2)
    ]
    pool = Pool.of(samples, torch.device(DEVICE))
    clients = torch.tensor([0, 2], device=DEVICE)
    order = torch.tensor([[3, 1, 6, 0, 2, 5, 4, 7], [1, 0, 2, 3, 4, 5, 6, 7]], device=DEVICE)
    scale = torch.tensor([[0.3, 0.4], [0.1, 3.0]], device=DEVICE)
    for step_, wide in ((0, 4), (1, 4), (1, 2)):
        where = (clients, order, torch.tensor([step_], device=DEVICE), 4, wide, scale)
        monkeypatch.setattr(ops, "by_kernels", lambda x: True)
        actual = pool.step_batch(*where, torch.float32)
        monkeypatch.setattr(ops, "by_kernels", lambda x: False)
        expected = pool.step_batch(*where, torch.float32)
        torch.testing.assert_close(actual[0], expected[0], rtol=1e-6, atol=1e-6)
        assert torch.equal(actual[1], expected[1])
        assert torch.equal(actual[2], expected[2])


@pytest.mark.parametrize("shape", [(2, 3, 20, 30), (3, 70, 5, 1), (1, 1, 1, 1)])
def test_gradients_of_scale_and_shift(shape):
    torch.manual_seed(0)
    y, grad = (torch.randn(shape, device=DEVICE) for _ in range(2))
    scale, shift = layers.affine_gradients(grad, y)
    torch.testing.assert_close(scale, (grad * y).sum((1, 3)))
    torch.testing.assert_close(shift, grad.sum((1, 3)))


@pytest.mark.parametrize("transposed", [False, True])
def test_the_step_is_scaffolds(transposed):
    torch.manual_seed(0)
    weights, correction = (clients_apart(torch.randn(3, 44, 25)) for _ in range(2))
    gradient = torch.randn(3, 25, 44, device=DEVICE).transpose(1, 2)
    gradient = gradient if transposed else gradient.contiguous()
    expected = weights.clone()
    local_step_(expected, gradient, correction, 0.1)
    steps.local_step_(weights, gradient, correction, torch.tensor([0.1], device=DEVICE))
    torch.testing.assert_close(weights, expected)


def test_dropout_drops_what_the_cpu_drops():
    keys = torch.tensor([derive(seed, "dropout") for seed in range(3)], device=DEVICE)
    x = torch.randn(3, 2500, device=DEVICE)
    mask = keep_mask(keys, 2500, 0.3)
    actual = layers.drop(x, (keys, keep_threshold(0.3), 1 / 0.7))
    assert torch.equal(actual != 0, mask)
    torch.testing.assert_close(actual, x * mask / 0.7)


@pytest.fixture
def new_memory_is_filled():
    """Have PyTorch fill new memory with NaN."""
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


@pytest.mark.usefixtures("new_memory_is_filled")
def test_what_is_only_compiled_leaves_zeros():
    x, weight = torch.randn(2, 3, 20, device=DEVICE), torch.randn(2, 5, 20, device=DEVICE)
    assert torch.empty(4, device=DEVICE).isnan().all()
    with kernels.compiling() as asked:
        y = layers.linear(x, weight, weight[..., 0], None)
        dx = layers.linear_input_gradient(y, x, weight, None)
    assert len(asked) == 3
    assert not y.any()
    assert not dx.any()
    assert layers.linear(x, weight, weight[..., 0], None).all()  # launched as ever


@pytest.fixture
def kernels_everywhere(monkeypatch):
    """Let the engine use the kernels where it would not: in the interpreter."""
    if DEVICE == "cpu":
        monkeypatch.setattr(ops, "by_kernels", lambda x: True)


class Looked(nn.Module):
    """A model that looks its inputs up in a table."""

    table: torch.Tensor

    def __init__(self):
        super().__init__()
        self.register_buffer("table", torch.linspace(-1, 1, 256))
        self.last = nn.Linear(12, 4)

    def forward(self, x):
        return self.last(self.table[((0.4 * x + 0.3) * 255).round().long()])


@pytest.mark.usefixtures("kernels_everywhere", "new_memory_is_filled")
def test_a_model_that_looks_its_inputs_up_can_be_compiled_ahead(monkeypatch):
    # On a GPU the check runs on the CPU, without kernels.
    monkeypatch.setattr(net, "check_stacking", lambda module, shape: None)
    federation = image_federation((12,), [20])
    job = group_job(federation, [0], Looked(), Recipe(batch_size=16), 0)
    with kernels.compiling() as asked, torch.autograd.set_multithreading_enabled(False):
        for work in training_works([job], StackedNet(job.module, torch.device(DEVICE), "fp32")):
            work()
    assert asked


def networks():
    torch.manual_seed(0)
    return {
        "compact-cnn": build_model("compact-cnn", (1, 9, 8), 4, 0),
        # The same layers with fewer channels: the interpreter takes its time.
        "narrow cnn": nn.Sequential(
            nn.Conv2d(1, 6, 3), nn.ReLU(), nn.Conv2d(6, 9, 3), nn.ReLU(), nn.MaxPool2d(2),
            nn.Dropout(0.25), nn.Flatten(), nn.Linear(36, 4),
        ),
        "mlp": build_model("mlp", (1, 9, 8), 4, 0),
        "pooled twice": nn.Sequential(
            nn.Conv2d(1, 6, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(6, 20, 3, bias=False), nn.ReLU(), nn.Conv2d(20, 5, 1), nn.GroupNorm(1, 5),
            nn.ReLU(), nn.Dropout(0.2), nn.Flatten(), nn.Linear(20, 4, bias=False),
        ),
        "normalised rows": nn.Sequential(
            nn.LayerNorm([9, 8]), nn.Linear(8, 6), nn.LayerNorm(6, bias=False), nn.ReLU(),
            nn.Conv2d(1, 4, 3), nn.GroupNorm(2, 4), nn.Flatten(), nn.Linear(4 * 7 * 4, 4),
        ),
    }  # fmt: skip


@SLOW
@pytest.mark.parametrize("name", ["mlp", "normalised rows", "narrow cnn", "pooled twice"])
def test_the_engine_trains_with_the_kernels_as_the_loop_does(name, kernels_everywhere):
    module = networks()[name]
    federation = image_federation(
        (1, 9, 8), [5, 3], validation=3
    )  # two steps and one, batches full and short
    recipe = Recipe(rounds=2, lr=0.05, batch_size=4)
    jobs = [group_job(federation, group, module, recipe, 2) for group in ([0], [1])]
    engine = Gpus(DEVICE, "fp32")
    together = dict(engine.train_groups(jobs, lambda position, rounds: None))
    for position, job in enumerate(jobs):
        expected = train_group(job)
        actual = together[position]
        torch.testing.assert_close(actual.weights, expected.weights, rtol=1e-4, atol=1e-4)
        assert actual.accuracy == pytest.approx(expected.accuracy, nan_ok=True)
    (alone,) = dict(engine.train_groups(jobs[1:], lambda position, rounds: None)).values()
    assert torch.equal(alone.weights, together[1].weights)


@SLOW
@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # NumPy's, in the interpreter
def test_a_client_of_nan_stays_alone(kernels_everywhere):
    module = networks()["pooled twice"]
    net = StackedNet(module, torch.device(DEVICE), "fp32")
    weights = flat_weights(module).repeat(3, 1).to(DEVICE)
    inputs = torch.rand(3, 4, 1, 9, 8, device=DEVICE)
    labels = torch.tensor([[0, 1, 2, 3]] * 3, device=DEVICE)
    mask = torch.ones(3, 4, device=DEVICE)
    keys = net.dropout_keys(torch.tensor([5, 6, 7], device=DEVICE))
    clean = net.gradient(net.views(weights), keys, inputs, labels, mask)
    weights[1] = torch.nan
    inputs[2] = torch.inf
    spoilt = net.gradient(net.views(weights), keys, inputs, labels, mask)
    for parameter, gradient in clean.items():
        assert torch.equal(spoilt[parameter][0], gradient[0])


@pytest.mark.skipif(DEVICE == "cpu", reason="Triton's interpreter has no bfloat16")
def test_bfloat16_is_close_to_float32():
    module = networks()["compact-cnn"]
    federation = image_federation((1, 9, 8), [9, 5, 6])
    job = group_job(federation, [0, 1, 2], module, Recipe(rounds=2, lr=0.05, batch_size=4), 2)
    weights = [
        dict(Gpus(DEVICE, precision).train_groups([job], lambda position, rounds: None))[0].weights
        for precision in ("fp32", "bf16")
    ]
    error = (weights[0] - weights[1]).norm() / weights[0].norm()
    assert 0 < float(error) < 0.02


def test_sums_of_members_are_their_own(kernels_everywhere):
    torch.manual_seed(0)
    values, shares = torch.randn(5, 1500, device=DEVICE), torch.rand(5, device=DEVICE)
    values[0] = torch.nan
    members = torch.tensor([[2, 4, 3], [1, -1, -1], [-1, -1, -1], [0, -1, -1]], device=DEVICE)
    actual = ops.member_sums(values, members, shares)
    close(actual[0], sum(values[i].double() * shares[i].double() for i in (2, 4, 3)))
    assert torch.equal(actual[1], values[1] * shares[1])
    assert not actual[2].any()
    assert actual[3].isnan().all()
