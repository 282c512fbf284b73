"""Class means: what a client sends, against gradients and resampling; what the server reads."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from torch import nn

from carvyfl.core.randomness import generator
from carvyfl.data.clients import Client, Federation, Samples
from carvyfl.learning.backends import Backend, Cores, Gpus
from carvyfl.learning.job import group_job
from carvyfl.learning.models import build_model, output_inputs
from carvyfl.learning.recipe import Recipe
from carvyfl.learning.scaffold.client import prepared
from carvyfl.profiles import asking
from carvyfl.profiles import class_means as module_under_test
from carvyfl.profiles.asking import all_class_means, client_message
from carvyfl.profiles.class_means import (
    SKETCH,
    ClassMeans,
    class_means,
    class_means_of_many,
    mean_vectors,
)
from carvyfl.profiles.messages import Messages, collect
from carvyfl.profiles.methods import read_profiles
from support.federations import NUM_CLASSES, class_disjoint_federation, corners, small_net

Floats = npt.NDArray[np.float64]
Labels = npt.NDArray[np.int64]


def collected(rows: list[npt.NDArray[np.float32]], num_classes: int) -> Messages:
    return collect(rows, length=num_classes + SKETCH + 2, num_classes=num_classes)


def by_definition(features: Floats, labels: Labels, num_classes: int) -> Floats:
    """W, sample by sample."""
    matrix = np.zeros((num_classes, features.shape[1]))
    for x, y in zip(features, labels, strict=True):
        for c in range(num_classes):
            matrix[c] += (float(y == c) - 1 / num_classes) * x / len(labels)
    return matrix


def by_places(values: Floats) -> Floats:
    """Sketch one value after another: each has a place and a sign, drawn by how many there are."""
    draw = generator(0, "sketch", len(values))
    places = draw.integers(SKETCH, size=len(values))
    signs = draw.integers(2, size=len(values)) * 2 - 1
    sketch = np.zeros(SKETCH)
    for value, place, sign in zip(values, places, signs, strict=True):
        sketch[place] += sign * value
    return sketch


def expected_message(features: npt.NDArray[Any], labels: Labels, num_classes: int) -> Floats:
    """What a client sends, from the definitions."""
    x, n = features.astype(float), len(labels)
    matrix = by_definition(x, labels, num_classes)
    size, error = float(np.linalg.norm(matrix)), 0.0
    for c in range(num_classes):
        rows = x[labels == c]
        if len(rows) > 1:  # n_c times the variance of one sample, by its unbiased estimate
            error += len(rows) * float(rows.var(axis=0, ddof=1).sum())
    error *= (1 - 1 / num_classes) / n**2
    sketch = by_places((matrix / size).ravel()) if size else np.zeros(SKETCH)
    shares = np.bincount(labels, minlength=num_classes) / n
    return np.array([*shares, *sketch, min(1.0, error / size**2) if size else 0.0, n])


# --- what a client sends ------------------------------------------------------------------------


@given(
    labels=hnp.arrays(np.int64, st.integers(1, 60), elements=st.integers(0, 4)),
    seed=st.integers(0, 1000),
)
def test_a_message_is_what_the_definitions_say(labels: Labels, seed: int) -> None:
    features = np.random.default_rng(seed).normal(size=(len(labels), 7)).astype(np.float32)
    message = class_means(features, labels, 5)
    assert message.dtype == np.float32
    expected = expected_message(features, labels, 5)
    np.testing.assert_allclose(message, expected, rtol=1e-5, atol=1e-7)
    assert message[:5].tolist() == [np.float32((labels == c).mean()) for c in range(5)]


@pytest.mark.parametrize(
    ("name", "shape"), [("mlp", (1, 8, 8)), ("compact-cnn", (1, 12, 12)), ("mlp", (6,))]
)
def test_the_matrix_is_minus_the_gradient_at_a_zero_output_layer(
    name: str, shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the output layer at zero, loss and gradient come from autograd alone."""
    rng = np.random.default_rng(3)
    module = build_model(name, shape, 3, seed=1).eval()
    inputs = torch.tensor(rng.normal(size=(20, *shape)), dtype=torch.float32)
    labels = np.resize([0, 0, 1, 2, 2, 2], 20)
    # The sketch sees the matrix, so it is what tells it here.
    seen: list[Floats] = []
    sketch = module_under_test._sketch

    def note(values: torch.Tensor) -> torch.Tensor:
        seen.append(values.numpy())
        return sketch(values)

    monkeypatch.setattr(module_under_test, "_sketch", note)
    class_means(output_inputs(module, 3)(inputs).numpy(), labels, 3)

    head = [layer for layer in module.modules() if isinstance(layer, nn.Linear)][-1]
    with torch.no_grad():
        head.weight.zero_()
        head.bias.zero_()
    nn.functional.cross_entropy(module(inputs), torch.tensor(labels)).backward()
    assert head.weight.grad is not None
    assert head.bias.grad is not None
    gradient = head.weight.grad.double().numpy()
    expected = -gradient / np.linalg.norm(gradient)
    np.testing.assert_allclose(seen[0].reshape(expected.shape), expected, atol=1e-5)
    shares = np.bincount(labels, minlength=3) / 20
    np.testing.assert_allclose(-head.bias.grad.numpy(), shares - 1 / 3, atol=1e-6)


def test_sketches_are_linear_and_keep_squared_distances() -> None:
    rng = np.random.default_rng(0)
    # Each length is sketched by its own places and signs, so several lengths are several draws.
    ratios = []
    for length in range(2000, 2040):
        pair = torch.from_numpy(rng.normal(size=(2, length)))
        pair /= pair.norm(dim=1, keepdim=True)
        a, b, both = module_under_test._sketch(torch.stack([*pair, pair[0] + 2 * pair[1]]))
        np.testing.assert_allclose(both, a + 2 * b, atol=1e-12)
        ratios.append(float(((a - b) ** 2).sum() / ((pair[0] - pair[1]) ** 2).sum()))
    assert np.mean(ratios) == pytest.approx(1.0, abs=0.04)
    assert np.std(ratios) < 0.2  # √(2 / 256) = 0.09 in theory


class HangsOnItsBatch(nn.Module):
    """Gives what a library may: last bits that depend on the rows beside an input."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * (1 + 1e-4 * x.square().mean())


@pytest.mark.parametrize("threads", [1, 4])
@pytest.mark.parametrize("name", ["compact-cnn", "mlp", "hangs on its batch"])
def test_the_company_on_a_device_does_not_change_a_bit_of_a_message(
    name: str, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever the other clients are, and however many samples they have."""
    monkeypatch.setattr(asking, "SAMPLES_AT_ONCE", 60)
    company = nn.Sequential(HangsOnItsBatch(), nn.Flatten(), nn.Linear(169, 3))
    module = company if " " in name else build_model(name, (1, 13, 13), 3, seed=1)
    rng = np.random.default_rng(5)

    def client(size: int) -> Client:
        inputs = rng.normal(size=(size, 1, 13, 13)).astype(np.float32)
        samples = Samples(inputs, rng.integers(0, 3, size))
        return Client(samples, samples.take([]))

    def messages(*clients: Client) -> npt.NDArray[np.float32]:
        engine = Gpus("cuda" if torch.cuda.is_available() else "cpu")
        return all_class_means(Federation(clients, 3), module, Recipe(), 0, engine=engine).values

    one, other = client(17), client(40)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        alone = np.stack([messages(one)[0], messages(other)[0]])
        for size in (1, 7, 30, 100):
            together = messages(client(size), one, client(size + 2), other)[[1, 3]]
            np.testing.assert_array_equal(together, alone)
    finally:
        torch.set_num_threads(before)


def many_clients(sizes: list[int]) -> tuple[torch.Tensor, list[Labels]]:
    """Features of width 37 and labels of five classes, client by client."""
    rng = np.random.default_rng(len(sizes))
    labels = [rng.integers(rng.integers(1, 6), size=size) for size in sizes]
    features = torch.from_numpy(rng.normal(size=(sum(sizes), 37)).astype(np.float32))
    return features, labels


@pytest.mark.parametrize("at_once", [1, 3 * 5 * 37, 1 << 26])
def test_many_clients_send_what_each_would_alone(
    at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Alone, among larger and smaller clients, first or last: the same numbers exactly."""
    monkeypatch.setattr(module_under_test, "NUMBERS_AT_ONCE", at_once)
    features, labels = many_clients([1, 40, 7, 2, 1, 19, 300])
    features[1:41] = 0.0  # nothing to tell
    features[45] = torch.inf
    blocks = torch.split(features, [len(part) for part in labels])
    alone = [class_means_of_many(x, [y], 5)[0] for x, y in zip(blocks, labels, strict=True)]
    for k, (message, part, rows) in enumerate(zip(alone, labels, blocks, strict=True)):
        assert message.dtype == np.float32
        if k != 2:
            expected = expected_message(rows.numpy(), part, 5)
            np.testing.assert_allclose(message, expected, rtol=1e-5, atol=1e-7)
    assert np.isnan(alone[2]).all()
    for company in (range(7), [6, 3, 1], [2, 4], [1, 0, 5, 2, 6]):
        rows, parts = torch.cat([blocks[k] for k in company]), [labels[k] for k in company]
        together = class_means_of_many(rows, parts, 5)
        np.testing.assert_array_equal(together, np.stack([alone[k] for k in company]))


@pytest.mark.slow
def test_the_error_is_that_of_resampling_within_classes() -> None:
    """The label shares stay; the features of each class are drawn anew, many times."""
    rng = np.random.default_rng(1)
    centres = rng.normal(size=(3, 6)) * 2
    labels = np.repeat([0, 1, 2], [30, 20, 10])

    def draw() -> Floats:
        return centres[labels] + rng.normal(size=(len(labels), 6)) * (1 + labels[:, None])

    matrices = [by_definition(draw(), labels, 3) for _ in range(1500)]
    mean = np.mean(matrices, axis=0)
    true = float(np.mean([((matrix - mean) ** 2).sum() for matrix in matrices]))
    estimates = []
    for _ in range(200):
        features = draw()
        length = float(np.linalg.norm(by_definition(features, labels, 3)))
        message = class_means(features.astype(np.float32), labels, 3)
        estimates.append(float(message[-2]) * length**2)
    assert np.mean(estimates) == pytest.approx(true, rel=0.05)


def test_nothing_to_tell_is_no_fault() -> None:
    message = class_means(np.zeros((4, 5), np.float32), np.array([0, 1, 0, 1]), 2)
    assert message[:2].tolist() == [0.5, 0.5]
    assert not message[2:-1].any()
    one = class_means(np.ones((1, 5), np.float32), np.array([1]), 2)
    assert one[-2] == 0  # one sample tells nothing of its spread
    assert np.linalg.norm(one[2:-2]) > 0


# --- the clients of a federation ----------------------------------------------------------------


def test_a_message_depends_on_its_own_client_alone_bit_for_bit() -> None:
    federation, module, recipe = class_disjoint_federation(), small_net(), Recipe()
    before = all_class_means(federation, module, recipe, 0, engine=Cores(1))
    clients = list(federation.clients)
    for k in (1, 4):
        x, y = clients[k].train.inputs, clients[k].train.labels
        clients[k] = replace(clients[k], train=Samples(x * 1e6, y[::-1].copy()))
    after = all_class_means(
        replace(federation, clients=tuple(clients)), module, recipe, 0, engine=Cores(1)
    )
    same = (before.values == after.values).all(axis=1)
    assert same.tolist() == [True, False, True, True, False, True]
    job = group_job(federation, [2], module, recipe, 7)
    alone = client_message(job, NUM_CLASSES, "class-means")
    np.testing.assert_array_equal(alone, before.values[2])


def test_messages_are_those_of_the_features_at_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """On all cores and on a device, where several clients are in a part, and several parts."""
    monkeypatch.setattr(asking, "SAMPLES_AT_ONCE", 50)
    federation, module = class_disjoint_federation(), small_net()
    assert isinstance(module, nn.Sequential)
    engines: list[Backend] = [Cores(1), Gpus("cpu")]
    alone, together = (
        all_class_means(federation, module, Recipe(), 0, engine=engine) for engine in engines
    )
    np.testing.assert_allclose(together.values, alone.values, rtol=1e-5, atol=1e-6)
    for k, client in enumerate(federation.clients):
        inputs = prepared(client.train.inputs, federation.mean, federation.std)
        with torch.no_grad():
            features = module.eval()[:3](inputs).numpy()
        expected = class_means(features, client.train.labels, NUM_CLASSES)
        np.testing.assert_allclose(alone.values[k], expected, rtol=1e-4, atol=1e-6)
    types = read_profiles("class-means", alone).types
    assert types.names == ("classes 0+1", "classes 2+3")
    assert types.labels.tolist() == [0, 0, 0, 1, 1, 1]
    assert types.local


def test_a_client_with_data_that_are_not_finite_is_set_aside() -> None:
    federation = class_disjoint_federation()
    clients = list(federation.clients)
    for k, value in ((1, np.nan), (3, np.inf)):
        inputs = clients[k].train.inputs.copy()
        inputs[0, 0] = value
        clients[k] = replace(clients[k], train=Samples(inputs, clients[k].train.labels))
    hostile = replace(federation, clients=tuple(clients))
    messages = all_class_means(hostile, small_net(), Recipe(), 0, engine=Cores(1))
    assert sorted(messages.set_aside) == [1, 3]
    profiles = read_profiles("class-means", messages)
    assert profiles.types.labels[[1, 3]].tolist() == [-1, -1]
    assert (profiles.types.labels[[0, 2, 4, 5]] >= 0).all()
    assert profiles.vectors is not None
    assert not profiles.vectors.rows[[1, 3]].any()


# --- what the server reads ----------------------------------------------------------------------


def honest_rows(number: int) -> list[npt.NDArray[np.float32]]:
    rng = np.random.default_rng(0)
    rows = []
    for k in range(number):
        labels = np.resize([k % 2, 2 + k % 2], 20 + k)
        rows.append(class_means(rng.normal(size=(20 + k, 9)).astype(np.float32), labels, 4))
    return rows


@given(
    hostile=hnp.arrays(
        np.float32,
        (2, 4 + SKETCH + 2),
        elements=st.floats(-(2.0**127), 2.0**127, width=32),
        fill=st.sampled_from([0.0, -1e30, 1e30, -1.0]),
    )
)
def test_claims_are_brought_into_the_range_of_what_is_possible(
    hostile: npt.NDArray[np.float32],
) -> None:
    rows = honest_rows(6)
    messages = collected([*rows, *hostile], 4)
    means = ClassMeans.of(messages)
    np.testing.assert_allclose(means.shares[:6], [row[:4] for row in rows], atol=1e-7)
    np.testing.assert_allclose(means.samples[:6], [20, 21, 22, 23, 24, 25])
    assert (means.shares >= 0).all()
    assert (means.shares.sum(axis=1) <= 1 + 1e-9).all()
    assert (np.linalg.norm(means.sketches, axis=1) <= 1 + 1e-9).all()
    assert ((means.errors >= 0) & (means.errors <= 1)).all()
    vectors = mean_vectors(messages)
    assert (np.linalg.norm(vectors.rows, axis=1) <= 4 * np.sqrt(1 + 1 / 9) + 1e-5).all()
    assert 0 <= vectors.by_chance <= 1
    # The liars move the honest clients' rows by a common scale only: that of the median size.
    alone = mean_vectors(collected(rows, 4)).rows.astype(np.float64)
    scale = np.linalg.norm(vectors.rows[:6].astype(np.float64)) / np.linalg.norm(alone)
    np.testing.assert_allclose(vectors.rows[:6], alone * scale, rtol=1e-4, atol=1e-6)
    types = read_profiles("class-means", messages).types
    honest = read_profiles("class-means", collected(rows, 4)).types
    assert [types.names[t] for t in types.labels[:6]] == [honest.names[t] for t in honest.labels]


@pytest.mark.parametrize("alike", [True, False])
def test_clients_of_one_source_are_told_to_differ_by_chance(alike: bool) -> None:
    """Clients that drew from the same pictures, and clients with classes of their own."""
    module = build_model("mlp", (1, 8, 8), NUM_CLASSES, seed=0)
    clients = tuple(
        Client(corners(k, 40, (0, 1, 2, 3) if alike else (k % 2, 2 + k % 2)), corners(100 + k, 4))
        for k in range(8)
    )
    federation = Federation(clients, NUM_CLASSES)
    vectors = mean_vectors(all_class_means(federation, module, Recipe(), 0, engine=Cores(1)))
    assert vectors.by_chance > 0.8 if alike else vectors.by_chance < 0.5
    assert ["chance of sampling" in text for text in vectors.warnings] == [True] * alike
