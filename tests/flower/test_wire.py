"""What is read off the wire: orders and answers survive it, and nothing else passes."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict
from hypothesis import given
from hypothesis import strategies as st

from carvyfl.core.errors import CarvyError
from carvyfl.data.clients import Client, Samples
from carvyfl.flower.client import Party, answer_round
from carvyfl.flower.wire import (
    Answer,
    ClassCounts,
    Order,
    PackedSums,
    Profile,
    place,
    read,
    read_answer,
    write,
)
from carvyfl.groups.methods import GROUPINGS, form_groups
from carvyfl.learning.models import build_model, flat_weights
from carvyfl.profiles.methods import Profiles
from carvyfl.profiles.types import ClientTypes
from carvyfl.runs.flower_settings import Settings, read_settings

SIZE = 7


def order(**changes: Any) -> Order:
    values = {"group": 2, "client_id": 5, "round_": 3, "train": True}
    vectors = (torch.arange(SIZE) / 3, torch.ones(SIZE))
    return Order(**{**values, "weights": vectors[0], "server_control": vectors[1], **changes})


def answer(to: Order | None = None) -> Answer:
    return Answer(*place(to or order()), 0.25, 11, False, torch.rand(SIZE), torch.rand(SIZE))


@pytest.mark.parametrize("sent", [order(), order(client_control=torch.zeros(SIZE)), answer()])
def test_messages_survive(sent: Order | Answer):
    content = write(sent)
    arrived = (
        read(Order, content, SIZE) if isinstance(sent, Order) else read_answer(content, order())
    )
    assert not isinstance(arrived, str)
    for name, value in vars(sent).items():
        if isinstance(value, torch.Tensor):
            assert torch.equal(getattr(arrived, name), value)
        else:
            assert getattr(arrived, name) == value


@pytest.mark.parametrize(
    ("changes", "word"),
    [({"group": 1}, "group"), ({"client_id": 4}, "id"), ({"round_": 2}, "round")],
)
def test_answers_for_others_are_refused(changes: dict[str, int], word: str):
    found = read_answer(write(answer(order(**changes))), order())
    assert isinstance(found, str)
    assert word in found


@pytest.mark.parametrize("bad", [math.inf, -0.1, 1.5, 3, "much", None])
def test_accuracy_must_be_a_share(bad: Any):
    content = write(answer())
    head = dict(content.config_records["head"])
    head.pop("accuracy")
    content["head"] = ConfigRecord(head if bad is None else {**head, "accuracy": bad})
    assert isinstance(read_answer(content, order()), str)


vectors = st.one_of(
    st.binary(max_size=300).map(lambda data: Array("float32", (SIZE,), "numpy.ndarray", data)),
    st.sampled_from(
        [
            np.zeros(SIZE + 1, np.float32),
            np.zeros((SIZE, 1), np.float32),
            np.full(SIZE, np.nan, np.float32),
            np.full(SIZE, 1e300),
            np.array(["x"] * SIZE),
            np.zeros(100_000, np.float32),
        ]
    ).map(Array),
    st.just(Array("float32", (SIZE,), "pickle", b"cos\nsystem\n(S'true'\ntR.")),
)
scalars = st.one_of(
    st.integers(-(2**62), 2**62), st.floats(), st.text(max_size=5), st.booleans(), st.binary()
)


@given(
    arrays=st.dictionaries(
        st.sampled_from(
            ["weights", "client_control", "server_control", "profile", "second", "first", "counts"]
        ),
        vectors,
    ),
    head=st.dictionaries(
        st.sampled_from(["group", "client_id", "round_", "train", "accuracy", "samples", "lost"]),
        scalars,
    ),
)
def test_garbage_is_refused_with_a_reason(arrays: dict[str, Array], head: dict[str, Any]):
    content = RecordDict({"arrays": ArrayRecord(arrays), "head": ConfigRecord(head)})
    assert isinstance(read(Order, content, SIZE), str)
    assert isinstance(read_answer(content, order()), str)
    for kind in (Profile, ClassCounts, PackedSums):
        assert isinstance(read(kind, content, SIZE), str)


def test_client_keeps_its_place_and_its_control_variate():
    x = np.random.default_rng(0).normal(size=(20, 4)).astype(np.float32)
    samples = Samples(x, np.arange(20) % 3)
    client, module = Client(samples, samples), build_model("mlp", (4,), 3, 0)
    own, state = read_settings({"carvy.num-classes": 3}), RecordDict()
    zero = torch.zeros_like(flat_weights(module))

    def ask(round_: int, *, at: tuple[int, int] = (2, 5), **changes: Any) -> Answer:
        sent = Order(*at, round_, True, flat_weights(module), zero, **changes)
        return answer_round(write(sent), Party(own, client, module, state))

    first = ask(0)
    assert first.update is not None
    for other in ((3, 5), (2, 6)):
        with pytest.raises(CarvyError, match="gives this client"):
            ask(1, at=other)

    # In the next round it trains with the control variate it kept: as if it were sent it.
    kept = ask(1)
    sent = ask(1, client_control=first.update.client_control)
    assert kept.update is not None
    assert sent.update is not None
    assert torch.equal(kept.update.weights, sent.update.weights)
    fresh = ask(1, client_control=zero).update
    assert fresh is not None
    assert not torch.equal(kept.update.weights, fresh.weights)

    # What it has belongs to round 2 now; for another round it says so, until it is restored.
    assert ask(7).lost
    assert ask(7, client_control=zero).update is not None


def test_settings():
    found = read_settings(
        {"carvy.min-clients": 4, "carvy.patience": 0, "other": 1, "carvy.lr": 0.1}
    )
    assert (found.min_clients, found.training.patience, found.training.lr) == (4, None, 0.1)
    assert read_settings({}) == read_settings({"carvy.types": ""}) == Settings()
    assert read_settings({"carvy.types": "class-counts"}).learner == "scaffold"
    assert read_settings({"carvy.validation-share": 0.2}).split_off == 0.2
    found = read_settings({"carvy.learner": "one-shot"})
    assert (found.types, found.split_off, found.features) == ("class-counts", 0.0, "scattering")
    recorded = found.recorded([3, 5], "ours")
    assert (recorded.learner, recorded.types) == ("one-shot", "class-counts")


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"min-client": 4}, "did you mean 'min_clients'"),
        ({"min-clients": "four"}, r"carvy\..*min_clients must be a whole number"),
        ({"misses": 0}, r"carvy\..*misses must be at least 1"),
        ({"answer-seconds": 0.0}, r"carvy\..*answer_seconds must be above 0"),
        ({"types": "oracle"}, "carvy.types is .*, not 'oracle'"),
        ({"method": "single"}, "'single' is for simulations"),
        ({"method": "kmeans"}, "kmeans"),
        ({"model": "transformer"}, "transformer"),
        ({"learner": "no-shot"}, "learner"),
        ({"learner": "one-shot", "types": "xmeans"}, "class-counts"),
        ({"features": "none at all"}, "feature map"),
        ({"ridge": 0.0}, r"carvy\.ridge"),
        ({"groups": -1}, r"carvy\..*groups .*not -1"),
        ({"num_classes": 1}, r"carvy\..*num_classes .*not 1"),
        *(
            ({name: value}, rf"carvy\..*{name} .*not {value}")
            for name, values in {
                "mean": (math.nan, math.inf, -math.inf),
                "std": (math.nan, math.inf, 0.0, -1.0),
                "validation_share": (math.nan, -0.1, 1.0),
            }.items()
            for value in values
        ),
    ],
)
def test_settings_that_cannot_be_meant_are_refused_by_name(settings: dict[str, Any], words: str):
    with pytest.raises(CarvyError, match=words):
        read_settings({f"carvy.{name}": value for name, value in settings.items()})


@pytest.mark.parametrize("method", sorted(GROUPINGS.keys() - {"cluster", "single"}))
def test_the_number_of_groups_is_asked_for_before_anybody_joins(method):
    """The methods that start without it form groups without it, and no others."""
    profiles = Profiles(ClientTypes(np.arange(6) % 2, "bias-profile", True, ("a", "b")))
    try:
        form_groups(method, num_clients=6, seed=0, profiles=profiles)
    except CarvyError:
        with pytest.raises(CarvyError, match=rf"'{method}'.*set carvy\.groups"):
            read_settings({"carvy.method": method})
    else:
        assert not read_settings({"carvy.method": method}).groups
    assert read_settings({"carvy.method": method, "carvy.groups": 2}).groups == 2
