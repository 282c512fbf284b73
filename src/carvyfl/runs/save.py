"""How a run is written into its folder: all files or none, and nothing finished is lost.

Its pictures are a function of its record and its certificates.
"""

from __future__ import annotations

import functools
import json
import shutil
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import UNSET
from msgspec.structs import replace

from carvyfl.core.errors import CarvyError
from carvyfl.core.files import move, wait_for_lock, write_text
from carvyfl.core.schema import plain, read
from carvyfl.groups.basis import READINGS
from carvyfl.learning.learners import LEARNERS, learner_of
from carvyfl.plots.draw import draw
from carvyfl.plots.draw import save as save_drawing
from carvyfl.plots.pictures import plot
from carvyfl.profiles.vectors import save_vectors
from carvyfl.runs.folder import RunFolder
from carvyfl.runs.record import RunRecord, hashes, population, sealed
from carvyfl.voting.certificate import Certificate
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
    record, new = run.record(), RunFolder(folder.path / "new.part")
    certificates = {name: method.certificate for name, method in run.methods.items()}
    with wait_for_lock(folder.config_file):
        shutil.rmtree(new.path, ignore_errors=True)  # from a process that was killed
        try:
            # Drawing imports modules, which no thread may do beside another.
            draw_pictures(new, certificates, record)
            setup = run.prepared.setup
            learner_of(setup.module).save(setup.module, new.path)
            if setup.messages is not None:
                setup.messages.save(new.messages_file)
            if run.sums is not None:
                new.sums_file_of(record).write(run.sums())
            with ThreadPoolExecutor(AT_ONCE) as threads:
                for written in [threads.submit(write) for write in _writers(run, record, new)]:
                    written.result()
            files = [file for file in new.files(record) if file != new.config_file]
            digests = hashes(folder.path, [folder.config_file]) | hashes(new.path, files)
            return _put_in_place(new, folder, replace(record, files=digests))
        finally:
            shutil.rmtree(new.path, ignore_errors=True)


def _writers(run: Run, record: RunRecord, new: RunFolder) -> Iterator[Callable[[], None]]:
    config, labels = record.config.to_dict(), run.prepared.dataset.test.labels
    learner = LEARNERS.pick(record.config.learner)
    names = ["learner", *learner.settings] if learner.stored_inputs else ["model"]
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


def _put_in_place(new: RunFolder, folder: RunFolder, record: RunRecord) -> RunRecord:
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
    same = {name: getattr(record, name) for name in ("seconds", "environment", "digest")}
    if there.deployment and record.deployment:  # a server started again has sent nothing yet
        same["deployment"] = replace(there.deployment, traffic=record.deployment.traffic)
    return there if replace(there, **same) == record else None


def described(record: RunRecord) -> str:
    """Return two lines on what a run was: its data and clients, then their split and the model."""
    config = record.config
    options = "".join(f", {name} = {value}" for name, value in config.partition_options.items())
    split = f"{config.partition}{options}" if record.deployment is UNSET else "clients' own data"
    fixed = LEARNERS.pick(config.learner).stored_inputs
    model = f"{config.learner} on features {config.features}" if fixed else config.model
    if record.privacy:
        model = f"{model}, ε = {record.privacy.epsilon:g}"
    return f"{record.data.name}, {population(config, record.deployment)}\n{split}; {model}"


def drawn(certificates: Mapping[str, Certificate]) -> tuple[Mapping[str, Certificate], str]:
    """Return what a picture shows: what is proved, read given these groups, or else accuracy."""
    proved = {method: each for method, each in certificates.items() if each.basis.readings}
    label = READINGS["given_groups"].label
    return (proved, label) if proved else (certificates, "nothing certified")


def draw_pictures(
    folder: RunFolder, certificates: Mapping[str, Certificate], record: RunRecord
) -> list[Path]:
    """Draw CA(m) of every method, and the curve that G was chosen from; return the files."""
    shown, reading = drawn(certificates)
    plot(shown, title=f"{described(record)}; {reading}").save(folder.picture)
    if record.group_count is UNSET:
        return [folder.picture]
    save_drawing(draw([record.group_count.panel], inches=(7, 4.6)), folder.choice_picture)
    return [folder.picture, folder.choice_picture]
