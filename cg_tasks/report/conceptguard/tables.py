"""ConceptGuard's tables 2, 3 and 6: ROUGE, the judge's scores with CtxtSep, and the evaluated data."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from cg_tasks.pair_stats import TAILS, TOP
from cg_tasks.report.conceptguard.rows import COVERAGE_COLUMNS, JUDGE_COLUMNS, ROUGE_COLUMNS, Block, Condition
from cg_tasks.report.content import Cell, Column, Row, Table
from cg_tasks.report.runs import Group, TaskRun
from cg_tasks.report.seeds import Source, interval_text, measured, number, percent, value_cell

Columns = Mapping[Column, Sequence[Source]]
Texts = Callable[[TaskRun], Iterable[Any]]

CHANGE = "Change: relative to the base model of its block, (value − base) / |base|; desirable where it goes the way the column wants."
BEST = (
    "Bold: best value of its column among the unlearned models of its block (of one share of the forget set, where there are "
    "several); equal printed values alike; never for one alone."
)
SPREAD = (
    "One seed: value, with its 95 % interval (bootstrap over clusters, as lm-eval reports it). "
    "Several: mean ± sample sd over seeds."
)


def rouge_table(group: Group, blocks: Sequence[Block]) -> Table | None:
    """Table 2; None where no checkpoint has one of its numbers."""
    return _results_table(
        f"{group.id}-rouge", "ROUGE-based results (ConceptGuard, Table 2)", group, blocks, ROUGE_COLUMNS, {}
    )


def judge_table(group: Group, blocks: Sequence[Block]) -> Table | None:
    """Table 3, with the share of answers that have a verdict; None where no answer was judged."""
    tasks = set(group.tasks)
    coverage = {c: s for c, s in COVERAGE_COLUMNS.items() if any(task in tasks for task, _ in s)}
    if any(c.key == "coverage" for c in coverage):
        coverage = {
            c: s for c, s in coverage.items() if c.key == "coverage" or not _all_have(group, "conceptguard_ctxtsep")
        }
    title = "Judge-based results and contextual separation (ConceptGuard, Table 3)"
    return _results_table(f"{group.id}-judge", title, group, blocks, JUDGE_COLUMNS, coverage)


def seeds_table(id: str, title: str, group: Group, blocks: Sequence[Block], columns: Columns) -> Table | None:
    """Every checkpoint's own values with their intervals; None where no condition has two seeds."""
    if not any(len(c.checkpoints) > 1 for block in blocks for c in block.conditions):
        return None
    shown = (Column("model", "model", align="left"), Column("seed", "seed", align="left"), *columns)
    rows = []
    for block in blocks:
        for condition in block.conditions:
            for checkpoint in condition.checkpoints:
                seed = "–" if checkpoint.seed is None else str(checkpoint.seed)
                if checkpoint.start_seed is not None:
                    seed += f" (from {checkpoint.start_seed})"
                cells = [
                    _with_interval(value_cell(measured(group, (checkpoint,), sources))) for sources in columns.values()
                ]
                rows.append(Row((Cell(condition.label), Cell(seed), *cells), block.name))
    caption = (
        "Each checkpoint by itself: value and 95 % interval, as lm-eval reports them. "
        "(from n): seed of the model it started from."
    )
    return Table(id, title, shown, tuple(rows), caption)


def data_table(group: Group, texts: Texts | None = None) -> Table | None:
    """Table 6 over the documents that were evaluated; lengths where ``texts`` gives a run's texts. None without samples."""
    runs = _runs_that_show_the_data(group)
    concepts: dict[tuple[str, str], str] = {}
    for run in runs:
        for document in run.documents or ():
            concepts.setdefault((document.id, document.intent), document.concept)
    if not concepts:
        return None
    by_concept = Counter(concepts.values())
    ordered = sorted(by_concept.items(), key=lambda item: (-item[1], item[0]))
    intents = Counter(intent for _, intent in concepts)
    total = len(concepts)
    lines: list[tuple[str, str, float]] = [
        ("instances", f"{total:,}", total),
        ("harmful (forget set and its queries)", f"{intents['harmful']:,}", intents["harmful"]),
        ("benign (retain set and its queries)", f"{intents['benign']:,}", intents["benign"]),
        ("concepts", f"{len(by_concept):,}", len(by_concept)),
    ]
    lines += [
        (f"concept {rank}: {name or '(none)'}", f"{n:,} ({percent(n / total)})", n)
        for rank, (name, n) in enumerate(ordered[:TOP], 1)
    ]
    lines += [
        (f"concepts with at most {2 * tail} instances", f"{k}", k)
        for tail in TAILS
        if (k := sum(n <= 2 * tail for n in by_concept.values()))
    ]
    lengths = _lengths(runs, texts) if texts else {}
    lines += [
        (
            f"words of a {name}",
            f"{statistics.fmean(n):.1f} (median {statistics.median(n):g}, {min(n)}–{max(n)})",
            statistics.fmean(n),
        )
        for name, n in lengths.items()
    ]
    whole = max((run.n_all for run in runs), default=0)
    columns = (Column("statistic", "statistic", align="left"), Column("value", "value"))
    caption = (
        f"Over the documents that were evaluated, read from the samples of {', '.join(run.task for run in runs)} "
        f"({whole:,} documents in the largest of these tasks). An instance is one intent of a pair."
    )
    if lengths:
        caption += " Words: split at white space; mean (median, least–most)."
    rows = tuple(Row((Cell(name), Cell(text, value))) for name, text, value in lines)
    return Table(f"{group.id}-data", "Evaluated data (ConceptGuard, Table 6)", columns, rows, caption)


def _results_table(
    id: str, title: str, group: Group, blocks: Sequence[Block], columns: Columns, plain: Columns
) -> Table | None:
    rows = []
    for block in blocks:
        base = {c.key: _cell(group, block.base, sources).value for c, sources in columns.items()} if block.base else {}
        for name, conditions in block.parts:
            cells = [
                _column(group, conditions, column, sources, base.get(column.key, math.nan))
                for column, sources in columns.items()
            ]
            cells += [[_cell(group, c, sources) for c in conditions] for sources in plain.values()]
            for i, condition in enumerate(conditions):
                seeds = len(condition.checkpoints)
                rows.append(Row((Cell(condition.label), Cell(str(seeds), seeds), *(c[i] for c in cells)), name))
    values = [cell for row in rows for cell in row.cells[2 : 2 + len(columns)]]
    if all(cell.missing for cell in values):
        return None
    shown = (Column("model", "model", align="left"), Column("seeds", "seeds", "n"), *columns, *plain)
    caption = " ".join((_counted(shown, rows), SPREAD, CHANGE, BEST, "– : no number; its note says why."))
    return Table(id, title, shown, tuple(rows), caption)


def _column(
    group: Group, conditions: Sequence[Condition], column: Column, sources: Sequence[Source], base: float
) -> list[Cell]:
    """A column's cells over conditions that stand together, with change and best."""
    cells = [_cell(group, c, sources) for c in conditions]
    rival = [c.stage == "unlearned" and math.isfinite(x.value) for c, x in zip(conditions, cells, strict=True)]
    values = [x.value for x, one in zip(cells, rival, strict=True) if one]
    best = ""
    if len(values) > 1 and column.better:
        best = number((max if column.better == "higher" else min)(values))
    return [
        replace(
            cell if condition.stage == "base" else changed(cell, base, column.better),
            best=one and number(cell.value) == best,
        )
        for condition, cell, one in zip(conditions, cells, rival, strict=True)
    ]


def changed(cell: Cell, base: float, better: str | None) -> Cell:
    """The cell with its change relative to ``base``, (value - base) / abs(base); unchanged where that does not exist."""
    if cell.missing or not math.isfinite(cell.value) or not math.isfinite(base) or base == 0:
        return cell
    change = (cell.value - base) / abs(base)
    desirable = None if change == 0 or better is None else (change > 0) == (better == "higher")
    return replace(cell, change=change, desirable=desirable)


def _cell(group: Group, condition: Condition, sources: Sequence[Source]) -> Cell:
    return value_cell(measured(group, condition.checkpoints, sources))


def _with_interval(cell: Cell) -> Cell:
    if cell.missing or math.isnan(cell.lo):
        return cell
    return replace(cell, text=f"{cell.text} {interval_text(cell.lo, cell.hi)}")


def _counted(columns: Sequence[Column], rows: Sequence[Row]) -> str:
    """``n (documents behind each seed's value): HarmMem 2,583, HarmQA 2,583, …``, ranges where rows differ."""
    parts = []
    for i, column in enumerate(columns):
        counts = sorted({cell.n for row in rows if (cell := row.cells[i]).n})
        if counts:
            span = f"{counts[0]:,}" if len(counts) == 1 else f"{counts[0]:,}–{counts[-1]:,}"
            parts.append(f"{column.title} {span}")
    return f"n (documents behind one seed's value): {', '.join(parts)}."


def _all_have(group: Group, task: str) -> bool:
    return all(group.run(checkpoint, task) for checkpoint in group.checkpoints)


def _runs_that_show_the_data(group: Group) -> list[TaskRun]:
    """One run with samples a task: the documents are the same for every checkpoint of a group."""
    first: dict[str, TaskRun] = {}
    for run in group.runs:
        if run.documents and (run.task not in first or len(run.documents) > len(first[run.task].documents or ())):
            first[run.task] = run
    return [first[task] for task in sorted(first)]


def _lengths(runs: Sequence[TaskRun], texts: Texts) -> dict[str, list[int]]:
    """``harmful query`` … -> words of each of its texts, each document once."""
    seen: set[tuple[str, str]] = set()
    found: dict[str, list[int]] = {}
    for run in runs:
        for sample in texts(run):
            if (sample.id, sample.intent) in seen:
                continue
            seen.add((sample.id, sample.intent))
            for part, text in (("query", sample.query), ("response", sample.target)):
                if text:
                    found.setdefault(f"{sample.intent} {part}", []).append(len(text.split()))
    order = ["harmful query", "harmful response", "benign query", "benign response"]
    return {name: found[name] for name in order if name in found}
