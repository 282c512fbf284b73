"""The scattering transform: kymatio's numbers, and what must hold of any such transform.

``kymatio-0.3.0.npz`` holds, for three sizes, two images of random bytes (NumPy's
``default_rng(0).integers(0, 256)``) and what kymatio 0.3.0's PyTorch front end,
``Scattering2D(J=2, shape=(H, W), L=8)``, returns for those bytes over 255. It imports with a
current SciPy once ``scipy.special.sph_harm``, which only its 3-D transform uses, has a stand-in.
"""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from carvyfl.core.errors import CarvyError
from carvyfl.learning.one_shot import scattering as features
from carvyfl.learning.one_shot.features import features_for
from carvyfl.learning.one_shot.scattering import (
    ANGLES,
    PATHS,
    feature_width,
    scattering,
    scattering_features,
)

KYMATIO = np.load(Path(__file__).with_name("kymatio-0.3.0.npz"))
SIZES = sorted({name.split()[0] for name in KYMATIO.files})


def random_images(*shape: int) -> Tensor:
    return torch.rand(shape, generator=torch.Generator().manual_seed(3))


@pytest.mark.parametrize("size", SIZES)
def test_equals_kymatio(size: str):
    images = torch.from_numpy(KYMATIO[f"{size} images"].astype(np.float32) / 255)
    expected = torch.from_numpy(KYMATIO[f"{size} coefficients"])
    torch.testing.assert_close(scattering(images), expected, rtol=0, atol=2e-6)


def test_first_order_is_a_convolution_in_space():
    """One path by hand: the wavelet and the Gaussian as formulas, the sums written out."""
    angle = 2  # turned by π/8
    image = random_images(1, 1, 32, 32)
    padded = np.pad(image[0, 0].double().numpy(), 4, mode="reflect")
    turn, reach = np.pi * (ANGLES // 2 - 1 - angle) / ANGLES, 19
    y, x = np.mgrid[-reach : reach + 1, -reach : reach + 1]
    along = y * np.cos(turn) + x * np.sin(turn)
    aside = x * np.cos(turn) - y * np.sin(turn)
    bell = np.exp(-(along**2 + aside**2 / 4) / (2 * 0.8**2))
    wave = np.exp(3j / 4 * np.pi * along)
    wavelet = bell * (wave - (bell * wave).sum() / bell.sum()) / (4 * np.pi * 0.8**2)
    gaussian = np.exp(-(y**2 + x**2) / (2 * 1.6**2)) / (2 * np.pi * 1.6**2)
    modulus = np.abs(circular(padded, wavelet, 1))
    expected = circular(modulus, gaussian, 4)[1:-1, 1:-1].real
    actual = scattering(image)[0, 0, 1 + angle].numpy()
    np.testing.assert_allclose(actual, expected, rtol=1e-4)  # kymatio takes 3.1415 for π, twice


def circular(signal: np.ndarray, kernel: np.ndarray, step: int) -> np.ndarray:
    """Convolve circularly, sum by sum, and read every ``step``-th pixel."""
    reach = len(kernel) // 2
    around = np.pad(signal, reach, mode="wrap")
    windows = np.lib.stride_tricks.sliding_window_view(around, kernel.shape)[::step, ::step]
    return np.einsum("abij,ij->ab", windows, kernel[::-1, ::-1])


def test_an_image_alone_gives_the_same_numbers():
    images = random_images(21, 3, 20, 15)
    together = scattering(images)
    assert together.shape == (21, 3, PATHS, 5, 3)
    alone = torch.cat([scattering(image[None]) for image in images])
    torch.testing.assert_close(alone, together, rtol=0, atol=1e-6)


@pytest.mark.parametrize("shape", [(2, 28, 28), (2, 1, 7, 28)])
def test_refuses_what_is_no_batch_of_images(shape):
    with pytest.raises(CarvyError, match="of at least 8×8"):
        scattering(torch.zeros(shape))


# --- features: an isometry of compressed coefficients, cut to low frequencies


@pytest.mark.parametrize(
    ("shape", "width"), [((1, 28, 28), 1000), ((3, 28, 28), 3000), ((1, 9, 20), 687)]
)
def test_the_width_is_fixed_by_the_shape(shape, width):
    actual = scattering_features(random_images(2, *shape))
    assert actual.shape == (2, width)
    assert scattering_features(torch.zeros(0, *shape)).shape == (0, width)
    assert feature_width(*shape) == width


def test_the_width_of_a_huge_image_is_known_without_a_large_array():
    """A forged record may name any shape."""
    tracemalloc.start()
    width = feature_width(3, 1600, 4000)
    assert tracemalloc.get_traced_memory()[1] < 10**6
    tracemalloc.stop()
    # Order 0 whole; beyond it as many numbers as an image has whose sides hold all frequencies.
    beyond = feature_width(1, 96, 96) - 25 * 25
    assert width == 3 * (401 * 1001 + beyond)
    with pytest.raises(CarvyError, match="can be used"):
        features_for("scattering", (1, 4000, 4000))


def test_with_every_frequency_kept_angles_are_those_of_the_compressed_coefficients(monkeypatch):
    images = random_images(2, 1, 20, 13)
    coefficients = scattering(torch.nn.functional.pad(images, (2, 2, 2, 2))).double()
    compressed = ((coefficients + 1e-3) ** 0.25 - 1e-3**0.25).flatten(1)
    scaled = 8 * compressed / (compressed.square().sum(1, keepdim=True) + 1).sqrt()
    monkeypatch.setattr(features, "HIGHEST", (100, 100))
    features._axes.cache_clear()
    actual = scattering_features(images).double()
    features._axes.cache_clear()
    assert actual.shape == compressed.shape
    torch.testing.assert_close(actual @ actual.T, scaled @ scaled.T, rtol=1e-5, atol=0)


def test_an_image_alone_gives_the_same_features(monkeypatch):
    images = random_images(11, 1, 28, 28)
    images[3:] *= 0  # an empty image is where the root is steepest
    together = scattering_features(images)
    alone = torch.cat([scattering_features(image[None]) for image in images])
    assert torch.equal(alone, together)  # bit for bit: no client reaches another through a batch
    monkeypatch.setattr(features, "_IMAGES", 4)
    assert torch.equal(scattering_features(images), together)
