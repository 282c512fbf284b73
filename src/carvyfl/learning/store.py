"""The group store: a finished group is never trained again, and never lost."""

from __future__ import annotations

import contextlib
import hashlib
import json
import queue
import threading
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from carvyfl.core.archives import write_tensors
from carvyfl.core.environment import usable_cores
from carvyfl.core.errors import CarvyError, refusal
from carvyfl.core.files import replacing
from carvyfl.learning.job import GroupJob, GroupResult, GroupState
from carvyfl.learning.models import num_weights

# Raised when entries change their meaning; those of format 1 had none, and count as absent
FORMAT = "2"
# Seconds after which a file that was never completed belongs to a process that died
DAY = 24 * 60 * 60.0
SHARED = ".groups.safetensors"  # How the name of a file with the results of many groups ends
# Fewer results than the first are written each to a file of its own; more share one, of so many
# results and bytes of weights at most
FEW, MOST, LARGEST = 16, 512, 2**28
WRITERS = 4  # Files that are written at once: one waits for the disk while others are copied to it
Record = dict[str, Any]  # What is stored beside tensors, as JSON


class DamagedEntryWarning(UserWarning):
    """A stored result could not be trusted and is trained again."""


class GroupStore:
    """Results on disk in safetensors files: one of a group, named by the job's key, or of many.

    A file is complete or absent (written aside, then renamed), and every result in it carries a
    checksum of its key, weights and record; a damaged one, or one that was copied over
    another, is treated as absent, with a warning. Several processes may share a folder.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._shared: dict[str, Path] = {}  # by key: the file of many groups that holds it
        self._read: set[Path] = set()
        self._listed = -1  # the folder's time of change when it was listed last
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise CarvyError(f"cannot use {folder} as group store: {refusal(error)}") from error
        for part in folder.glob(".*.part"):
            with contextlib.suppress(OSError):  # somebody else may sweep, too
                if time.time() - part.stat().st_mtime > DAY:
                    part.unlink()

    def get(self, key: str, job: GroupJob) -> GroupResult | None:
        """Return the stored result of a job, or None if there is none that can be trusted."""
        return self.get_all({key: job}).get(key)

    def get_all(self, jobs: Mapping[str, GroupJob]) -> dict[str, GroupResult]:
        """Return the stored results of jobs, by key; those that cannot be trusted are missing."""
        results: dict[str, GroupResult] = {}
        shared: dict[Path, list[str]] = {}
        places = self._places()
        for key, job in jobs.items():
            path = self._file(key)
            with trusting(path):
                if (entry := read_entry(path)) is not None:
                    results[key] = _result_of(*entry, job)
            if key not in results and key in places:
                shared.setdefault(places[key], []).append(key)
        for path, keys in shared.items():
            with trusting(path), safe_open(path, framework="pt") as file:
                entries = _entries(file)
                for key in keys:
                    with trusting(path):
                        tensors = {"weights": file.get_tensor(key)}
                        record = _unsealed(self._file(key).name, tensors, *entries[key])
                        results[key] = _result_of(tensors, record, jobs[key])
        return results

    def begun(self, key: str) -> bool:
        """Whether anything of a job is there: its result, or a state on the way to it."""
        return any(map(Path.is_file, map(self._file, (key, _state(key))))) or key in self._places()

    def put(self, key: str, result: GroupResult) -> None:
        """Store a result; afterwards it survives whatever happens to this process."""
        write_entry(_free(self._file(key)), {"weights": result.weights}, _record(result))
        self._forget_state(key)

    def put_all(self, results: Mapping[str, GroupResult]) -> None:
        """Store results; many share a file, since every file costs the disk milliseconds."""
        if len(results) < FEW:
            for key, result in results.items():
                self.put(key, result)
            return
        tensors = {key: result.weights for key, result in results.items()}

        def entry(key: str) -> list[str]:
            text = json.dumps(_record(results[key]))
            return [text, _checksum(self._file(key).name, {"weights": tensors[key]}, text)]

        with ThreadPoolExecutor(usable_cores()) as threads:
            entries = dict(zip(results, threads.map(entry, results), strict=True))
        name = hashlib.blake2b("".join(sorted(results)).encode(), digest_size=20).hexdigest()
        metadata = {"format": FORMAT, "entries": json.dumps(entries)}
        write_tensors(_free(self.folder / f"{name}{SHARED}"), tensors, metadata)
        for key in results:
            self._forget_state(key)

    def get_state(self, key: str, job: GroupJob) -> GroupState | None:
        """Return the last saved state of a job that is not finished, if there is one."""
        path = self._file(_state(key))
        with trusting(path):
            if (entry := read_entry(path)) is None:
                return None
            tensors, record = entry
            count, active = num_weights(job.module), len(job.members) - len(record["set_aside"])
            _check_shapes(tensors, weights=(count,), server=(count,), controls=(active, count))
            accuracy, set_aside = _outcome(record)
            return GroupState(**tensors, accuracy=accuracy, set_aside=set_aside)
        return None

    def put_state(self, key: str, state: GroupState) -> None:
        """Save how far a job is; :meth:`put` removes it."""
        tensors = {"weights": state.weights, "server": state.server, "controls": state.controls}
        record = {"accuracy": state.accuracy, "set_aside": state.set_aside}
        write_entry(_free(self._file(_state(key))), tensors, record)

    def _forget_state(self, key: str) -> None:
        """Remove the state of a finished job; where one stays, it is never read again."""
        with contextlib.suppress(OSError):
            self._file(_state(key)).unlink()

    def _places(self) -> dict[str, Path]:
        """Return the file of every key that shares one, later files first in doubt."""
        changed = self.folder.stat().st_mtime_ns
        if changed != self._listed:  # other processes write, too
            new = set(self.folder.glob(f"*{SHARED}")) - self._read
            for path in sorted(new, key=lambda path: path.stat().st_mtime_ns):
                with trusting(path), safe_open(path, framework="pt") as file:
                    self._shared |= dict.fromkeys(_entries(file), path)
            self._read |= new
            self._listed = changed
        return self._shared

    def _file(self, name: str) -> Path:
        """Return the file of one job, whose checksum covers its name."""
        return self.folder / f"{name}.safetensors"


def _state(key: str) -> str:
    return f"{key}.unfinished"


@dataclass(frozen=True)
class StoredCheckpoints:
    """The states of unfinished jobs in the store; seconds between two savings of one."""

    store: GroupStore
    keys: Sequence[str]
    jobs: Sequence[GroupJob]
    every: float = 60.0

    def load(self, position: int) -> GroupState | None:
        """Return the last saved state of a job, if there is one."""
        return self.store.get_state(self.keys[position], self.jobs[position])

    def save(self, position: int, state: GroupState) -> None:
        """Save how far a job is."""
        self.store.put_state(self.keys[position], state)


class StoreWriter:
    """Stores results on its own threads during training: waiting ones share a file."""

    def __init__(self, store: GroupStore) -> None:
        self._store = store
        self._waiting: queue.SimpleQueue[tuple[str, GroupResult] | None] = queue.SimpleQueue()
        self._threads = [threading.Thread(target=self._write) for _ in range(WRITERS)]
        self._failed: BaseException | None = None

    def __enter__(self) -> StoreWriter:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        for _ in self._threads:
            self._waiting.put(None)
        for thread in self._threads:
            thread.join()
        if error is None and self._failed is not None:
            raise self._failed

    def put(self, key: str, result: GroupResult) -> None:
        """Have a result stored; all are when the writer is left."""
        if self._failed is not None:
            raise self._failed
        self._waiting.put((key, result))

    def _write(self) -> None:
        last = False
        while not last:
            results: dict[str, GroupResult] = {}
            size = 0
            while not last and len(results) < MOST and size < LARGEST:
                try:
                    item = self._waiting.get(block=not results)
                except queue.Empty:
                    break
                if item is None:
                    last = True
                else:
                    results[item[0]] = item[1]
                    size += item[1].weights.nbytes
            try:
                self._store.put_all(results)
            except BaseException as error:
                self._failed = error  # for the thread that trains
                return


def write_entry(path: Path, tensors: dict[str, Tensor], record: Record) -> None:
    """Write tensors and a record to a file that is complete or absent, with a checksum."""
    text = json.dumps(record)
    checksum = _checksum(path.name, tensors, text)
    with replacing(path) as file:
        file.write(save(tensors, {"format": FORMAT, "record": text, "checksum": checksum}))


def read_entry(path: Path) -> tuple[dict[str, Tensor], Record] | None:
    """Read an entry, see :func:`write_entry`; None if there is none. A damaged one raises."""
    if not path.exists():
        return None
    with safe_open(path, framework="pt") as file:
        metadata = file.metadata() or {}
        if metadata.keys() == {"record", "checksum"}:
            return None
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    _check_format(metadata)
    return tensors, _unsealed(path.name, tensors, metadata["record"], metadata["checksum"])


@contextlib.contextmanager
def trusting(path: Path, again: str = "trained again") -> Iterator[None]:
    """Turn what is wrong with an entry into a warning, which says what is done instead."""
    try:
        yield
    except (SafetensorError, OSError, KeyError, ValueError, TypeError) as error:
        warnings.warn(
            f"stored entry {path} is damaged ({error}); it is {again}",
            DamagedEntryWarning,
            stacklevel=4,
        )


def _record(result: GroupResult) -> Record:
    """Return what is stored of a result beside its weights."""
    return {name: getattr(result, name) for name in ("accuracy", "stopped", "set_aside")}


def _outcome(record: Record) -> tuple[tuple[float, ...], dict[int, str]]:
    """Return the accuracies and the members set aside that a group's record holds."""
    set_aside = {int(number): reason for number, reason in record["set_aside"].items()}
    return tuple(record["accuracy"]), set_aside


def _result_of(tensors: dict[str, Tensor], record: Record, job: GroupJob) -> GroupResult:
    """Return the result that an entry holds, refusing one that no training gives."""
    _check_shapes(tensors, weights=(num_weights(job.module),))
    if not torch.isfinite(tensors["weights"]).all() and record["stopped"] != "diverged":
        raise ValueError("its weights are not finite")
    accuracy, set_aside = _outcome(record)
    return GroupResult(tensors["weights"], accuracy, record["stopped"], set_aside)


def _check_shapes(tensors: dict[str, Tensor], **expected: tuple[int, ...]) -> None:
    """Refuse tensors of other names or shapes, or that are not float32."""
    shapes = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    if shapes != expected or any(t.dtype != torch.float32 for t in tensors.values()):
        raise ValueError(f"it holds {shapes or 'no weights'}, not float32 {expected}")


def _entries(file: Any) -> dict[str, list[str]]:
    """Return record and checksum of every key of an open file of many groups."""
    metadata = file.metadata() or {}
    _check_format(metadata)
    entries: dict[str, list[str]] = json.loads(metadata["entries"])
    if entries.keys() != set(file.keys()):
        raise ValueError("its keys are not those of its weights")
    return entries


def _unsealed(name: str, tensors: dict[str, Tensor], record: str, checksum: str) -> Any:
    """Return a record, refusing an entry that is damaged or of another name."""
    if checksum != _checksum(name, tensors, record):
        raise ValueError("its checksum does not match, or it is another group's")
    return json.loads(record)


def _check_format(metadata: dict[str, str]) -> None:
    if metadata["format"] != FORMAT:
        raise ValueError(f"its format is {metadata['format']!r}, not {FORMAT}")


def _free(path: Path) -> Path:
    """Return the path of an entry; a folder that lies in its place is renamed, not removed."""
    if path.is_dir():
        path.rename(path.with_name(f"{path.name}.folder-{time.time_ns()}"))
    return path


def _checksum(name: str, tensors: dict[str, Tensor], record: str) -> str:
    digest = hashlib.blake2b(json.dumps([name, record]).encode(), digest_size=16)
    for name in sorted(tensors):
        digest.update(f"{name}{tuple(tensors[name].shape)}".encode())
        digest.update(tensors[name].contiguous().numpy().data)
    return digest.hexdigest()
