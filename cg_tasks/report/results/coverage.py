"""What a group has no numbers for: tasks of checkpoints, arms, verdicts; and what would make them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from cg_tasks.judge.verdicts import WITH_SCORE
from cg_tasks.report.content import Missing
from cg_tasks.report.runs import Checkpoint, Group, TaskRun

# A task whose numbers another one gives too.
GIVEN_BY = {
    **dict.fromkeys(
        (f"conceptguard_{n}" for n in ("harmqa", "helpqa", "harmscore", "helpscore")), "conceptguard_ctxtsep"
    ),
    "canary_auto": "canary_prefill",
}
_SHOWN_NAMES = 6
_ARM_METRIC = {"canary_prefill": "delta_", "canary_teacher_forced": "logprob_"}


def coverage(group: Group) -> tuple[Missing, ...]:
    """Checkpoint x task cells without results, arms that only some checkpoints have, documents without a verdict."""
    return (*_cells(group), *_arms(group), *_verdicts(group), *_samples(group))


def _cells(group: Group) -> Iterator[Missing]:
    for task in group.tasks:
        instead = GIVEN_BY.get(task, task)
        without = [c for c in group.checkpoints if group.run(c, task) is None and group.run(c, instead) is None]
        if without:
            why = f"no results that may stand beside the others': run lm_eval --tasks {task} on them with the same settings"
            yield Missing(f"{task} of {_names(without)}", why)


def _arms(group: Group) -> Iterator[Missing]:
    for task, beginning in _ARM_METRIC.items():
        runs = [run for run in group.runs if run.task == task]
        arms = {run.path: {m.removeprefix(beginning) for m in run.metrics if m.startswith(beginning)} for run in runs}
        for arm in sorted(set().union(*arms.values())):
            without = [run.checkpoint for run in runs if arm not in arms[run.path]]
            if without:
                yield Missing(
                    f"arm {arm} of {task} of {_names(without)}",
                    "its template was not there when they were evaluated: run them again with the same templates",
                )


def _verdicts(group: Group) -> Iterator[Missing]:
    for run in group.runs:
        statuses = Counter(_statuses(run))
        without = {s: n for s, n in sorted(statuses.items()) if s not in WITH_SCORE}
        if without:
            total = sum(statuses.values())
            told = ", ".join(f"{n} {status}" for status, n in without.items())
            yield Missing(
                f"verdicts on {sum(without.values())} of {total} answers of {_name(run.checkpoint)} ({run.task})",
                f"{told}: conceptguard judge rescore {run.samples or run.path.parent} asks for those that are missing",
            )


def _statuses(run: TaskRun) -> Iterator[str]:
    """Status of every verdict, from the samples; without them, from what the task counted."""
    if run.documents is not None:
        yield from (d.status for d in run.documents if d.status)
        return
    counts = run.provenance.get("verdicts")
    for status, n in counts.items() if isinstance(counts, dict) else ():
        if isinstance(n, int):
            yield from [str(status)] * n


def _samples(group: Group) -> Iterator[Missing]:
    if group.family == "other":
        return
    without = [run for run in group.runs if run.documents is None]
    if without:
        names = ", ".join(dict.fromkeys(run.task for run in without))
        checkpoints = list(dict.fromkeys(run.checkpoint for run in without))
        yield Missing(
            f"single documents of {names} of {_names(checkpoints)}", "not logged: run lm_eval with --log_samples"
        )


def _names(checkpoints: list[Checkpoint]) -> str:
    names = [_name(c) for c in checkpoints]
    more = f" and {len(names) - _SHOWN_NAMES} more" if len(names) > _SHOWN_NAMES else ""
    return "; ".join(names[:_SHOWN_NAMES]) + more


def _name(c: Checkpoint) -> str:
    parts = [c.base, c.label]
    if c.regime and c.stage != "base":
        parts.append(c.regime)
    if c.seed is not None:
        parts.append(f"seed {c.seed}" + (f" (start {c.start_seed})" if c.start_seed not in (None, c.seed) else ""))
    return ", ".join(parts)
