"""Downloading, checking and listing the registered data sets (``carvy data``)."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal
from urllib.parse import urlsplit

from carvyfl.core.archives import contents, read_tar
from carvyfl.core.errors import CarvyError
from carvyfl.data import datasets
from carvyfl.data.datasets import DATASETS, DataSource, checked, find_file, search_folders

if TYPE_CHECKING:
    from rich.progress import Progress

TIMEOUT = 30  # seconds without a byte before a mirror is given up
CHUNK = 1 << 16  # bytes


@dataclass(frozen=True)
class FileCheck:
    """The state of one file of a data set."""

    file: str
    """The published name, without .gz."""
    state: Literal["ok", "damaged", "missing"]
    """Whether its decompressed bytes are the published ones."""
    where: str | None
    """The path, or the package; null if the file is missing."""


@dataclass(frozen=True)
class Availability:
    """One line of the list of data sets."""

    name: str
    """The registered name."""
    where: str | None
    """Where its files lie; null if it must be fetched first."""


def available(*, data_dir: str | Path | None = None) -> list[Availability]:
    """List the registered data sets and where each one lies; sums are not checked here."""
    places = {
        name: "in the package" if source.built_in else datasets.find_folder(name, data_dir)
        for name, source in DATASETS.items()
    }
    return [
        Availability(name, None if place is None else str(place)) for name, place in places.items()
    ]


def verify(name: str, data_dir: str | Path | None = None) -> list[FileCheck]:
    """Check every file of a registered data set against its published SHA-256.

    Looks at the first search folder that holds the whole set, else the first that holds any of it.
    """
    source = DATASETS.pick(name)
    folders = [Path()] if source.built_in else search_folders(name, data_dir)

    def completeness(folder: Path) -> tuple[bool, bool]:
        present = [find_file(folder, file) is not None for file in source.sha256]
        return all(present), any(present)

    folder = max(folders, key=completeness)
    return [_check(source, file, folder) for file in source.sha256]


def _check(source: DataSource, file: str, folder: Path) -> FileCheck:
    path = "in the package" if source.package is not None else find_file(folder, file)
    if path is None:
        return FileCheck(file, "missing", None)
    try:
        datasets.published(source, file, folder)
    except CarvyError:
        return FileCheck(file, "damaged", str(path))
    return FileCheck(file, "ok", str(path))


def fetch(
    name: str,
    *,
    directory: str | Path | None = None,
    progress: bool = True,
    mirrors: Sequence[str] | None = None,
) -> Path:
    """Download what is missing of a registered data set into ``directory/name``.

    By default the directory is $CARVYFL_DATA, else the cache. Files are downloaded aside and
    checked against the published SHA-256 before they are moved into place: what lies in the folder
    is whole. Of an archive, the data set's files are kept, unpacked. ``mirrors`` are addresses of
    folders to use instead of the registered ones, tried in turn, file by file.
    """
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn

    source = DATASETS.pick(name)
    if source.built_in:
        raise CarvyError(f"data set '{name}' is part of the package; there is nothing to fetch")
    mirrors = mirrors or source.mirrors
    if not mirrors:
        remedy = "put its files into a folder and name it as data_dir"
        raise CarvyError(f"data set '{name}' has no mirror; {remedy}")
    default = os.environ.get(datasets.DATA_VARIABLE) or datasets.cache_folder()
    folder = Path(directory or default) / name
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn())
    bars = Progress(*columns, console=Console(stderr=True), disable=not progress)
    with _folder_aside(folder) as aside, bars:
        wanted = [file for file in source.sha256 if _check(source, file, folder).state != "ok"]
        if source.archive is None:
            for file in wanted:
                part = aside / f"{file}.gz"
                _download(source, [file], part, mirrors, bars)
                part.replace(folder / part.name)
        elif wanted:
            unpacked = _download(source, wanted, aside / source.archive, mirrors, bars)
            for file, content in unpacked.items():
                (aside / file).write_bytes(content)
                (aside / file).replace(folder / file)
                (folder / f"{file}.gz").unlink(missing_ok=True)  # damaged, and found first
    return folder


@contextlib.contextmanager
def _folder_aside(folder: Path) -> Iterator[Path]:
    """Give a folder on the same disk; leave no empty ``folder`` behind on failure."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".fetch-", dir=folder) as aside:
            yield Path(aside)
    except OSError as error:
        raise CarvyError(f"{folder}: cannot be written ({error.strerror or error})") from error
    finally:
        with contextlib.suppress(OSError):  # not empty: the files are there
            folder.rmdir()


def _download(
    source: DataSource, files: Sequence[str], target: Path, mirrors: Sequence[str], bars: Progress
) -> Mapping[str, bytes]:
    """Download what the mirrors call ``target.name``; return the content of the files in it."""
    import requests

    failures = []
    for mirror in mirrors:
        url = f"{mirror.rstrip('/')}/{target.name}"
        try:
            request = requests.get(url, stream=True, timeout=TIMEOUT)
            with request as answer, target.open("wb") as output:
                answer.raise_for_status()
                size = int(answer.headers.get("content-length", 0)) or None
                bar = bars.add_task(target.name, total=size)
                for chunk in answer.iter_content(CHUNK):
                    output.write(chunk)
                    bars.advance(bar, len(chunk))
            packed = source.archive is not None
            unpacked = read_tar(target, files) if packed else {files[0]: contents(target)}
            return {file: checked(content, source, file, url) for file, content in unpacked.items()}
        except requests.HTTPError as error:
            reason = f"answered {getattr(error.response, 'status_code', error)}"
        except requests.Timeout:
            reason = "did not answer in time"
        except requests.RequestException:
            reason = "cannot be reached"
        except CarvyError:
            reason = "sent a damaged or different file"
        failures.append(f"{urlsplit(url).netloc} {reason}")
    remedy = "check the network and try again, or copy the files from elsewhere and name their"
    fault = f"{target.name} could not be downloaded ({'; '.join(failures)})"
    raise CarvyError(f"{source.name}: {fault}; {remedy} folder with `data_dir`")
