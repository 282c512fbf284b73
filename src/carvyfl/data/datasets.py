"""The data sets clients draw from: the known ones, and a user's own files."""

from __future__ import annotations

import hashlib
import importlib.resources
import io
import math
import os
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
from carvyfl.data import cifar
from carvyfl.data.clients import Samples, class_number, samples
from carvyfl.data.idx import parse_idx

# The arrays of a data set, and the IDX files they are published in.
IDX_FILES = {
    "x_train": "train-images-idx3-ubyte",
    "y_train": "train-labels-idx1-ubyte",
    "x_test": "t10k-images-idx3-ubyte",
    "y_test": "t10k-labels-idx1-ubyte",
}
EMBEDDED_FILE = "fashion-mnist-subset.npz"
DATA_VARIABLE = "CARVYFL_DATA"


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
        return (
            f"DataSet({self.name!r}, {len(self.train):,} training and {len(self.test):,} test "
            f"inputs of {shape}, {self.num_classes} classes)"
        )


@dataclass(frozen=True)
class DataSource:
    """A registered data set: where its files come from, and how they are read.

    Attributes
    ----------
    read
        From the content of every file, by name and decompressed, to the data set. A data set
        that needs no files gets an empty mapping.
    sha256
        The files (without ``.gz``) and the sums of their *decompressed* bytes:
        packers compress the same content differently.
    mirrors
        Addresses of folders that hold the files with ``.gz`` appended, or the archive.
    package
        A package that holds the files as resources, in place of mirrors.
    archive
        The tar archive, gzipped or not, that the mirrors offer in place of single files. It
        may hold other files, too.
    """

    name: str
    help: str
    read: Callable[[Mapping[str, bytes]], DataSet]
    sha256: Mapping[str, str] = field(default_factory=dict)
    mirrors: tuple[str, ...] = ()
    package: str | None = None
    archive: str | None = None

    @property
    def built_in(self) -> bool:
        """Whether it needs no download."""
        return self.package is not None or not self.sha256


_CLOTHES = "T-shirt/top,Trouser,Pullover,Dress,Coat,Sandal,Shirt,Sneaker,Bag,Ankle boot"
FASHION = (0.2860, 0.3530, tuple(_CLOTHES.split(",")))
"""Mean and standard deviation of the pixels, as in the paper, and the names of the classes."""


def _idx_source(
    name: str,
    about: str,
    constants: tuple[float, float, tuple[str, ...]],
    sums: tuple[str, str, str, str],
    mirrors: tuple[str, ...],
) -> DataSource:
    """Describe a data set of four IDX files; constants are the paper's mean and std, and names."""

    def read(files: Mapping[str, bytes]) -> DataSet:
        arrays = {array: parse_idx(files[file], file) for array, file in IDX_FILES.items()}
        return data_set(name, arrays, name, *constants)

    sha256 = dict(zip(IDX_FILES.values(), sums, strict=True))
    return DataSource(name, about, read, sha256, mirrors)


def _read_embedded(files: Mapping[str, bytes]) -> DataSet:
    arrays = read_npz(io.BytesIO(files[EMBEDDED_FILE]), tuple(IDX_FILES), where=EMBEDDED_FILE)
    return data_set("embedded", arrays, "embedded", *FASHION)


def _read_cifar(files: Mapping[str, bytes]) -> DataSet:
    return data_set("cifar-10", cifar.read_batches(files), "cifar-10", *cifar.CONSTANTS)


DATASETS: Registry[DataSource] = Registry(
    "data set",
    "carvyfl.datasets",
    [
        _idx_source(
            "mnist",
            "handwritten digits, 60,000 + 10,000 images of 28×28",
            (0.1307, 0.3081, tuple("0123456789")),
            (
                "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
                "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
                "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
                "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
            ),
            (
                "https://ossci-datasets.s3.amazonaws.com/mnist/",
                "https://storage.googleapis.com/cvdf-datasets/mnist/",
            ),
        ),
        _idx_source(
            "fashion-mnist",
            "articles of clothing, 60,000 + 10,000 images of 28×28",
            FASHION,
            (
                "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
                "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
                "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
                "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
            ),
            (
                # The publisher's bucket; its advertised website has no HTTPS, this one has.
                "https://fashion-mnist.s3.eu-central-1.amazonaws.com/",
                "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion/",
            ),
        ),
        DataSource(
            "cifar-10",
            "photographs of animals and vehicles, 50,000 + 10,000 colour images of 32×32",
            _read_cifar,
            cifar.SHA256,
            ("https://www.cs.toronto.edu/~kriz/",),
            archive="cifar-10-binary.tar.gz",
        ),
        DataSource(
            "embedded",
            "a part of Fashion-MNIST that comes with the package",
            _read_embedded,
            {EMBEDDED_FILE: "46f77a9441a9180cf569e0531a22106ca790c8a3ddd4d383ba731636f04ed296"},
            package="carvyfl.data.embedded",
        ),
    ],
)
"""Every registered data set."""


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
        A name in :data:`DATASETS`; or the path of a folder with the four IDX
        files; or the path of an ``.npz`` file with ``x_train``, ``y_train``,
        ``x_test`` and ``y_test``. Images of shape (n, H, W) get a channel,
        (n, C, H, W) and any other shape (n, …) are kept. A registered name
        wins over a folder of that name (say ``./mnist`` for the folder).
    data_dir
        Where registered data sets are looked for first (:func:`search_folders`).
    num_classes, mean, std
        Constants of one's own files. All groups use them, so they never come from the training
        data, which is the clients': C is by default the largest *test* label plus one; pixels
        (uint8) are scaled to -1…1 (mean and std 0.5), other inputs are taken as they are.

    Returns
    -------
    DataSet
        Registered sets have constants of their own (the paper's, where it has them), and their
        files' sums were checked.
    """
    name, path = str(name_or_path), Path(name_or_path)
    looks_like_path = path.exists() or path.suffix == ".npz" or len(path.parts) > 1
    if name in DATASETS or not looks_like_path:
        source = DATASETS.pick(name)
        if (num_classes, mean, std) != (None, None, None):
            raise CarvyError(
                f"data set '{name}' has constants of its own; leave out `num_classes`, `mean` and "
                "`std`"
            )
        return _load_registered(source, data_dir)
    if path.is_dir():
        found = {array: find_file(path, file) for array, file in IDX_FILES.items()}
        missing = [IDX_FILES[array] for array, file in found.items() if file is None]
        if missing:
            raise CarvyError(
                f"{path}: {', '.join(missing)} [.gz] missing; it needs the 4 IDX files"
            )
        arrays = {
            array: parse_idx(contents(file), str(file)) for array, file in found.items() if file
        }
    elif path.is_file() and path.suffix == ".npz":
        arrays = read_npz(path, tuple(IDX_FILES))
    elif path.exists():
        raise CarvyError(f"{path}: neither an .npz file nor a folder with the four IDX files")
    else:
        raise CarvyError(f"{path}: no such file or folder; known data sets: {', '.join(DATASETS)}")
    names = () if num_classes is None else _numbered(whole_number(num_classes, "num_classes", 2))
    return data_set(path.resolve().stem, arrays, str(path), mean=mean, std=std, class_names=names)


def search_folders(name: str, data_dir: str | Path | None = None) -> list[Path]:
    """Return the folders in which a registered data set may lie, best first.

    DIR/``name`` and DIR itself, where DIR is ``data_dir``, then the environment
    variable CARVYFL_DATA, then the cache. Falling through is safe: the files'
    sums are checked, so it is the same data wherever it was found.
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
    files = DATASETS[name].sha256
    folders = search_folders(name, data_dir)
    return next((f for f in folders if all(find_file(f, file) for file in files)), None)


def checked(content: bytes, source: DataSource, file: str, where: str) -> bytes:
    """Return ``content`` if it is the published content of this file of the data set."""
    if hashlib.sha256(content).hexdigest() != source.sha256[file]:
        raise CarvyError(
            f"{where}: not the published {source.name} file (its SHA-256 differs); "
            f"delete it and get a fresh copy with `carvy data fetch {source.name}`"
        )
    return content


def content(source: DataSource, file: str, path: Path | None) -> bytes:
    """Return a file of a data set, decompressed: from its package, or where it was found."""
    if source.package is not None:
        return importlib.resources.files(source.package).joinpath(file).read_bytes()
    assert path is not None
    return contents(path)


def _load_registered(source: DataSource, data_dir: str | Path | None) -> DataSet:
    folder = Path() if source.built_in else find_folder(source.name, data_dir)
    if folder is None:
        raise CarvyError(
            f"data set '{source.name}' was not found; get it with `carvy data fetch "
            f"{source.name}`, or name the folder of its files with `data_dir`"
        )
    files = {file: content(source, file, find_file(folder, file)) for file in source.sha256}
    found = source.read({file: checked(own, source, file, file) for file, own in files.items()})
    return returned(found, DataSet, f"data set '{source.name}'")


def data_set(
    name: str,
    arrays: Mapping[str, npt.NDArray[Any]],
    where: str,
    mean: float | None = None,
    std: float | None = None,
    class_names: tuple[str, ...] = (),
) -> DataSet:
    """Make a data set of ``x_train``, ``y_train``, ``x_test`` and ``y_test``.

    Images (n, H, W) get a channel. Inputs are normalised by ``mean`` and ``std``; None is 0.5 for
    pixels (uint8), else 0 and 1, never anything of the training inputs, which are the clients'.
    Without ``class_names``, the classes of the test labels are numbered. Errors say ``where``.
    """
    parts = []
    for part in ("train", "test"):
        x, y, here = arrays[f"x_{part}"], arrays[f"y_{part}"], f"{where} ({part})"
        images = x[:, None] if x.ndim == 3 else x
        parts.append(samples(images, y, num_classes=len(class_names) or None, where=here))
        if not len(y):
            raise CarvyError(f"{here}: holds no samples")
    train, test = parts
    if train.inputs.shape[1:] != test.inputs.shape[1:] or train.inputs.dtype != test.inputs.dtype:
        raise CarvyError(
            f"{where}: training inputs are {train.inputs.dtype} of shape {train.inputs.shape[1:]}, "
            f"test inputs {test.inputs.dtype} of shape {test.inputs.shape[1:]}; they must agree"
        )
    if not class_names:
        classes = class_number([test.labels], f"{where} (test)")
        if train.labels.max() >= classes:
            raise CarvyError(
                f"{where}: a training label is {train.labels.max()}, but the test labels end at "
                f"{classes - 1}; if there are more classes, set `num_classes`"
            )
        class_names = _numbered(classes)
    pixels = train.inputs.dtype == np.uint8
    mean = (0.5 if pixels else 0.0) if mean is None else mean
    std = (0.5 if pixels else 1.0) if std is None else std
    if not (math.isfinite(mean) and 0 < std < math.inf):
        raise CarvyError(f"`mean` {mean} and `std` {std} must be finite numbers, std above 0")
    return DataSet(name, train, test, len(class_names), float(mean), float(std), class_names)


def _numbered(classes: int) -> tuple[str, ...]:
    return tuple(str(c) for c in range(classes))
