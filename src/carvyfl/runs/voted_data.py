"""The test samples that a run votes on: the data set's own, as the run's clients would see them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from carvyfl.data.clients import Samples
from carvyfl.data.datasets import DataSet
from carvyfl.data.partitions import PARTITIONS, shifted_test
from carvyfl.runs.config import RunSettings, load_data


def load_voted_data(config: RunSettings, data_dir: Path | None = None) -> DataSet:
    """Load the data set of a configuration, with the test samples that its run votes on."""
    dataset = load_data(config, data_dir)
    return replace(dataset, test=voted_samples(config, dataset.test, dataset.num_classes))


def voted_samples(config: RunSettings, test: Samples, num_classes: int) -> Samples:
    """Return what a run votes on, of the test samples of its data set.

    A partition that is not registered here (another package's, or real clients in place of one)
    leaves them as they are; whoever relies on them compares their SHA-256 with the recorded one.
    """
    if config.partition not in PARTITIONS:
        return test
    return shifted_test(
        test,
        config.partition,
        num_clients=config.clients,
        num_classes=num_classes,
        samples=config.samples,
        seed=config.seed,
        **config.partition_options,
    )
