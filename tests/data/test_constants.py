"""One hostile client for every way in which data can enter: no constant of all groups is its.

What all groups share (the number of classes, mean and standard deviation) must be fixed before any
client is heard. So one client's white pixels, or its label C, change no other group's model by a
bit; or nothing is certified; or that client's data is refused.
"""

from __future__ import annotations

import struct
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from torch import nn

from carvyfl import CarvyError, CarvyFL, Recipe
from carvyfl.data.clients import Client, Federation, Samples
from carvyfl.data.datasets import IDX_FILES, DataSet, data_set, load
from carvyfl.data.own_data import federation_from_arrays, federation_from_indices

Data = tuple[npt.NDArray[Any], npt.NDArray[Any]]
Clients = list[Data]

CLASSES, SIZE, EACH = 10, 8, 20
VILLAIN = 3


def honest() -> Clients:
    """Draw dark pictures of ten classes."""
    rng = np.random.default_rng(1)
    labels = (np.arange(EACH) % CLASSES).astype(np.uint8)
    return [(rng.integers(0, 100, (EACH, 4, 4), dtype=np.uint8), labels) for _ in range(SIZE)]


def white(clients: Clients) -> Clients:
    changed = list(clients)
    changed[VILLAIN] = (np.full_like(clients[VILLAIN][0], 255), clients[VILLAIN][1])
    return changed


def one_label_more(clients: Clients) -> Clients:
    changed, labels = list(clients), clients[VILLAIN][1].copy()
    labels[0] = CLASSES
    changed[VILLAIN] = (clients[VILLAIN][0], labels)
    return changed


# --- the ways in --------------------------------------------------------------------------------


def arrays(clients: Clients) -> dict[str, npt.NDArray[Any]]:
    """Put all clients' samples in one training set; the test set is the operator's."""
    rng = np.random.default_rng(2)
    return {
        "x_train": np.concatenate([x for x, _ in clients]),
        "y_train": np.concatenate([y for _, y in clients]),
        "x_test": rng.integers(0, 100, (30, 4, 4), dtype=np.uint8),
        "y_test": (np.arange(30) % CLASSES).astype(np.uint8),
    }


def parted(dataset: DataSet) -> Federation:
    return federation_from_indices(dataset, list(np.arange(SIZE * EACH).reshape(SIZE, EACH)))


def from_npz(clients: Clients, folder: Path, **constants: Any) -> Federation:
    np.savez(folder / "mine.npz", **arrays(clients))  # type: ignore[arg-type]
    return parted(load(folder / "mine.npz", **constants))


def from_idx(clients: Clients, folder: Path, **constants: Any) -> Federation:
    for name, array in arrays(clients).items():
        head = struct.pack(f">BBBB{array.ndim}I", 0, 0, 8, array.ndim, *array.shape)
        (folder / IDX_FILES[name]).write_bytes(head + array.tobytes())
    return parted(load(folder, **constants))


def by_hand(clients: Clients) -> Federation:
    parts = (Client(Samples(x, y.astype(np.int64)), Samples(x[:0], y[:0])) for x, y in clients)
    return Federation(tuple(parts), CLASSES, 0.25, 0.5)


def ensemble(model: Any = "mlp") -> CarvyFL:
    recipe = Recipe(rounds=2, lr=0.1)
    return CarvyFL(model, method="balanced", groups=4, training=recipe, engine="loop", workers=1)


def module() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(16, CLASSES))


Way = Callable[[Clients, Path], Any]
"""From the clients' data and a folder to what the estimator fits."""
ISOLATED, NOTHING = "isolated", "nothing certified"
BEYOND = f"client {VILLAIN}: labels run from 0 to 10, but classes are 0 to 9"
UNKNOWN = "a training label is 10, but the test labels end at 9"
ONE_MORE: dict[str, Any] = {"num_classes": CLASSES + 1, "mean": 0.2, "std": 0.3}

# how; parameters of `fit`; what white pixels do; what a label C does: a text is the refusal
WAYS: dict[str, tuple[Way, dict[str, Any], str, str]] = {
    "list, C": (lambda data, _: data, {"num_classes": CLASSES}, ISOLATED, BEYOND),
    "list, C + 1": (lambda data, _: data, {"num_classes": CLASSES + 1}, ISOLATED, ISOLATED),
    "list, no C": (lambda data, _: data, {}, NOTHING, NOTHING),
    "list, module": (lambda data, _: data, {"model": True}, ISOLATED, BEYOND),
    "arrays, C": (
        lambda data, _: federation_from_arrays(data, num_classes=CLASSES), {}, ISOLATED, BEYOND
    ),
    "arrays, no C": (lambda data, _: federation_from_arrays(data), {}, NOTHING, NOTHING),
    "indices": (
        lambda data, _: parted(data_set("mine", arrays(data), "mine")), {}, ISOLATED, UNKNOWN
    ),
    "by hand": (lambda data, _: by_hand(data), {}, ISOLATED, BEYOND),
    "npz file": (from_npz, {}, ISOLATED, UNKNOWN),
    "npz file, constants": (partial(from_npz, **ONE_MORE), {}, ISOLATED, ISOLATED),
    "IDX folder": (from_idx, {}, ISOLATED, UNKNOWN),
    "IDX folder, constants": (partial(from_idx, **ONE_MORE), {}, ISOLATED, ISOLATED),
}  # fmt: skip


def fitted(way: str, clients: Clients, folder: Path, *, warns: bool) -> CarvyFL:
    prepare, options, _, _ = WAYS[way]
    model = ensemble(module() if "model" in options else "mlp")
    constants = {name: value for name, value in options.items() if name != "model"}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model.fit(prepare(clients, folder), **constants)
    texts = [str(warning.message) for warning in caught if warning.category is UserWarning]
    assert any("nothing is certified" in text for text in texts) == warns
    return model


@pytest.mark.parametrize("attack", [white, one_label_more])
@pytest.mark.parametrize("way", WAYS)
def test_one_client_reaches_no_other_group(
    way: str, attack: Callable[[Clients], Clients], tmp_path: Path
) -> None:
    _, _, pixels, label = WAYS[way]
    outcome = label if attack is one_label_more else pixels
    plain = fitted(way, honest(), tmp_path, warns=outcome == NOTHING)
    if outcome not in (ISOLATED, NOTHING):
        with pytest.raises(CarvyError) as caught:
            fitted(way, attack(honest()), tmp_path, warns=False)
        assert outcome in str(caught.value)
        assert "\n" not in str(caught.value)
        return

    attacked = fitted(way, attack(honest()), tmp_path, warns=outcome == NOTHING)
    if outcome == NOTHING:
        certificate = attacked.certify(honest()[0][0], honest()[0][1])
        assert certificate.basis.readings == []
        assert certificate.radius.max() <= 0
        assert len(certificate.ca()) <= 2  # CA(0), then zero
        assert "came from the clients' own data" in certificate.assumptions[-1]
        if attack is one_label_more:  # where C is counted from labels, the attack works
            assert plain.models_.weights.shape != attacked.models_.weights.shape
        return
    assert attacked.grouping_ == plain.grouping_
    assert attacked.grouping_.basis.honest_only == 1
    assert attacked.federation_.num_classes == plain.federation_.num_classes
    hit = attacked.grouping_.assignment[VILLAIN]
    for g, (before, after) in enumerate(
        zip(plain.models_.weights, attacked.models_.weights, strict=True)
    ):
        assert before.equal(after) == (g != hit), g  # the attack itself has to do something


def test_constants_of_ones_own_files_do_not_come_from_training_data(tmp_path: Path) -> None:
    dark, bright = from_npz(honest(), tmp_path), from_npz(white(honest()), tmp_path)
    assert (dark.mean, dark.std) == (bright.mean, bright.std) == (0.5, 0.5)
    given = from_npz(honest(), tmp_path, mean=0.1, std=2, num_classes=12)
    assert (given.mean, given.std, given.num_classes) == (0.1, 2, 12)
    floats = {name: a / 7 if name.startswith("x") else a for name, a in arrays(honest()).items()}
    assert (data_set("f", floats, "f").mean, data_set("f", floats, "f").std) == (0, 1)


@pytest.mark.parametrize(
    ("constants", "words"),
    [
        ({"num_classes": 1}, "num_classes"),
        ({"num_classes": 9}, "classes are 0 to 8"),
        ({"std": 0.0}, "std above 0"),
        ({"std": float("nan")}, "std above 0"),
        ({"mean": float("inf")}, "finite"),
    ],
)
def test_constants_that_cannot_be_are_refused(
    tmp_path: Path, constants: dict[str, Any], words: str
) -> None:
    with pytest.raises(CarvyError, match=words):
        from_npz(honest(), tmp_path, **constants)
    with pytest.raises(CarvyError, match="'embedded' has constants of its own"):
        load("embedded", **constants)


# --- the Flower client --------------------------------------------------------------------------


def round_answer(data: Data) -> Any:
    """Ask a Flower client that holds this data for one round of training."""
    from flwr.app import Context, Message, Metadata, RecordDict

    from carvyfl.flower.client import client_app
    from carvyfl.flower.wire import ROUND, Order, write
    from carvyfl.learning.models import build_model, flat_weights

    weights = flat_weights(build_model("mlp", (4, 4), CLASSES, 0))
    order = Order(0, 0, 0, True, weights, torch.zeros_like(weights), torch.zeros_like(weights))
    settings = {"model": "mlp", "num-classes": CLASSES, "mean": 0.25, "std": 0.5, "rounds": 2}
    config: Any = {f"carvy.{name}": value for name, value in settings.items()}
    context = Context(1, 1, {}, RecordDict(), config)
    address = Metadata(1, "", 2, 1, "", "", 0.0, 60.0, ROUND)
    make: Any = Message  # Flower's types leave this way of making one out
    message = make(write(order), metadata=address)
    return client_app(lambda _: data)(message, context)


def round_message(data: Data) -> npt.NDArray[Any]:
    """Return the weights that the client sends."""
    (record,) = round_answer(data).content.array_records.values()
    return np.concatenate([array.numpy().ravel() for array in record.values()])


def test_a_flower_client_takes_constants_from_the_settings(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Every client's model and scaling are those of the settings, whatever data it holds."""
    pytest.importorskip("flwr")
    x, y = honest()[0]
    plain = round_message((x, y))
    few = y < 2
    assert round_message((x[few], y[few])).shape == plain.shape  # C is not what the labels say
    # Twice as bright inputs are other inputs: no client scales by its own mean and deviation.
    assert not np.array_equal(round_message((2 * x, y)), plain)
    villain = one_label_more(honest())[VILLAIN]
    # The server learns what kind of fault it was; what was wrong stays with the client.
    assert round_answer(villain).error.reason == "data"
    assert "labels run from 0 to 10, but classes are 0 to 9" in caplog.text
