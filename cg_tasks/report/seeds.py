"""Values over seeds: several seeds of one condition are one cell (mean ± sd), one seed is a value with its interval.

Public:
    spread(values) -> Spread
    measured(group, checkpoints, sources) -> Measured
    value_cell(measured, digits=3) -> Cell
    number(value, digits=3, signed=False) -> str
    interval_text(lo, hi, digits=3, signed=False) -> str
    percent(share) -> str
    documents_behind(run, metric) -> int
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from cg_tasks.report.content import Cell
from cg_tasks.report.runs import Checkpoint, Group, Metric, TaskRun

Source = tuple[str, str]
"""(task, metric): where a column's number is read from."""

MISSING = "–"


@dataclass(frozen=True)
class Spread:
    """mean: of the values there are, NaN for none. sd: sample standard deviation (n - 1), NaN for fewer than two values.

    n: values; absent: seeds without one (missing or NaN).
    """

    mean: float
    sd: float
    n: int
    absent: int = 0


@dataclass(frozen=True)
class Measured:
    """One condition's value of one column. metric: the only seed's, with its interval; None where there are several seeds.

    n: documents behind each seed's value (0: unknown). why: the reason where spread.n is 0. notes: more that must be said.
    """

    spread: Spread
    metric: Metric | None = None
    n: int = 0
    why: str = ""
    notes: tuple[str, ...] = ()

    @property
    def value(self) -> float:
        return self.spread.mean


def spread(values: Iterable[float]) -> Spread:
    """Mean and sample standard deviation of the values that are not NaN."""
    given = list(values)
    present = [v for v in given if not math.isnan(v)]
    if not present:
        return Spread(math.nan, math.nan, 0, len(given))
    mean = present[0] if len(present) == 1 else statistics.fmean(present)
    sd = math.nan
    if len(present) > 1 and all(map(math.isfinite, present)):
        sd = statistics.stdev(present)
    return Spread(mean, sd, len(present), len(given) - len(present))


def measured(group: Group, checkpoints: Sequence[Checkpoint], sources: Sequence[Source]) -> Measured:
    """The value of one condition (its checkpoints are its seeds), from the first source that a checkpoint has.

    A later source stands in only where the generation settings are those of the group's runs of the first one.
    """
    found = [_first(group, checkpoint, sources) for checkpoint in checkpoints]
    metrics = [metric for metric, _, _ in found if metric is not None]
    over = spread([m.value for m in metrics] + [math.nan] * (len(found) - len(metrics)))
    notes = list(dict.fromkeys(note for metric, _, note in found if metric is not None and note))
    if over.n and over.absent:
        notes.append(f"{over.absent} of {len(checkpoints)} seeds without a value")
    why = "; ".join(dict.fromkeys(note for metric, _, note in found if metric is None and note)) if not over.n else ""
    only = metrics[0] if over.n == 1 and len(metrics) == 1 else None
    n = max((documents for metric, documents, _ in found if metric is not None), default=0)
    return Measured(over, only, n, why, tuple(notes))


def value_cell(value: Measured, digits: int = 3) -> Cell:
    """``0.123``, or ``0.123 ± 0.004`` over seeds; the interval of a single seed goes to lo and hi."""
    if not value.spread.n:
        return Cell(MISSING, missing=True, note=value.why or "no value")
    text = number(value.value, digits)
    note = "; ".join(value.notes)
    n = value.n or None
    if value.spread.n > 1:
        text += f" ± {number(value.spread.sd, digits)}"
        return Cell(text, value.value, sd=value.spread.sd, n=n, note=note)
    lo, hi = (value.metric.lo, value.metric.hi) if value.metric else (math.nan, math.nan)
    return Cell(text, value.value, lo=lo, hi=hi, n=n, note=note)


def number(value: float, digits: int = 3, *, signed: bool = False) -> str:
    """As printed: ``0.123``, ``−0.123``, signed ``+0.123``; no sign on a rounded zero; ``–`` for NaN."""
    if math.isnan(value):
        return MISSING
    if math.isinf(value):
        return ("+∞" if signed else "∞") if value > 0 else "−∞"
    text = f"{abs(value):.{digits}f}"
    if float(text) == 0:
        return text
    return ("−" if value < 0 else "+" if signed else "") + text


def percent(share: float) -> str:
    """``12.5 %``."""
    return f"{100 * share:.3g} %"


def interval_text(lo: float, hi: float, digits: int = 3, *, signed: bool = False) -> str:
    """``[0.10, 0.20]``; ``–`` without an interval."""
    if math.isnan(lo) or math.isnan(hi):
        return MISSING
    return f"[{number(lo, digits, signed=signed)}, {number(hi, digits, signed=signed)}]"


def _first(group: Group, checkpoint: Checkpoint, sources: Sequence[Source]) -> tuple[Metric | None, int, str]:
    """(metric, documents behind it, a note); the note is the reason where there is no metric."""
    reason = ""
    for task, name in sources:
        run = group.run(checkpoint, task)
        if run is None:
            continue
        metric = run.metrics.get(name)
        if metric is None or math.isnan(metric.value):
            reason = reason or _why_none(run, name)
            continue
        if (task, name) == sources[0]:
            return metric, documents_behind(run, name), ""
        differing = _generation_differs(group, sources[0][0], run)
        if differing:
            reason = reason or f"{task} has it with another {differing} than {sources[0][0]}"
            continue
        primary_seen = any(other.task == sources[0][0] for other in group.runs)
        return metric, documents_behind(run, name), f"from {task}" if primary_seen else ""
    return None, 0, reason or f"{' or '.join(dict.fromkeys(task for task, _ in sources))} was not evaluated"


def documents_behind(run: TaskRun, metric: str) -> int:
    """Documents that have a value of the metric; without samples, those that could have one."""
    if (
        run.documents is not None and len(run.documents) == run.n
    ):  # else the samples file was cut off, the number was not
        return sum(not math.isnan(d.scores.get(metric, math.nan)) for d in run.documents)
    side = {"harm_": "n_harmful", "help_": "n_benign"}.get(metric[:5], "")
    concepts = run.provenance.get("separations")
    if side and concepts:  # a task over both intents, of which this metric has one
        return sum(int(c.get(side) or 0) for c in concepts.values())
    return run.n


def _why_none(run: TaskRun, metric: str) -> str:
    verdicts = run.provenance.get("verdicts") or {}
    if metric in _JUDGED and verdicts and set(verdicts) <= {"not_judged"}:
        return f"{run.task} was not judged yet"
    if metric in _JUDGED:
        return f"{run.task} has no verdict for it"
    return f"{run.task} has no {metric}"


_JUDGED = ("harm_score", "help_score", "ctxt_sep", "coverage")


def _generation_differs(group: Group, task: str, run: TaskRun) -> str:
    """The first field on generation in which a run differs from the group's runs of another task; empty for none."""
    for other in group.runs:
        if other.task != task:
            continue
        fields = sorted(set(other.fingerprint) & set(run.fingerprint))
        for field in fields:
            if field.startswith("generation ") and other.fingerprint[field] != run.fingerprint[field]:
                return field
        return ""
    return ""
