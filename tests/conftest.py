"""What all tests share: one thread each, the browser, and the marker of those that use it."""

from __future__ import annotations

import os
from collections.abc import Iterator

import hypothesis
import pytest
from playwright.sync_api import Browser

from carvyfl.core.environment import usable_cores
from support.browser import headless_browser


@pytest.fixture(scope="module")  # playwright's event loop would be in the way of other modules
def browser() -> Iterator[Browser]:
    with headless_browser() as started:
        yield started


def pytest_configure() -> None:
    """Have PyTorch compute on one thread, here and in processes that tests start.

    A test for every core and one more run beside each other; threads that wait for each
    other made small networks ten times slower. No example has a deadline: how long it takes says
    how busy the machine is.
    """
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    hypothesis.settings.register_profile("carvyfl", deadline=None)
    hypothesis.settings.load_profile("carvyfl")


def pytest_xdist_auto_num_workers() -> int:
    """Run one test more than there are cores: many wait for other processes."""
    return usable_cores() + 1


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what opens pages, and begin with what takes long, so that no worker ends with it."""
    for item in items:
        if "browser" in getattr(item, "fixturenames", ()):
            item.add_marker("browser")
    long = ("flower", "ray", "slow")
    items.sort(key=lambda item: not any(map(item.get_closest_marker, long)))
