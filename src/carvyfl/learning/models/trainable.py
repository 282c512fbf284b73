"""What is asked of a model, and how it is prepared for training."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn

from carvyfl.core.errors import CarvyError, reason
from carvyfl.core.randomness import fold, keep_mask

_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


class KeyedDropout(nn.Module):
    """Dropout whose mask is a function of a key alone, not of earlier draws or the device.

    It stands in for ``nn.Dropout`` while a client trains. ``key``, int64 of shape (), is that of
    this client, round and step; it is set before every step.
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
    layers = {name: m.p for name, m in clone.named_modules() if isinstance(m, nn.Dropout)}
    for number, (name, drop) in enumerate(layers.items()):
        parent, _, child = name.rpartition(".")
        if not name:
            raise CarvyError("the model is a bare Dropout layer; it has nothing to train")
        setattr(clone.get_submodule(parent), child, KeyedDropout(drop, number))
    return clone


def num_outputs(module: nn.Module, example: Tensor) -> int | None:
    """Return how many logits a module gives for prepared inputs; None if it gives none."""
    try:
        with torch.no_grad():
            logits = trainable_copy(module).eval()(example)
    except (RuntimeError, ValueError, IndexError, TypeError):
        return None
    return logits.shape[1] if isinstance(logits, Tensor) and logits.ndim == 2 else None


def check_model(module: nn.Module, example: Tensor, num_classes: int) -> None:
    """Refuse, with the reason, a module that cannot be trained soundly.

    It maps a batch (B, …) to logits (B, C); ``example`` holds two or more prepared inputs, (B, …).
    """
    buffers = [name for name, _ in module.named_buffers()]
    if buffers:
        raise CarvyError(
            f"the model keeps buffers ({', '.join(buffers[:3])}), as BatchNorm does; they are not "
            "supported: use GroupNorm or LayerNorm instead"
        )
    parameters = list(module.parameters())
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
    except (RuntimeError, ValueError, IndexError, TypeError) as error:
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
    """Return the sequences whose layers certainly run one after another.

    A module with a forward of its own may use a part of a sequence by itself, and
    would see that layers were exchanged.
    """
    if type(module) is not nn.Sequential:
        return []
    return [module, *(inner for layer in module for inner in plain_sequences(layer))]
