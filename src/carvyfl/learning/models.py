"""Models: the built-in ones, what is asked of a user's own, and weights as one flat vector.

A flat vector is float32 of shape (P,), the parameters in the module's own order (the paper's
vec(·)): the SCAFFOLD arithmetic is the same for one client, for stacked clients and over a network.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn

from carvyfl.core.checks import returned
from carvyfl.core.errors import CarvyError, reason
from carvyfl.core.randomness import derive, fold, keep_mask
from carvyfl.core.registry import Registry

Shape = tuple[int, ...]
# Inputs in a batch of :func:`output_inputs`; on a device, of inputs of few numbers, more
AT_ONCE, AT_ONCE_ON_DEVICE, SMALL = 256, 1024, 4096
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
_CALL_ERRORS = (RuntimeError, ValueError, IndexError, TypeError)


def compact_cnn(shape: Shape, num_classes: int) -> nn.Module:
    """Build the paper's compact CNN: two 3×3 convolutions, max-pool, dropout, linear.

    For 1×28×28 inputs and 10 classes it has P = 110,986 weights.
    """
    _check_images("compact-cnn", shape, 6)
    channels, height, width = shape
    return nn.Sequential(
        nn.Conv2d(channels, 32, 3),
        nn.ReLU(),
        nn.Conv2d(32, 64, 3),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Dropout(0.25),
        nn.Flatten(),
        nn.Linear(64 * ((height - 4) // 2) * ((width - 4) // 2), num_classes),
    )


def _check_images(model: str, shape: Shape, least: int) -> None:
    if len(shape) == 3 and min(shape[1:]) >= least:
        return
    if len(shape) == 2 and min(shape) >= least:
        advice = "add the channel axis, as x[:, None] does"
    elif len(shape) == 3 and shape[2] in (1, 3, 4) and min(shape[:2]) >= least:
        advice = "move the channels to the front, as np.moveaxis(x, -1, 1) does"
    else:
        advice = "use the model 'mlp' or one of your own"
    raise CarvyError(
        f"{model} needs images (channels, height, width) of at least {least}×{least}, "
        f"not inputs of shape {shape}; {advice}"
    )


def mlp(shape: Shape, num_classes: int) -> nn.Module:
    """Build one hidden layer of 128: far cheaper than the CNN, for quick runs."""
    return nn.Sequential(
        nn.Flatten(), nn.Linear(math.prod(shape), 128), nn.ReLU(), nn.Linear(128, num_classes)
    )


class _Residual(nn.Module):
    """Two 3×3 convolutions with GroupNorm around a shortcut; the first may halve the image."""

    def __init__(self, channels: int, width: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(channels, width, 3, stride, 1, bias=False),
            nn.GroupNorm(8, width),
            nn.ReLU(),
            nn.Conv2d(width, width, 3, 1, 1, bias=False),
            nn.GroupNorm(8, width),
        )
        alike = stride == 1 and channels == width
        self.shortcut = (
            nn.Identity() if alike else nn.Conv2d(channels, width, 1, stride, bias=False)
        )

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.body(x) + self.shortcut(x))


def resnet(shape: Shape, num_classes: int) -> nn.Module:
    """Build a small ResNet of three stages with GroupNorm, for colour images such as 3×32×32."""
    _check_images("resnet", shape, 8)
    return nn.Sequential(
        nn.Conv2d(shape[0], 16, 3, padding=1, bias=False),
        nn.GroupNorm(8, 16),
        nn.ReLU(),
        _Residual(16, 16, 1),
        _Residual(16, 32, 2),
        _Residual(32, 64, 2),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(64, num_classes),
    )


@dataclass(frozen=True)
class Architecture:
    """A model that can be named; ``build``: (shape of one input, number of classes) → module."""

    name: str
    help: str
    build: Callable[[Shape, int], nn.Module]


# Every registered model
MODELS: Registry[Architecture] = Registry(
    "model",
    "carvyfl.models",
    [
        Architecture("compact-cnn", "the paper's: two convolutions, 110,986 weights", compact_cnn),
        Architecture("mlp", "one hidden layer of 128: quick", mlp),
        Architecture("resnet", "a small ResNet with GroupNorm, for colour images", resnet),
    ],
)


def build_model(name: str, shape: Shape, num_classes: int, seed: int) -> nn.Module:
    """Build a registered model with initial weights w⁰ that depend on the seed alone."""
    architecture = MODELS.pick(name)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(derive(seed, "initial weights"))
        built = architecture.build(shape, num_classes)
    return returned(built, nn.Module, f"model '{name}'")


class KeyedDropout(nn.Module):
    """Dropout whose mask is a function of ``key`` alone, an int64 set before every step."""

    key: Tensor

    def __init__(self, drop: float, layer: int) -> None:
        super().__init__()
        self.drop, self.layer = drop, layer

    def forward(self, x: Tensor) -> Tensor:
        """Zero a share ``drop`` of the elements and scale up the rest."""
        if not self.training or self.drop == 0:
            return x
        mask = keep_mask(fold(self.key, self.layer), x.numel(), self.drop)
        # As bytes: PyTorch converts booleans three times as slowly.
        return x * mask.view(x.shape).view(torch.uint8).to(x.dtype).mul_(1 / (1 - self.drop))


def replace_layer(module: nn.Module, name: str, layer: nn.Module) -> None:
    """Put a layer in the place of a module's layer of that name."""
    parent, _, child = name.rpartition(".")
    setattr(module.get_submodule(parent), child, layer)


def trainable_copy(module: nn.Module) -> nn.Module:
    """Return a copy of a checked module, its dropout layers replaced by keyed ones."""
    if isinstance(module, nn.Dropout):
        raise CarvyError("the model is a bare Dropout layer; it has nothing to train")
    clone = copy.deepcopy(module)
    layers = {name: m.p for name, m in clone.named_modules() if isinstance(m, nn.Dropout)}
    for number, (name, drop) in enumerate(layers.items()):
        replace_layer(clone, name, KeyedDropout(drop, number))
    return clone


def num_outputs(module: nn.Module, example: Tensor) -> int | None:
    """Return how many logits a module gives for prepared inputs; None if it gives none."""
    try:
        with torch.no_grad():
            logits = trainable_copy(module).eval()(example)
    except _CALL_ERRORS:
        return None
    return logits.shape[1] if isinstance(logits, Tensor) and logits.ndim == 2 else None


def check_model(module: nn.Module, example: Tensor, num_classes: int) -> None:
    """Refuse, with the reason, a module that cannot be trained soundly.

    It maps a batch (B, …) to logits (B, C); ``example`` holds two or more prepared inputs, (B, …).
    """
    buffers, parameters = [name for name, _ in module.named_buffers()], list(module.parameters())
    if buffers:
        why = f"keeps buffers ({', '.join(buffers[:3])}), as BatchNorm does; they are not supported"
        raise CarvyError(f"the model {why}: use GroupNorm or LayerNorm instead")
    if not parameters:
        raise CarvyError("the model has no parameters to train")
    if any(p.dtype != torch.float32 for p in parameters):
        raise CarvyError("the model's parameters must be float32; call .float() on it first")
    if any(not p.requires_grad for p in parameters):
        raise CarvyError("the model has frozen parameters; every parameter must require a gradient")
    for name, layer in module.named_modules():
        if any(getattr(layer, hooks) for hooks in _HOOKS):
            raise CarvyError(
                f"the model's layer '{name}' has hooks, which engines that rewrite layers would "
                "lose; put what they do into a forward method"
            )
        kind = type(layer)
        draws = "Dropout" in kind.__name__ or isinstance(layer, nn.RReLU)
        if kind.__module__.startswith("torch.nn") and draws and not isinstance(layer, nn.Dropout):
            raise CarvyError(f"the model's layer '{name}' draws its own randomness; use nn.Dropout")
    trial = trainable_copy(module).train()
    for layer in trial.modules():
        if isinstance(layer, KeyedDropout):
            layer.key = torch.tensor(0)
    before = torch.get_rng_state()
    try:
        logits = trial(example)
    except _CALL_ERRORS as error:
        raise CarvyError(
            f"the model does not accept inputs of shape {tuple(example.shape)}: {reason(error)}"
        ) from error
    if not isinstance(logits, Tensor) or logits.shape != (len(example), num_classes):
        shape = tuple(logits.shape) if isinstance(logits, Tensor) else type(logits).__name__
        raise CarvyError(
            f"the model must give logits of shape {(len(example), num_classes)} "
            f"for {num_classes} classes, but gave {shape}"
        )
    if not torch.equal(before, torch.get_rng_state()):
        torch.set_rng_state(before)
        raise CarvyError(
            "the model draws random numbers of its own (functional.dropout?); groups would no "
            "longer be independent: use nn.Dropout layers"
        )


def plain_sequences(module: nn.Module) -> list[nn.Sequential]:
    """Return the sequences whose layers certainly run in order: another ``forward`` may not."""
    if type(module) is not nn.Sequential:
        return []
    return [module, *(inner for layer in module for inner in plain_sequences(layer))]


def flat_weights(module: nn.Module) -> Tensor:
    """Return a copy of all parameters as one float32 vector of shape (P,)."""
    return torch.cat([p.detach().reshape(-1) for p in module.parameters()])


def num_weights(module: nn.Module) -> int:
    """Return P, the number of weights."""
    return sum(parameter.numel() for parameter in module.parameters())


def set_weights(module: nn.Module, weights: Tensor) -> None:
    """Copy a flat vector of shape (P,) into the module's parameters."""
    with torch.no_grad():
        torch.nn.utils.vector_to_parameters(weights, module.parameters())


def weight_slices(module: nn.Module) -> dict[str, slice]:
    """Return where every parameter sits in the flat vector, by name."""
    places, start = {}, 0
    for name, parameter in module.named_parameters():
        places[name] = slice(start, start + parameter.numel())
        start += parameter.numel()
    return places


def output_slices(module: nn.Module, num_classes: int) -> tuple[slice, slice | None] | None:
    """Find weight (C × features) and bias (C) of the output layer in the flat vector.

    That is the last ``Linear`` with C outputs; None if there is none, or for a missing bias.
    """
    output = _output_layer(module, num_classes)
    if output is None:
        return None
    places, prefix = weight_slices(module), f"{output}." if output else ""
    return places[f"{prefix}weight"], places.get(f"{prefix}bias")


def output_inputs(
    module: nn.Module, num_classes: int, device: str | None = None
) -> Callable[[Tensor], Tensor]:
    """Return the map from prepared inputs to what enters the output layer, dropout off.

    It maps (n, …) to float32 of shape (n, features), for a module with :func:`output_slices`. The
    last bits of a product depend on the rows beside it, so one call should have the inputs of one
    client only. On a device n is rounded up to one of few sizes: kernels are chosen once for each.
    """
    name = _output_layer(module, num_classes)
    assert name is not None
    clone = copy.deepcopy(module).eval().to(device or "cpu")
    entered: list[Tensor] = []

    def note(layer: nn.Module, entering: tuple[Tensor, ...]) -> None:
        entered.append(entering[0].detach().float().flatten(1))

    clone.get_submodule(name).register_forward_pre_hook(note)

    def features(inputs: Tensor) -> Tensor:
        x, at_once = inputs, AT_ONCE
        if device is not None:
            most = AT_ONCE_ON_DEVICE if inputs[:1].numel() <= SMALL else AT_ONCE
            at_once = min(most, 1 << (len(x) - 1).bit_length())
            x = torch.cat([x.to(device), x.new_zeros(-len(x) % at_once, *x.shape[1:])])
        entered.clear()
        with torch.no_grad():
            for batch in torch.split(x, at_once):
                clone(batch)
        return torch.cat(entered)[: len(inputs)]

    return features


def _output_layer(module: nn.Module, num_classes: int) -> str | None:
    layers: list[tuple[str, nn.Module]] = list(module.named_modules())
    for name, layer in reversed(layers):
        if isinstance(layer, nn.Linear) and layer.out_features == num_classes:
            return name
    return None


def parameter_gradients(
    logits: Tensor, gradient: Tensor, parameters: Sequence[Tensor]
) -> tuple[Tensor, ...]:
    """Return the gradients of parameters, given that of the logits; zero where none depends."""
    apply = cast("Callable[..., Tensor]", _Loss.apply)
    return torch.autograd.grad(apply(logits, gradient), parameters, materialize_grads=True)


class _Loss(torch.autograd.Function):
    """A loss without a value: given a gradient, ``autograd.grad`` would import SymPy first."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, gradient: Tensor) -> Tensor:
        ctx.save_for_backward(gradient)
        return logits.new_zeros(())

    @staticmethod
    def backward(ctx: Any, one: Tensor) -> tuple[Tensor, None]:
        return ctx.saved_tensors[0], None
