"""A real headless Chromium for tests of pages: the system's, driven by playwright, which downloads nothing here."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
)


class NoBrowser(Exception):
    """Why there is no browser here."""


def is_required() -> bool:
    """Whether a missing browser is a failure: in CI, or where ``CG_BROWSER=required``."""
    return bool(os.environ.get("CI")) or os.environ.get("CG_BROWSER") == "required"


def find_chromium() -> str:
    """The system's Chromium: ``$CG_CHROMIUM``, or the first known name on the path.

    Raises:
        NoBrowser: there is none.
    """
    for name in filter(None, (os.environ.get("CG_CHROMIUM"), *NAMES)):
        if path := shutil.which(name):
            return path
    raise NoBrowser("no Chromium: apt-get install chromium, or name one in CG_CHROMIUM")


@contextmanager
def chromium() -> Iterator[Any]:
    """A playwright browser with an empty profile.

    Raises:
        NoBrowser: playwright or Chromium is not installed.
    """
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        raise NoBrowser("no playwright: pip install -e '.[dev]'") from None
    path = find_chromium()
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=list(FLAGS))
        try:
            yield browser
        finally:
            browser.close()


@dataclass
class Opened:
    """A page, and what went wrong on it. page: playwright's. requests: addresses other than the page's own and ``data:``."""

    page: Any
    errors: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)

    def text(self, selector: str) -> str:
        """The visible text of the first match."""
        return self.page.locator(selector).first.inner_text()

    def texts(self, selector: str) -> list[str]:
        """The visible texts of all matches."""
        return self.page.locator(selector).all_inner_texts()


def wait_until(page: Any, script: str, argument: Any = None, seconds: float = 20.0) -> None:
    """Wait until an expression or function is true. (playwright's own ``wait_for_function`` needs ``eval``, which our pages forbid.)

    Raises:
        TimeoutError: it never is.
    """
    end = time.monotonic() + seconds
    while not page.evaluate(script, argument):
        if time.monotonic() > end:
            raise TimeoutError(f"never true: {script} ({argument!r})")
        page.wait_for_timeout(20)


def open_page(browser: Any, path: Path, *, width: int = 1000, fragment: str = "", **context: Any) -> Opened:
    """Open a file in a fresh context of ``browser``, listening for errors and requests. fragment: with its ``#``."""
    given = browser.new_context(viewport={"width": width, "height": 900}, **context)
    page = given.new_page()
    page.set_default_timeout(10_000)
    opened = Opened(page)
    address = path.absolute().as_uri()
    page.on("pageerror", lambda error: opened.errors.append(str(error)))
    page.on("console", lambda m: opened.errors.append(m.text) if m.type in ("error", "warning") else None)
    page.on("dialog", lambda dialog: (opened.errors.append(f"dialog: {dialog.message}"), dialog.dismiss()))
    page.on("request", lambda r: opened.requests.append(r.url) if not r.url.startswith((address, "data:")) else None)
    page.goto(address + fragment)
    return opened
