"""A real headless browser for the tests of HTML pages, and what is asked of every page."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Dialog, Error, Page, sync_playwright

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
PHONES = (320, 375)  # widths in CSS pixels


@contextlib.contextmanager
def headless_browser() -> Iterator[Browser]:
    """Start the machine's browser, else playwright's own, else skip the test."""
    executable = next(filter(None, map(shutil.which, NAMES)), None)
    with sync_playwright() as playwright:
        try:
            browser = playwright.chromium.launch(executable_path=executable, args=list(FLAGS))
        except Error as error:
            reason = str(error).splitlines()[0]
            pytest.skip(f"no browser to test the page in; run scripts/browser.sh ({reason})")
        yield browser
        browser.close()


@contextlib.contextmanager
def opened(browser: Browser, file: Path, *, width: int = 1200) -> Iterator[Page]:
    """Open a file; on leaving, it must have logged, asked and fetched nothing at all."""
    page = browser.new_page(viewport={"width": width, "height": 800})
    faults: list[str] = []
    requests: list[str] = []

    def refuse(dialog: Dialog) -> None:
        faults.append(f"dialog: {dialog.message}")
        dialog.dismiss()

    page.on("console", lambda message: faults.append(f"console: {message.text}"))
    page.on("pageerror", lambda error: faults.append(f"error: {error}"))
    page.on("dialog", refuse)
    page.on("request", lambda request: requests.append(request.url))
    page.goto(file.as_uri())
    yield page
    page.close()
    assert [url for url in requests if not url.startswith("data:")] == [file.as_uri()]
    assert faults == []


def fits_sideways(page: Page) -> bool:
    """Whether the page can be read without scrolling sideways."""
    return bool(page.evaluate("document.documentElement.scrollWidth <= window.innerWidth"))


class WellFormed(HTMLParser):
    """Checks that elements are closed in the order they were opened, and names are unique."""

    VOID = frozenset({"meta", "img", "br", "link"})

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.names: list[str] = []
        self.links: list[str] = []
        self.feed(text)
        self.close()
        assert self.open == []
        assert len(set(self.names)) == len(self.names)
        assert {link.removeprefix("#") for link in self.links} <= set(self.names)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        attributes = dict(attrs)
        assert len(attributes) == len(attrs), f"an attribute of {tag} is given twice"
        self.names += [value or "" for name, value in attrs if name == "id"]
        self.links += [value or "" for name, value in attrs if name == "href"]
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in self.VOID:
            self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        assert self.open, f"{tag} was never opened"
        assert self.open.pop() == tag
