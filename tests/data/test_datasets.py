from __future__ import annotations

import gzip
import hashlib
import socket
import struct
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from carvyfl.core.errors import CarvyError
from carvyfl.data import fetch as fetching
from carvyfl.data.datasets import DATASETS, IDX_FILES, DataSet, DataSource, data_set, load
from carvyfl.data.fetch import available, fetch, verify
from carvyfl.data.formats import parse_idx
from support.mirror import Mirror
from support.registries import registered

Arrays = dict[str, npt.NDArray[np.uint8]]


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


@pytest.fixture
def tiny(arrays: Arrays, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[str]:
    """Register a tiny data set under the name "tiny", with an empty cache."""
    sums = {
        file: hashlib.sha256(idx_bytes(arrays[array])).hexdigest()
        for array, file in IDX_FILES.items()
    }

    def read(files: Mapping[str, bytes]) -> DataSet:
        images = {array: parse_idx(files[file], file) for array, file in IDX_FILES.items()}
        return data_set("tiny", images, "tiny", mean=0.25, std=0.5, class_names=("a", "b", "c"))

    source = DataSource("tiny", "12 + 6 pictures", read, sums, ("http://127.0.0.1:9/",))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("CARVYFL_DATA", raising=False)
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with registered(DATASETS, source):
        yield "tiny"


def write_idx(folder: Path, arrays: Arrays, *, packed: bool = True) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for array, file in IDX_FILES.items():
        content = idx_bytes(arrays[array])
        if packed:
            (folder / f"{file}.gz").write_bytes(gzip.compress(content))
        else:
            (folder / file).write_bytes(content)
    return folder


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


def test_the_package_carries_the_licence_of_its_data() -> None:
    notice = Path(fetching.__file__).parent / "embedded" / "LICENSE-fashion-mnist"
    assert "Copyright © 2017 Zalando SE" in notice.read_text(encoding="utf-8")


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
    x = np.random.default_rng(0).normal(3, 2, (9, *shape))
    y = np.arange(9) % 4
    np.savez(tmp_path / "own.npz", x_train=x, y_train=y, x_test=x[:4], y_test=y[:4])
    data = load(str(tmp_path / "own.npz"))
    assert data.train.inputs.shape == (9, *expected)
    assert data.train.inputs.dtype == np.float32
    assert data.num_classes == 4
    assert (data.mean, data.std) == (0, 1)  # as they are; scaling them is the operator's
    assert (load(tmp_path / "own.npz", mean=3, std=2).mean) == 3


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
    ],
)
def test_bad_npz(tmp_path: Path, arrays: Arrays, change: dict[str, object], message: str) -> None:
    wanted = {k: v for k, v in {**arrays, **change}.items() if v is not None}
    np.savez(tmp_path / "bad.npz", **wanted)  # type: ignore[arg-type]
    with pytest.raises(CarvyError, match=message) as caught:
        load(tmp_path / "bad.npz")
    assert "bad.npz" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_file_that_is_no_archive_is_refused(tmp_path: Path, arrays: Arrays) -> None:
    path = tmp_path / "damaged.npz"
    np.savez(path, **arrays)  # type: ignore[arg-type]
    whole = path.read_bytes()
    np.save(tmp_path / "one.npy", np.zeros(3))
    for content in (b"", b"text", whole[: len(whole) // 2], (tmp_path / "one.npy").read_bytes()):
        path.write_bytes(content)
        with pytest.raises(CarvyError, match=r"not a readable \.npz"):
            load(path)


def test_names_and_paths_that_lead_nowhere(tmp_path: Path, tiny: str) -> None:
    with pytest.raises(CarvyError, match="unknown data set 'mnst'; did you mean 'mnist'"):
        load("mnst")
    with pytest.raises(CarvyError, match="no such file or folder; known data sets: mnist"):
        load(tmp_path / "absent")
    with pytest.raises(CarvyError, match=r"^own\.npz: no such file"):
        load("own.npz")
    (tmp_path / "notes.txt").write_text("x")
    with pytest.raises(CarvyError, match=r"neither an \.npz file nor a folder"):
        load(tmp_path / "notes.txt")
    with pytest.raises(CarvyError, match=r"train-images-idx3-ubyte, .* missing; it needs the 4"):
        load(tmp_path)
    with pytest.raises(CarvyError, match=r"`carvy data fetch tiny`, or .*`data_dir`"):
        load(tiny)
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


def test_changed_file_of_a_registered_set_is_refused(
    tmp_path: Path, arrays: Arrays, tiny: str
) -> None:
    folder = write_idx(tmp_path / "data", arrays)
    assert [check.state for check in verify(tiny, folder)] == ["ok"] * 4
    arrays["y_test"][0] += 1
    (folder / "t10k-labels-idx1-ubyte.gz").write_bytes(gzip.compress(idx_bytes(arrays["y_test"])))
    with pytest.raises(CarvyError, match=r"t10k-labels.*SHA-256 differs.*`carvy data fetch tiny`"):
        load(tiny, data_dir=folder)
    (folder / "train-labels-idx1-ubyte.gz").unlink()
    (folder / "t10k-images-idx3-ubyte.gz").write_bytes(b"\x1f\x8bjunk")
    states = {check.file: check.state for check in verify(tiny, folder)}
    assert states == {
        "train-images-idx3-ubyte": "ok",
        "train-labels-idx1-ubyte": "missing",
        "t10k-images-idx3-ubyte": "damaged",
        "t10k-labels-idx1-ubyte": "damaged",
    }
    assert [check.state for check in verify("embedded")] == ["ok"]
    with pytest.raises(CarvyError, match="unknown data set"):
        verify("nothing")


@pytest.fixture
def mirror(tmp_path: Path, arrays: Arrays) -> Iterator[Mirror]:
    server = Mirror(write_idx(tmp_path / "served", arrays))
    yield server
    server.stop()


@pytest.fixture
def dead_url() -> str:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{free.getsockname()[1]}/"


def test_fetch_then_load_then_nothing_left_to_fetch(
    tiny: str, mirror: Mirror, tmp_path: Path, arrays: Arrays, capfd: pytest.CaptureFixture[str]
) -> None:
    folder = fetch(tiny, mirrors=[mirror.url])
    assert folder == tmp_path / "cache" / "carvyfl" / tiny
    assert sorted(p.name for p in folder.iterdir()) == sorted(f"{f}.gz" for f in IDX_FILES.values())
    assert (load(tiny).train.inputs[:, 0] == arrays["x_train"]).all()
    shown = capfd.readouterr()
    assert "train-images-idx3-ubyte" in shown.err
    assert shown.out == ""
    asked = len(mirror.asked)
    fetch(tiny, mirrors=[mirror.url], progress=False)
    assert len(mirror.asked) == asked
    assert capfd.readouterr() == ("", "")


def test_fetch_replaces_only_the_damaged_file(
    tiny: str, mirror: Mirror, tmp_path: Path, arrays: Arrays, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CARVYFL_DATA", str(tmp_path / "env"))
    folder = write_idx(tmp_path / "env" / tiny, arrays, packed=False)
    (folder / "t10k-labels-idx1-ubyte").write_bytes(b"damaged")
    assert fetch(tiny, mirrors=[mirror.url], progress=False) == folder
    assert len(mirror.asked) == 1
    assert [check.state for check in verify(tiny)] == ["ok"] * 4


def test_fetch_goes_on_to_the_next_mirror(
    tiny: str, mirror: Mirror, dead_url: str, tmp_path: Path
) -> None:
    mirrors = [dead_url, mirror.url + "no/such/folder", mirror.url]
    folder = fetch(tiny, directory=tmp_path / "to", progress=False, mirrors=mirrors)
    assert [check.state for check in verify(tiny, tmp_path / "to")] == ["ok"] * 4
    assert folder == tmp_path / "to" / tiny


@pytest.mark.parametrize(
    "damage", [b"\x1f\x8bnot gzip", gzip.compress(b"other content")], ids=["gzip", "content"]
)
def test_a_corrupt_download_never_reaches_the_folder(
    tiny: str, mirror: Mirror, tmp_path: Path, damage: bytes
) -> None:
    (tmp_path / "served" / "t10k-images-idx3-ubyte.gz").write_bytes(damage)
    with pytest.raises(CarvyError, match=r"t10k-images.*sent a damaged or different file"):
        fetch(tiny, directory=tmp_path / "to", progress=False, mirrors=[mirror.url])
    left = {path.name for path in (tmp_path / "to" / tiny).iterdir()}
    assert left == {
        "train-images-idx3-ubyte.gz",
        "train-labels-idx1-ubyte.gz",
    }  # came before, whole


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


def test_fetch_mistakes(tiny: str, tmp_path: Path) -> None:
    with pytest.raises(CarvyError, match="part of the package; there is nothing to fetch"):
        fetch("embedded")
    with pytest.raises(CarvyError, match="unknown data set 'cifar'"):
        fetch("cifar")
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(CarvyError, match="cannot be written"):
        fetch(tiny, directory=tmp_path / "file", progress=False)


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
        (tmp_path / "own.bin").write_bytes(b"another's")
        with pytest.raises(CarvyError, match=r"own\.bin: not the published own file"):
            load("own", data_dir=tmp_path)


def test_registered_sets_are_complete(arrays: Arrays) -> None:
    """Every format reads what the entry lists, with the published constants."""
    idx = {file: idx_bytes(arrays[array]) for array, file in IDX_FILES.items()}
    record = bytes([6]) + bytes(3072)
    cifar = dict.fromkeys(DATASETS["cifar-10"].sha256, record)
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
