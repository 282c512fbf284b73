"""A stacked model ready to compute: gradients and logits of many clients at once."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.func import functional_call

from carvyfl.core.errors import CarvyError
from carvyfl.core.randomness import fold
from carvyfl.core.registry import pick
from carvyfl.learning.models.trainable import trainable_copy
from carvyfl.learning.models.weights import flat_weights
from carvyfl.learning.scaffold.backward import parameter_gradients
from carvyfl.learning.scaffold.batched.layers import StackedDropout, stacked
from carvyfl.learning.scaffold.batched.ops import loss_gradient, scaled

PRECISIONS: dict[str, torch.dtype] = {
    "fp32": torch.float32,
    "tf32": torch.float32,
    "bf16": torch.bfloat16,
}
"""What activations and products are computed in; sums of products, weights and control variates are
float32."""

Views = dict[str, Tensor]


class StackedNet:
    """One architecture, as many sets of weights as are passed in.

    ``to_vote`` lets the kernels multiply float32 to some 4e-6 of the result, in half of the time:
    less than logits on a CPU and on a GPU differ by anyway.
    """

    def __init__(
        self, module: nn.Module, device: torch.device, precision: str, *, to_vote: bool = False
    ) -> None:
        self.dtype = pick(PRECISIONS, precision, "precision")
        self.device = device
        self.module = stacked(module).to(device)
        self._shapes = {name: p.shape for name, p in module.named_parameters()}
        self._dropouts = {
            f"{name}.key" if name else "key": layer.layer
            for name, layer in self.module.named_modules()
            if isinstance(layer, StackedDropout)
        }
        self._tf32, self._to_vote = precision == "tf32", to_vote
        self._plain, self._sound = module, False

    def views(self, weights: Tensor) -> Views:
        """Look at flat weights (n, P) as the parameters (n, …) they hold."""
        found, start = {}, 0
        for name, shape in self._shapes.items():
            stop = start + shape.numel()
            found[name] = weights[:, start:stop].view(len(weights), *shape)
            start = stop
        return found

    def gradient(
        self,
        views: Views,
        keys: Tensor,
        x: Tensor,
        labels: Tensor,
        mask: Tensor,
    ) -> Views:
        """Return every client's gradient of its own mean cross-entropy, by parameter, (n, …).

        ``keys``, int64 of shape (L, n), are the :meth:`dropout_keys` of this step. A batch of each
        client has prepared inputs (n, B, …), labels and mask (n, B); samples with mask 0 do not
        count.
        """
        self.module.train()
        leaves = {name: view.detach().requires_grad_() for name, view in views.items()}
        keyed = dict(zip(self._dropouts, keys, strict=True))
        logits = self._forward({**leaves, **keyed}, x)
        # The clients' losses share no parameter: the gradient of the sum is each one's own.
        own = loss_gradient(logits.detach(), labels, mask)
        gradients = parameter_gradients(logits, own, list(leaves.values()))
        return {name: own.detach() for name, own in zip(leaves, gradients, strict=True)}

    def dropout_keys(self, keys: Tensor) -> Tensor:
        """Derive the keys of the L dropout layers from those of steps, (…) → (L, …)."""
        folded = [fold(keys, layer) for layer in self._dropouts.values()]
        return torch.stack(folded) if folded else keys.new_empty((0, *keys.shape))

    @torch.no_grad()
    def logits(self, views: Views, inputs: Tensor, scale: Tensor) -> Tensor:
        """Return the logits of a batch of each client, (n, B, C), dropout off.

        ``scale``, (n, 2), holds mean and std of each client's inputs.
        """
        self.module.eval()
        return self._forward(views, scaled(inputs, scale, self.dtype)).float()

    def _forward(self, views: Views, x: Tensor) -> Tensor:
        if not self._sound:
            self._sound = True
            check_stacking(self._plain, x.shape[2:])
        if self.device.type == "cuda":  # another net may have set it otherwise since
            from carvyfl.learning.scaffold.batched.kernels import blocks

            torch.backends.cuda.matmul.allow_tf32 = self._tf32
            exact = blocks.NEARLY_EXACT if self._to_vote else blocks.EXACT
            blocks.multiply_by("tf32" if self._tf32 else exact)
        logits: Tensor = functional_call(self.module, views, (x.flatten(0, 1),))
        return logits.view(*x.shape[:2], -1)


def check_stacking(module: nn.Module, shape: torch.Size) -> None:
    """Refuse a module whose copies, stacked, do not compute what each computes alone.

    Layers are stacked along the first axis, that of the samples. A module that mixes samples
    (by their mean, say), or moves that axis, would mix clients; it is found out by trying two
    clients with different weights on random inputs of a shape.
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
        expected = torch.stack(
            [
                functional_call(alone, {name: view[i] for name, view in views.items()}, (own,))
                for i, own in enumerate(inputs)
            ]
        )
    try:
        found = twins.logits(views, inputs, scale)
        same = bool((found - expected).abs().max() <= 1e-3 * expected.abs().max())
    except RuntimeError:  # shapes that do not fit when clients are stacked
        same = False
    if not same:
        raise CarvyError(
            "the batched engine cannot stack this model: one sample's logits depend on other "
            "samples of the batch, or the batch is not the first axis throughout; "
            "use `engine='loop'`"
        )
