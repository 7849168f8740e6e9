from __future__ import annotations

import pytest
from templates_once import read_each_template_once


@pytest.fixture(autouse=True)
def templates_once(monkeypatch: pytest.MonkeyPatch) -> None:
    read_each_template_once(monkeypatch)
