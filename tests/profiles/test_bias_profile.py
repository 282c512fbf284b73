"""The bias profile, on real one-epoch updates of small models."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from torch import nn

from carvyfl.profiles.bias_profile import bias_profile_types, label_histograms, profile_form
from carvyfl.profiles.messages import Messages, OutputLayer, collect

CLASSES, FEATURES = 12, 12


def blobs(classes: np.ndarray, rng: np.random.Generator) -> torch.Tensor:
    """Draw inputs around three centres per class; the same centres for every caller."""
    centres = np.random.default_rng(7).normal(size=(CLASSES, 3, FEATURES))
    x = centres[classes, rng.integers(3, size=len(classes))]
    return torch.tensor(x + rng.normal(scale=0.5, size=x.shape), dtype=torch.float32)


def train_one_epoch(clients: list[np.ndarray], *, activation=nn.ReLU, bias=True, lr=0.02, batch=16):
    """Train one small model a client, from the same start, for real; return Messages."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(FEATURES, 32), activation(), nn.Linear(32, CLASSES, bias=bias))
    start = [p.detach().clone() for p in model.parameters()]
    messages, steps = [], []
    for number, classes in enumerate(clients):
        rng = np.random.default_rng(number)
        with torch.no_grad():
            for p, p0 in zip(model.parameters(), start, strict=True):
                p.copy_(p0)
        order = rng.permutation(classes)
        x, y = blobs(order, rng), torch.tensor(order)
        optimiser = torch.optim.SGD(model.parameters(), lr=lr)
        for i in range(0, len(y), batch):
            optimiser.zero_grad()
            nn.functional.cross_entropy(model(x[i : i + batch]), y[i : i + batch]).backward()
            optimiser.step()
        now = torch.cat([p.detach().ravel() for p in model.parameters()])
        messages.append((now - torch.cat([p.ravel() for p in start])).numpy())
        steps.append(-(-len(y) // batch))
    length = len(messages[0])
    end = length - CLASSES if bias else length
    head = OutputLayer(slice(end, length) if bias else None, slice(end - 32 * CLASSES, end))
    return collect(messages, length=length, lr=lr, steps=steps, num_classes=CLASSES, head=head)


PAIRS = [(0, 1), (2, 3), (4, 11)]


@pytest.mark.slow
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("activation", [nn.ReLU, nn.GELU, nn.Sigmoid])
def test_class_disjoint_clients_are_told_apart(activation, bias):
    truth = np.arange(18) % 3
    clients = [np.repeat(PAIRS[t], 32) for t in truth]
    types = bias_profile_types(train_one_epoch(clients, activation=activation, bias=bias))
    assert types.labels.tolist() == truth.tolist()
    assert types.names == ("classes 0+1", "classes 2+3", "classes 4+11")
    assert types.local
    assert types.warnings == ()


def test_unequal_shares_and_any_number_of_classes():
    sets = [s for k in (1, 2, 3, 4) for s in itertools.combinations(range(CLASSES), k)][::23]
    clients = [np.repeat(s, [96 - 16 * i for i in range(len(s))]) for s in sets]
    types = bias_profile_types(train_one_epoch(clients))
    assert [types.labels[i] for i in range(len(sets))] == [sorted(sets).index(s) for s in sets]
    assert any("over-segmented" in text for text in types.warnings)


def test_iid_clients_mostly_hold_all_classes_and_skewed_ones_never():
    everything, half = np.repeat(np.arange(CLASSES), 80), np.repeat(np.arange(6), 160)
    types = bias_profile_types(train_one_epoch([everything, half] * 5, lr=0.05))
    names = [types.names[label] for label in types.labels]
    assert names[1::2] == ["classes 0-5"] * 5
    assert names[::2].count("all classes") >= 3


def test_tanh_without_bias_is_warned_about():
    clients = [np.repeat(PAIRS[i % 3], 32) for i in range(9)]
    types = bias_profile_types(train_one_epoch(clients, activation=nn.Tanh, bias=False))
    assert any("no bias" in text for text in types.warnings)


def from_biases(biases, lr=0.1, steps=None):
    clients, classes = biases.shape
    steps = np.full(clients, 4) if steps is None else steps
    head = OutputLayer(bias=slice(0, classes))
    return collect(list(biases), length=classes, num_classes=classes, head=head, lr=lr, steps=steps)


def by_hand(bias: np.ndarray, per_step: float, rows: np.ndarray | None = None) -> tuple[int, ...]:
    """Follow the documented rule literally, in plain Python."""
    c = len(bias)
    if rows is not None:
        most = max(0.0, rows.max())
        rose = tuple(i for i in range(c) if rows[i].max() > 0 and rows[i].max() > 0.15 * most)
        if 0 < len(rose) < c:
            return rose
    down = sorted(map(float, bias), reverse=True)
    gaps = [down[i] - down[i + 1] for i in range(c - 1)]
    shares = [max(0.0, b / per_step + 1 / c) for b in down]
    total = sum(shares)
    shares = [s / total for s in shares] if total else [1 / c] * c
    flat = all(0.5 / c <= s <= 1.5 / c for s in shares) and max(gaps) <= (down[0] - down[-1]) / 2
    if down[-1] > 0:
        return tuple(range(c))
    if rows is not None and flat and not any(r.sum() < -0.5 * np.abs(r).sum() for r in rows):
        return tuple(range(c))
    allowed = [i for i in range(c - 1) if down[i + 1] <= 0]
    cut = max(allowed, key=lambda i: (gaps[i], i))
    return tuple(i for i in range(c) if bias[i] >= down[cut])


BIG = float(np.float32(3e38))
BIASES = hnp.arrays(
    np.float32,
    st.tuples(st.integers(1, 12), st.integers(2, 6)),
    elements=st.floats(-0.5, 0.5, width=32) | st.sampled_from([0.0, BIG, -BIG]),
)


@pytest.mark.parametrize("samples", [34, 50])
@pytest.mark.parametrize("bias", [True, False])
def test_a_short_last_batch_does_not_mislead_the_weights(samples, bias):
    # The last of so few batches holds two samples, perhaps of one class only: the bias of the
    # other class may then fall, but its row of weights still rises somewhere.
    clients = [np.repeat(pair, samples // 2) for pair in PAIRS] * 6
    updates = train_one_epoch(clients, bias=bias, lr=0.05)
    types = bias_profile_types(updates)
    expected = [f"classes {pair[0]}+{pair[1]}" for pair in PAIRS] * 6
    assert [types.names[label] for label in types.labels] == expected


@given(BIASES)
def test_the_rule_as_documented_and_lexicographic_numbers(biases):
    biases = biases.astype(np.float64)
    types = bias_profile_types(from_biases(biases))
    sets = [by_hand(b, 0.1 * 4) for b in biases]
    assert types.labels.tolist() == [sorted(set(sets)).index(s) for s in sets]
    assert len(set(types.names)) == len(set(sets))


@given(
    hnp.arrays(np.float32, (9, 8), elements=st.integers(-8, 8).map(lambda i: i / 256)),
    hnp.arrays(np.float32, (9, 8, 3), elements=st.integers(-2, 4)),
)
def test_the_rule_for_all_classes_as_documented(biases, rows):
    messages = np.concatenate([rows.reshape(9, 24), biases], axis=1)
    head = OutputLayer(bias=slice(24, 32), weight=slice(0, 24))
    updates = collect(messages, length=32, lr=0.1, steps=[4] * 9, num_classes=8, head=head)
    sets = [by_hand(b, 0.1 * 4, r) for b, r in zip(biases, rows, strict=True)]
    for sent in (updates, as_sent(updates)):
        types = bias_profile_types(sent)
        assert types.labels.tolist() == [sorted(set(sets)).index(s) for s in sets]


def as_sent(updates: Messages) -> Messages:
    """Have every client, by itself, send the 2 C + 1 numbers instead of its whole update."""
    form = profile_form(updates.head, updates.num_classes)
    assert form.make is not None
    sent = [form.make(update[None])[0] for update in updates.values]
    size, classes = form.length, updates.num_classes
    lr, steps, head = updates.lr, updates.steps, form.head
    return collect(sent, length=size, num_classes=classes, head=head, lr=lr, steps=steps)


def check_same_answers(whole: Messages, sent: Messages) -> None:
    one, other = bias_profile_types(whole), bias_profile_types(sent)
    assert other.labels.tolist() == one.labels.tolist()
    assert (other.names, other.warnings) == (one.names, one.warnings)
    assert other.set_aside == one.set_aside
    np.testing.assert_array_equal(label_histograms(sent), label_histograms(whole))


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("activation", [nn.ReLU, nn.GELU, nn.Tanh])
def test_a_few_numbers_say_as_much_as_the_whole_update(activation, bias):
    everything = np.repeat(np.arange(CLASSES), 80)
    clients = [everything, *(np.repeat(pair, 32) for pair in PAIRS)] * 2
    whole = train_one_epoch(clients, activation=activation, bias=bias, lr=0.05)
    sent = as_sent(whole)
    assert sent.values.shape == (len(clients), 2 * CLASSES + 1)
    check_same_answers(whole, sent)
    # The numbers themselves, worked out by other means.
    for update, message in zip(whole.values.astype(float), sent.values, strict=True):
        rows = update[whole.head.weight].reshape(CLASSES, 32).tolist()
        profile = [math.fsum(row) / 32 for row in rows]
        falls = [math.fsum(row) / math.fsum(map(abs, row)) for row in rows]
        if bias:
            profile = update[whole.head.bias]
        rises = [max(0.0, *row) for row in rows]
        expected = [*profile, *rises, min(falls)]
        np.testing.assert_allclose(message, expected, rtol=1e-6, atol=1e-12)


@given(
    hnp.arrays(
        np.float32, (3, 4 * 5), elements=st.floats(width=32, allow_nan=False, allow_infinity=False)
    )
)
def test_any_finite_update_makes_a_finite_message(values):
    head = OutputLayer(weight=slice(0, 20))
    whole = collect(values, length=20, lr=0.1, steps=[1] * 3, num_classes=4, head=head)
    sent = as_sent(whole)
    assert not sent.set_aside
    assert (np.abs(sent.values[:, -1]) <= 1).all()
    check_same_answers(whole, sent)


def test_messages_do_not_depend_on_how_many_are_made_at_once():
    values = np.random.default_rng(0).normal(size=(150, 2 * 9001)).astype(np.float32)
    form = profile_form(OutputLayer(weight=slice(0, 18002)), 2)
    assert form.make is not None
    alone = np.concatenate([form.make(row[None]) for row in values])
    np.testing.assert_array_equal(form.make(values), alone)


@given(
    st.integers(0, 17), st.sampled_from([np.nan, np.inf, 1e30, -3e38, 0.0, 1e300]), st.booleans()
)
@settings(max_examples=15)
def test_no_client_can_change_another_clients_type(victim, value, one_entry):
    biases = np.random.default_rng(5).normal(size=(18, 5))
    before = bias_profile_types(from_biases(biases))
    attacked = biases.copy()
    attacked[victim, : 1 if one_entry else 5] = value
    after = bias_profile_types(from_biases(attacked))
    for client in set(range(18)) - {victim}:
        assert (
            before.names[before.labels[client]] == after.names[after.labels[client]]
        )  # the number may shift, the type may not
    if not np.isfinite(np.float32(min(value, 3e38))) or value == 1e300:
        assert after.labels[victim] == -1
        assert victim in after.set_aside


def test_a_thousand_classes():
    rng = np.random.default_rng(1)
    sets = [tuple(sorted(rng.choice(1000, size=20, replace=False).tolist())) for _ in range(7)]
    biases = np.full((21, 1000), -0.001)
    for client in range(21):
        biases[client, sets[client % 7]] = 0.049
    types = bias_profile_types(from_biases(biases))
    assert types.labels.tolist() == [sorted(sets).index(sets[i % 7]) for i in range(21)]


def test_names_are_short():
    held = np.full((5, 10), -0.1)
    held[0, [3]] = held[1, [1, 2]] = held[2, [0, 1, 2, 3, 7, 9]] = held[3, [2, 4]] = held[4] = 0.3
    types = bias_profile_types(from_biases(held))
    names = ("all classes", "classes 0-3+7+9", "classes 1+2", "classes 2+4", "class 3")
    assert types.names == names


def softmax_regression_biases(shares: np.ndarray, lr: float, steps: int) -> np.ndarray:
    """Full-batch softmax regression from zero weights, bias only, in float64.

    With inputs at zero the gradient of the loss in b is softmax(b) - shares.
    """
    b = np.zeros_like(shares)
    for _ in range(steps):
        p = np.exp(b) / np.exp(b).sum(axis=1, keepdims=True)
        b -= lr * (p - shares)
    return b


def test_label_histograms_are_exact_to_first_order():
    shares = np.random.default_rng(2).dirichlet(np.full(8, 0.5), size=30)
    steps = np.where(np.arange(30) % 2, 3, 10)
    biases = np.stack(
        [softmax_regression_biases(s[None], 1e-4, k)[0] for s, k in zip(shares, steps, strict=True)]
    )
    estimate = label_histograms(from_biases(biases, lr=1e-4, steps=steps))
    np.testing.assert_allclose(estimate, shares, atol=2e-3)


def test_label_histograms_follow_a_trained_network():
    rng = np.random.default_rng(3)
    shares = rng.dirichlet(np.full(CLASSES, 0.3), size=10)
    clients = [rng.choice(CLASSES, size=160, p=p) for p in shares]
    truth = np.stack([np.bincount(c, minlength=CLASSES) / 160 for c in clients])
    for bias in (True, False):
        estimate = label_histograms(train_one_epoch(clients, bias=bias))
        np.testing.assert_allclose(estimate.sum(axis=1), 1)
        assert np.corrcoef(estimate.ravel(), truth.ravel())[0, 1] > 0.9


def test_clients_that_send_no_change_are_flat_and_one_type_is_warned_about():
    updates = from_biases(np.array([[0.0, 0, 0], [np.nan, 0, 0], [-9, -9, -9]]))
    np.testing.assert_allclose(label_histograms(updates), 1 / 3)
    types = bias_profile_types(from_biases(np.zeros((3, 5))))
    assert types.names == ("all classes",)
    assert "same type" in types.warnings[0]
