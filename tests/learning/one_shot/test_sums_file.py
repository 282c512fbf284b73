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


@pytest.fixture
def written(tmp_path: Path) -> SumsFile:
    file = SumsFile(tmp_path / "sums.safetensors", 4, CLASSES, 5)
    file.write(drawn(4, 5))
    return file


def test_the_library_and_the_file_read_what_was_written_bit_for_bit(written: SumsFile):
    arrays = load_file(written.path)
    written.check()
    for client, sums in enumerate(drawn(4, 5)):
        triangle = [sums.second[i, j] for i in range(5) for j in range(i, 5)]
        np.testing.assert_array_equal(arrays["counts"][client], sums.counts)
        np.testing.assert_array_equal(arrays["first"][client], sums.first)
        np.testing.assert_array_equal(arrays["second"][client], triangle)
        for name, array in vars(written.of(client)).items():
            np.testing.assert_array_equal(array, getattr(sums, name), strict=True)
        np.testing.assert_array_equal(written.counts()[client], sums.counts)


@pytest.mark.parametrize(
    ("name", "array"),
    [
        ("counts", np.zeros((4, CLASSES), np.int32)),
        ("first", np.zeros((4, CLASSES, 5), np.float64)),
        ("second", np.zeros((4, 14), np.float32)),
        ("more", np.zeros(1, np.float32)),
    ],
)
def test_other_types_shapes_and_names_are_refused(written: SumsFile, name: str, array: np.ndarray):
    save_file({**load_file(written.path), name: array}, written.path)
    with pytest.raises(CarvyError, match="does not hold the sums of 4 clients"):
        written.check()


@pytest.mark.parametrize("length", [0, 7, 40, -1])
def test_a_part_of_a_file_is_refused(written: SumsFile, length: int):
    written.path.write_bytes(written.path.read_bytes()[:length])
    with pytest.raises(CarvyError, match="cannot read the sums"):
        written.check()


@pytest.mark.parametrize("clients", [3, 5])
def test_too_few_or_too_many_clients_leave_no_file(tmp_path: Path, clients: int):
    with pytest.raises(ValueError, match="argument 2"):
        SumsFile(tmp_path / "sums.safetensors", 4, CLASSES, 5).write(drawn(clients, 5))
    assert list(tmp_path.iterdir()) == []
