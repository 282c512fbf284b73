"""The data sets clients draw from: the known ones, and a user's files."""

from __future__ import annotations

import hashlib
import importlib.resources
import io
import math
import os
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import platformdirs

from carvyfl.core.archives import contents, read_npz
from carvyfl.core.checks import returned, whole_number
from carvyfl.core.errors import CarvyError
from carvyfl.core.registry import Registry
from carvyfl.data.clients import Samples, class_number, samples

# The arrays of a data set, and the IDX files they are published in.
IDX_FILES = {
    "x_train": "train-images-idx3-ubyte",
    "y_train": "train-labels-idx1-ubyte",
    "x_test": "t10k-images-idx3-ubyte",
    "y_test": "t10k-labels-idx1-ubyte",
}
EMBEDDED_FILE = "fashion-mnist-subset.npz"
DATA_VARIABLE = "CARVYFL_DATA"

# The third byte of an IDX file names the type of its numbers, stored big-endian.
ELEMENT_TYPES = {0x08: "u1", 0x09: "i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}
MOST_DIMENSIONS = 32  # every version of NumPy has so many

CIFAR_SHAPE = (3, 32, 32)
CIFAR_RECORD = 1 + math.prod(CIFAR_SHAPE)  # bytes: a label, then three planes, row by row
CIFAR_TRAIN = tuple(f"data_batch_{number}.bin" for number in range(1, 6))
CIFAR_TEST = "test_batch.bin"

Files = Mapping[str, bytes]
Arrays = Mapping[str, npt.NDArray[Any]]


@dataclass(frozen=True)
class DataSet:
    """A data set ready to be split over clients.

    ``name`` is its registered name, or that of the file or folder it came from. Inputs of any
    shape (n, …) enter the model as (x - ``mean``) / ``std``, after uint8 was scaled to 0…1.
    """

    name: str
    train: Samples
    test: Samples
    num_classes: int
    mean: float
    std: float
    class_names: tuple[str, ...]

    def __repr__(self) -> str:
        shape = "×".join(map(str, self.test.inputs.shape[1:]))
        sizes = f"{len(self.train):,} training and {len(self.test):,} test inputs of {shape}"
        return f"DataSet({self.name!r}, {sizes}, {self.num_classes} classes)"


@dataclass(frozen=True)
class DataSource:
    """A registered data set: where its files come from, and how they are read.

    ``read`` makes the data set of the content of every file, by name and decompressed; a set that
    needs no files gets an empty mapping. ``sha256`` names the files (without ``.gz``) and the sums
    of their *decompressed* bytes. ``mirrors`` are addresses of folders that hold the files with
    ``.gz`` appended, or the tar ``archive`` of them; ``package`` is one that holds them instead.
    """

    name: str
    help: str
    read: Callable[[Files], DataSet]
    sha256: Mapping[str, str] = field(default_factory=dict)
    mirrors: tuple[str, ...] = ()
    package: str | None = None
    archive: str | None = None

    @property
    def built_in(self) -> bool:
        """Whether it needs no download."""
        return self.package is not None or not self.sha256


def parse_idx(content: bytes, where: str) -> npt.NDArray[Any]:
    """Turn the (decompressed) bytes of an IDX file into an array, writable as torch wants it.

    They are two zero bytes, the element type, the number of dimensions, the dimensions as
    big-endian 32-bit numbers, then the elements.
    """
    if len(content) < 4 or content[:2] != b"\0\0" or content[2] not in ELEMENT_TYPES:
        start = content[:4].hex(" ") or "nothing"
        raise CarvyError(f"{where}: not an IDX file (it begins with {start}); get a fresh copy")
    if content[3] > MOST_DIMENSIONS:
        raise CarvyError(f"{where}: {content[3]} dimensions; at most {MOST_DIMENSIONS} can be read")
    header = 4 + 4 * content[3]
    if len(content) < header:
        raise CarvyError(f"{where}: truncated within its header; get a fresh copy")
    shape = tuple(np.frombuffer(content, ">u4", content[3], offset=4).tolist())
    element = np.dtype(ELEMENT_TYPES[content[2]])
    expected = header + math.prod(shape) * element.itemsize
    if len(content) != expected:
        kind = "truncated" if len(content) < expected else "too long"
        sizes = f"{len(content)} bytes where shape {shape} needs {expected}"
        raise CarvyError(f"{where}: {kind}: {sizes}; get a fresh copy")
    try:
        values = np.frombuffer(content, element, offset=header).reshape(shape)
    except ValueError as error:  # no elements, and other dimensions that are too large
        raise CarvyError(f"{where}: no array can have shape {shape}; get a fresh copy") from error
    return values.astype(element.newbyteorder("="))


def read_cifar(files: Files) -> dict[str, npt.NDArray[np.uint8]]:
    """Turn CIFAR-10's six files into the four arrays of a data set."""
    arrays = {}
    for part, names in (("train", CIFAR_TRAIN), ("test", (CIFAR_TEST,))):
        for name in names:
            if not files[name] or len(files[name]) % CIFAR_RECORD:
                fault = f"{len(files[name])} bytes are not whole records of {CIFAR_RECORD}"
                raise CarvyError(f"{name}: {fault}; get a fresh copy")
        content = b"".join(files[name] for name in names)
        records = np.frombuffer(content, np.uint8).reshape(-1, CIFAR_RECORD)
        arrays[f"x_{part}"] = records[:, 1:].reshape(-1, *CIFAR_SHAPE)
        arrays[f"y_{part}"] = records[:, 0]
    return arrays


FORMATS: dict[str, Callable[[Files], Arrays]] = {
    "idx": lambda files: {array: parse_idx(files[file], file) for array, file in IDX_FILES.items()},
    "cifar": read_cifar,
    "npz": lambda files: read_npz(
        io.BytesIO(files[EMBEDDED_FILE]), tuple(IDX_FILES), where=EMBEDDED_FILE
    ),
}


def _source(
    name: str, format: str, normalise: tuple[float, float], classes: list[str], **origin: Any
) -> DataSource:
    def read(files: Files) -> DataSet:
        return data_set(name, FORMATS[format](files), name, *normalise, tuple(classes))

    return DataSource(name, read=read, **origin)


_KNOWN = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
DATASETS: Registry[DataSource] = Registry(
    "data set", "carvyfl.datasets", [_source(name, **entry) for name, entry in _KNOWN.items()]
)


def load(
    name_or_path: str | Path,
    *,
    data_dir: str | Path | None = None,
    num_classes: int | None = None,
    mean: float | None = None,
    std: float | None = None,
) -> DataSet:
    """Load a data set.

    Parameters
    ----------
    name_or_path
        A name in :data:`DATASETS`, whose constants are its own and whose files' sums are checked;
        or the path of a folder with the four IDX files; or the path of an ``.npz`` file with
        ``x_train``, ``y_train``, ``x_test`` and ``y_test``. Images of shape (n, H, W) get a
        channel, (n, C, H, W) and any other shape (n, …) stay. A registered name wins over a
        folder of that name (say ``./mnist`` for the folder).
    data_dir
        Where registered data sets are looked for first (:func:`search_folders`).
    num_classes, mean, std
        Constants of one's own files. All groups use them, so they never come from the training
        data, which is the clients': C is by default the largest *test* label plus one; pixels
        (uint8) are scaled to -1…1 (mean and std 0.5), other inputs are taken as they are.
    """
    name, path = str(name_or_path), Path(name_or_path)
    looks_like_path = path.exists() or path.suffix == ".npz" or len(path.parts) > 1
    if name in DATASETS or not looks_like_path:
        source = DATASETS.pick(name)
        if (num_classes, mean, std) != (None, None, None):
            remedy = "leave out `num_classes`, `mean` and `std`"
            raise CarvyError(f"data set '{name}' has constants of its own; {remedy}")
        folder = Path() if source.built_in else find_folder(name, data_dir)
        if folder is None:
            remedy = f"get it with `carvy data fetch {name}`, or name the folder of its files with"
            raise CarvyError(f"data set '{name}' was not found; {remedy} `data_dir`")
        files = {file: published(source, file, folder) for file in source.sha256}
        return returned(source.read(files), DataSet, f"data set '{name}'")
    if path.is_dir():
        paths = {array: find_file(path, file) for array, file in IDX_FILES.items()}
        if missing := ", ".join(IDX_FILES[array] for array, file in paths.items() if file is None):
            raise CarvyError(f"{path}: {missing} [.gz] missing; it needs the 4 IDX files")
        arrays = {
            array: parse_idx(contents(file), str(file)) for array, file in paths.items() if file
        }
    elif path.is_file() and path.suffix == ".npz":
        arrays = read_npz(path, tuple(IDX_FILES))
    elif path.exists():
        raise CarvyError(f"{path}: neither an .npz file nor a folder with the four IDX files")
    else:
        raise CarvyError(f"{path}: no such file or folder; known data sets: {', '.join(DATASETS)}")
    classes = 0 if num_classes is None else whole_number(num_classes, "num_classes", 2)
    class_names = tuple(map(str, range(classes)))
    return data_set(path.resolve().stem, arrays, str(path), mean, std, class_names)


def search_folders(name: str, data_dir: str | Path | None = None) -> list[Path]:
    """Return the folders in which a registered data set may lie, best first.

    DIR/``name`` and DIR, where DIR is ``data_dir``, then $CARVYFL_DATA, then the cache.
    """
    if data_dir is not None and not Path(data_dir).is_dir():
        raise CarvyError(f"data folder {data_dir} does not exist; create it or name another")
    named = (data_dir, os.environ.get(DATA_VARIABLE) or None, cache_folder())
    roots = [Path(root) for root in named if root is not None]
    return [folder for root in roots for folder in (root / name, root)]


def cache_folder() -> Path:
    """Return the user's cache: on Linux ``$XDG_CACHE_HOME/carvyfl``, else ``~/.cache/carvyfl``."""
    return platformdirs.user_cache_path("carvyfl")


def find_file(folder: Path, file: str) -> Path | None:
    """Return where ``file`` lies in the folder, with or without ``.gz``, if it does."""
    return next((p for p in (folder / f"{file}.gz", folder / file) if p.is_file()), None)


def find_folder(name: str, data_dir: str | Path | None = None) -> Path | None:
    """Return the first search folder that holds all files of a registered data set."""
    folders, files = search_folders(name, data_dir), DATASETS[name].sha256
    return next((f for f in folders if all(find_file(f, file) for file in files)), None)


def published(source: DataSource, file: str, folder: Path) -> bytes:
    """Return a file of a data set, decompressed and checked, from its package or the folder."""
    if source.package is not None:
        content = importlib.resources.files(source.package).joinpath(file).read_bytes()
    else:
        content = contents(find_file(folder, file) or folder / file)
    return checked(content, source, file, file)


def checked(content: bytes, source: DataSource, file: str, where: str) -> bytes:
    """Return ``content`` if it is the published content of this file of the data set."""
    if hashlib.sha256(content).hexdigest() != source.sha256[file]:
        fault = f"not the published {source.name} file (its SHA-256 differs)"
        remedy = f"delete it and get a fresh copy with `carvy data fetch {source.name}`"
        raise CarvyError(f"{where}: {fault}; {remedy}")
    return content


def data_set(
    name: str,
    arrays: Arrays,
    where: str,
    mean: float | None = None,
    std: float | None = None,
    class_names: tuple[str, ...] = (),
) -> DataSet:
    """Make a data set of ``x_train``, ``y_train``, ``x_test`` and ``y_test``.

    ``mean`` and ``std`` are by default as in :func:`load`. Without ``class_names``, the classes of
    the test labels are numbered. Errors say ``where``.
    """
    parts = []
    for part in ("train", "test"):
        x, y, here = arrays[f"x_{part}"], arrays[f"y_{part}"], f"{where} ({part})"
        images = x[:, None] if x.ndim == 3 else x
        parts.append(samples(images, y, num_classes=len(class_names) or None, where=here))
        if not len(y):
            raise CarvyError(f"{here}: holds no samples")
    train, test = parts
    kinds = [f"{part.inputs.dtype} of shape {part.inputs.shape[1:]}" for part in parts]
    if kinds[0] != kinds[1]:
        fault = f"training inputs are {kinds[0]}, test inputs {kinds[1]}"
        raise CarvyError(f"{where}: {fault}; they must agree")
    if not class_names:
        classes, highest = class_number([test.labels], f"{where} (test)"), train.labels.max()
        if highest >= classes:
            fault = f"a training label is {highest}, but the test labels end at {classes - 1}"
            raise CarvyError(f"{where}: {fault}; if there are more classes, set `num_classes`")
        class_names = tuple(map(str, range(classes)))
    usual = (0.5, 0.5) if train.inputs.dtype == np.uint8 else (0.0, 1.0)
    mean, std = (usual[0] if mean is None else mean), (usual[1] if std is None else std)
    if not (math.isfinite(mean) and 0 < std < math.inf):
        raise CarvyError(f"`mean` {mean} and `std` {std} must be finite numbers, std above 0")
    return DataSet(name, train, test, len(class_names), float(mean), float(std), class_names)
