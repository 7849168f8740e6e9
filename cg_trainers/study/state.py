"""What became of every job, for the report and for the last lines on the screen."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from cg_trainers.study.jobs import Job, Plan, write_json
from cg_trainers.study.records import not_done, read_json


def state_of(plan: Plan) -> dict[str, Any]:
    """Every planned job but the report: done, failed or not run; exit code, last line, log and seconds of its last run."""
    waiting = not_done(plan.work, plan)
    return {"format": 1, "name": plan.name, "jobs": [_entry(job, waiting) for job in plan.work]}


def _entry(job: Job, waiting: dict[str, str]) -> dict[str, Any]:
    record = read_json(job.record)
    if record.get("settings") != job.settings:
        record = {}
    status, last = "not run", waiting.get(job.id, "")
    if job.id not in waiting:
        status, last = "done", ""
    elif not set(job.needs) & set(waiting):
        if record.get("status") == "failed":
            status, last = "failed", record.get("last_line") or ""
        elif record.get("status") == "stopped":  # a time limit, or Ctrl-C
            status, last = (
                "failed",
                f"stopped by signal {record.get('signal')}: {record.get('last_line') or 'no output'}",
            )
        elif record.get("status") == "running":  # nobody is left who could have ended it
            status, last = "failed", "killed: its end was not recorded"
    entry = {"id": job.id, "rule": job.rule, "name": job.name, "status": status, "exit_code": record.get("exit_code")}
    entry |= {"last_line": last, "log": job.log, "seconds": record.get("seconds"), "settings": job.settings}
    return {**entry, "digest": read_json(job.done).get("digest") if status == "done" else None}


def write_state(plan: Plan) -> dict[str, Any]:
    """Write ``state.json``, if it says something new, and return it."""
    state = state_of(plan)
    write_json(Path(plan.state), state)
    return state
