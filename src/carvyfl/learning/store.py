"""From jobs to results: a finished group is never trained again, and never lost."""

from __future__ import annotations

import contextlib
import hashlib
import json
import queue
import time
import warnings
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
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
from carvyfl.core.progress import Report, quiet
from carvyfl.learning.backends import Backend, Cores
from carvyfl.learning.job import Checkpoints, GroupJob, GroupResult, GroupState, job_keys
from carvyfl.learning.learners import learner_of
from carvyfl.learning.models import flat_weights, num_weights

SHOWN_EVERY = 0.1  # Seconds between two reports of progress
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
        files = self._file(key), self._file(key, unfinished=True)
        return any(map(Path.is_file, files)) or key in self._places()

    def put(self, key: str, result: GroupResult) -> None:
        """Store a result; afterwards it survives whatever happens to this process."""
        self.put_all({key: result})

    def put_all(self, results: Mapping[str, GroupResult]) -> None:
        """Store results; many share a file, since every file costs the disk milliseconds."""
        if len(results) < FEW:
            for key, result in results.items():
                write_entry(_free(self._file(key)), {"weights": result.weights}, _record(result))
        else:
            self._put_together(results)
        for key in results:  # where the state of a finished job stays, it is never read again
            with contextlib.suppress(OSError):
                self._file(key, unfinished=True).unlink()

    def _put_together(self, results: Mapping[str, GroupResult]) -> None:
        tensors = {key: result.weights for key, result in results.items()}

        def entry(key: str) -> list[str]:
            text = json.dumps(_record(results[key]))
            return [text, _checksum(self._file(key).name, {"weights": tensors[key]}, text)]

        with ThreadPoolExecutor(usable_cores()) as threads:
            entries = dict(zip(results, threads.map(entry, results), strict=True))
        name = hashlib.blake2b("".join(sorted(results)).encode(), digest_size=20).hexdigest()
        metadata = {"format": FORMAT, "entries": json.dumps(entries)}
        write_tensors(_free(self.folder / f"{name}{SHARED}"), tensors, metadata)

    def get_state(self, key: str, job: GroupJob) -> GroupState | None:
        """Return the last saved state of a job that is not finished, if there is one."""
        path = self._file(key, unfinished=True)
        with trusting(path):
            if (entry := read_entry(path)) is None:
                return None
            tensors, record = entry
            count, active = num_weights(job.module), len(job.members) - len(record["set_aside"])
            _check_shapes(tensors, weights=(count,), server=(count,), controls=(active, count))
            parts: dict[str, Any] = {**tensors, **_outcome(record)}
            return GroupState(**parts)
        return None

    def put_state(self, key: str, state: GroupState) -> None:
        """Save how far a job is; :meth:`put` removes it."""
        tensors = {"weights": state.weights, "server": state.server, "controls": state.controls}
        record = {"accuracy": state.accuracy, "set_aside": state.set_aside}
        write_entry(_free(self._file(key, unfinished=True)), tensors, record)

    def checkpoints(
        self, keys: Sequence[str], jobs: Sequence[GroupJob], every: float = 60.0
    ) -> Checkpoints:
        """Return where the states of unfinished jobs are, every so many seconds."""
        return Checkpoints(
            load=lambda position: self.get_state(keys[position], jobs[position]),
            save=lambda position, state: self.put_state(keys[position], state),
            every=every,
        )

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

    def _file(self, key: str, *, unfinished: bool = False) -> Path:
        """Return the file of one job or its state, whose checksum covers its name."""
        return self.folder / f"{key}{'.unfinished' if unfinished else ''}.safetensors"


class StoreWriter:
    """Stores results on its own threads during training: waiting ones share a file."""

    def __init__(self, store: GroupStore) -> None:
        self._store = store
        self._waiting: queue.SimpleQueue[tuple[str, GroupResult]] = queue.SimpleQueue()
        self._threads = ThreadPoolExecutor(WRITERS)
        self._written: deque[Future[None]] = deque()

    def __enter__(self) -> StoreWriter:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self._threads.shutdown()
        if error is None:
            self._raise_failure()

    def put(self, key: str, result: GroupResult) -> None:
        """Have a result stored; all are when the writer is left."""
        self._raise_failure()
        self._waiting.put((key, result))
        self._written.append(self._threads.submit(self._write))

    def _raise_failure(self) -> None:
        while self._written and self._written[0].done():
            self._written.popleft().result()

    def _write(self) -> None:
        """Store what waits: nothing, if another thread took it."""
        results: dict[str, GroupResult] = {}
        size = 0
        with contextlib.suppress(queue.Empty):
            while len(results) < MOST and size < LARGEST:
                key, result = self._waiting.get_nowait()
                results[key] = result
                size += result.weights.nbytes
        self._store.put_all(results)


def train_groups(
    jobs: Sequence[GroupJob],
    *,
    store: GroupStore | None = None,
    engine: Backend | None = None,
    progress: Report = quiet,
) -> list[GroupResult]:
    """Train groups, each job once, and return their results in the order of the jobs.

    Parameters
    ----------
    jobs
        What to train, of any federations, methods and seeds together; equal jobs
        (equal keys) are trained once. All have the same learner.
    engine
        What computes; by default all cores.
    progress
        Called with (client-steps done, client-steps in all), now and then.
    """
    engine = Cores() if engine is None else engine
    keys = job_keys(jobs, engine.precision)
    distinct = dict(zip(keys, jobs, strict=True))
    results = {} if store is None else store.get_all(distinct)
    for key, job in distinct.items():
        if not job.members:  # a group that random slots left empty
            results[key] = GroupResult(flat_weights(job.module), (), "empty")
    # Long jobs first, so that no core idles while the longest runs alone at the end.
    work = {key: job.steps_per_round * job.recipe.rounds for key, job in distinct.items()}
    missing = sorted(distinct.keys() - results.keys(), key=lambda key: (-work[key], key))
    todo = [distinct[key] for key in missing]
    total = sum(work.values())
    done, shown = total - sum(work[key] for key in missing), time.monotonic()
    progress(done, total)
    if not todo:
        return [results[key] for key in keys]
    per_round, rounds_done = [job.steps_per_round for job in todo], [0] * len(todo)

    def on_rounds(position: int, rounds: int) -> None:
        nonlocal done, shown
        done += (rounds - rounds_done[position]) * per_round[position]
        rounds_done[position] = rounds
        # Thousands of groups advance at once: drawing each would take longer than training.
        if done == total or time.monotonic() - shown >= SHOWN_EVERY:
            progress(done, total)
            shown = time.monotonic()

    checkpoints = None if store is None else store.checkpoints(missing, todo)
    with contextlib.nullcontext() if store is None else StoreWriter(store) as writer:
        learner = learner_of(todo[0].module)
        for position, result in learner.train(todo, engine, on_rounds, checkpoints):
            results[missing[position]] = result
            if writer is not None:
                writer.put(missing[position], result)
            on_rounds(position, todo[position].recipe.rounds)  # stopped early: no more to do
    return [results[key] for key in keys]


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
    return {name: getattr(result, name) for name in ("accuracy", "stopped", "set_aside")}


def _outcome(record: Record) -> dict[str, Any]:
    set_aside = {int(number): reason for number, reason in record["set_aside"].items()}
    return {"accuracy": tuple(record["accuracy"]), "set_aside": set_aside}


def _result_of(tensors: dict[str, Tensor], record: Record, job: GroupJob) -> GroupResult:
    """Return the result that an entry holds, refusing one that no training gives."""
    _check_shapes(tensors, weights=(num_weights(job.module),))
    if not torch.isfinite(tensors["weights"]).all() and record["stopped"] != "diverged":
        raise ValueError("its weights are not finite")
    return GroupResult(tensors["weights"], stopped=record["stopped"], **_outcome(record))


def _check_shapes(tensors: dict[str, Tensor], **expected: tuple[int, ...]) -> None:
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
