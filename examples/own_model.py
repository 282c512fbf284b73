"""Bring your own model: any ``torch.nn.Module`` that maps a batch to logits.

Run it with ``python examples/own_model.py``; it takes a few seconds.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from carvyfl import CarvyFL, Certificate, Recipe
from carvyfl.data.datasets import load
from carvyfl.data.partitions import build_federation


class SmallNet(nn.Module):
    """A small convolutional network with GroupNorm and dropout.

    BatchNorm would be refused: its running statistics are buffers, which are not
    averaged. GroupNorm and LayerNorm keep none.
    """

    def __init__(self, num_classes: int) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, 16, kernel_size=5, stride=3),
            nn.GroupNorm(4, 16),
            nn.ReLU(),
            nn.Flatten(),
            nn.Dropout(0.1),
        )
        self.head = nn.Linear(16 * 8 * 8, num_classes)

    def forward(self, images: Tensor) -> Tensor:
        """Return logits of shape (batch, classes)."""
        logits: Tensor = self.head(self.features(images))
        return logits


def main() -> tuple[CarvyFL, Certificate]:
    """Train the network on 20 simulated clients and certify it on 500 test images."""
    data = load("embedded")
    federation = build_federation(data, "class-disjoint", num_clients=20, samples=100, seed=0)

    torch.manual_seed(0)  # the weights the module has now are where every group starts
    ensemble = CarvyFL(SmallNet(data.num_classes), training=Recipe(rounds=10, lr=0.05))
    ensemble.fit(federation)

    certificate = ensemble.certify(data.test.inputs[:500], data.test.labels[:500])
    print(ensemble.grouping_)
    for m, percent in enumerate(certificate.ca()):
        print(f"{m} malicious clients: at least {percent:.1f} % stay right")
    return ensemble, certificate


if __name__ == "__main__":
    main()
