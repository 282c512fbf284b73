"""How well images can be read from their scattering features, by linear regression.

    python -m benchmarks.reconstruction

What one-shot clients send reveals features (docs/concepts/privacy.md). A part of the embedded
training images is known to the attacker; the others are reconstructed from their features.
"""

from __future__ import annotations

import numpy as np
import torch

from carvyfl import load
from carvyfl.learning.one_shot.features import features_for

KNOWN, RECONSTRUCTED, RIDGE = 2800, 1000, 1e-3


def main() -> None:
    """Print the share of the pixels' variance that is recovered, and the median correlation."""
    data = load("embedded")
    order = np.random.default_rng(0).permutation(len(data.train))[: KNOWN + RECONSTRUCTED]
    images = torch.from_numpy(data.train.inputs[order]).float() / 255
    features = features_for("scattering", tuple(images.shape[1:]))
    x, y = features(images).double(), images.flatten(1).double()
    seen, hidden = slice(0, KNOWN), slice(KNOWN, None)
    mean_x, mean_y = x[seen].mean(dim=0), y[seen].mean(dim=0)
    centred = x[seen] - mean_x
    gram = centred.T @ centred
    gram += RIDGE * gram.trace() / len(gram) * torch.eye(len(gram))
    weights = torch.linalg.solve(gram, centred.T @ (y[seen] - mean_y))
    found = (x[hidden] - mean_x) @ weights + mean_y
    lost = (found - y[hidden]).square().sum() / (y[hidden] - mean_y).square().sum()
    pairs = [torch.stack(pair) for pair in zip(found, y[hidden], strict=True)]
    correlations = [float(torch.corrcoef(pair)[0, 1]) for pair in pairs]
    print(
        f"{RECONSTRUCTED} images from {KNOWN} others: {100 * (1 - float(lost)):.0f} % of the "
        f"variance of the pixels, median correlation {np.median(correlations):.2f}"
    )


if __name__ == "__main__":
    main()
