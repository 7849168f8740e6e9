"""Which checkpoints are one, judged over all results that were read."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import PurePosixPath
from typing import Any

from cg_tasks.report.results.checkpoints import folder_name, model_names
from cg_tasks.report.runs import Checkpoint, Problem, TaskRun


def completed(runs: Sequence[TaskRun]) -> list[TaskRun]:
    """A base whose tokenizer one file does not record is the base of that name, where the others know only one."""
    known: dict[str, set[str]] = {}
    for run in runs:
        known.setdefault(run.checkpoint.base, set()).add(run.checkpoint.base_id)

    def with_id(c: Checkpoint) -> Checkpoint:
        ids = known[c.base] - {""}
        return replace(c, base_id=next(iter(ids))) if not c.base_id and len(ids) == 1 else c

    return [replace(run, checkpoint=with_id(run.checkpoint)) for run in runs]


def doubtful_identities(runs: Sequence[TaskRun]) -> Iterator[Problem]:
    """Weights that nothing tells apart but their hash, and bases of one name from different owners."""
    same: dict[Any, dict[str, TaskRun]] = {}
    owners: dict[str, dict[str, TaskRun]] = {}
    for run in runs:
        c = run.checkpoint
        same.setdefault((c.condition, c.seed, c.start_seed), {}).setdefault(c.weights, run)
        model = model_names({"config": run.config})[0]
        if c.stage == "base" and model.count("/") == 1 and not model.startswith(("/", ".", "~")):
            owners.setdefault(c.base, {}).setdefault(model, run)
    for alike in same.values():
        if len(alike) > 1:
            first, *others = alike.values()
            c = first.checkpoint
            seed = "" if c.seed is None else f" of seed {c.seed}"
            where = ", ".join(str(run.path) for run in others)
            yield Problem(
                "note",
                str(first.path),
                f"{len(alike)} checkpoints are '{c.label}'{seed} and have different weights; they stay apart (the others: {where})",
            )
    for base, models in owners.items():
        if len(models) > 1:
            named = ", ".join(models)
            where = str(next(iter(models.values())).path)
            yield Problem(
                "note", where, f"the base '{base}' stands for {named}: if these are different models, describe them"
            )


def told_apart(runs: Sequence[TaskRun]) -> list[TaskRun]:
    """Models without a record are one by the last part of their path, unless one task was run on several: ``npo/final`` and
    ``rmu/final`` are two, named by their last two parts.
    """
    paths: dict[Checkpoint, dict[str, set[str]]] = {}
    for run in runs:
        if run.checkpoint.stage == "base" and not run.checkpoint.method:
            paths.setdefault(run.checkpoint, {}).setdefault(run.task, set()).add(_model(run))
    several = {c for c, tasks in paths.items() if any(_are_several(models) for models in tasks.values())}
    return [
        replace(run, checkpoint=replace(run.checkpoint, base=folder_name(_model(run)), weights=_model(run)))
        if run.checkpoint in several
        else run
        for run in runs
    ]


def _model(run: TaskRun) -> str:
    return str(PurePosixPath(model_names({"config": run.config})[0]))


def _are_several(models: set[str]) -> bool:
    """Whether one is not just a longer way to write another, as ``/home/me/demo/m`` is of ``demo/m``."""
    longest = max(models, key=len)
    return any(not f"/{longest}".endswith(f"/{model}") for model in models)
