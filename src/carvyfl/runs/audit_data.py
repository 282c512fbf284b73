"""The audit's checks of data: what was trained and tested on."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np
from msgspec import UNSET

from carvyfl.core.archives import npz_shapes
from carvyfl.core.errors import CarvyError
from carvyfl.data.clients import Samples, samples
from carvyfl.data.datasets import DataSet
from carvyfl.data.partitions import PARTITIONS
from carvyfl.runs.audit_outcomes import UncheckedError, UnderivableError, compare, registered
from carvyfl.runs.config import load_data
from carvyfl.runs.folder import RunFolder
from carvyfl.runs.record import Data, data_entry
from carvyfl.runs.voted_data import voted_samples

ARRAYS = ("x_test", "y_test")
"""What a file of test data holds."""


@dataclass(frozen=True)
class RunData:
    """The data of a run, as far as it is at hand.

    Attributes
    ----------
    folder
        The run.
    data_dir
        Where registered data sets are looked for first.
    test_file
        An npz file with the test data, ``x_test`` and ``y_test``; None takes the data set's.
    """

    folder: RunFolder
    data_dir: Path | None
    test_file: Path | None

    def check_data_set(self) -> str:
        """Load the data set and compare all that the record says of it."""
        record = self.folder.record()
        if record.deployment is not UNSET:
            raise UnderivableError("the clients of a real federation keep their training data")
        settings = {name: getattr(record.config, name) for name in ("num_classes", "mean", "std")}
        given = {name: value for name, value in settings.items() if value is not None}
        compare(given, record.data, "data")
        found = data_entry(self.data_set)
        if found.test_sha256 != record.data.test_sha256:
            registered(PARTITIONS, record.config.partition)  # one from elsewhere may shift them
        compare(found, record.data, "data")
        return f"{record.data.name}: test and training set have the recorded SHA-256"

    def check_test_data(self) -> str:
        """Compare the test data with the recorded digest."""
        return f"{len(self.test)} test inputs have the recorded SHA-256"

    @cached_property
    def test(self) -> Samples:
        """The test data, which is what the record says it is."""
        record = self.folder.record()
        if self.test_file is not None:
            own = _read_test_data(self.test_file, record.data)
            found = voted_samples(record.config, own, record.data.num_classes)
        else:
            found = self.data_set.test
        if found.sha256() == record.data.test_sha256:
            return found
        if self.test_file is None and record.deployment is not UNSET:
            raise UncheckedError(
                f"the data set '{record.data.name}' here has another test set; "
                "give the federation's own with `test_data`"
            )
        if record.deployment is UNSET:
            registered(PARTITIONS, record.config.partition)  # one from elsewhere may shift them
        raise CarvyError("the test data does not have the recorded SHA-256")

    @cached_property
    def data_set(self) -> DataSet:
        """The data set of the run's configuration, as it is here, with what the run votes on."""
        config = self.folder.record().config
        try:
            found = load_data(config, self.data_dir)
        except CarvyError as error:
            raise UncheckedError(
                f"the data is not at hand: {error}; the test data alone can be given with "
                "`test_data`"
            ) from error
        return replace(found, test=voted_samples(config, found.test, found.num_classes))


def check_test_file(path: Path) -> None:
    """Refuse a file that holds no test data."""
    missing = [name for name in ARRAYS if name not in npz_shapes(path)]
    if missing:
        raise CarvyError(f"{path}: {' and '.join(missing)} missing; it needs {', '.join(ARRAYS)}")


def _read_test_data(path: Path, data: Data) -> Samples:
    """Read test data of the recorded shape; images may lack their channel."""
    shape, labels = (npz_shapes(path)[name][0] for name in ARRAYS)
    wanted = (data.test_inputs, *data.input_shape)
    accepted = {wanted, (wanted[0], *wanted[2:])} if wanted[1:2] == (1,) else {wanted}
    if shape not in accepted or labels != wanted[:1]:
        raise CarvyError(
            f"{path} holds inputs of shape {shape} and labels of shape {labels}, not the recorded "
            f"{wanted} and {wanted[:1]}"
        )
    with np.load(path, allow_pickle=False) as archive:
        inputs, classes = (archive[name] for name in ARRAYS)
    return samples(inputs.reshape(wanted), classes, num_classes=data.num_classes, where=str(path))
