"""Reports are judged one client at a time."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import example as sample
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from carvyfl.profiles.messages import OutputLayer, collect

LENGTH = 6
HEAD = OutputLayer(bias=slice(4, 6), weight=slice(0, 4))


def gather(messages, steps=None):
    counts = np.full(len(messages), 3) if steps is None else steps
    return collect(messages, length=LENGTH, lr=0.1, steps=counts, num_classes=2, head=HEAD)


BAD = {
    "no message": None,
    "wrong shape": np.zeros(5),
    "wrong shape: (2, 3)": np.zeros((2, 3)),
    "wrong shape: ()": 7.0,
    "not an array of numbers (<U5)": np.array(["hello"] * LENGTH),
    "not an array of numbers (object)": np.array([{}] * LENGTH, dtype=object),
    "not an array of numbers (complex128)": np.zeros(LENGTH, dtype=complex),
    "not an array of numbers (list)": [[1.0], [1.0, 2.0]],
    "not an array of numbers (Tensor)": torch.zeros(LENGTH, requires_grad=True),
    "NaN": np.array([0, 1, np.nan, 0, 0, 0]),
    "infinity": np.array([0, 1, -np.inf, 0, 0, 0]),
    "too large for float32": np.array([0, 1, 1e39, 0, 0, 0]),
}


@sample(bad=dict(enumerate(sorted(BAD)[:6])), seed=0)
@sample(bad=dict(enumerate(sorted(BAD)[6:])), seed=0)
@given(
    bad=st.dictionaries(st.integers(0, 7), st.sampled_from(sorted(BAD)), max_size=7),
    seed=st.integers(0, 100),
)
def test_bad_messages_leave_all_others_bit_identical(bad, seed):
    honest = np.random.default_rng(seed).normal(size=(8, LENGTH)).astype(np.float32)
    updates = gather([BAD[bad[i]] if i in bad else honest[i] for i in range(8)])
    assert sorted(updates.set_aside) == sorted(bad)
    assert all(bad[client] in why for client, why in updates.set_aside.items())
    assert updates.usable.tolist() == [client for client in range(8) if client not in bad]
    for client in range(8):
        expected = np.zeros(LENGTH) if client in bad else honest[client]
        np.testing.assert_array_equal(updates.values[client], expected)


NUMBERS = {
    np.float16: st.floats(width=16),
    np.float32: st.floats(width=32),
    np.float64: st.floats() | st.sampled_from([3.4e38, 3.5e38, -1e39]),
    np.int64: st.integers(-(2**63), 2**63 - 1),
    np.uint8: st.integers(0, 255),
}


@given(st.data())
def test_an_array_of_messages_is_judged_like_a_list_of_them(data):
    kind = data.draw(st.sampled_from(list(NUMBERS)))
    rows = data.draw(
        hnp.arrays(kind, (7, LENGTH), elements=NUMBERS[kind], fill=st.just(kind(1))), label="rows"
    )
    rows[3] = 1  # somebody must be usable
    steps = data.draw(st.lists(st.integers(0, 2), min_size=7, max_size=7))
    steps[3] = 1
    together, alone = gather(rows, steps), gather(list(rows), steps)
    assert together.set_aside == alone.set_aside
    assert list(together.set_aside) == sorted(together.set_aside)
    np.testing.assert_array_equal(together.values, alone.values)
    for client, row in enumerate(rows.tolist()):  # the rule again, in plain Python
        usable = steps[client] > 0 and all(abs(x) < 2.0**128 - 2.0**103 for x in row)
        assert (client not in together.set_aside) == usable
        if not usable:
            assert not together.values[client].any()


def test_tensors_lists_integers_and_wide_floats_are_taken():
    one = np.arange(LENGTH)
    updates = gather([torch.arange(LENGTH), one.tolist(), one.astype(np.uint8), one / 1])
    assert not updates.set_aside
    assert updates.values.dtype == np.float32
    assert (updates.values == one).all()
    assert not updates.values.flags.writeable
    again = updates.replaced([None, *updates.values[1:]])
    assert list(again.set_aside) == [0]
    for name in ("num_classes", "head", "lr", "noise"):
        assert getattr(again, name) == getattr(updates, name)
    idle = gather([np.zeros(LENGTH), np.ones(LENGTH)], steps=[0, 1])
    assert idle.set_aside == {0: "made no local step"}
