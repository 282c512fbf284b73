"""Files of arrays: what they unpack to is bounded, whatever they claim; written, they are read."""

from __future__ import annotations

import gzip
import io
import re
import tracemalloc
import zipfile
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from safetensors.torch import load_file, save

from carvyfl.core import archives
from carvyfl.core.archives import contents, read_npy, read_npz, write_npz, write_tensors
from carvyfl.core.errors import CarvyError
from support.bounded import GIB, gzip_bomb, zip_claiming


def npy(array: Any) -> bytes:
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


def npy_claiming(shape: str, kind: str = "|u1", content: bytes = b"") -> bytes:
    """An array file with any header; the format's description: 6 + 2 bytes, length, text."""
    text = f"{{'descr': '{kind}', 'fortran_order': False, 'shape': {shape}, }}\n".encode()
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text + content


def refusal(call: Any, *args: Any) -> str:
    with pytest.raises(CarvyError) as caught:
        call(*args)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 500
    return str(caught.value)


def refusal_and_peak(call: Any, *args: Any) -> tuple[str, int]:
    """Return the message, too, and the bytes taken meanwhile."""
    tracemalloc.start()
    try:
        return refusal(call, *args), tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_a_gzip_bomb_is_refused_in_the_memory_of_the_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archives, "ALWAYS_UNPACKED", 1 << 24)
    bomb = gzip_bomb(tmp_path / "bomb.gz", 1 << 28)
    message, peak = refusal_and_peak(contents, bomb)
    assert "bomb.gz" in message
    assert "unpack to more than" in message
    assert peak < 1 << 27


def test_gzip_members_and_zeros_behind_them_are_unpacked(tmp_path: Path) -> None:
    path = tmp_path / "file.gz"
    packed = gzip.compress(b"one", mtime=0) + b"\0" * 9 + gzip.compress(b"two", mtime=0)
    path.write_bytes(packed + b"\0" * 9)
    assert contents(path) == b"onetwo"
    for wrong in (packed[:-1], packed + b"1", packed[:-8] + b"12345678"):
        path.write_bytes(wrong)
        assert "damaged gzip file" in refusal(contents, path)


def test_what_real_data_unpacks_to_passes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archives, "ALWAYS_UNPACKED", 0)
    path = tmp_path / "images.gz"
    images = np.random.default_rng(0).integers(0, 16, 10**6, np.uint8)
    images[: 9 * 10**5] = 0  # nine tenths of it background
    path.write_bytes(gzip.compress(images.tobytes()))
    assert contents(path) == images.tobytes()
    np.savez_compressed(tmp_path / "x.npz", x=images)
    assert (read_npz(tmp_path / "x.npz", ["x"])["x"] == images).all()


@pytest.mark.parametrize("kind", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_LZMA])
def test_an_archive_that_states_gigabytes_is_refused_unread(tmp_path: Path, kind: int) -> None:
    size = 3 * GIB
    member = npy_claiming(f"({size - 128},)")
    path = zip_claiming(tmp_path / "v.npz", {"x.npy": member}, {"x.npy": size}, kind)
    message, peak = refusal_and_peak(read_npz, path, ["x"])
    assert "unpack to more than" in message
    assert peak < 1 << 24


@pytest.mark.parametrize("kind", [zipfile.ZIP_DEFLATED, zipfile.ZIP_LZMA, zipfile.ZIP_BZIP2])
def test_a_member_larger_than_it_states_is_not_unpacked(tmp_path: Path, kind: int) -> None:
    """Its directory says one megabyte, and the packed bytes hold a hundred."""
    content = npy(np.zeros(10**6, np.uint8)) + bytes(10**8)
    path = zip_claiming(tmp_path / "v.npz", {"x.npy": content}, {"x.npy": 10**6 + 128}, kind)
    message, peak = refusal_and_peak(read_npz, path, ["x"])
    assert "not a readable .npz" in message  # its check sum is that of other bytes
    assert peak < 8 * 10**7


@pytest.mark.parametrize(
    "header",
    [
        npy_claiming("(1000000000000,)"),
        npy_claiming("(1099511627776, 1099511627776)", "<f8"),
        npy_claiming("(-4, -4)", content=bytes(16)),
        npy_claiming("(0, 99999999999999999999999)"),
        npy_claiming("(" + "1, " * 100 + ")", content=b"1"),
        npy_claiming("(1,)", "|O", b"cos\nsystem\n"),
        npy_claiming("(" * 3000),
        npy_claiming("(4,)", "<m9[ns]", bytes(64)),
        b"\x93NUMPY\x03\x00" + bytes(20),
        b"\x93NUMPY",
    ],
)
def test_headers_that_claim_too_much(tmp_path: Path, header: bytes) -> None:
    path = tmp_path / "x.npy"
    path.write_bytes(header)
    assert "damaged, or no plain array" in refusal(read_npy, path)
    with zipfile.ZipFile(tmp_path / "x.npz", "w") as archive:
        archive.writestr("x.npy", header)
    assert "not a readable .npz" in refusal(read_npz, tmp_path / "x.npz", ["x"])


@pytest.mark.parametrize("kind", [zipfile.ZIP_LZMA, zipfile.ZIP_DEFLATED])
def test_a_corrupt_member_is_refused(tmp_path: Path, kind: int) -> None:
    path = tmp_path / "v.npz"
    array = np.random.default_rng(0).integers(0, 100, 500, np.uint8)
    with zipfile.ZipFile(path, "w", kind) as archive:
        archive.writestr("x.npy", npy(array))
    assert (read_npz(path, ["x"])["x"] == array).all()
    intact, refused = path.read_bytes(), 0
    for at in range(35, len(intact) - 80, 3):
        path.write_bytes(intact[:at] + bytes([intact[at] ^ 0x55]) + intact[at + 1 :])
        try:
            assert (read_npz(path, ["x"])["x"] == array).all()
        except CarvyError:
            refused += 1
    assert refused > 0.3 * (len(intact) - 115)


@given(st.binary(max_size=300), st.integers(0, 400))
def test_any_bytes_in_place_of_some(junk: bytes, at: int) -> None:
    content = npy(np.arange(20))
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("x.npy", content[:at] + junk + content[at + len(junk) :])
    try:
        read_npz(file, ["x"], where="file")
    except CarvyError as error:
        assert re.match("file: ", str(error))  # noqa: PT017


@given(
    hnp.arrays(
        st.sampled_from(["int8", "uint16", "float64", "U3"]),
        hnp.array_shapes(min_dims=0, max_dims=3, min_side=0),
        elements={"allow_nan": False},
    ),
    st.sampled_from("CF"),
)
def test_numpy_reads_what_is_written(array: Any, order: Any) -> None:
    with TemporaryDirectory() as folder:
        first, again = Path(folder, "a.npz"), Path(folder, "b.npz")
        for path in (first, again):
            write_npz(path, {"one": np.asarray(array, order=order), "two": np.array(2)})
        with np.load(first, allow_pickle=False) as answer:
            assert sorted(answer) == ["one", "two"]
            assert answer["one"].dtype == array.dtype
            np.testing.assert_array_equal(answer["one"], array)
        assert first.read_bytes() == again.read_bytes()


NAMES = st.text(st.characters(codec="utf-8"), max_size=6).filter(lambda x: x != "__metadata__")
SHAPES = st.lists(st.integers(0, 4), max_size=3)


@settings(max_examples=60)
@given(shapes=st.dictionaries(NAMES, SHAPES, max_size=5), key=NAMES, value=NAMES)
def test_tensor_files_are_byte_for_byte_those_of_the_library(
    shapes: dict[str, list[int]], key: str, value: str
) -> None:
    tensors = {name: torch.randn(shape) for name, shape in shapes.items()}
    with TemporaryDirectory() as folder:
        path = Path(folder, "some.safetensors")
        write_tensors(path, tensors, {key: value})
        assert path.read_bytes() == save(tensors, {key: value})


def test_views_of_one_tensor_are_written_as_what_they_show(tmp_path: Path) -> None:
    whole = torch.arange(24.0).reshape(4, 6)
    views = {"rows": whole[1:3], "columns": whole[:, 2:4], "again": whole[1:3], "one": whole[0, 0]}
    write_tensors(tmp_path / "views", views, {})
    read = load_file(tmp_path / "views")
    assert read.keys() == views.keys()
    assert all(torch.equal(read[name], view) for name, view in views.items())
