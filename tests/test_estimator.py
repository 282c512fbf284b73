"""What the short face accepts, what it refuses, and that ``carvy predict`` reads inputs alike."""

from __future__ import annotations

import inspect
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.base import clone
from torch import nn

from carvyfl import CarvyError, CarvyFL, Recipe
from carvyfl.cli.predict import read_inputs
from carvyfl.data.clients import Client, Federation, Samples
from carvyfl.data.own_data import federation_from_arrays
from carvyfl.groups.coins import draw_coins
from carvyfl.learning.backends import Cores

QUICKLY: dict[str, Any] = {
    "method": "balanced",
    "groups": 2,
    "training": Recipe(rounds=3, lr=0.5),
    "engine": "loop",
    "workers": 1,
}
LABELS = np.arange(40) % 2


def pictures() -> np.ndarray:
    """Draw rows of five bytes: class 0 is noisy and bright on average, class 1 dark."""
    noise = np.random.default_rng(0).integers(0, 256, (len(LABELS), 5), dtype=np.uint8)
    return np.where(LABELS[:, None] == 0, noise, noise // 8).astype(np.uint8)


PIXELS = pictures()
CLIENTS = [(PIXELS, LABELS)] * 4


@pytest.fixture(scope="module")
def on_bytes() -> CarvyFL:
    return CarvyFL("mlp", **QUICKLY).fit(CLIENTS, num_classes=2)


@pytest.fixture(scope="module")
def on_floats() -> CarvyFL:
    return CarvyFL("mlp", **QUICKLY).fit([(PIXELS / 255, LABELS)] * 4, num_classes=2)


def refusal(call: Callable[..., object], *args: Any, **given: Any) -> str:
    with pytest.raises(CarvyError) as caught:
        call(*args, **given)
    assert "\n" not in str(caught.value)
    return str(caught.value)


# --- inputs -------------------------------------------------------------------------------------

SAME_PIXELS = {
    "int64": PIXELS.astype(np.int64),
    "uint16": PIXELS.astype(np.uint16),
    "list": PIXELS.tolist(),
    "float64": PIXELS / 255,
    "float32": (PIXELS / 255).astype(np.float32),
    "float16": (PIXELS / 255).astype(np.float16),
    "tensor with gradients": torch.tensor(PIXELS / 255, requires_grad=True),
    "list of tensors": [torch.tensor(row, requires_grad=True) for row in PIXELS / 255],
}


@pytest.mark.parametrize("name", SAME_PIXELS)
def test_the_same_pixels_in_another_type_get_the_same_votes(
    on_bytes: CarvyFL, tmp_path: Path, name: str
) -> None:
    pixels = SAME_PIXELS[name]
    expected = on_bytes.models_.votes(PIXELS, Cores(1)).groups
    assert set(expected.flat) == {0, 1}
    assert np.array_equal(on_bytes.votes(pixels).groups, expected)
    assert on_bytes.score(pixels, LABELS) > 0.9
    if isinstance(pixels, np.ndarray):  # files are read by the same rule
        np.save(tmp_path / "x.npy", pixels)
        answer = read_inputs(tmp_path / "x.npy", (5,), "uint8")
        assert answer.dtype == np.uint8
        assert np.array_equal(answer, PIXELS)


def test_models_trained_on_floats_refuse_bytes(on_floats: CarvyFL, tmp_path: Path) -> None:
    """Training took other whole numbers for floats, so prediction does."""
    assert on_floats.score(PIXELS / 255, LABELS) > 0.9
    for ask in (on_floats.predict, on_floats.certify):
        assert "inputs: the models were trained on floats" in refusal(ask, PIXELS)
    np.save(tmp_path / "x.npy", PIXELS)
    words = refusal(read_inputs, tmp_path / "x.npy", (5,), "float32")
    assert "x.npy: the models were trained on floats" in words
    ones = np.ones((3, 5), np.int64)
    assert np.array_equal(on_floats.predict(ones), on_floats.predict(ones.astype(np.float32)))


def test_tensors_of_any_kind_are_trained_on() -> None:
    exact = torch.from_numpy(PIXELS) / 256  # bfloat16 has the eight bits this needs
    plain = CarvyFL("mlp", **QUICKLY).fit([(exact.numpy(), LABELS)] * 4, num_classes=2)
    labels = torch.from_numpy(LABELS)
    for inputs in (exact.bfloat16(), exact.clone().requires_grad_()):
        other = CarvyFL("mlp", **QUICKLY).fit([(inputs, labels)] * 4, num_classes=2)
        assert other.models_.weights.equal(plain.models_.weights)
        assert np.array_equal(other.votes(inputs).groups, plain.votes(exact.numpy()).groups)
        assert other.score(inputs, labels.bfloat16()) == plain.score(exact, LABELS)
    assert "labels: no array can be made of them" in refusal(plain.certify, exact, [[0], [1, 0]])


# --- arguments ----------------------------------------------------------------------------------


BAD_ARGUMENTS: list[tuple[dict[str, Any], str]] = [
    ({"seed": 1.5}, "seed must be a whole number, not 1.5"),
    ({"groups": 2.5}, "groups must be a whole number"),
    ({"groups": 0}, "groups must be a whole number of at least 1"),
    ({"groups": None}, "'balanced' needs the number of groups; set `groups`"),
    (
        {"groups": None, "method": "slots"},
        "'slots' needs the number of groups before any client is heard; set `groups`",
    ),
    ({"workers": 0}, "workers must be a whole number of at least 1"),
    ({"method": None}, "must be a name, not None"),
    ({"training": {"rounds": 3}}, "not dict; write training=Recipe(…)"),
    ({"store": 3}, "store must be a folder's path or None, not 3"),
    ({"progress": "bar"}, "progress must be a function of"),
    ({"model": nn.Linear}, "model must be a name or a torch module, not type"),
    ({"coins": "00" * 32}, "draw_coins()"),
    ({"coins": draw_coins()}, "no method of this run draws random slots"),
]


@pytest.mark.parametrize(
    ("old", "new"), [("num_groups", "groups"), ("grouping", "method"), ("recipe", "training")]
)
def test_older_names_say_what_to_write(old: str, new: str) -> None:
    words = refusal(CarvyFL, **{old: 3})
    assert words.startswith(f"'{old}' is no parameter of CarvyFL")
    assert f"write `{new}`" in words
    assert "'gruops'; did you mean 'groups'" in refusal(CarvyFL, gruops=3)


@pytest.mark.parametrize(("arguments", "words"), BAD_ARGUMENTS, ids=range(len(BAD_ARGUMENTS)))
def test_bad_arguments_are_refused_by_fit(arguments: dict[str, Any], words: str) -> None:
    model = CarvyFL(**{"model": "mlp", **QUICKLY, **arguments})  # accepts all, as scikit-learn asks
    assert words in refusal(model.fit, CLIENTS, num_classes=2)


def test_two_arrays_as_in_scikit_learn_are_refused_with_the_way_out() -> None:
    for labels in (LABELS, LABELS.tolist(), torch.from_numpy(LABELS)):
        words = refusal(CarvyFL("mlp", **QUICKLY).fit, PIXELS, labels)
        assert "client by client" in words
        assert "build_federation" in words


def test_labels_that_start_at_one_are_noticed() -> None:
    with pytest.warns(UserWarning, match="start at 1|nothing is certified") as warned:
        CarvyFL("mlp", **QUICKLY).fit([(PIXELS, LABELS + 1)] * 4)
    assert ["start at 1" in str(one.message) for one in warned] == [False, True]
    with pytest.warns(UserWarning, match="nothing is certified") as warned:
        derived = CarvyFL("mlp", **QUICKLY).fit(CLIENTS)
    assert len(warned) == 1
    assert "4 clients in 2 groups, nothing certified<" in derived._repr_html_()


# --- as an estimator of scikit-learn ------------------------------------------------------------


def test_parameters_are_kept_as_given_and_cloned() -> None:
    types = np.zeros(4, np.int64)
    given: dict[str, Any] = {"model": nn.Linear(5, 2), "types": types, "progress": False}
    given |= {"groups": np.int32(2), "training": Recipe(rounds=2), "workers": 1}
    model = CarvyFL(**given)
    assert all(getattr(model, name) is value for name, value in given.items())
    assert set(model.get_params()) == set(inspect.signature(CarvyFL).parameters)
    copy = clone(model)
    assert copy is not model
    assert copy.training == given["training"]
    assert np.array_equal(copy.types, types)
    fitted = [m.fit(CLIENTS, num_classes=2).models_.weights for m in (model, copy)]
    assert fitted[0].equal(fitted[1])
    assert not hasattr(clone(model), "models_")


def test_set_params_changes_what_fit_does() -> None:
    model = CarvyFL("mlp", **QUICKLY)
    assert model.set_params(groups=3, seed=4) is model
    assert model.fit(CLIENTS, num_classes=2).grouping_.num_groups == 3
    assert "did you mean 'groups'" in refusal(model.set_params, n_groups=3)


def test_a_notebook_shows_what_differs_from_the_defaults(on_bytes: CarvyFL) -> None:
    assert repr(CarvyFL()) == "CarvyFL()"
    assert repr(CarvyFL("mlp", groups=4)) == "CarvyFL('mlp', groups=4)"
    net = nn.Sequential(nn.Linear(2, 2))
    shown = repr(CarvyFL(net, types=np.zeros(3), training=Recipe(lr=0.5)))
    assert shown == "CarvyFL(<Sequential>, types=<ndarray of shape (3,)>, training=Recipe(lr=0.5))"
    assert "not fitted" in CarvyFL("<b>")._repr_html_()
    assert "<b>" not in CarvyFL("<b>")._repr_html_()
    assert "4 clients in 2 groups<" in on_bytes._repr_html_()


def test_progress_is_shown_where_somebody_looks(
    on_bytes: CarvyFL, capsys: pytest.CaptureFixture[str]
) -> None:
    """Here is neither terminal nor notebook, so only True is heard."""
    for progress in (None, False, True):
        model = CarvyFL("mlp", **QUICKLY, progress=progress).fit(CLIENTS, num_classes=2)
        seen = capsys.readouterr()
        assert seen.out == ""
        assert bool(seen.err) == ("100 %" in seen.err) == bool(progress)
        assert model.models_.weights.equal(on_bytes.models_.weights)


def test_a_function_hears_of_training() -> None:
    heard: list[tuple[int, int]] = []
    quickly = QUICKLY | {"method": "carvy", "types": "bias-profile"}
    CarvyFL("mlp", **quickly, progress=lambda *now: heard.append(now)).fit(CLIENTS, num_classes=2)
    done, totals = zip(*heard, strict=True)
    assert len(set(totals)) == 1
    assert list(done) == sorted(done)
    assert done[-1] == totals[0]


def test_importing_the_package_loads_neither_torch_nor_scikit_learn() -> None:
    code = "import carvyfl, sys; assert not {'torch', 'sklearn', 'numpy'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_clients_may_come_from_a_generator(on_bytes: CarvyFL) -> None:
    lazily = CarvyFL("mlp", **QUICKLY).fit((client for client in CLIENTS), num_classes=2)
    assert lazily.models_.weights.equal(on_bytes.models_.weights)


def test_one_client_is_told_that_nothing_is_certified() -> None:
    model = CarvyFL("mlp", **QUICKLY | {"method": "carvy", "groups": None})
    with pytest.warns(UserWarning, match="one client makes one group") as warned:
        model.fit(CLIENTS[:1], num_classes=2)
    assert len(warned) == 1  # not that its profile differs from nobody's
    assert model.certify(PIXELS, LABELS).certified_share(1) == 0


def test_a_module_says_how_many_classes_there_are() -> None:
    model = nn.Linear(5, 3)
    for given in ({}, {"num_classes": 3}):
        fitted = CarvyFL(model, **QUICKLY).fit(CLIENTS, **given)
        assert fitted.federation_.num_classes == 3
        assert fitted.grouping_.basis.honest_only == 1
    words = refusal(CarvyFL(model, **QUICKLY).fit, CLIENTS, num_classes=2)
    assert words.endswith("but gave (2, 3)")


def test_masked_entries_are_no_inputs_to_predict(on_bytes: CarvyFL) -> None:
    masked_inputs, masked_labels = np.ma.masked_less(PIXELS, 9), np.ma.masked_less(LABELS, 1)
    assert "inputs: masked entries have no value" in refusal(on_bytes.predict, masked_inputs)
    assert "labels: masked entries have no v" in refusal(on_bytes.certify, PIXELS, masked_labels)


# --- a federation made by hand --------------------------------------------------------------------

NONE = Samples(PIXELS[:0], LABELS[:0])


def by_hand(labels: Any = LABELS, inputs: Any = PIXELS, **changes: Any) -> Federation:
    """Make a federation of three good clients and one with these labels and inputs."""
    good = Client(Samples(PIXELS, LABELS), NONE)
    clients = (good, good, good, Client(Samples(inputs, labels), NONE))
    return Federation(**{"clients": clients, "num_classes": 2, **changes})


def test_a_federation_made_by_hand_trains_as_it_is() -> None:
    plain = CarvyFL("mlp", **QUICKLY).fit(by_hand(), num_classes=2)
    small = CarvyFL("mlp", **QUICKLY).fit(by_hand(LABELS.astype(np.int8)))
    assert small.models_.weights.equal(plain.models_.weights)
    assert plain.federation_.clients[3].train.inputs is PIXELS  # a check, not a copy
    assert plain.federation_.clients[3].train.labels is LABELS


@pytest.mark.parametrize(
    ("federation", "words"),
    [
        (by_hand(LABELS - 1), "client 3: labels run from -1 to 0"),
        (by_hand(np.where(np.arange(40) < 3, -1, LABELS)), "leave out the 3 samples with labels b"),
        (by_hand(inputs=np.ma.masked_less(PIXELS, 9)), "client 3: inputs: masked"),
        (by_hand(types=np.ma.masked_less([0, 1, 2, 3], 1)), "types: masked entries"),
        (
            by_hand(clients=(Client(Samples(PIXELS, LABELS), Samples(PIXELS, LABELS - 1)),)),
            "client 0 (validation): labels run from -1 to 0",
        ),
        (by_hand(clients=None), "one entry per client, not NoneType"),
        (by_hand(num_classes="2"), "num_classes must be a whole number"),
        (by_hand(std=0), "std above 0"),
    ],
    ids=range(8),
)
def test_what_is_wrong_in_a_federation_made_by_hand_is_said(
    federation: Federation, words: str
) -> None:
    """Arrays and their labels are the subject of tests/data/test_refusals.py."""
    assert words in refusal(CarvyFL("mlp", **QUICKLY).fit, federation)


def test_a_number_of_classes_takes_the_place_of_one_from_the_labels() -> None:
    derived = federation_from_arrays(CLIENTS)
    assert derived.derived
    for number in (2, 3):
        model = CarvyFL("mlp", **QUICKLY).fit(derived, num_classes=number)
        direct = CarvyFL("mlp", **QUICKLY).fit(CLIENTS, num_classes=number)
        assert model.grouping_.basis == direct.grouping_.basis
        assert model.models_.weights.equal(direct.models_.weights)
    words = refusal(CarvyFL("mlp", **QUICKLY).fit, derived, num_classes=1)
    assert "client 0: labels run from 0 to 1, but classes are 0 to" in words


# --- no vote ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("scale", "options"),
    [(1, {"training": Recipe(rounds=1, lr=1e38)}), (1e30, {}), (1e36, {"learner": "one-shot"})],
)
def test_groups_that_are_all_lost_answer_and_certify_nothing(
    scale: float, options: dict[str, Any]
) -> None:
    """Nobody's answer was class 0, and right where the label is."""
    inputs = PIXELS.astype(np.float32) * np.float32(scale)
    model = CarvyFL("mlp", **QUICKLY | {"features": "none"} | options)
    with pytest.warns(UserWarning, match="2 of 2 groups cast no vote .*use a smaller `lr`"):
        model.fit([(inputs, LABELS)] * 4, 2)
    with pytest.raises(CarvyError, match=r"^no group votes on any input: 2 of 2 groups"):
        model.predict(inputs)
    with pytest.warns(UserWarning, match="no group votes on 40 of 40 inputs"):
        certificate = model.certify(inputs, LABELS)
    assert certificate.ca().tolist() == [0]
    assert set(certificate.radius) == {-1}


def test_a_part_of_the_groups_is_lost(on_floats: CarvyFL) -> None:
    bad = np.full_like(PIXELS, 3e38, dtype=np.float32)
    model = CarvyFL("mlp", **QUICKLY | {"groups": 4})
    with pytest.warns(UserWarning, match=r"^1 of 4 groups cast no vote \(1 [a-z ]+\)$"):
        model.fit([(bad, LABELS), *[(PIXELS / 255, LABELS)] * 3], 2)
    assert (model.predict(PIXELS / 255) >= 0).all()


# --- coins --------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:.*groups cast no vote")  # a slot may stay empty
def test_committed_coins_decide_the_groups() -> None:
    """Four clients of one type in four slots: which sits where is in the coins alone."""
    quickly = QUICKLY | {"method": "slots", "groups": 4, "training": Recipe(rounds=1)}
    mine = draw_coins()
    first, again = (
        CarvyFL("mlp", **quickly, coins=mine, types="bias-profile").fit(CLIENTS, 2)
        for _ in range(2)
    )
    assert first.grouping_ == again.grouping_
    assert first.grouping_.coins == mine
    assert "simulated" not in first.grouping_.basis.because
    assert mine.value not in repr(mine) + str(mine)
    simulated = CarvyFL("mlp", **quickly).fit(CLIENTS, 2)
    assert "simulated coins" in simulated.grouping_.basis.because
    drawn = {
        tuple(CarvyFL("mlp", **quickly, coins=draw_coins()).fit(CLIENTS, 2).grouping_.assignment)
        for _ in range(4)
    }
    assert len(drawn) > 1  # all alike: once in 24 ** 3
