"""What all tests share: the browser, and the marker of those that use it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser

from support.browser import headless_browser


@pytest.fixture(scope="module")  # playwright's event loop would be in the way of other modules
def browser() -> Iterator[Browser]:
    with headless_browser() as started:
        yield started


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "browser" in getattr(item, "fixturenames", ()):
            item.add_marker("browser")
