"""What the canary audit's tables share: columns over checkpoints, rows by seed, and a mean below a condition's seeds."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from cg_tasks.report.canary import runs
from cg_tasks.report.canary.numbers import STAR, authors, mean_cell, metric_cell, missing
from cg_tasks.report.canary.runs import PREFILL
from cg_tasks.report.content import Cell, Column, Row, Table
from cg_tasks.report.runs import Checkpoint, Group

STARS = f"{STAR}: the 95 % interval [low, high] excludes zero."
INTERVALS = "Intervals: percentile bootstrap over authors, as written by the evaluation."
NOT_RUN = "this arm was not run for this checkpoint"
NAMES = (Column("checkpoint", "checkpoint", align="left"), Column("seed", "seed"), Column("n", "n", "authors"))


@dataclass(frozen=True)
class Measure:
    """One column: what a checkpoint's cell is. is_difference: signed, with interval and star."""

    column: Column
    cell: Callable[[Checkpoint], Cell]
    is_difference: bool = False


def auto(group: Group, column: Column, metric: str, *, is_difference: bool = False, undefined: str = "") -> Measure:
    """A column of the autoregressive arm, from whichever task holds it."""

    def cell(c: Checkpoint) -> Cell:
        run = runs.auto_run(group, c)
        return metric_cell(run, metric, is_difference=is_difference, undefined=undefined, task=PREFILL)

    return Measure(column, cell, is_difference)


def of(group: Group, task: str, column: Column, metric: str, *, is_difference: bool = False) -> Measure:
    """A column of one arm in one task."""

    def cell(c: Checkpoint) -> Cell:
        return metric_cell(group.run(c, task), metric, is_difference=is_difference, task=task, absent=NOT_RUN)

    return Measure(column, cell, is_difference)


def having(group: Group, task: str) -> list[Checkpoint]:
    return [c for c in group.checkpoints if group.run(c, task) is not None]


def table(
    id: str,
    title: str,
    group: Group,
    checkpoints: Sequence[Checkpoint],
    measures: Sequence[Measure],
    caption: str,
    notes: Sequence[str] = (),
) -> Table | None:
    """A row for each checkpoint, and below a condition's seeds a row with their mean; None without rows or measures."""
    if not checkpoints or not measures:
        return None
    ordered = runs.in_order(group, checkpoints)
    rows = []
    for c in ordered:
        run = runs.auto_run(group, c)
        cells = tuple(m.cell(c) for m in measures)
        rows.append(Row((*names(group, c, run.n if run else None), *cells), runs.block_name(group, c)))
        members = next(m for m in group.conditions().values() if c in m)
        seeds = [other for other in ordered if other in members]
        if len(seeds) > 1 and c == seeds[-1]:
            rows.append(_mean_row(group, seeds, measures))
    n = sizes(group, checkpoints)
    more = (f"Rows differ in n ({n}): read them apart.",) if "," in n else ()
    columns = (*NAMES, *(m.column for m in measures))
    return Table(id, title, columns, tuple(rows), f"{caption} n = {authors(n)}.", (*notes, *more))


def _mean_row(group: Group, seeds: Sequence[Checkpoint], measures: Sequence[Measure]) -> Row:
    cells = (mean_cell([m.cell(c) for c in seeds], is_difference=m.is_difference) for m in measures)
    name = Cell(runs.checkpoint_name(group, seeds[0]))
    return Row((name, Cell(f"mean ± sd ({len(seeds)})"), Cell(""), *cells), runs.block_name(group, seeds[0]))


def names(group: Group, c: Checkpoint, n: int | None) -> tuple[Cell, Cell, Cell]:
    """The cells of :data:`NAMES`."""
    seed = runs.seed_name(group, c)
    no_seed = Cell("") if c.stage in ("base", "other") else missing("the seed is not recorded")
    count = Cell("") if n is None else Cell(str(n), n, n=n)
    return Cell(runs.checkpoint_name(group, c)), Cell(seed) if seed else no_seed, count


def sizes(group: Group, checkpoints: Sequence[Checkpoint]) -> str:
    """The numbers of authors behind some checkpoints, as text."""
    found = {run.n for c in checkpoints if (run := runs.auto_run(group, c)) is not None}
    return ", ".join(map(str, sorted(found)))


def shown_notes(arms: Mapping[str, bool]) -> tuple[str, ...]:
    shown = [runs.arm_title(arm, True) for arm, is_shown in arms.items() if is_shown]
    return (
        (f"{', '.join(shown)}: the prefilled text holds the canary itself; no verdict rests on it.",) if shown else ()
    )


def noted(cell: Cell, note: str) -> Cell:
    return replace(cell, note="; ".join(filter(None, (cell.note, note))))
