"""How a run is written into its folder: all files or none, and nothing finished is lost."""

from __future__ import annotations

import contextlib
import functools
import json
import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from msgspec import UNSET
from msgspec.structs import replace

from carvyfl.core.errors import CarvyError
from carvyfl.core.files import move, wait_for_lock, write_text
from carvyfl.core.schema import plain, read
from carvyfl.profiles.vectors import save_vectors
from carvyfl.runs.folder import RunFolder
from carvyfl.runs.pictures import draw_pictures
from carvyfl.runs.record import RunRecord, hashes, sealed
from carvyfl.voting.files import save_votes

if TYPE_CHECKING:
    from carvyfl.runs.execute import Run

AT_ONCE = 3
"""Files that are written at once: models are copied while votes are compressed."""


def save(run: Run, folder: RunFolder) -> RunRecord:
    """Write a run into its folder, which is claimed for it, and return its record.

    Files are written aside first, the record comes last, and an older record stays valid until
    then. The record of the very same result stays, and with it a signature and the attacks on it: a
    run that is repeated loses nothing, and gets back what was damaged.
    """
    record = run.record()
    with wait_for_lock(folder.config_file), _aside(folder) as new:
        # Drawing imports modules, which no thread may do beside another.
        draw_pictures(new, {name: own.certificate for name, own in run.methods.items()}, record)
        if run.sums is not None:
            new.sums_file_of(record).write(run.sums())
        with ThreadPoolExecutor(AT_ONCE) as threads:
            for written in [threads.submit(write) for write in _writers(run, record, new)]:
                written.result()
        files = [file for file in new.files(record) if file != new.config_file]
        digests = hashes(folder.path, [folder.config_file]) | hashes(new.path, files)
        return _put_in_place(new, folder, replace(record, files=digests))


def _writers(run: Run, record: RunRecord, new: RunFolder) -> Iterator[Callable[[], None]]:
    """Yield what writes the files of models, votes, groups and profiles."""
    config, labels = record.config.to_dict(), run.prepared.dataset.test.labels
    names = ["model"]
    if record.config.learner == "one-shot":
        names = ["learner", "features", "projection", "ridge"]
    about = {**{name: config[name] for name in names}, **plain(record.data)}
    for name, method in run.methods.items():
        yield functools.partial(method.models.save, new.models_file(name), about)
        yield functools.partial(save_votes, new.votes_file(name), method.votes, labels)
        yield functools.partial(method.grouping.save, new.grouping_file(name))
    if run.profiles is not None:
        types = json.dumps(run.profiles.types.to_json())
        yield functools.partial(write_text, new.types_file, types)
        if run.profiles.vectors is not None:
            yield functools.partial(save_vectors, new.profiles_file, run.profiles.vectors)


@contextlib.contextmanager
def _aside(folder: RunFolder) -> Iterator[RunFolder]:
    """Give a place beside the files of a run for those that may replace them."""
    new = RunFolder(folder.path / "new.part")
    shutil.rmtree(new.path, ignore_errors=True)  # from a process that was killed
    try:
        yield new
    finally:
        shutil.rmtree(new.path, ignore_errors=True)


def _put_in_place(new: RunFolder, folder: RunFolder, record: RunRecord) -> RunRecord:
    """Move the files of a run into its folder, write the record last, and return it."""
    text = sealed(record)
    record = read(RunRecord, json.loads(text), "the record")
    recorded = _recorded(folder, record)
    if recorded is None:
        folder.signature_file.unlink(missing_ok=True)
        folder.record_file.unlink(missing_ok=True)
    for name in record.files.keys() - {folder.config_file.name}:
        move(new.path / name, folder.path / name)
    if recorded is not None:
        return recorded
    write_text(folder.record_file, text)
    return record


def _recorded(folder: RunFolder, record: RunRecord) -> RunRecord | None:
    """Return a folder's record of this very result, whenever and wherever computed."""
    try:
        there = folder.record()
    except CarvyError:
        return None
    alike = replace(
        there, seconds=record.seconds, environment=record.environment, digest=record.digest
    )
    if there.deployment is not UNSET and record.deployment is not UNSET:
        # A server that is started again has sent nothing yet.
        same_traffic = replace(there.deployment, traffic=record.deployment.traffic)
        alike = replace(alike, deployment=same_traffic)
    return there if alike == record else None
