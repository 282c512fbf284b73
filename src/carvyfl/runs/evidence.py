"""What an auditor has at hand: a run folder, the evidence brought along, and the data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import numpy.typing as npt

from carvyfl.core.archives import read_npz
from carvyfl.core.errors import CarvyError, printable
from carvyfl.core.registry import Entry, Registry
from carvyfl.core.schema import plain
from carvyfl.data.clients import Samples, samples
from carvyfl.data.datasets import DataSet
from carvyfl.data.partitions import PARTITIONS, split_classes
from carvyfl.learning.learners import LEARNERS
from carvyfl.learning.models import MODELS
from carvyfl.learning.one_shot.features import FEATURES
from carvyfl.pipeline import Setup
from carvyfl.runs.config import load_data, split_data, voted_samples
from carvyfl.runs.folder import RunFolder
from carvyfl.runs.record import Deployment, RunRecord, State
from carvyfl.settings import RunSettings

T = TypeVar("T", bound=Entry)


@dataclass(frozen=True)
class Evidence:
    """What an auditor brings along."""

    commitment: str | None = None
    """The hash of the coins that was published before the reports, or None."""
    data_dir: Path | None = None
    """Where the data set is, if not where the run found it."""
    test_data: Path | None = None
    """An npz file of test data (``x_test``, ``y_test``), where the data set is not at hand."""
    workers: int | None = None
    """Worker processes that compute votes; default one per core."""


class UncheckedError(Exception):
    """Why something was not checked that could be, with more at hand."""

    state: State = "not checked"


class UnderivableError(UncheckedError):
    """Why no audit can derive something from a folder."""

    state = "cannot be derived"


def registered(registry: Registry[T], name: str) -> T:
    """Return what is registered under a name, which may be known elsewhere only."""
    if name not in registry:
        raise UncheckedError(
            f"{registry.what} '{printable(name, 60)}' is not registered here; install the package "
            "that brings it"
        )
    return registry[name]


def require(holds: bool, otherwise: str) -> None:
    """Raise :class:`CarvyError`, a mismatch, unless something holds."""
    if not holds:
        raise CarvyError(otherwise)


def compare(derived: object, claimed: object, what: str) -> None:
    """Refuse a claim that differs in a derived field; numbers agree to 1e-6."""
    there = plain(claimed)
    for name, value in plain(derived).items():
        same = name in there and _same(value, there[name])
        require(same, f"{what}: {name} is not what follows from the files")


def _same(a: Any, b: Any) -> bool:
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(_same(a[key], b[key]) for key in a)
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(map(_same, a, b))
    if isinstance(a, float) and isinstance(b, int | float):
        return abs(a - b) <= 1e-6  # an interval's ends may move with the library's version
    return bool(a == b)


@dataclass(frozen=True)
class AuditedRun:
    """A run under audit, with its data as far as they are at hand; its record is read once."""

    folder: RunFolder
    evidence: Evidence

    @cached_property
    def given(self) -> Mapping[str, npt.NDArray[Any]] | None:
        """The arrays ``x_test`` and ``y_test`` of the test data, if they were given."""
        file = self.evidence.test_data
        return None if file is None else read_npz(file, ("x_test", "y_test"))

    @cached_property
    def record(self) -> RunRecord:
        """The record, as it was sealed."""
        return self.folder.record()

    @property
    def config(self) -> RunSettings:
        """The recorded configuration."""
        return self.record.config

    @property
    def deployment(self) -> Deployment | None:
        """How a real federation was run; None for a simulated one."""
        return self.record.deployment or None

    @property
    def num_clients(self) -> int:
        """N."""
        return self.config.clients if self.deployment is None else len(self.deployment.clients)

    def check_registered(self) -> None:
        """Leave unchecked what takes a model, or features, that are not registered here."""
        if registered(LEARNERS, self.config.learner).stored_inputs:
            registered(FEATURES, self.config.features)
        else:
            registered(MODELS, self.config.model)

    def check_sizes(self) -> None:
        """Refuse a false shape of inputs before a feature map of unknown width is tried on it."""
        self.check_registered()
        fixed = LEARNERS[self.config.learner].stored_inputs
        if fixed and FEATURES[self.config.features].width is None:
            fits = self.test.inputs.shape[1:] == self.record.data.input_shape
            require(fits, "the test inputs do not have the recorded shape")

    @cached_property
    def true_types(self) -> tuple[int, ...] | None:
        """The true types of a simulation's clients, from splitting the classes again."""
        rule, classes = registered(PARTITIONS, self.config.partition), self.record.data.num_classes
        partition = split_classes(rule.name, num_classes=classes, **self.config.split)
        return None if partition.types is None else tuple(partition.types.tolist())

    @cached_property
    def data_set(self) -> DataSet:
        """The data set of the configuration, as it is here, with what the run votes on."""
        try:
            dataset = load_data(self.config, self.evidence.data_dir)
        except CarvyError as error:
            raise UncheckedError(
                f"the data is not at hand: {error}; the test data alone can be given with "
                "`test_data`"
            ) from error
        return replace(dataset, test=voted_samples(self.config, dataset.test, dataset.num_classes))

    @cached_property
    def setup(self) -> Setup:
        """What a simulation was made of: its clients' data, split again, and the initial model."""
        if self.deployment is not None:
            raise UnderivableError("the clients of a real federation keep their training data")
        registered(PARTITIONS, self.config.partition)
        self.check_registered()
        data, config = self.data_set, self.config
        module = config.module(data.train.inputs.shape[1:], data.num_classes, config.seed)
        return Setup(split_data(config, data), module, config.training, config.seed)

    @cached_property
    def test(self) -> Samples:
        """The test data, which is what the record says it is."""
        data = self.record.data
        test = self.data_set.test if self.given is None else self._given_test(**self.given)
        if test.sha256() == data.test_sha256:
            return test
        if self.deployment is None:
            registered(PARTITIONS, self.config.partition)  # one from elsewhere may shift them
        elif self.given is None:
            raise UncheckedError(
                f"the data set '{data.name}' here has another test set; "
                "give the federation's own with `test_data`"
            )
        raise CarvyError("the test data does not have the recorded SHA-256")

    def _given_test(self, x_test: npt.NDArray[Any], y_test: npt.NDArray[Any]) -> Samples:
        """Return given test data as it is voted on; images may lack their channel."""
        data = self.record.data
        wanted = (data.test_inputs, *data.input_shape)
        accepted = {wanted, (wanted[0], *wanted[2:])} if wanted[1:2] == (1,) else {wanted}
        if x_test.shape not in accepted or y_test.shape != wanted[:1]:
            raise CarvyError(
                f"inputs of shape {x_test.shape} and labels of shape {y_test.shape} were given, "
                f"not the recorded {wanted} and {wanted[:1]}"
            )
        classes = data.num_classes
        test = samples(x_test.reshape(wanted), y_test, num_classes=classes, where="`test_data`")
        return voted_samples(self.config, test, classes)
