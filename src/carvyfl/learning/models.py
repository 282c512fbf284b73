"""Models: the registry of built-in ones, and what is asked of a user's own.

Everywhere downstream a model's weights are one flat float32 vector of length P,
the parameters in the module's own order (the paper's vec(·)). Messages, control
variates and checksums then need no names, and the SCAFFOLD arithmetic is the
same for one client, for stacked clients and over a network.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

from carvyfl.core.errors import CarvyError
from carvyfl.core.randomness import derive, fold, keep_mask
from carvyfl.core.registry import pick

Shape = tuple[int, ...]


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
    """Refuse inputs that are no images of at least ``least`` × ``least``, and say what to do."""
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
        self.shortcut = (
            nn.Identity()
            if stride == 1 and channels == width
            else nn.Conv2d(channels, width, 1, stride, bias=False)
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


MODELS: dict[str, Callable[[Shape, int], nn.Module]] = {
    "compact-cnn": compact_cnn,
    "mlp": mlp,
    "resnet": resnet,
}


def build_model(name: str, shape: Shape, num_classes: int, seed: int) -> nn.Module:
    """Build a registered model with initial weights w⁰ that depend on the seed alone.

    Parameters
    ----------
    name
        A name in :data:`MODELS`.
    shape
        Shape of one input.
    num_classes
        C, the number of logits.
    seed
        The run's seed.
    """
    builder = pick(MODELS, name, "model")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(derive(seed, "initial weights"))
        return builder(shape, num_classes)


class KeyedDropout(nn.Module):
    """Dropout whose mask is a function of a key, and of the key alone.

    It stands in for ``nn.Dropout`` while a client trains, so that the mask does
    not depend on what was drawn before or on which device.

    Attributes
    ----------
    key
        int64 of shape (), the key of this client, round and step; set before
        every step by whoever trains.
    """

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
        kept = mask.view(x.shape).view(torch.uint8).to(x.dtype)
        return x * kept.mul_(1 / (1 - self.drop))


def trainable_copy(module: nn.Module) -> nn.Module:
    """Return a copy of a checked module, its dropout layers replaced by keyed ones."""
    clone = copy.deepcopy(module)
    layers = [name for name, layer in clone.named_modules() if isinstance(layer, nn.Dropout)]
    for number, name in enumerate(layers):
        parent, _, child = name.rpartition(".")
        old = clone.get_submodule(name)
        assert isinstance(old, nn.Dropout)
        if not name:
            raise CarvyError("the model is a bare Dropout layer; it has nothing to train")
        setattr(clone.get_submodule(parent), child, KeyedDropout(old.p, number))
    return clone


def check_model(module: nn.Module, example: Tensor, num_classes: int) -> None:
    """Refuse, with the reason, a module that cannot be trained soundly.

    Parameters
    ----------
    module
        The user's module: a batch (B, …) in, logits (B, C) out.
    example
        Two or more prepared inputs, shape (B, …).
    num_classes
        C, the number of logits expected.
    """
    buffers = [name for name, _ in module.named_buffers()]
    if buffers:
        raise CarvyError(
            f"the model keeps buffers ({', '.join(buffers[:3])}), as BatchNorm does; they are not "
            "supported: use GroupNorm or LayerNorm instead"
        )
    hooked = [name for name, layer in module.named_modules() if _has_hooks(layer)]
    if hooked:
        raise CarvyError(
            f"the model's layer '{hooked[0]}' has hooks, which engines that rewrite layers would "
            "lose; put what they do into a forward method"
        )
    parameters = list(module.parameters())
    if not parameters:
        raise CarvyError("the model has no parameters to train")
    if any(p.dtype != torch.float32 for p in parameters):
        raise CarvyError("the model's parameters must be float32; call .float() on it first")
    if any(not p.requires_grad for p in parameters):
        raise CarvyError("the model has frozen parameters; every parameter must require a gradient")
    random = [
        name
        for name, layer in module.named_modules()
        if type(layer).__module__.startswith("torch.nn")
        and ("Dropout" in type(layer).__name__ or isinstance(layer, nn.RReLU))
        and not isinstance(layer, nn.Dropout)
    ]
    if random:
        raise CarvyError(
            f"the model's layer '{random[0]}' draws its own randomness; use nn.Dropout"
        )
    trial = trainable_copy(module).train()
    for layer in trial.modules():
        if isinstance(layer, KeyedDropout):
            layer.key = torch.tensor(0)
    before = torch.get_rng_state()
    try:
        logits = trial(example)
    except (RuntimeError, ValueError, IndexError, TypeError) as error:
        reason = str(error).strip().splitlines()[0]
        raise CarvyError(
            f"the model does not accept inputs of shape {tuple(example.shape)}: {reason}"
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


def _has_hooks(layer: nn.Module) -> bool:
    return bool(
        layer._forward_hooks
        or layer._forward_pre_hooks
        or layer._backward_hooks
        or layer._backward_pre_hooks
    )


def called_whole(module: nn.Module) -> list[nn.Sequential]:
    """Return the sequences whose layers certainly run one after another.

    A module with a forward of its own may use a part of a sequence by itself, and
    would see that layers were exchanged.
    """
    if type(module) is not nn.Sequential:
        return []
    return [module, *(inner for layer in module for inner in called_whole(layer))]


def flat_weights(module: nn.Module) -> Tensor:
    """Return a copy of all parameters as one float32 vector of shape (P,)."""
    return torch.cat([p.detach().reshape(-1) for p in module.parameters()]).clone()


def set_weights(module: nn.Module, weights: Tensor) -> None:
    """Copy a flat vector of shape (P,) into the module's parameters."""
    with torch.no_grad():
        torch.nn.utils.vector_to_parameters(weights, module.parameters())


def output_slices(module: nn.Module, num_classes: int) -> tuple[slice, slice | None] | None:
    """Find the output layer in the flat vector.

    Returns
    -------
    tuple or None
        Where the weight (C × features) and the bias (C) of the last ``Linear``
        with C outputs sit; the bias is None if it has none. None if there is no
        such layer.
    """
    start, where = 0, {}
    for name, parameter in module.named_parameters():
        where[name] = slice(start, start + parameter.numel())
        start += parameter.numel()
    for name, layer in reversed(list(module.named_modules())):
        if isinstance(layer, nn.Linear) and layer.out_features == num_classes:
            prefix = f"{name}." if name else ""
            return where[f"{prefix}weight"], where.get(f"{prefix}bias")
    return None
