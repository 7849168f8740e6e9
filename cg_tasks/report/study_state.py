"""What a study wrote about its jobs: which ran, which failed, how long each took."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from cg_tasks.errors import UserError
from cg_tasks.report.content import Cell, Column, Row, Section, Table
from cg_tasks.report.runs import Problem

_UNTIMED = Cell("–", missing=True, note="no job of the rule was run")


def read_state(path: Path) -> dict[str, Any]:
    """A study's ``state.json``.

    Raises:
        UserError: it cannot be read, or is none.
    """
    try:
        state = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"{path}: cannot be read as a study's state ({error})") from None
    if not isinstance(state, dict) or not isinstance(state.get("jobs"), list):
        raise UserError(f"{path}: not a study's state.json ('jobs' is missing): name the one in the study's folder")
    return state


def problems(state: Mapping[str, Any], where: str) -> tuple[Problem, ...]:
    """One for each job that failed or was not run."""
    found = []
    for job in state["jobs"]:
        status, last = job.get("status"), job.get("last_line")
        if status == "done":
            continue
        if status == "failed":
            words = f"job {job.get('id')} failed (exit code {job.get('exit_code')}): {last or 'no output'}; log: {job.get('log')}"
        else:
            words = f"job {job.get('id')} was not run: {last or 'what it needs is missing'}"
        found.append(Problem("error", where, words))
    return tuple(found)


def section(states: Sequence[Mapping[str, Any]]) -> Section:
    """Seconds a rule, and every job with its outcome."""
    jobs = [job for state in states for job in state["jobs"]]
    rules = list(dict.fromkeys(str(job.get("rule")) for job in jobs))
    columns = (
        Column("rule", "rule", align="left"),
        Column("jobs", "jobs"),
        Column("done", "done"),
        Column("failed", "failed"),
        Column("seconds", "time", "s, all jobs"),
        Column("longest", "longest", "s"),
    )
    rows = []
    for rule in rules:
        mine = [job for job in jobs if job.get("rule") == rule]
        seconds = [float(job["seconds"]) for job in mine if isinstance(job.get("seconds"), (int, float))]
        counts = [len(mine), *(sum(job.get("status") == s for job in mine) for s in ("done", "failed"))]
        times = [Cell(f"{t:.0f}", t) for t in (sum(seconds), max(seconds))] if seconds else [_UNTIMED, _UNTIMED]
        rows.append(Row((Cell(rule), *(Cell(str(n), n) for n in counts), *times)))
    names = ", ".join(str(state.get("name", "study")) for state in states)
    caption = f"Jobs of {names}, by rule; time on the wall of every job's last run."
    return Section(
        "study", "The study's jobs", tables=(Table("study-jobs", "Jobs by rule", columns, tuple(rows), caption),)
    )
