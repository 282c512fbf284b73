"""A stacked model ready to compute: gradients and logits of many clients at once."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional

from carvyfl.errors import pick
from carvyfl.training.stacked import StackedDropout, stacked

PRECISIONS: dict[str, torch.dtype] = {
    "fp32": torch.float32,
    "tf32": torch.float32,
    "bf16": torch.bfloat16,
}
"""What products are computed in; sums, weights and control variates are float32."""

Views = dict[str, Tensor]


class StackedNet:
    """One architecture, as many sets of weights as are passed in.

    Parameters
    ----------
    module
        The architecture.
    device
        Where to compute.
    precision
        A name in :data:`PRECISIONS`.
    """

    def __init__(self, module: nn.Module, device: torch.device, precision: str) -> None:
        self.dtype = pick(PRECISIONS, precision, "precision")
        self.device = device
        self.module = stacked(module).to(device)
        self._shapes = {name: p.shape for name, p in module.named_parameters()}
        self._keys = [
            f"{name}.key" if name else "key"
            for name, layer in self.module.named_modules()
            if isinstance(layer, StackedDropout)
        ]
        if device.type == "cuda":
            torch.backends.cuda.matmul.allow_tf32 = precision == "tf32"

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
        inputs: Tensor,
        labels: Tensor,
        mask: Tensor,
        scale: Tensor,
    ) -> Views:
        """Return every client's gradient of its own mean cross-entropy, by parameter, (n, …).

        Parameters
        ----------
        views
            The parameters, (n, …) each.
        keys
            int64 of shape (n,), the dropout keys of this step.
        inputs, labels, mask
            A batch of each client, (n, B, …), (n, B) and (n, B); samples with
            mask 0 do not count.
        scale
            (n, 2): mean and std of each client's inputs.
        """
        self.module.train()
        leaves = {name: view.detach().requires_grad_() for name, view in views.items()}
        logits = self._forward({**leaves, **dict.fromkeys(self._keys, keys)}, inputs, scale)
        losses = functional.cross_entropy(
            logits.flatten(0, 1), labels.flatten(), reduction="none"
        ).view(mask.shape)
        # The clients' losses share no parameter: the gradient of the sum is each one's own.
        loss = ((losses * mask).sum(1) / mask.sum(1)).sum()
        gradients = torch.autograd.grad(loss, list(leaves.values()))
        return dict(zip(leaves, gradients, strict=True))

    @torch.no_grad()
    def logits(self, views: Views, inputs: Tensor, scale: Tensor) -> Tensor:
        """Return the logits of a batch of each client, (n, B, C), dropout off."""
        self.module.eval()
        return self._forward(views, inputs, scale)

    def _forward(self, views: Views, inputs: Tensor, scale: Tensor) -> Tensor:
        x = inputs.float() / 255 if inputs.dtype == torch.uint8 else inputs
        spread = (-1, *[1] * (x.ndim - 1))
        x = ((x - scale[:, 0].view(spread)) / scale[:, 1].view(spread)).to(self.dtype)
        logits: Tensor = functional_call(self.module, views, (x.flatten(0, 1),))
        return logits.float().view(inputs.shape[0], inputs.shape[1], -1)
