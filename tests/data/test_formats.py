from __future__ import annotations

import gzip
import struct
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from carvyfl.core.archives import contents
from carvyfl.core.errors import CarvyError
from carvyfl.data.datasets import CIFAR_RECORD, CIFAR_TEST, CIFAR_TRAIN, parse_idx, read_cifar

# Written out by hand from the format's description: 2 images of 2 x 3 bytes.
IMAGES = bytes.fromhex("00000803 00000002 00000002 00000003 000102030405 fafbfcfdfeff")


@pytest.mark.parametrize("name", ["images", "images.gz"])
@pytest.mark.parametrize("packed", [False, True])
def test_gzip_is_told_by_its_bytes_not_by_its_suffix(
    tmp_path: Path, name: str, packed: bool
) -> None:
    path = tmp_path / name
    path.write_bytes(gzip.compress(IMAGES) if packed else IMAGES)
    images = parse_idx(contents(path), "images")
    assert images.dtype == np.uint8
    assert images.tolist() == [[[0, 1, 2], [3, 4, 5]], [[250, 251, 252], [253, 254, 255]]]
    assert images.flags.writeable


@pytest.mark.parametrize(
    ("code", "letter", "values"),
    [
        (0x08, "B", [0, 255]),
        (0x09, "b", [-128, 127]),
        (0x0B, "h", [-300, 300]),
        (0x0C, "i", [-70000, 70000]),
        (0x0D, "f", [-1.5, 0.25]),
        (0x0E, "d", [-1e300, 0.1]),
    ],
)
def test_every_element_type(code: int, letter: str, values: list[float]) -> None:
    content = bytes([0, 0, code, 1]) + struct.pack(f">i2{letter}", 2, *values)
    array = parse_idx(content, "file")
    assert array.tolist() == values
    assert array.dtype.isnative


@given(st.integers(0, len(IMAGES) - 1))
def test_every_truncation_is_refused(length: int) -> None:
    with pytest.raises(CarvyError, match=r"^file: (not an IDX|truncated)"):
        parse_idx(IMAGES[:length], "file")


ONES = struct.pack(">I", 1)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"PK\x03\x04rest", r"not an IDX file .*begins with 50 4b 03 04"),
        (b"", "begins with nothing"),
        (bytes.fromhex("00000701 00000000"), "begins with 00 00 07 01"),
        (IMAGES + b"!", r"too long: 29 bytes where shape \(2, 2, 3\) needs 28"),
        *[
            (bytes([0, 0, 8, n]) + ONES * n + b"x", f"file: {n} dimensions; at most 32")
            for n in (33, 65, 255)
        ],
        (bytes([0, 0, 8, 4]) + bytes(4) + b"\xff" * 12, "file: no array can have shape"),
    ],
)
def test_damage_is_told_in_one_line(content: bytes, message: str) -> None:
    with pytest.raises(CarvyError, match=message) as caught:
        parse_idx(content, "file")
    assert "\n" not in str(caught.value)


def test_a_damaged_gzip_file_is_named(tmp_path: Path) -> None:
    packed = gzip.compress(IMAGES)
    flipped = bytearray(packed)
    flipped[-6] ^= 1  # in the check sum at the end
    broken = tmp_path / "broken.gz"
    for damaged in (packed[:-9], packed[:5], bytes(flipped), b"\x1f\x8bnot gzip at all"):
        broken.write_bytes(damaged)
        with pytest.raises(CarvyError, match=r"^[^\n]*broken\.gz: damaged gzip file[^\n]*$"):
            contents(broken)
    with pytest.raises(CarvyError, match="absent: cannot be read"):
        contents(tmp_path / "absent")


def test_a_cifar_image_is_a_label_and_three_planes() -> None:
    planes = bytes([7]) + b"".join(bytes([plane]) * 1024 for plane in (10, 20, 30))
    files = dict.fromkeys((*CIFAR_TRAIN, CIFAR_TEST), planes)
    row = bytearray(planes)
    row[1 + 32] = 99  # the first pixel of the second row
    files[CIFAR_TRAIN[3]] = bytes([5]) + bytes(row[1:])  # batches stay in their order
    arrays = read_cifar(files)
    assert arrays["x_train"].shape == (5, 3, 32, 32)
    assert arrays["x_test"].shape == (1, 3, 32, 32)
    assert arrays["y_train"].tolist() == [7, 7, 7, 5, 7]
    for plane, value in enumerate((10, 20, 30)):
        assert (arrays["x_test"][:, plane] == value).all()
    assert np.argwhere(arrays["x_train"] == 99).tolist() == [[3, 0, 1, 0]]
    for size in (0, 1, CIFAR_RECORD - 1, CIFAR_RECORD + 1):
        files[CIFAR_TEST] = bytes(size)
        with pytest.raises(CarvyError, match=rf"^test_batch\.bin: {size} bytes are not whole rec"):
            read_cifar(files)
