"""Data sets: one's own files, registered ones, and how those are found, fetched and checked."""

from __future__ import annotations

import gzip
import hashlib
import io
import socket
import struct
import tarfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from carvyfl.core.archives import read_tar
from carvyfl.core.errors import CarvyError
from carvyfl.data import fetch as fetching
from carvyfl.data.datasets import (
    CIFAR_RECORD,
    CIFAR_TEST,
    DATASETS,
    IDX_FILES,
    DataSet,
    DataSource,
    data_set,
    load,
    parse_idx,
)
from carvyfl.data.fetch import available, fetch, verify
from support.mirror import Mirror
from support.registries import registered, restored

Arrays = dict[str, npt.NDArray[np.uint8]]
Files = dict[str, bytes]
ARCHIVE = "cifar-10-binary.tar.gz"
LABELS = IDX_FILES["y_test"]


@pytest.fixture
def arrays() -> Arrays:
    rng = np.random.default_rng(3)
    return {
        "x_train": rng.integers(0, 256, (12, 4, 5), np.uint8),
        "y_train": (np.arange(12) % 3).astype(np.uint8),
        "x_test": rng.integers(0, 256, (6, 4, 5), np.uint8),
        "y_test": (np.arange(6) % 3).astype(np.uint8),
    }


def idx_bytes(array: npt.NDArray[np.uint8]) -> bytes:
    return struct.pack(f">BBBB{array.ndim}I", 0, 0, 8, array.ndim, *array.shape) + array.tobytes()


def write_idx(folder: Path, arrays: Arrays, *, packed: bool = True) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for array, file in IDX_FILES.items():
        content = idx_bytes(arrays[array])
        path = folder / (f"{file}.gz" if packed else file)
        path.write_bytes(gzip.compress(content) if packed else content)
    return folder


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


@dataclass(frozen=True)
class Tiny:
    """A small registered data set: its name, its files, and how a mirror offers them."""

    name: str
    files: Files
    archive: str | None

    def serve(self, folder: Path, files: Files | None = None) -> None:
        files = self.files if files is None else files
        if self.archive is None:
            for file, content in files.items():
                (folder / f"{file}.gz").write_bytes(gzip.compress(content))
        else:  # named as in the published archive, with those that nobody needs
            members = {f"cifar-10-batches-bin/{file}": part for file, part in files.items()}
            pack(folder / self.archive, {**members, "cifar-10-batches-bin/readme.html": b"<>"})


@pytest.fixture
def sources(
    arrays: Arrays, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Iterator[list[Tiny]]:
    """Register a set of IDX files and one in an archive, with an empty cache."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("CARVYFL_DATA", raising=False)
    monkeypatch.setenv("no_proxy", "127.0.0.1")

    def read(files: Mapping[str, bytes]) -> DataSet:
        images = {array: parse_idx(files[file], file) for array, file in IDX_FILES.items()}
        return data_set("tiny", images, "tiny", mean=0.25, std=0.5, class_names=("a", "b", "c"))

    rng, records = np.random.default_rng(4), {}
    for file in DATASETS["cifar-10"].sha256:  # ten images per file, one per class
        part = rng.integers(0, 256, (10, CIFAR_RECORD), np.uint8)
        part[:, 0] = rng.permutation(10)
        records[file] = part.tobytes()
    idx = {file: idx_bytes(arrays[array]) for array, file in IDX_FILES.items()}
    entries = {
        "tiny": (
            idx,
            DataSource("tiny", "12 + 6 pictures", read, mirrors=("http://127.0.0.1:9/",)),
        ),
        "tiny-cifar": (records, DATASETS["cifar-10"]),
    }
    made = []
    with restored(DATASETS):
        for name, (files, source) in entries.items():
            sums = {file: hashlib.sha256(content).hexdigest() for file, content in files.items()}
            DATASETS.add(replace(source, name=name, sha256=sums))
            made.append(Tiny(name, files, source.archive))
        yield made


@pytest.fixture
def tiny(sources: list[Tiny]) -> str:
    return sources[0].name


@pytest.fixture(params=["files", "archive"])
def source(request: pytest.FixtureRequest, sources: list[Tiny]) -> Tiny:
    return sources[request.param == "archive"]


@pytest.fixture
def mirror(tmp_path: Path) -> Iterator[Mirror]:
    (tmp_path / "served").mkdir()
    server = Mirror(tmp_path / "served")
    yield server
    server.stop()


@pytest.fixture
def dead_url() -> str:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{free.getsockname()[1]}/"


# -- one's own files -----------------------------------------------------------------------


@pytest.mark.parametrize("packed", [False, True])
def test_idx_folder(tmp_path: Path, arrays: Arrays, packed: bool) -> None:
    data = load(write_idx(tmp_path / "own", arrays, packed=packed))
    assert data.name == "own"
    assert (data.train.inputs[:, 0] == arrays["x_train"]).all()
    assert data.test.labels.tolist() == arrays["y_test"].tolist()
    assert (data.num_classes, data.class_names) == (3, ("0", "1", "2"))
    assert (data.mean, data.std) == (0.5, 0.5)  # pixels: -1…1, whatever they are


@pytest.mark.parametrize(
    ("shape", "expected"), [((4, 5), (1, 4, 5)), ((2, 4, 5), (2, 4, 5)), ((7,), (7,))]
)
def test_npz_of_floats_in_any_shape(
    tmp_path: Path, shape: tuple[int, ...], expected: tuple[int, ...]
) -> None:
    x, y = np.random.default_rng(0).normal(3, 2, (9, *shape)), np.arange(9) % 4
    np.savez(tmp_path / "own.npz", x_train=x, y_train=y, x_test=x[:4], y_test=y[:4])
    data = load(str(tmp_path / "own.npz"))
    assert data.train.inputs.shape == (9, *expected)
    assert data.train.inputs.dtype == np.float32
    assert (data.num_classes, data.mean, data.std) == (4, 0, 1)  # scaling is the operator's
    assert load(tmp_path / "own.npz", mean=3, std=2).mean == 3


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"x_test": None}, "x_test missing"),
        ({"x_train": np.full((12, 4), np.nan)}, r"\(train\): input 0 holds NaN"),
        ({"y_train": np.arange(11)}, "do not match"),
        ({"x_test": np.zeros((6, 3, 3), np.uint8)}, "they must agree"),
        ({"x_test": np.zeros((6, 4, 5))}, "they must agree"),
        ({"x_test": np.zeros((0, 4, 5), np.uint8), "y_test": np.zeros(0)}, "holds no samples"),
        ({"y_train": np.array([{}] * 12, dtype=object)}, "plain arrays"),
        (b"", r"not a readable \.npz"),
        (b"text", r"not a readable \.npz"),
        (b"\x93NUMPY\x01\x00v\x00{'descr': '<f8'}", r"not a readable \.npz"),
        (None, r"not a readable \.npz"),  # the first half
    ],
)
def test_bad_npz(tmp_path: Path, arrays: Arrays, change: Any, message: str) -> None:
    path, changes = tmp_path / "bad.npz", change if isinstance(change, dict) else {}
    wanted = {k: v for k, v in {**arrays, **changes}.items() if v is not None}
    np.savez(path, **wanted)
    whole = path.read_bytes()
    if not changes:
        path.write_bytes(whole[: len(whole) // 2] if change is None else change)
    with pytest.raises(CarvyError, match=message) as caught:
        load(path)
    assert "bad.npz" in str(caught.value)
    assert "\n" not in str(caught.value)


# -- registered sets -----------------------------------------------------------------------


def test_embedded_set_is_balanced_and_complete() -> None:
    data = load("embedded")
    assert data.train.inputs.shape == (6000, 1, 28, 28)
    assert data.test.inputs.shape == (2000, 1, 28, 28)
    assert data.train.inputs.dtype == np.uint8
    assert np.bincount(data.train.labels).tolist() == [600] * 10
    assert np.bincount(data.test.labels).tolist() == [200] * 10
    assert (data.mean, data.std, data.num_classes) == (0.2860, 0.3530, 10)
    assert data.class_names[9] == "Ankle boot"
    # The whole set's published mean must be that of a fair subset, within sampling error.
    assert abs(data.train.inputs.mean() / 255 - data.mean) < 0.01
    assert abs(data.train.inputs.std() / 255 - data.std) < 0.01
    # Image and label belong together: boots fill the frame's width, trousers do not.
    width = (data.test.inputs[:, 0].max(axis=1) > 40).sum(axis=1)
    assert width[data.test.labels == 9].mean() > 1.5 * width[data.test.labels == 1].mean()
    notice = Path(fetching.__file__).parent / "embedded" / "LICENSE-fashion-mnist"
    assert "Copyright © 2017 Zalando SE" in notice.read_text(encoding="utf-8")


def test_registered_sets_are_complete(arrays: Arrays) -> None:
    """Every format reads what the entry lists, with the published constants."""
    idx = {file: idx_bytes(arrays[array]) for array, file in IDX_FILES.items()}
    cifar = dict.fromkeys(DATASETS["cifar-10"].sha256, bytes([6]) + bytes(3072))
    constants = {
        "mnist": (idx, 0.1307, 0.3081, "7"),
        "fashion-mnist": (idx, 0.2860, 0.3530, "Sneaker"),
        "cifar-10": (cifar, 0.4734, 0.2516, "horse"),
    }
    for name, (files, mean, std, seventh) in constants.items():
        source = DATASETS[name]
        assert set(source.sha256) == set(files)
        assert all(len(bytes.fromhex(digest)) == 32 for digest in source.sha256.values())
        assert all(mirror.startswith("https://") for mirror in source.mirrors)
        data = source.read(files)
        assert (data.name, data.num_classes, len(data.class_names)) == (name, 10, 10)
        assert (data.mean, data.std, data.class_names[7]) == (mean, std, seventh)
    with pytest.raises(CarvyError, match=r"cifar-10 \(test\): labels run from .* to 10"):
        DATASETS["cifar-10"].read({**cifar, CIFAR_TEST: bytes([10]) + bytes(3072)})


def test_names_and_paths_that_lead_nowhere(tmp_path: Path, tiny: str) -> None:
    (tmp_path / "notes.txt").write_text("x")
    nowhere: dict[str | Path, str] = {
        "mnst": "unknown data set 'mnst'; did you mean 'mnist'",
        tmp_path / "absent": "no such file or folder; known data sets: mnist",
        "own.npz": r"^own\.npz: no such file",
        tmp_path / "notes.txt": r"neither an \.npz file nor a folder",
        tmp_path: r"train-images-idx3-ubyte, .* missing; it needs the 4",
        tiny: r"`carvy data fetch tiny`, or .*`data_dir`",
    }
    for path, message in nowhere.items():
        with pytest.raises(CarvyError, match=message):
            load(path)
    with pytest.raises(CarvyError, match=r"data folder .*absent does not exist"):
        load(tiny, data_dir=tmp_path / "absent")


def test_search_order(
    tmp_path: Path, arrays: Arrays, tiny: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def where() -> str | None:
        return {a.name: a.where for a in available(data_dir=named)}[tiny]

    named: Path | None = None
    assert where() is None
    cache = write_idx(tmp_path / "cache" / "carvyfl" / tiny, arrays)
    assert where() == str(cache)
    monkeypatch.setenv("CARVYFL_DATA", str(write_idx(tmp_path / "env", arrays, packed=False)))
    assert where() == str(tmp_path / "env")
    named = tmp_path / "named"
    named.mkdir()
    assert where() == str(tmp_path / "env")  # nothing in the named folder yet
    write_idx(named, arrays)
    assert where() == str(named)
    write_idx(named / tiny, arrays)
    assert where() == str(named / tiny)

    data = load(tiny, data_dir=named)
    assert (data.mean, data.std, data.class_names) == (0.25, 0.5, ("a", "b", "c"))
    assert (data.train.inputs[:, 0] == arrays["x_train"]).all()
    assert {a.name: a.where for a in available()}["embedded"] == "in the package"


def test_changed_files_of_a_registered_set_are_refused(tmp_path: Path, source: Tiny) -> None:
    first, second, third, *_ = sorted(source.files)
    for file, content in source.files.items():
        (tmp_path / file).write_bytes(content)
    assert {check.state for check in verify(source.name, tmp_path)} == {"ok"}
    assert load(source.name, data_dir=tmp_path).name in {"tiny", "cifar-10"}
    (tmp_path / second).write_bytes(source.files[second][:-1] + b"?")
    fault = rf"{second}: .*SHA-256 differs.*`carvy data fetch {source.name}`"
    with pytest.raises(CarvyError, match=fault):
        load(source.name, data_dir=tmp_path)
    (tmp_path / first).unlink()
    (tmp_path / f"{third}.gz").write_bytes(b"\x1f\x8bjunk")
    states = {check.file: check.state for check in verify(source.name, tmp_path)}
    expected = {first: "missing", second: "damaged", third: "damaged"}
    assert states == dict.fromkeys(source.files, "ok") | expected
    assert [check.state for check in verify("embedded")] == ["ok"]
    with pytest.raises(CarvyError, match="unknown data set"):
        verify("nothing")


def test_a_set_without_files_and_one_that_nobody_offers(tmp_path: Path, arrays: Arrays) -> None:
    drawn = DataSource("drawn", "mine", lambda files: data_set("drawn", arrays, "drawn"))
    content = b"mine"
    sums = {"own.bin": hashlib.sha256(content).hexdigest()}

    def read(files: Mapping[str, bytes]) -> DataSet:
        assert files == {"own.bin": content}
        return data_set("own", arrays, "own")

    with registered(DATASETS, drawn), registered(DATASETS, DataSource("own", "mine", read, sums)):
        assert load("drawn").test.labels.tolist() == arrays["y_test"].tolist()
        assert (load("drawn").name, load("drawn").num_classes) == ("drawn", 3)
        with pytest.raises(CarvyError, match="nothing to fetch"):
            fetch("drawn")
        with pytest.raises(CarvyError, match="data set 'own' has no mirror"):
            fetch("own", directory=tmp_path)
        where = {one.name: one.where for one in available(data_dir=tmp_path)}
        assert (where["drawn"], where["own"]) == ("in the package", None)
        (tmp_path / "own.bin").write_bytes(content)
        assert load("own", data_dir=tmp_path).name == "own"
        assert [check.state for check in verify("own", tmp_path)] == ["ok"]


# -- fetching --------------------------------------------------------------------------------


def test_fetch_then_load_then_nothing_left_to_fetch(
    source: Tiny, mirror: Mirror, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    source.serve(tmp_path / "served")
    folder = fetch(source.name, mirrors=[mirror.url])
    assert folder == tmp_path / "cache" / "carvyfl" / source.name
    suffix = "" if source.archive else ".gz"
    assert {path.name for path in folder.iterdir()} == {f"{file}{suffix}" for file in source.files}
    assert {check.state for check in verify(source.name)} == {"ok"}
    data, shown = load(source.name), capfd.readouterr()
    assert data.train.inputs.shape == ((50, 3, 32, 32) if source.archive else (12, 1, 4, 5))
    assert np.ptp(np.bincount(data.test.labels)) == 0
    assert (source.archive or LABELS) in shown.err
    assert shown.out == ""
    asked = len(mirror.asked)
    assert asked == (1 if source.archive else 4)
    fetch(source.name, mirrors=[mirror.url], progress=False)
    assert len(mirror.asked) == asked
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_fetch_replaces_only_the_damaged_file(
    source: Tiny, suffix: str, mirror: Mirror, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CARVYFL_DATA", str(tmp_path / "env"))
    folder, (damaged, *_) = tmp_path / "env" / source.name, sorted(source.files)
    folder.mkdir(parents=True)
    for file, content in source.files.items():
        (folder / file).write_bytes(content)
    (folder / damaged).unlink()
    (folder / f"{damaged}{suffix}").write_bytes(b"damaged")
    source.serve(tmp_path / "served")
    assert fetch(source.name, mirrors=[mirror.url], progress=False) == folder
    assert len(mirror.asked) == 1
    assert {check.state for check in verify(source.name)} == {"ok"}


def test_fetch_goes_on_to_the_next_mirror(
    source: Tiny, mirror: Mirror, dead_url: str, tmp_path: Path
) -> None:
    source.serve(tmp_path / "served")
    mirrors = [dead_url, mirror.url + "no/such/folder", mirror.url]
    folder = fetch(source.name, directory=tmp_path / "to", progress=False, mirrors=mirrors)
    assert folder == tmp_path / "to" / source.name
    assert {check.state for check in verify(source.name, tmp_path / "to")} == {"ok"}


def link(name: str, kind: bytes = tarfile.SYMTYPE) -> tarfile.TarInfo:
    member = tarfile.TarInfo(name)
    member.type, member.linkname = kind, "/etc/passwd"
    return member


def test_no_part_of_a_corrupt_download_reaches_the_folder(
    sources: list[Tiny], mirror: Mirror, tmp_path: Path
) -> None:
    files, archive = sources
    for damage in (b"\x1f\x8bnot gzip", gzip.compress(b"other content")):
        files.serve(tmp_path / "served")
        (tmp_path / "served" / f"{LABELS}.gz").write_bytes(damage)
        with pytest.raises(CarvyError, match=r"t10k-labels.*sent a damaged or different file"):
            fetch(files.name, directory=tmp_path / "to", progress=False, mirrors=[mirror.url])
        left = {path.name for path in (tmp_path / "to" / files.name).iterdir()}
        assert left == {f"{file}.gz" for file in files.files} - {f"{LABELS}.gz"}  # came whole

    served = tmp_path / "served" / ARCHIVE
    archive.serve(tmp_path / "served", archive.files | {CIFAR_TEST: b"another's"})
    other = served.read_bytes()
    short = {file: part for file, part in archive.files.items() if file != CIFAR_TEST}
    archive.serve(tmp_path / "served", short)
    damages = [b"text", other[: len(other) // 2], other, served.read_bytes()]
    for damage in [*damages, pack(served, short, link(CIFAR_TEST)).read_bytes()]:
        served.write_bytes(damage)
        with pytest.raises(CarvyError, match=rf"{ARCHIVE} .*damaged or different file") as caught:
            fetch(archive.name, directory=tmp_path / "none", mirrors=[mirror.url], progress=False)
        assert "\n" not in str(caught.value)
        assert list((tmp_path / "none").iterdir()) == []


def test_what_went_wrong_at_a_mirror_is_one_line_and_leaves_nothing(
    tiny: str, mirror: Mirror, dead_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetching, "TIMEOUT", 0.2)
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        reasons = {
            dead_url: "cannot be reached.*`data_dir`",
            mirror.url + "absent": "answered 404",
            f"http://127.0.0.1:{silent.getsockname()[1]}/": "did not answer in time",
        }
        for url, reason in reasons.items():
            with pytest.raises(CarvyError, match=reason) as caught:
                fetch(tiny, directory=tmp_path / "to", progress=False, mirrors=[url])
            assert "\n" not in str(caught.value)
            assert list((tmp_path / "to").iterdir()) == []
    (tmp_path / "file").write_text("in the way")
    for name, to, message in (
        ("embedded", None, "part of the package; there is nothing to fetch"),
        ("cifar", None, "unknown data set 'cifar'"),
        (tiny, tmp_path / "file", "cannot be written"),
    ):
        with pytest.raises(CarvyError, match=message):
            fetch(name, directory=to, progress=False)


# -- archives --------------------------------------------------------------------------------


def test_members_are_known_by_their_last_name(tmp_path: Path) -> None:
    """A path out of the folder is harmless: nothing is written where a member says."""
    path = pack(tmp_path / "a.tar.gz", {"../../up.bin": b"1", "/root.bin": b"2", "no.bin": b"3"})
    assert read_tar(path, ["up.bin", "root.bin"]) == {"up.bin": b"1", "root.bin": b"2"}
    assert [path.name for path in tmp_path.iterdir()] == ["a.tar.gz"]


def sparse() -> tarfile.TarInfo:
    """A file that claims more than there is."""
    member, headers = tarfile.TarInfo("y.bin"), {"major": 0, "minor": 1, "map": "0,0"}
    headers["size"] = 1 << 50
    member.pax_headers = {f"GNU.sparse.{name}": str(value) for name, value in headers.items()}
    return member


@pytest.mark.parametrize(
    "member",
    [
        *(link("y.bin", kind) for kind in (tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.DIRTYPE)),
        *(link("y.bin", kind) for kind in (tarfile.FIFOTYPE, tarfile.CHRTYPE)),
        sparse(),
    ],
)
def test_what_is_not_a_plain_file_is_refused(tmp_path: Path, member: tarfile.TarInfo) -> None:
    path = pack(tmp_path / "a.tar.gz", {"x.bin": b"1"}, member)
    with pytest.raises(CarvyError, match=r"a\.tar\.gz: .*y\.bin is not a plain file"):
        read_tar(path, ["x.bin", "y.bin"])
    assert read_tar(path, ["x.bin"]) == {"x.bin": b"1"}


def test_archives_that_cannot_be_read(tmp_path: Path) -> None:
    path = pack(tmp_path / "a.tar.gz", {"a/x.bin": b"1", "b/x.bin": b"2"})
    with pytest.raises(CarvyError, match=r"x\.bin is there twice"):
        read_tar(path, ["x.bin"])
    with pytest.raises(CarvyError, match=r"y\.bin missing in the archive; get a fresh copy"):
        read_tar(path, ["y.bin"])
    whole = gzip.decompress(pack(path, {"x.bin": bytes(5000)}).read_bytes())
    for content in (whole[:3000], b"text" * 200, whole[:600]):
        path.write_bytes(content)
        with pytest.raises(CarvyError, match=r"a\.tar\.gz: damaged, or not a tar") as caught:
            read_tar(path, ["x.bin"])
        assert "\n" not in str(caught.value)
