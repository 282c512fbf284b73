"""A finished run as its report needs it: read once, and checked to fit together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from carvyfl.core.errors import CarvyError
from carvyfl.groups.basis import Reading
from carvyfl.groups.grouping import Grouping
from carvyfl.plots.style import Style, method_style
from carvyfl.profiles.methods import Profiles
from carvyfl.profiles.types import ClientTypes
from carvyfl.runs.folder import RunFolder
from carvyfl.runs.record import Deployment, MethodResult, RunRecord
from carvyfl.settings import RunSettings
from carvyfl.voting.certificate import Certificate, certify
from carvyfl.voting.votes import Classes, Votes


@dataclass(frozen=True, eq=False)
class Method:
    """What a run found with one method; the certificate is computed anew from the votes."""

    style: Style
    entry: MethodResult
    grouping: Grouping
    votes: Votes
    labels: Classes
    certificate: Certificate

    @property
    def title(self) -> str:
        """Its name in print, which says so if nothing is certified."""
        return self.style.label if self.proved else f"{self.style.label}, not certified"

    @property
    def proved(self) -> list[Reading]:
        """The readings in which something is certified."""
        return self.certificate.basis.readings


@dataclass(frozen=True)
class FinishedRun:
    """Everything a report shows of one run; nothing that it used need be registered here."""

    name: str
    """The folder's name, or its whole path where two runs have the same name."""
    folder: RunFolder
    record: RunRecord
    profiles: Profiles | None
    """Step 1, None if no method needed it."""
    methods: tuple[Method, ...]

    @property
    def types(self) -> ClientTypes | None:
        """The types of Step 1."""
        return None if self.profiles is None else self.profiles.types

    @property
    def config(self) -> RunSettings:
        """Its configuration as recorded."""
        return self.record.config

    @property
    def deployment(self) -> Deployment | None:
        """How a real federation was run; None for a simulated one."""
        return self.record.deployment or None


def read_runs(paths: Sequence[Path]) -> list[FinishedRun]:
    """Read finished runs; refuse one whose files contradict each other."""
    names = [path.resolve().name for path in paths]
    shown = [n if names.count(n) == 1 else str(p) for n, p in zip(names, paths, strict=True)]
    return [_read_run(RunFolder(path), name) for path, name in zip(paths, shown, strict=True)]


def _read_run(folder: RunFolder, name: str) -> FinishedRun:
    record, profiles = folder.record(), folder.profiles()
    if profiles is not None and len(profiles) != record.config.clients:
        raise _contradiction(folder, folder.types_file)
    methods = tuple(_read_method(folder, record, method) for method in record.methods)
    return FinishedRun(name, folder, record, profiles, methods)


def _read_method(folder: RunFolder, record: RunRecord, method: str) -> Method:
    entry, grouping = record.methods[method], folder.grouping(method)
    lengths = map(len, (entry.rounds, entry.stopped, entry.validation_accuracy))
    clients = record.config.clients
    if len(grouping.assignment) != clients or {grouping.num_groups} != {entry.num_groups, *lengths}:
        raise _contradiction(folder, folder.grouping_file(method))
    votes, labels = folder.votes(method)
    shape = (grouping.num_groups, len(record.data.class_names))
    if labels is not None and (votes.num_groups, votes.num_classes) == shape:
        certificate = certify(votes, labels, grouping.basis)
        computed = np.concatenate([certificate.ca(), *certificate.ca_interval()])
        recorded = [*entry.ca, *entry.ca_low, *entry.ca_high]
        if len(computed) == len(recorded) and np.allclose(computed, recorded):
            return Method(method_style(method), entry, grouping, votes, labels, certificate)
    raise _contradiction(folder, folder.votes_file(method))


def _contradiction(folder: RunFolder, file: Path) -> CarvyError:
    return CarvyError(
        f"{file} does not match {folder.record_file.name} in the same folder; "
        "run the same 'carvy run' again to restore it"
    )
