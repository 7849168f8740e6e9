"""A browser for the tests of the page (missing on a developer's machine it skips them; in CI it fails them), and figures not drawn."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from browser import NoBrowser, Opened, chromium, is_required, open_page

from cg_tasks.report.canary import figures as canary_figures
from cg_tasks.report.canary import matrix as canary_matrix
from cg_tasks.report.conceptguard import figures as conceptguard_figures


@pytest.fixture
def undrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Figures are laid out and not saved, which takes most of a report's time; each family's test_figures.py saves some."""
    for module in (canary_figures, canary_matrix, conceptguard_figures):
        monkeypatch.setattr(module, "rendered", lambda figure: (b"<svg", b"PNG"))


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
