"""How the canary audit's numbers are printed: two decimals, signed differences, a star where the interval excludes zero."""

from __future__ import annotations

import math
from collections.abc import Sequence

from cg_tasks.report.content import Cell
from cg_tasks.report.runs import Metric, TaskRun
from cg_tasks.report.seeds import MISSING, spread
from cg_tasks.report.seeds import number as printed

STAR = "★"
MINUS = "\N{MINUS SIGN}"
NO_SAMPLES = "the samples were not logged: evaluate with --log_samples"


def number(value: float) -> str:
    """``0.60``."""
    return printed(value, 2)


def signed(value: float) -> str:
    """``+0.23``, ``−0.92``, ``0.00``."""
    return printed(value, 2, signed=True)


def has_interval(metric: Metric) -> bool:
    return not (math.isnan(metric.lo) or math.isnan(metric.hi))


def bounds(metric: Metric, *, sign: bool = False) -> str:
    """``[0.13, 0.35]``; more decimals where two would turn an interval beside zero into one that seems to touch it."""
    nearest = min(abs(metric.lo), abs(metric.hi))
    digits = 2 if not metric.excludes_zero or nearest >= 0.005 else 3 if nearest >= 0.0005 else 4
    return f"[{', '.join(printed(end, digits, signed=sign) for end in (metric.lo, metric.hi))}]"


def difference(metric: Metric, *, sign: bool = False) -> str:
    """``+0.23★ [0.13, 0.35]``: a difference with its interval; the value alone where there is none. sign: also in brackets."""
    if not has_interval(metric):
        return signed(metric.value)
    return f"{signed(metric.value)}{STAR if metric.excludes_zero else ''} {bounds(metric, sign=sign)}"


def authors(n: int | str) -> str:
    """``60 authors``, ``1 author``."""
    return f"{n} author" if str(n) == "1" else f"{n} authors"


def missing(why: str) -> Cell:
    return Cell(MISSING, missing=True, note=why)


def metric_cell(
    run: TaskRun | None,
    metric: str,
    *,
    is_difference: bool = False,
    undefined: str = "",
    task: str = "",
    absent: str = "",
) -> Cell:
    """A metric as printed. undefined: why it may not exist for any document; absent: why the results may not name it.

    task: to name where no run is there.
    """
    if run is None:
        return missing(f"{task or 'the task'} was not run for this checkpoint")
    found = run.metrics.get(metric)
    if found is None:
        return missing(absent or f"{run.task} of this checkpoint has no {metric}")
    if math.isnan(found.value):
        return missing(undefined or f"{metric} does not exist for any of the {run.n} documents")
    return cell_of(found, run.n, is_difference=is_difference)


def cell_of(metric: Metric, n: int | None, *, is_difference: bool = False, sign: bool = False) -> Cell:
    """A metric as printed; the star and the printed interval are for differences, which zero means something to."""
    note = "" if has_interval(metric) else "no interval: it takes two clusters"
    text = difference(metric, sign=sign) if is_difference else number(metric.value)
    star = is_difference and metric.excludes_zero
    return Cell(text, metric.value, metric.lo, metric.hi, n=n, star=star, note=note)


def mean_cell(cells: Sequence[Cell], *, is_difference: bool = False) -> Cell:
    """``+0.21 ± 0.04``: mean and sample standard deviation of the seeds' cells."""
    found = spread(cell.value for cell in cells)
    if not found.n:
        return missing("no seed has a value")
    show = signed if is_difference else number
    note = f"{found.absent} of {len(cells)} seeds without a value" if found.absent else ""
    text = f"{show(found.mean)} ± {number(found.sd)}" if found.n > 1 else show(found.mean)
    return Cell(text, found.mean, sd=found.sd, note=note)
