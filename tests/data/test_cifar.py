"""A data set that is published as one archive: CIFAR-10."""

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
from carvyfl.data.datasets import DATASETS, load
from carvyfl.data.fetch import fetch, verify
from carvyfl.data.formats import CIFAR_RECORD, CIFAR_TEST
from support.mirror import Mirror
from support.registries import registered

Files = dict[str, bytes]
FOLDER = "cifar-10-batches-bin"
ARCHIVE = "cifar-10-binary.tar.gz"


@pytest.fixture
def files() -> Files:
    """Return ten images per file, one per class, of random pixels."""
    rng = np.random.default_rng(4)
    contents = {}
    for file in DATASETS["cifar-10"].sha256:
        records = rng.integers(0, 256, (10, CIFAR_RECORD), np.uint8)
        records[:, 0] = rng.permutation(10)
        contents[file] = records.tobytes()
    return contents


@pytest.fixture
def tiny(files: Files, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[str]:
    """Register the files as the data set "tiny-cifar", with an empty cache."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("CARVYFL_DATA", raising=False)
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    sums = {file: hashlib.sha256(content).hexdigest() for file, content in files.items()}
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
    named = {f"{FOLDER}/{file}": content for file, content in files.items()}
    return {**named, f"{FOLDER}/batches.meta.txt": b"airplane\n", f"{FOLDER}/readme.html": b"<>"}


def special(name: str, kind: bytes, target: str = "/etc/passwd") -> tarfile.TarInfo:
    member = tarfile.TarInfo(name)
    member.type, member.linkname = kind, target
    return member


def test_a_label_beyond_the_classes_is_refused(files: Files) -> None:
    files[CIFAR_TEST] = bytes([10]) + files[CIFAR_TEST][1:]
    with pytest.raises(CarvyError, match=r"cifar-10 \(test\): labels run from .* to 10"):
        DATASETS["cifar-10"].read(files)


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
    (tmp_path / CIFAR_TEST).write_bytes(files[CIFAR_TEST][:-CIFAR_RECORD])
    with pytest.raises(CarvyError, match=rf"{CIFAR_TEST}: .*SHA-256 differs.*fetch tiny-cifar"):
        load(tiny, data_dir=tmp_path)


def test_a_damaged_file_is_replaced_from_the_archive(
    tiny: str, files: Files, mirror: Mirror, tmp_path: Path
) -> None:
    pack(tmp_path / "served" / ARCHIVE, published(files))
    folder = fetch(tiny, directory=tmp_path / "to", mirrors=[mirror.url], progress=False)
    (folder / CIFAR_TEST).rename(folder / f"{CIFAR_TEST}.gz")
    (folder / f"{CIFAR_TEST}.gz").write_bytes(b"damaged")
    fetch(tiny, directory=tmp_path / "to", mirrors=[mirror.url], progress=False)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == files


def test_no_part_of_a_wrong_archive_reaches_the_folder(
    tiny: str, files: Files, mirror: Mirror, tmp_path: Path
) -> None:
    served = tmp_path / "served" / ARCHIVE
    whole = pack(served, published(files)).read_bytes()
    other = published({**files, CIFAR_TEST: files[CIFAR_TEST][:-1] + b"\0"})
    short = {name: content for name, content in published(files).items() if CIFAR_TEST not in name}
    link = special(f"{FOLDER}/{CIFAR_TEST}", tarfile.SYMTYPE)
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
    assert [path.name for path in tmp_path.iterdir()] == ["a.tar.gz"]


@pytest.mark.parametrize(
    "kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.DIRTYPE, tarfile.FIFOTYPE, tarfile.CHRTYPE]
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
