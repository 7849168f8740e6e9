"""A browser for the tests of the page. Missing on a developer's machine it skips them; in CI it fails them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from browser import NoBrowser, Opened, chromium, is_required, open_page


@pytest.fixture(scope="module")  # playwright keeps an event loop running, beside which no other test could run its own
def browser() -> Iterator[Any]:
    try:
        with chromium() as found:
            yield found
    except NoBrowser as reason:
        (pytest.fail if is_required() else pytest.skip)(str(reason))


@pytest.fixture
def show(browser: Any, tmp_path: Path) -> Iterator[Callable[..., Opened]]:
    """``show(html, width=…, fragment=…)``: the page, opened. At the test's end it must have met no error and asked for nothing."""
    shown: list[Opened] = []

    def show(html: str, **more: Any) -> Opened:
        path = tmp_path / f"page-{len(shown)}.html"
        path.write_text(html, encoding="utf-8")
        shown.append(open_page(browser, path, **more))
        return shown[-1]

    yield show
    for opened in shown:
        opened.page.context.close()
        assert opened.errors == []
        assert opened.requests == []
