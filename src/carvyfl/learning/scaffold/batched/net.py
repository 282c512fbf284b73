"""A stacked model: gradients and logits of many clients at once.

Only layers with parameters, and dropout, need to know of the clients. Each is replaced by a version
that holds N sets of parameters; everything else in a user's module, its own ``forward`` included,
treats the batches of all clients as one long batch of N·B samples.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional

from carvyfl.core.errors import CarvyError
from carvyfl.core.randomness import fold
from carvyfl.core.registry import pick
from carvyfl.learning.models import (
    KeyedDropout,
    flat_weights,
    parameter_gradients,
    plain_sequences,
    replace_layer,
    trainable_copy,
    weight_slices,
)
from carvyfl.learning.scaffold.batched import ops
from carvyfl.learning.scaffold.fast_layers import is_plain

# What activations and products are computed in; sums of products, weights and control variates
# are float32
PRECISIONS: dict[str, torch.dtype] = {
    "fp32": torch.float32,
    "tf32": torch.float32,
    "bf16": torch.bfloat16,
}

Views = dict[str, Tensor]


class StackedNet:
    """One architecture, as many sets of weights as are passed in.

    ``to_vote`` lets kernels multiply float32 to 4e-6 of the result, in half of the time.
    """

    def __init__(
        self, module: nn.Module, device: torch.device, precision: str, *, to_vote: bool = False
    ) -> None:
        self.dtype = pick(PRECISIONS, precision, "precision")
        self.device = device
        self.module = stacked(module).to(device)
        shapes = [parameter.shape for parameter in module.parameters()]
        self._places = list(zip(weight_slices(module).items(), shapes, strict=True))
        self._dropouts = {
            f"{name}.key" if name else "key": layer.layer
            for name, layer in self.module.named_modules()
            if isinstance(layer, StackedDropout)
        }
        self._tf32, self._to_vote = precision == "tf32", to_vote
        self._plain, self._sound = module, False

    def views(self, weights: Tensor) -> Views:
        """Look at flat weights (n, P) as the parameters (n, …) they hold."""
        n = len(weights)
        return {name: weights[:, place].view(n, *shape) for (name, place), shape in self._places}

    def gradient(
        self, views: Views, keys: Tensor, x: Tensor, labels: Tensor, mask: Tensor
    ) -> Views:
        """Return every client's gradient of its own mean cross-entropy, by parameter, (n, …).

        ``keys`` are this step's :meth:`dropout_keys`, (L, n); x, labels and mask are (n, B, …).
        """
        self.module.train()
        leaves = {name: view.detach().requires_grad_() for name, view in views.items()}
        keyed = dict(zip(self._dropouts, keys, strict=True))
        logits = self._forward({**leaves, **keyed}, x)
        # The clients' losses share no parameter: the gradient of the sum is each one's own.
        error = ops.loss_gradient(logits.detach(), labels, mask)
        gradients = parameter_gradients(logits, error, list(leaves.values()))
        return {name: part.detach() for name, part in zip(leaves, gradients, strict=True)}

    def dropout_keys(self, keys: Tensor) -> Tensor:
        """Derive the keys of the L dropout layers from those of steps, (…) → (L, …)."""
        folded = [fold(keys, layer) for layer in self._dropouts.values()]
        return torch.stack(folded) if folded else keys.new_empty((0, *keys.shape))

    @torch.no_grad()
    def logits(self, views: Views, inputs: Tensor, scale: Tensor) -> Tensor:
        """Return the logits of a batch of each client, (n, B, C); ``scale`` is (n, 2)."""
        self.module.eval()
        return self._forward(views, ops.scaled(inputs, scale, self.dtype)).float()

    def _forward(self, views: Views, x: Tensor) -> Tensor:
        if not self._sound:
            self._sound = True
            check_stacking(self._plain, x.shape[2:])
        if self.device.type == "cuda":  # another net may have set it otherwise since
            from carvyfl.learning.scaffold.batched import kernels

            torch.backends.cuda.matmul.allow_tf32 = self._tf32
            exact = kernels.NEARLY_EXACT if self._to_vote else kernels.EXACT
            kernels.multiply_by("tf32" if self._tf32 else exact)
        logits: Tensor = functional_call(self.module, views, (x.flatten(0, 1),))
        return logits.view(*x.shape[:2], -1)


def check_stacking(module: nn.Module, shape: torch.Size) -> None:
    """Refuse a module whose copies, stacked, do not compute what each computes alone.

    A module that mixes samples (by their mean, say), or moves their axis, would mix clients; it is
    found out by trying two clients with different weights on random inputs of a shape.
    """
    random = torch.Generator().manual_seed(0)
    weights = flat_weights(module).repeat(2, 1)
    # At least 0.01, or weights that start at zero would agree whatever the module does.
    noise = 0.1 * weights.std().clamp(min=0.1)
    weights += noise * torch.randn(weights.shape, generator=random)
    inputs = torch.rand((2, 3, *shape), generator=random)
    twins, alone = StackedNet(module, torch.device("cpu"), "fp32"), trainable_copy(module).eval()
    twins._sound = True
    views = twins.views(weights)
    scale = torch.tensor([[0.0, 1.0]] * 2)
    with torch.no_grad():
        each = [({name: view[i] for name, view in views.items()}, x) for i, x in enumerate(inputs)]
        expected = torch.stack([functional_call(alone, parameters, (x,)) for parameters, x in each])
    try:
        difference = twins.logits(views, inputs, scale) - expected
        same = bool(difference.abs().max() <= 1e-3 * expected.abs().max())
    except RuntimeError:  # shapes that do not fit when clients are stacked
        same = False
    if not same:
        raise CarvyError(
            "the batched engine cannot stack this model: one sample's logits depend on other "
            "samples of the batch, or the batch is not the first axis throughout; "
            "use `engine='loop'`"
        )


class StackedLinear(nn.Module):
    """``nn.Linear`` for stacked clients: weight (N, out, in), bias (N, out)."""

    def __init__(self, layer: nn.Linear) -> None:
        super().__init__()
        self.weight, self.bias = layer.weight, layer.bias
        self.dropout: StackedDropout | None = None

    def forward(self, x: Tensor) -> Tensor:
        """Map (N·B, …, in) to (N·B, …, out), after the fused dropout layer."""
        rows = x.reshape(len(self.weight), -1, x.shape[-1])
        dropout = None if self.dropout is None else self.dropout.dropping
        y = ops.stacked_linear(rows, self.weight, self.bias, dropout)
        return y.reshape(*x.shape[:-1], -1)


class StackedConv2d(nn.Module):
    """``nn.Conv2d`` for stacked clients: weight (N, O, C, KH, KW), bias (N, O)."""

    def __init__(self, layer: nn.Conv2d) -> None:
        super().__init__()
        square = len({*layer.stride}) == len({*layer.padding}) == 1
        if not (square and is_plain(layer)):
            raise CarvyError(
                f"the batched engine cannot stack {layer}: only square strides and zero padding, "
                "without groups or dilation; use `engine='loop'`"
            )
        self.weight, self.bias = layer.weight, layer.bias
        self.stride, self.padding = layer.stride[0], int(layer.padding[0])
        self.relu_before = self.relu_after = False
        self.pool_first: bool | None = None
        self.earlier: tuple[StackedConv2d, ...] = ()  # a tuple is no submodule: its names stay
        self.passes_on = False

    def forward(self, x: Tensor) -> Tensor:
        """Map (N·B, C, H, W) to (N·B, O, OH, OW), or to what the fused pooling layer gives."""
        if self.passes_on:  # the next convolution computes this one as well
            return x
        layers = (*self.earlier, self)
        *earlier, layer = [(conv.weight, conv.bias, conv.stride, conv.padding) for conv in layers]
        return ops.stacked_conv2d(
            x,
            *layer,
            relu_before=self.relu_before,
            relu_after=self.relu_after,
            pool_first=self.pool_first,
            earlier=earlier[0] if earlier else None,
        )


class StackedNorm(nn.Module):
    """``nn.GroupNorm`` or ``nn.LayerNorm`` for stacked clients: per-client scale and shift."""

    def __init__(self, layer: nn.GroupNorm | nn.LayerNorm) -> None:
        super().__init__()
        self.weight, self.bias = layer.weight, layer.bias
        self.eps = layer.eps
        self.groups = layer.num_groups if isinstance(layer, nn.GroupNorm) else None
        self.shape = layer.normalized_shape if isinstance(layer, nn.LayerNorm) else ()

    def forward(self, x: Tensor) -> Tensor:
        """Normalise (N·B, …) and apply each client's own scale and shift."""
        if self.groups is not None:
            y = functional.group_norm(x, self.groups, eps=self.eps)
        else:
            y = functional.layer_norm(x, self.shape, eps=self.eps)
        if self.weight is None:
            return y
        parameters = self.weight.flatten(1)
        pixels = y[0, 0].numel() if self.groups is not None else 1
        values = y.reshape(len(parameters), -1, parameters.shape[1], pixels)
        bias = None if self.bias is None else self.bias.flatten(1)
        return ops.stacked_affine(values, parameters, bias).view(x.shape)


class StackedDropout(nn.Module):
    """``KeyedDropout`` for stacked clients, one key each: that of this layer."""

    key: Tensor

    def __init__(self, layer: KeyedDropout) -> None:
        super().__init__()
        self.drop, self.layer = layer.drop, layer.layer
        self.register_buffer("key", torch.zeros(1, dtype=torch.int64))

    @property
    def dropping(self) -> ops.Dropout | None:
        """The keys of this layer, (N,), and its share; None where nothing is dropped."""
        return (self.key, self.drop) if self.training and self.drop else None

    def forward(self, x: Tensor) -> Tensor:
        """Drop what each client would drop alone: counters run over a client's own batch."""
        dropping = self.dropping
        return x if dropping is None else ops.stacked_dropout(x, *dropping)


class ReluMaxPool(nn.Module):
    """A ReLU and the 2×2 max-pooling after it, in one pass."""

    def __init__(self, channels_first: bool) -> None:
        super().__init__()
        self.channels_first = channels_first

    def forward(self, x: Tensor) -> Tensor:
        """Map (N·B, C, H, W) to (N·B, C, H/2, W/2)."""
        return ops.relu_max_pool(x, self.channels_first)


# Layers that must know of the clients, and what replaces them: a new layer is one line
STACKERS: dict[type[nn.Module], Callable[[Any], nn.Module]] = {
    nn.Linear: StackedLinear,
    nn.Conv2d: StackedConv2d,
    nn.GroupNorm: StackedNorm,
    nn.LayerNorm: StackedNorm,
    KeyedDropout: StackedDropout,
}


def stacked(module: nn.Module) -> nn.Module:
    """Return a copy of a checked module whose parameters take a leading axis of clients."""
    clone = trainable_copy(module)
    if type(clone) in STACKERS:
        return STACKERS[type(clone)](clone)
    places = Counter(id(layer) for _, layer in clone.named_modules(remove_duplicate=False))
    for name, layer in list(clone.named_modules()):
        kind, trains = type(layer), bool(list(layer.parameters(recurse=False)))
        if trains and (places[id(layer)] > 1 or kind not in STACKERS):
            several = f", which the model has in {places[id(layer)]} places"
            why = several if places[id(layer)] > 1 else f" ({kind.__name__})"
            raise CarvyError(
                f"the batched engine cannot stack layer '{name or kind.__name__}'{why}; "
                "use `engine='loop'`"
            )
        if kind in STACKERS:
            replace_layer(clone, name, STACKERS[kind](layer))
    for layers in plain_sequences(clone):
        _fuse(layers)
    return clone


def _fuse(layers: nn.Sequential) -> None:
    """Let a layer compute what stands before or after it: a ReLU, max-pooling, dropout.

    The first convolution is computed by the second one, so that the gradient of what is between
    them, the largest array of a step, need not be written.
    """
    for i in range(len(layers) - 1):
        before, layer, after = layers[i - 1] if i else None, layers[i], layers[i + 1]
        follower = layers[i + 2] if i + 2 < len(layers) else None
        if type(layer) is nn.ReLU and type(after) is nn.MaxPool2d and _halves(after):
            first = not isinstance(follower, StackedConv2d)
            layers[i] = layers[i + 1] = nn.Identity()
            if isinstance(before, StackedConv2d):
                before.pool_first = first
            else:
                layers[i + 1] = ReluMaxPool(first)
        elif type(layer) is nn.ReLU and isinstance(after, StackedConv2d):
            if isinstance(before, StackedConv2d):
                before.relu_after = after.relu_before = True
                layers[i] = nn.Identity()
                if i == 1:
                    before.passes_on, after.earlier = True, (before,)
        elif isinstance(layer, StackedDropout):
            flat = type(after) is nn.Flatten and (after.start_dim, after.end_dim) == (1, -1)
            linear = follower if flat else after
            if isinstance(linear, StackedLinear):
                linear.dropout, layers[i] = layer, nn.Identity()


def _halves(pool: nn.MaxPool2d) -> bool:
    plain = not pool.ceil_mode and not pool.return_indices
    sizes = ((pool.kernel_size, 2), (pool.stride, 2), (pool.padding, 0), (pool.dilation, 1))
    return plain and all(size in (side, (side, side), [side, side]) for size, side in sizes)
