"""CIFAR-10: its records, and a data set that is published as one archive."""

from __future__ import annotations

import hashlib
import io
import tarfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from carvyfl.core.archives import read_tar
from carvyfl.core.errors import CarvyError
from carvyfl.data.cifar import RECORD, SHA256, TEST_FILE, TRAIN_FILES, parse_batch, read_batches
from carvyfl.data.datasets import DATASETS, load
from carvyfl.data.fetch import fetch, verify
from support.mirror import Mirror
from support.registries import registered

Files = dict[str, bytes]
FOLDER = "cifar-10-batches-bin"
ARCHIVE = "cifar-10-binary.tar.gz"


@pytest.fixture
def files() -> Files:
    """Return ten images per file, one per class, of random pixels."""
    rng = np.random.default_rng(4)
    found = {}
    for file in SHA256:
        records = rng.integers(0, 256, (10, RECORD), np.uint8)
        records[:, 0] = rng.permutation(10)
        found[file] = records.tobytes()
    return found


@pytest.fixture
def tiny(files: Files, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[str]:
    """Register the files as the data set "tiny-cifar", with an empty cache."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("CARVYFL_DATA", raising=False)
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    sums = {file: hashlib.sha256(own).hexdigest() for file, own in files.items()}
    with registered(DATASETS, replace(DATASETS["cifar-10"], name="tiny-cifar", sha256=sums)):
        yield "tiny-cifar"


@pytest.fixture
def mirror(tmp_path: Path) -> Iterator[Mirror]:
    (tmp_path / "served").mkdir()
    server = Mirror(tmp_path / "served")
    yield server
    server.stop()


def pack(path: Path, members: Files, *others: tarfile.TarInfo) -> Path:
    """Write an archive of these members, and of others without content."""
    with tarfile.open(path, "w:gz") as archive:
        for name, content in members.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
        for other in others:
            archive.addfile(other)
    return path


def published(files: Files) -> Files:
    """Name the members as the published archive does, with those that nobody needs."""
    named = {f"{FOLDER}/{file}": own for file, own in files.items()}
    return {**named, f"{FOLDER}/batches.meta.txt": b"airplane\n", f"{FOLDER}/readme.html": b"<>"}


def special(name: str, kind: bytes, target: str = "/etc/passwd") -> tarfile.TarInfo:
    member = tarfile.TarInfo(name)
    member.type, member.linkname = kind, target
    return member


# -- records -----------------------------------------------------------------------------


def test_an_image_is_a_label_and_three_planes() -> None:
    planes = bytes([7]) + b"".join(bytes([plane]) * 1024 for plane in (10, 20, 30))
    arrays = read_batches(dict.fromkeys(SHA256, planes))
    assert arrays["x_train"].shape == (5, 3, 32, 32)
    assert arrays["x_test"].shape == (1, 3, 32, 32)
    assert arrays["y_train"].tolist() == [7] * 5
    for plane, value in enumerate((10, 20, 30)):
        assert (arrays["x_train"][:, plane] == value).all()
    row = bytearray(planes)
    row[1 + 32] = 99  # the first pixel of the second row
    assert parse_batch(bytes(row), "x")[:, 1:].reshape(-1, 3, 32, 32)[0, 0, 1, 0] == 99


def test_batches_stay_in_their_order(files: Files) -> None:
    arrays = read_batches(files)
    for position, file in enumerate(TRAIN_FILES):
        labels = np.frombuffer(files[file], np.uint8)[::RECORD]
        assert arrays["y_train"][10 * position :][:10].tolist() == labels.tolist()


@pytest.mark.parametrize("size", [0, 1, RECORD - 1, RECORD + 1])
def test_parts_of_records_are_refused(size: int) -> None:
    with pytest.raises(CarvyError, match=rf"^b\.bin: {size} bytes are not whole records of 3073"):
        parse_batch(bytes(size), "b.bin")


def test_a_label_beyond_the_classes_is_refused(files: Files) -> None:
    files[TEST_FILE] = bytes([10]) + files[TEST_FILE][1:]
    with pytest.raises(CarvyError, match=r"cifar-10 \(test\): labels run from .* to 10"):
        DATASETS["cifar-10"].read(files)


def test_the_registered_set_is_complete(files: Files) -> None:
    source = DATASETS["cifar-10"]
    assert set(source.sha256) == {*TRAIN_FILES, TEST_FILE}
    assert all(len(bytes.fromhex(digest)) == 32 for digest in source.sha256.values())
    assert all(address.startswith("https://") for address in source.mirrors)
    data = source.read(files)
    assert (data.name, data.num_classes, data.mean, data.std) == ("cifar-10", 10, 0.4734, 0.2516)
    assert data.class_names[6] == "frog"
    assert len(data.class_names) == 10


# -- archives ----------------------------------------------------------------------------


def test_an_archive_is_fetched_and_loaded(
    tiny: str, files: Files, mirror: Mirror, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    pack(tmp_path / "served" / ARCHIVE, published(files))
    folder = fetch(tiny, mirrors=[mirror.url])
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == files
    assert ARCHIVE in capfd.readouterr().err
    data = load(tiny)
    assert data.train.inputs.shape == (50, 3, 32, 32)
    assert np.bincount(data.test.labels).tolist() == [1] * 10
    fetch(tiny, mirrors=[mirror.url], progress=False)
    assert len(mirror.asked) == 1  # nothing was left to fetch


def test_files_that_were_unpacked_by_hand_are_found(
    tiny: str, files: Files, tmp_path: Path
) -> None:
    for file, content in files.items():
        (tmp_path / file).write_bytes(content)
    assert [check.state for check in verify(tiny, tmp_path)] == ["ok"] * 6
    assert len(load(tiny, data_dir=tmp_path).train) == 50
    (tmp_path / TEST_FILE).write_bytes(files[TEST_FILE][:-RECORD])
    with pytest.raises(CarvyError, match=rf"{TEST_FILE}: .*SHA-256 differs.*fetch tiny-cifar"):
        load(tiny, data_dir=tmp_path)


def test_a_damaged_file_is_replaced_from_the_archive(
    tiny: str, files: Files, mirror: Mirror, tmp_path: Path
) -> None:
    pack(tmp_path / "served" / ARCHIVE, published(files))
    folder = fetch(tiny, directory=tmp_path / "to", mirrors=[mirror.url], progress=False)
    (folder / TEST_FILE).rename(folder / f"{TEST_FILE}.gz")
    (folder / f"{TEST_FILE}.gz").write_bytes(b"damaged")
    fetch(tiny, directory=tmp_path / "to", mirrors=[mirror.url], progress=False)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == files


def test_no_part_of_a_wrong_archive_reaches_the_folder(
    tiny: str, files: Files, mirror: Mirror, tmp_path: Path
) -> None:
    served = tmp_path / "served" / ARCHIVE
    whole = pack(served, published(files)).read_bytes()
    other = published({**files, TEST_FILE: files[TEST_FILE][:-1] + b"\0"})
    short = {name: own for name, own in published(files).items() if TEST_FILE not in name}
    link = special(f"{FOLDER}/{TEST_FILE}", tarfile.SYMTYPE)
    for content in (
        b"text",
        whole[: len(whole) // 2],
        pack(served, other).read_bytes(),
        pack(served, short).read_bytes(),
        pack(served, short, link).read_bytes(),
    ):
        served.write_bytes(content)
        with pytest.raises(CarvyError, match=rf"{ARCHIVE} .*damaged or different file") as caught:
            fetch(tiny, directory=tmp_path / "to", mirrors=[mirror.url], progress=False)
        assert "\n" not in str(caught.value)
        assert list((tmp_path / "to").iterdir()) == []


def test_members_are_known_by_their_last_name(tmp_path: Path) -> None:
    """A path out of the folder is harmless: nothing is written where a member says."""
    path = pack(tmp_path / "a.tar.gz", {"../../up.bin": b"1", "/root.bin": b"2", "no.bin": b"3"})
    assert read_tar(path, ["up.bin", "root.bin"]) == {"up.bin": b"1", "root.bin": b"2"}
    assert [own.name for own in tmp_path.iterdir()] == ["a.tar.gz"]


@pytest.mark.parametrize(
    "kind",
    [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.DIRTYPE, tarfile.FIFOTYPE, tarfile.CHRTYPE],
)
def test_what_is_not_a_plain_file_is_refused(tmp_path: Path, kind: bytes) -> None:
    path = pack(tmp_path / "a.tar.gz", {"x.bin": b"1"}, special("y.bin", kind))
    with pytest.raises(CarvyError, match=r"a\.tar\.gz: .*y\.bin is not a plain file"):
        read_tar(path, ["x.bin", "y.bin"])
    assert read_tar(path, ["x.bin"]) == {"x.bin": b"1"}


def test_a_sparse_file_that_claims_more_than_there_is_is_refused(tmp_path: Path) -> None:
    member = tarfile.TarInfo("y.bin")
    member.pax_headers = {
        "GNU.sparse.major": "0",
        "GNU.sparse.minor": "1",
        "GNU.sparse.map": "0,0",
        "GNU.sparse.size": str(1 << 50),
    }
    path = tmp_path / "a.tar"
    with tarfile.open(path, "w", format=tarfile.PAX_FORMAT) as archive:
        archive.addfile(member)
    with pytest.raises(CarvyError, match=r"y\.bin is not a plain file"):
        read_tar(path, ["y.bin"])


def test_archives_that_cannot_be_read(tmp_path: Path) -> None:
    path = pack(tmp_path / "a.tar.gz", {"a/x.bin": b"1", "b/x.bin": b"2"})
    with pytest.raises(CarvyError, match=r"x\.bin is there twice"):
        read_tar(path, ["x.bin"])
    with pytest.raises(CarvyError, match=r"y\.bin missing in the archive; get a fresh copy"):
        read_tar(path, ["y.bin"])
    with tarfile.open(path, "w") as archive:
        member = tarfile.TarInfo("x.bin")
        member.size = 5000
        archive.addfile(member, io.BytesIO(bytes(5000)))
    path.write_bytes(path.read_bytes()[:3000])
    for content in (path.read_bytes(), b"text" * 200, path.read_bytes()[:600]):
        path.write_bytes(content)
        with pytest.raises(CarvyError, match=r"a\.tar\.gz: damaged, or not a tar") as caught:
            read_tar(path, ["x.bin"])
        assert "\n" not in str(caught.value)
