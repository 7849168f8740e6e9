"""One job of a study: a public command, what it writes, and what it needs; and the plan they are written into."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args

from cg_tasks.errors import UserError

Rule = Literal["prepare", "finetune", "unlearn", "evaluate", "judge", "report"]
RULES: tuple[Rule, ...] = get_args(Rule)
# What these commands are short for.
MODULES = {"conceptguard": "cg_tasks.cli", "lm_eval": "lm_eval"}
# How the output comes to stand under its name. partial: the command writes beside it, and what is whole is renamed. trainer: the
# command writes whole checkpoints one by one, and can go on from them. own: the command sees to it.
Writes = Literal["partial", "trainer", "own"]


@dataclass(frozen=True)
class Job:
    """id: ``study/rule/name``. folder: the study's. output: what the command writes.

    checkpoints: folders inside ``output`` that must be there too. needs: ids of the jobs whose outputs it reads. settings: a hash of
    everything that decides what comes out. keeps: what a failed command wrote is kept (verdicts are missing, others are there).
    """

    id: str
    rule: Rule
    name: str
    folder: str
    command: tuple[str, ...]
    output: str
    writes: Writes
    settings: str
    needs: tuple[str, ...] = ()
    checkpoints: tuple[str, ...] = ()
    keeps: bool = False
    threads: int | None = None
    resources: Mapping[str, int | str] = field(default_factory=dict)
    where: str = ""

    @property
    def log(self) -> str:
        """What the command printed, attempt after attempt."""
        return f"{self.folder}/logs/{self.rule}/{self.name}.log"

    @property
    def record(self) -> str:
        """When the job ran last, for how long, and how it ended."""
        return f"{self.folder}/jobs/{self.rule}/{self.name}.json"

    @property
    def done(self) -> str:
        """The one file Snakemake is told of: there when everything else is."""
        return f"{self.folder}/done/{self.rule}/{self.name}.json"

    @property
    def lock(self) -> str:
        """Held while the command runs. Beside the output, where that is shared by studies."""
        if not self.output.startswith(f"{self.folder}/"):
            path = Path(self.output)
            return str(path.with_name(f".{path.name}.study-lock"))
        return f"{self.folder}/locks/{self.rule}/{self.name}.lock"


@dataclass(frozen=True)
class Plan:
    """All jobs of a run, in an order in which they could run. folder: of plan, state and report. cwd: where paths start."""

    name: str
    folder: str
    cwd: str
    jobs: tuple[Job, ...]

    @property
    def work(self) -> tuple[Job, ...]:
        """The jobs without the report."""
        return tuple(job for job in self.jobs if job.rule != "report")

    @property
    def report(self) -> Job:
        """The last job."""
        return next(job for job in self.jobs if job.rule == "report")

    @property
    def state(self) -> str:
        """What the report is told about the jobs."""
        return f"{self.folder}/state.json"

    @property
    def path(self) -> str:
        return f"{self.folder}/plan.json"

    def job(self, id: str) -> Job:
        """One job. Raises UserError for an unknown id."""
        for job in self.jobs:
            if job.id == id:
                return job
        raise UserError(f"{self.path}: no job '{id}' in this plan: conceptguard study plan STUDY lists them")

    def as_json(self) -> dict[str, Any]:
        return {**dataclasses.asdict(self), "done": {job.id: job.done for job in self.jobs}}


def read_plan(path: str | os.PathLike[str]) -> Plan:
    """The plan that ``study run`` wrote. Raises UserError if there is none."""
    try:
        found = json.loads(Path(path).read_text(encoding="utf-8"))
        tuples = ("command", "needs", "checkpoints")
        jobs = tuple(_job({k: tuple(v) if k in tuples else v for k, v in job.items()}) for job in found["jobs"])
        return Plan(found["name"], found["folder"], found["cwd"], jobs)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(f"{path}: not a study's plan ({error}): conceptguard study run writes it") from None


def _job(values: dict[str, Any]) -> Job:
    return Job(**values)


def write_if_changed(path: Path, content: str) -> bool:
    """Write a file in one step, unless it says just that already; returns whether it was written."""
    try:
        if path.read_text(encoding="utf-8") == content:
            return False
    except (OSError, UnicodeDecodeError):
        pass
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_text(content, encoding="utf-8")
    os.replace(temporary, path)
    return True


def write_json(path: Path, value: Any) -> bool:
    """As :func:`write_if_changed`, for a JSON value."""
    return write_if_changed(path, json.dumps(value, indent=1, ensure_ascii=False) + "\n")


def in_order(jobs: Iterable[Job]) -> tuple[Job, ...]:
    """Each job after those it needs; otherwise as they came."""
    waiting, done, out = list(jobs), set(), []  # type: ignore[var-annotated]
    while waiting:
        ready = [job for job in waiting if set(job.needs) <= done]
        assert ready, "jobs need one another"
        out += ready
        done |= {job.id for job in ready}
        waiting = [job for job in waiting if job.id not in done]
    return tuple(out)
