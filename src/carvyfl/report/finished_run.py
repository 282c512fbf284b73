"""A finished run as its report needs it: read once, and checked to fit together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from msgspec import UNSET

from carvyfl.core.errors import CarvyError
from carvyfl.groups.grouping import Grouping
from carvyfl.plots.style import Style, method_style
from carvyfl.profiles.types import ClientTypes
from carvyfl.runs.config import RunConfig
from carvyfl.runs.folder import RunFolder
from carvyfl.runs.record import Deployment, MethodResult, RunRecord
from carvyfl.voting.certificate import Certificate, certify
from carvyfl.voting.votes import Classes, Votes


@dataclass(frozen=True)
class Method:
    """What a run found with one method.

    Attributes
    ----------
    style
        How its curves are drawn.
    entry
        Its part of the record ``run.json``.
    grouping, votes, labels
        Steps 2 and 4, and the true classes of the test inputs.
    certificate
        Computed anew from the votes; its CA(m) is the record's.
    """

    style: Style
    entry: MethodResult
    grouping: Grouping
    votes: Votes
    labels: Classes
    certificate: Certificate

    @property
    def title(self) -> str:
        """Its name in print."""
        return self.style.label


@dataclass(frozen=True)
class FinishedRun:
    """Everything a report shows of one run.

    Attributes
    ----------
    name
        The folder's name, or its whole path where two runs have the same name.
    folder, record, config
        Where it lies, its record ``run.json``, and what is known of its configuration.
    types
        Step 1, None if no method needed types.
    methods
        One for each method of the run, in its order.
    """

    name: str
    folder: RunFolder
    record: RunRecord
    config: RunConfig
    types: ClientTypes | None
    methods: tuple[Method, ...]

    @property
    def deployment(self) -> Deployment | None:
        """How a real federation was run; None for a simulated one."""
        own = self.record.deployment
        return None if own is UNSET else own

    @property
    def class_names(self) -> tuple[str, ...]:
        """The names of the classes."""
        return self.record.data.class_names


def read_runs(paths: Sequence[Path]) -> list[FinishedRun]:
    """Read finished runs.

    Raises
    ------
    CarvyError
        If a run is not finished, a file is damaged, or files of a run contradict each other.
    """
    names = [path.resolve().name for path in paths]
    shown = [n if names.count(n) == 1 else str(p) for n, p in zip(names, paths, strict=True)]
    return [_read_run(path, name) for path, name in zip(paths, shown, strict=True)]


def _read_run(path: Path, name: str) -> FinishedRun:
    folder = RunFolder(path)
    record, config = folder.record(), folder.known_config()
    types = folder.types()
    if types is not None and len(types) != config.clients:
        raise _contradiction(folder, folder.types_file)
    methods = tuple(
        _read_method(folder, method, entry, record, config.clients)
        for method, entry in record.methods.items()
    )
    return FinishedRun(name, folder, record, config, types, methods)


def _read_method(
    folder: RunFolder, method: str, entry: MethodResult, record: RunRecord, clients: int
) -> Method:
    grouping = folder.grouping(method)
    lengths = map(len, (entry.rounds, entry.stopped, entry.validation_accuracy))
    if len(grouping.assignment) != clients or {grouping.num_groups} != {entry.num_groups, *lengths}:
        raise _contradiction(folder, folder.grouping_file(method))
    votes, labels = folder.votes(method)
    shape = (grouping.num_groups, len(record.data.class_names))
    if labels is None or (votes.num_groups, votes.num_classes) != shape:
        raise _contradiction(folder, folder.votes_file(method))
    certificate = certify(votes, labels, grouping.basis)
    found = np.array([certificate.ca(), *certificate.ca_interval()])
    recorded = (entry.ca, entry.ca_low, entry.ca_high)
    if {found.shape[1]} != set(map(len, recorded)) or not np.allclose(found, recorded):
        raise _contradiction(folder, folder.votes_file(method))
    return Method(method_style(method), entry, grouping, votes, labels, certificate)


def _contradiction(folder: RunFolder, file: Path) -> CarvyError:
    return CarvyError(
        f"{file} does not match {folder.record_file.name} in the same folder; "
        "run the same 'carvy run' again to restore it"
    )
