"""What all tests share: one thread each, data, the browser, and in which order they run.

The package is imported where it is needed: the process that hands out tests runs none.
"""

from __future__ import annotations

import copy
import os
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock

import hypothesis
import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser

    from carvyfl.data.datasets import DataSet


@pytest.fixture(scope="module")  # playwright's event loop would be in the way of other modules
def browser() -> Iterator[Browser]:
    from support.browser import headless_browser

    with headless_browser() as started:
        yield started


@pytest.fixture(scope="session", autouse=True)
def _unpack_once() -> Iterator[None]:
    """Unpack the data set of the package once; every test gets a copy."""
    from carvyfl.data.datasets import DATASETS
    from support.registries import restored

    source = DATASETS["embedded"]
    kept: list[DataSet] = []

    def read(files: Mapping[str, bytes]) -> DataSet:
        if not kept:
            kept.append(source.read(files))
        return copy.deepcopy(kept[0])

    with restored(DATASETS):
        DATASETS._entries["embedded"] = replace(source, read=read)
        yield


@pytest.fixture(scope="session", autouse=True)
def _small_maps(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Make the maps of private learning of few images, each once, and in a cache of the tests."""
    folder = tmp_path_factory.mktemp("maps")
    small: dict[str, Any] = {"IMAGES": 100, "cache_folder": lambda: folder}
    with mock.patch.multiple("carvyfl.learning.private.map", **small):
        yield


def pytest_configure() -> None:
    """Have PyTorch compute on one thread, here and in processes that tests start.

    A test for every core and one more run beside each other; threads that wait for each
    other made small networks ten times slower. Those processes also share matplotlib's list of
    fonts, whatever cache a test gives them. No example has a deadline: how long it takes says
    how busy the machine is. Fifty examples a time are enough, as every time they are others.
    """
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    os.environ.setdefault("MPLCONFIGDIR", str(Path.home() / ".cache" / "matplotlib"))
    hypothesis.settings.register_profile("carvyfl", deadline=None, max_examples=50)
    hypothesis.settings.load_profile("carvyfl")


def pytest_xdist_auto_num_workers() -> int:
    """Run one test more than there are cores: many wait for other processes."""
    return len(os.sched_getaffinity(0)) + 1


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what opens pages, and begin with the files that take long, lest a worker end with one.

    A file's tests stay with one worker (``--dist loadfile``): they share what they train.
    """
    weights = {"flower": 100, "ray": 50, "slow": 1}  # roughly in proportion to their time
    long: Counter[Path] = Counter()
    for item in items:
        if "browser" in getattr(item, "fixturenames", ()):
            item.add_marker("browser")
        long[item.path] += sum(n for name, n in weights.items() if item.get_closest_marker(name))
    items.sort(key=lambda item: -long[item.path])
