"""Profile vectors: weights by size, how much is chance, and the file they are kept in."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from carvyfl.profiles.class_counts import collect_counts, count_vectors
from carvyfl.profiles.vectors import Vectors, chance, load_vectors, save_vectors, weighed


def test_vectors_are_read_back_bit_for_bit(tmp_path: Path) -> None:
    rows = np.random.default_rng(0).normal(size=(5, 3)).astype(np.float32)
    save_vectors(tmp_path / "profiles.npz", Vectors(rows, 0.25))
    vectors = load_vectors(tmp_path / "profiles.npz", 5)
    assert vectors.rows.dtype == np.float32
    np.testing.assert_array_equal(vectors.rows, rows)
    assert vectors.by_chance == 0.25


def test_a_client_weighs_as_its_size_says_and_four_median_clients_at_most() -> None:
    rows = np.ones((5, 2))
    weighed_rows = weighed(rows, np.array([10.0, 20.0, 20.0, 40.0, 1e30]))
    assert weighed_rows[:, 0].tolist() == [0.5, 1.0, 1.0, 2.0, 4.0]


def test_shares_of_one_source_differ_by_chance_and_others_do_not() -> None:
    rng = np.random.default_rng(0)
    alike = rng.multinomial(50, [0.2, 0.3, 0.5], size=400)
    apart = np.concatenate(
        [rng.multinomial(50, p, size=200) for p in np.eye(3)[:2] * 0.8 + 0.2 / 3]
    )
    vectors = [count_vectors(collect_counts(c.astype(np.float32), 3)) for c in (alike, apart)]
    assert vectors[0].by_chance == pytest.approx(1.0, abs=0.1)
    assert "50 %" not in vectors[0].warnings[0]
    assert vectors[1].by_chance < 0.2
    assert vectors[1].warnings == ()
    assert chance(np.ones((3, 2)), np.zeros(3)) == 1.0  # rows that are all alike


def test_counts_are_shares_and_negative_ones_are_none() -> None:
    counts = np.array([[30, 10, 0], [0, 20, 20], [0, 0, 0], [40, -1e9, 0]], np.float32)
    rows = count_vectors(collect_counts(counts, 3)).rows
    np.testing.assert_allclose(
        rows, np.array([[0.75, 0.25, 0], [0, 0.5, 0.5], [0, 0, 0], [1, 0, 0]]), atol=1e-7
    )
