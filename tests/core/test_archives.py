"""Compressed files and arrays: what they unpack to is bounded, whatever they claim."""

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
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from carvyfl.core import archives
from carvyfl.core.archives import contents, read_npy, read_npz, write_npz
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


def test_a_gzip_bomb_is_refused_in_the_memory_of_the_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archives, "ALWAYS_UNPACKED", 1 << 24)
    bomb = gzip_bomb(tmp_path / "bomb.gz", 1 << 28)
    tracemalloc.start()
    try:
        message = refusal(contents, bomb)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert "bomb.gz" in message
    assert "unpack to more than" in message
    assert peak < 1 << 27


@given(
    parts=st.lists(st.binary(max_size=40), min_size=1, max_size=3),
    zeros=st.integers(0, 20),
    chunk=st.integers(1, 50),
    fed=st.integers(1, 50),
)
def test_gzip_members_are_unpacked_as_gzip_does_it(
    parts: list[bytes], zeros: int, chunk: int, fed: int
) -> None:
    packed = (b"\0" * zeros).join(gzip.compress(20 * part, mtime=0) for part in parts)
    with TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(archives, "_CHUNK", chunk)
        patch.setattr(archives, "_PACKED", fed)
        path = Path(folder, "file.gz")
        path.write_bytes(packed + b"\0" * zeros)
        assert (
            contents(path) == gzip.decompress(path.read_bytes()) == b"".join(20 * p for p in parts)
        )
        for wrong in (packed[:-1], packed + b"1", packed[:-8] + b"12345678"):
            path.write_bytes(wrong)
            with pytest.raises(CarvyError, match="damaged gzip file"):
                contents(path)


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
    tracemalloc.start()
    try:
        message = refusal(read_npz, path, ["x"])
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert "unpack to more than" in message
    assert peak < 1 << 24


@pytest.mark.parametrize("kind", [zipfile.ZIP_DEFLATED, zipfile.ZIP_LZMA, zipfile.ZIP_BZIP2])
def test_a_member_larger_than_it_states_is_not_unpacked(tmp_path: Path, kind: int) -> None:
    """Its directory says one megabyte, and the packed bytes hold a hundred."""
    content = npy(np.zeros(10**6, np.uint8)) + bytes(10**8)
    path = zip_claiming(tmp_path / "v.npz", {"x.npy": content}, {"x.npy": 10**6 + 128}, kind)
    tracemalloc.start()
    try:
        message = refusal(read_npz, path, ["x"])
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert "not a readable .npz" in message  # its check sum is that of other bytes
    assert peak < 8 * 10**7


@pytest.mark.parametrize(
    "header",
    [
        npy_claiming("(10**15,)"),  # not a plain number either
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
        with np.load(first, allow_pickle=False) as found:
            assert sorted(found) == ["one", "two"]
            assert found["one"].dtype == array.dtype
            np.testing.assert_array_equal(found["one"], array)
        assert first.read_bytes() == again.read_bytes()
