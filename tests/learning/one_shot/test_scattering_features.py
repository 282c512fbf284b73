"""The features: an isometry of compressed coefficients, cut to low frequencies."""

from __future__ import annotations

import pytest
import torch

from carvyfl.learning.one_shot import scattering_features as features
from carvyfl.learning.one_shot.scattering import scattering
from carvyfl.learning.one_shot.scattering_features import feature_width, scattering_features


def random_images(*shape: int) -> torch.Tensor:
    return torch.rand(shape, generator=torch.Generator().manual_seed(5))


@pytest.mark.parametrize(
    ("shape", "width"), [((1, 28, 28), 1000), ((3, 28, 28), 3000), ((1, 9, 20), 687)]
)
def test_the_width_is_fixed_by_the_shape(shape, width):
    found = scattering_features(random_images(2, *shape))
    assert found.shape == (2, width)
    assert scattering_features(torch.zeros(0, *shape)).shape == (0, width)
    assert feature_width(*shape) == width


def test_with_every_frequency_kept_angles_are_those_of_the_compressed_coefficients(monkeypatch):
    images = random_images(2, 1, 20, 13)
    coefficients = scattering(torch.nn.functional.pad(images, (2, 2, 2, 2))).double()
    compressed = ((coefficients + 1e-3) ** 0.25 - 1e-3**0.25).flatten(1)
    scaled = 8 * compressed / (compressed.square().sum(1, keepdim=True) + 1).sqrt()
    monkeypatch.setattr(features, "HIGHEST", (100, 100))
    features._axes.cache_clear()
    found = scattering_features(images).double()
    features._axes.cache_clear()
    assert found.shape == compressed.shape
    torch.testing.assert_close(found @ found.T, scaled @ scaled.T, rtol=1e-5, atol=0)


def test_the_features_of_a_bright_image_have_the_stated_length():
    image = random_images(1, 1, 7, 7)
    image = torch.nn.functional.interpolate(image, (28, 28), mode="bilinear")
    length = scattering_features(image).norm()
    assert 7.5 < length < 8


def test_an_image_alone_gives_the_same_features(monkeypatch):
    images = random_images(11, 1, 28, 28)
    images[3:] *= 0  # an empty image is where the root is steepest
    together = scattering_features(images)
    alone = torch.cat([scattering_features(image[None]) for image in images])
    assert torch.equal(alone, together)  # bit for bit: no client reaches another through a batch
    monkeypatch.setattr(features, "_IMAGES", 4)
    assert torch.equal(scattering_features(images), together)


def test_a_black_image_has_no_features():
    assert scattering_features(torch.zeros(1, 1, 28, 28)).abs().max() < 1e-4
