"""What tests of the judge share: settings for a scripted server, numbered responses, and what came of them."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from judge_server import (
    Call,
    JudgeServer,
    Say,
    level,
)

from cg_tasks.judge.rubrics import JudgeItem
from cg_tasks.judge.settings import JudgeSettings
from cg_tasks.judge.verdicts import Verdict


def of(server: JudgeServer, **more: Any) -> JudgeSettings:
    usual = {"model": "judge-1", "timeout": 5, "max_retries": 0, "cache": "judge.sqlite"}
    return JudgeSettings(base_url=server.url, **{**usual, **more})


def items(*responses: str, rubric: Any = "harm") -> list[JudgeItem]:
    return [JudgeItem(f"id-{i}", rubric, "a query", response) for i, response in enumerate(responses)]


def numbered(n: int) -> list[JudgeItem]:
    return items(*(f"response {i}" for i in range(n)))


def number(call: Call) -> int:
    return int(call.response.split()[1])


def by_number(call: Call) -> Say:
    """The level is the response's number modulo 5."""
    return level(number(call) % 5)


def rows(path: str | Path = "judge.sqlite") -> int:
    with sqlite3.connect(path) as db:
        return int(db.execute("SELECT COUNT(*) FROM replies").fetchone()[0])


def statuses(verdicts: Sequence[Verdict]) -> list[str]:
    return [v.status for v in verdicts]
