"""Tasks that are not ours: shown as lm-eval wrote them, one table a task."""

from __future__ import annotations

import math
from typing import Literal

from cg_tasks.report.content import Cell, Column, Row, Section, Table
from cg_tasks.report.runs import Checkpoint, Group, TaskRun


def sections(group: Group) -> list[Section]:
    """One section with a table for each task of the group: checkpoints by metrics, standard errors as lm-eval gives them."""
    tables = tuple(_table(group, task) for task in group.tasks)
    text = ("Tasks of lm-eval or of others, beside ours; no choice of this report is in these numbers.",)
    return [Section(id=group.id, title="Other tasks", text=text, tables=tables)]


def _table(group: Group, task: str) -> Table:
    runs = [(c, run) for c in group.checkpoints if (run := group.run(c, task)) is not None]
    names = sorted({name for _, run in runs for name in run.metrics})
    columns = (
        Column("model", "model", align="left"),
        *(Column(name, name.removesuffix(",none"), better=_better(runs, name)) for name in names),
        Column("n", "n"),
    )
    rows = tuple(
        Row((_name(c), *(_cell(run, name) for name in names), Cell(str(run.n), run.n)), block=c.base) for c, run in runs
    )
    caption = "Value ± standard error, as lm-eval reports them. n: documents."
    return Table(f"{group.id}-{task}", task, columns, rows, caption)


def _name(checkpoint: Checkpoint) -> Cell:
    seed = "" if checkpoint.seed is None else f", seed {checkpoint.seed}"
    return Cell(checkpoint.label + seed)


def _better(runs: list[tuple[Checkpoint, TaskRun]], name: str) -> Literal["higher", "lower"] | None:
    directions = {run.higher_is_better.get(name.split(",")[0]) for _, run in runs}
    if directions == {True}:
        return "higher"
    return "lower" if directions == {False} else None


def _cell(run: TaskRun, name: str) -> Cell:
    metric = run.metrics.get(name)
    if metric is None or math.isnan(metric.value):
        return Cell("–", missing=True, note="not in the results file")
    text = f"{metric.value:.4f}"
    if not math.isnan(metric.stderr):
        text += f" ± {metric.stderr:.4f}"
    return Cell(text, metric.value, lo=metric.lo, hi=metric.hi, n=run.n)
