"""The file of all clients' sums: any safetensors reader reads it, and it is written in parts."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from carvyfl.core.errors import CarvyError
from carvyfl.learning.one_shot.sums import Sums, SumsFile, sums_of

CLASSES = 3


def drawn(clients: int, width: int) -> Iterator[Sums]:
    rng = np.random.default_rng(0)
    for _ in range(clients):
        features = rng.normal(size=(20, width)).astype(np.float32)
        yield sums_of(features, rng.integers(0, CLASSES, 20), CLASSES)


def test_the_library_reads_what_was_written(tmp_path: Path):
    file = SumsFile(tmp_path / "sums.safetensors", 4, CLASSES, 5)
    file.write(drawn(4, 5))
    found = load_file(file.path)
    for client, own in enumerate(drawn(4, 5)):
        np.testing.assert_array_equal(found["counts"][client], own.counts)
        np.testing.assert_array_equal(found["first"][client], own.first)
        triangle = [own.second[i, j] for i in range(5) for j in range(i, 5)]
        np.testing.assert_array_equal(found["second"][client], triangle)


def test_sums_come_back_bit_for_bit(tmp_path: Path):
    file = SumsFile(tmp_path / "sums.safetensors", 4, CLASSES, 5)
    file.write(drawn(4, 5))
    file.check()
    for client, own in enumerate(drawn(4, 5)):
        again = file.of(client)
        np.testing.assert_array_equal(again.counts, own.counts)
        np.testing.assert_array_equal(again.first, own.first)
        np.testing.assert_array_equal(again.second, own.second)
        assert again.second.dtype == np.float32
    np.testing.assert_array_equal(file.counts(), [own.counts for own in drawn(4, 5)])


def test_one_client_at_a_time_is_in_memory(tmp_path: Path):
    clients, width = 60, 150
    file = SumsFile(tmp_path / "sums.safetensors", clients, CLASSES, width)
    tracemalloc.start()
    try:
        file.write(drawn(clients, width))
        for client in range(clients):
            file.of(client)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    matrix = 4 * width**2
    assert file.path.stat().st_size > clients * matrix / 2
    assert peak < 20 * matrix


@pytest.mark.parametrize(
    "changes",
    [
        {"counts": np.zeros((4, CLASSES), np.int32)},
        {"first": np.zeros((4, CLASSES, 5), np.float64)},
        {"second": np.zeros((4, 14), np.float32)},
        {"more": np.zeros(1, np.float32)},
    ],
    ids=["counts", "first", "second", "more"],
)
def test_other_types_shapes_and_names_are_refused(tmp_path: Path, changes: dict[str, np.ndarray]):
    file = SumsFile(tmp_path / "sums.safetensors", 4, CLASSES, 5)
    file.write(drawn(4, 5))
    save_file({**load_file(file.path), **changes}, file.path)
    with pytest.raises(CarvyError, match="does not hold the sums of 4 clients"):
        file.check()


def test_a_part_of_a_file_is_refused(tmp_path: Path):
    file = SumsFile(tmp_path / "sums.safetensors", 4, CLASSES, 5)
    file.write(drawn(4, 5))
    content = file.path.read_bytes()
    for length in (0, 7, 40, len(content) - 1):
        file.path.write_bytes(content[:length])
        with pytest.raises(CarvyError, match="cannot read the sums"):
            file.check()


def test_too_few_or_too_many_clients_leave_no_file(tmp_path: Path):
    file = SumsFile(tmp_path / "sums.safetensors", 4, CLASSES, 5)
    for clients in (3, 5):
        with pytest.raises(ValueError, match="argument 2"):
            file.write(drawn(clients, 5))
    assert list(tmp_path.iterdir()) == []
