"""``CarvyFL(learner="private")``: parameters, guarantees in words, and what is refused."""

from __future__ import annotations

import html
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from carvyfl import CarvyFL
from carvyfl.core.errors import CarvyError
from carvyfl.learning.private.map import Map
from carvyfl.learning.private.model import as_private
from carvyfl.runs.config import preset
from support.cli import naive_ca
from support.federations import corners

CLASSES = 4
CLIENTS = [
    (s.inputs, s.labels) for s in (corners(n, 50 + n, (n % 4, (n + 1) % 4)) for n in range(8))
]
TEST = corners(200, 80)
PUBLIC = corners(300, 150).inputs
GIVEN: dict[str, Any] = {
    "learner": "private",
    "epsilon": 20,
    "groups": 4,
    "features": "none",
    "public": PUBLIC,
}


def map_of(model: CarvyFL) -> Map:
    return as_private(model.models_.module).map


@pytest.fixture(scope="module")
def fitted() -> CarvyFL:
    return CarvyFL(**GIVEN).fit(CLIENTS, num_classes=CLASSES)


def test_both_guarantees_come_with_a_certificate(fitted: CarvyFL) -> None:
    certificate = fitted.certify(TEST.inputs, TEST.labels)
    votes = fitted.votes(TEST.inputs)
    curve, area = naive_ca(np.array(votes.groups), TEST.labels, CLASSES)
    assert certificate.ca().tolist() == pytest.approx(curve)
    assert certificate.auc() == pytest.approx(area)
    assert curve[0] > 60
    assert fitted.privacy_ == certificate.privacy
    assert "ε = 20, δ = 1e-05 for one sample added" in certificate.privacy
    assert repr(certificate).endswith("given these groups, private with ε = 20, δ = 1e-05)")
    assert certificate.under("given_groups").privacy == certificate.privacy
    assert str(fitted.privacy_) in html.unescape(fitted._repr_html_())
    assert "fitted: 8 clients in 4 groups" in fitted._repr_html_()


def test_types_come_from_the_message(fitted: CarvyFL) -> None:
    assert fitted.profiles_ is not None
    assert fitted.profiles_.types.method == "private-means"
    assert fitted.get_params()["types"] == "class-means"  # as it was given, by default


def test_parameters_are_kept_as_given_and_shown_short(fitted: CarvyFL) -> None:
    params = fitted.get_params()
    assert params["public"] is PUBLIC
    assert (params["learner"], params["epsilon"], params["delta"]) == ("private", 20, 1e-5)
    shown = repr(fitted)
    assert "\n" not in shown
    assert len(shown) < 300
    for word in ("learner='private'", "epsilon=20", "groups=4", "public="):
        assert word in shown
    again = CarvyFL(**params)
    assert again.get_params() == params
    assert not hasattr(again, "privacy_")


def test_noise_differs_with_every_fit(fitted: CarvyFL) -> None:
    """The seed, which the server knows, decides nothing of it."""
    again = CarvyFL(**GIVEN).fit(CLIENTS, num_classes=CLASSES)
    one, two = (model.models_.weights for model in (fitted, again))
    assert not (one == two).all(dim=1).any()


def test_synthetic_images_are_the_default_and_tables_need_none() -> None:
    features = {"features": "scattering", "public": None}
    images = CarvyFL(**{**GIVEN, **features}).fit(CLIENTS, num_classes=CLASSES)
    assert map_of(images).origin.startswith("synthetic images")
    flat = [(x.reshape(len(x), -1) / np.float32(255), y) for x, y in CLIENTS]
    table = CarvyFL(**{**GIVEN, "public": None}).fit(flat, num_classes=CLASSES)
    assert map_of(table).origin.startswith("nothing")
    assert table.privacy_ == images.privacy_


def test_public_inputs_may_be_a_file(tmp_path: Path, fitted: CarvyFL) -> None:
    np.save(tmp_path / "public.npy", PUBLIC)
    model = CarvyFL(**{**GIVEN, "public": tmp_path / "public.npy"}).fit(
        CLIENTS, num_classes=CLASSES
    )
    maps = [map_of(each).digest for each in (model, fitted)]
    assert maps[0] == maps[1]


def test_a_function_of_ones_own_gives_features() -> None:
    def halves(x: Any) -> Any:
        return x.flatten(1)[:, ::2]

    model = CarvyFL(**{**GIVEN, "features": halves}).fit(CLIENTS, num_classes=CLASSES)
    assert map_of(model).width == 32


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"public": np.concatenate([PUBLIC, CLIENTS[3][0][:1]])}, "of client 3, .* not public"),
        ({"public": CLIENTS[0][0].astype(np.float32) / np.float32(255)}, "of client 0"),
        ({"public": PUBLIC[:, :, 1:]}, r"shape \(150, 1, 7, 8\)"),
        ({"public": "no such data"}, "no such data"),
        ({"epsilon": 0}, "epsilon"),
        ({"epsilon": 1e6}, "nothing is private"),
        ({"epsilon": None}, "epsilon"),
        ({"delta": 1 / 50}, "samples of a client"),
        ({"delta": 0}, "delta"),
        ({"types": "bias-profile"}, "which ε would not cover"),
        ({"learner": "scaffold"}, "'scaffold' send exact numbers"),
        ({"learner": "one-shot"}, "'one-shot' send exact numbers"),
    ],
)
def test_what_makes_no_sense_is_refused_by_fit(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(CarvyError, match=words) as told:
        CarvyFL(**{**GIVEN, **changes}).fit(CLIENTS, num_classes=CLASSES)
    assert "\n" not in str(told.value)


def test_learners_without_noise_say_nothing_of_privacy() -> None:
    model = CarvyFL(learner="one-shot", features="none", groups=4).fit(CLIENTS, num_classes=CLASSES)
    assert model.privacy_ is None
    certificate = model.certify(TEST.inputs, TEST.labels)
    assert certificate.privacy == ""
    assert "private" not in repr(certificate)
    shares = CarvyFL(
        learner="one-shot", features="none", groups=4, types="private-shares", epsilon=9
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # whether chance explains the profiles hangs on the noise
        assert shares.fit(CLIENTS, num_classes=CLASSES).privacy_ is None


def test_the_preset_is_private() -> None:
    chosen = preset("private")
    assert (chosen.learner, chosen.types, chosen.epsilon) == ("private", "private-means", 2.0)
    assert (chosen.delta, chosen.validation, chosen.groups) == (1e-5, 0, None)


def test_classes_that_come_from_labels_are_refused() -> None:
    """One sample of another class would change every model's shape."""
    with pytest.raises(CarvyError, match="needs `num_classes`"):
        CarvyFL(learner="private", features="none", epsilon=4, groups=4).fit(CLIENTS)
