"""Paired contrasts between conditions: which differences are more than chance, after Holm's correction.

Public:
    scores_of(group, checkpoints, task, metric, label=None, by="cluster") -> Scores    by: "cluster" or "concept"
    paired_contrasts(conditions: Sequence[Scores], *, n_boot, seed, alpha=0.05) -> Contrasts
    contrast_table(id, title, found: Mapping[Column, Contrasts], options, cluster_name) -> Table
    holm(p) -> list[float];  two_sided_p(replicates) -> float

Each condition's scores are averaged over its seeds unit by unit (units that every seed has), two conditions are joined on
the unit, and clusters (pairs, concepts, authors) are resampled. The intervals cover the draw of documents, not of seeds.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from cg_tasks.bootstrap import Interval, interval_of_replicates, resampled_means
from cg_tasks.report.content import Cell, Column, Row, Table
from cg_tasks.report.options import Options
from cg_tasks.report.runs import Checkpoint, Document, Group, TaskRun
from cg_tasks.report.seeds import MISSING, interval_text, number

Floats = NDArray[np.float64]
Replicates = Callable[[int, int, tuple[str, ...]], Floats]

# Below this many clusters a percentile interval is known to be too narrow; the number still stands, with a mark.
FEW_CLUSTERS = 10
# Differences of two means that are equal by hand may differ in the last bits.
_ZERO = 1e-12


@dataclass(frozen=True)
class Scores:
    """One condition's scores. values: unit -> (mean over seeds, cluster), for units with a value under every seed.

    label: its name, and how many of its seeds have samples where not all have.
    """

    label: str
    values: Mapping[str, tuple[float, str]]


@dataclass(frozen=True)
class Contrast:
    """a - b. p: two-sided, by the bootstrap; holm: corrected over all contrasts of its family; NaN for under two clusters.

    n_units: units that both have; left_out: units that one of them has alone.
    """

    a: str
    b: str
    difference: float
    lo: float
    hi: float
    p: float
    holm: float
    n_clusters: int
    n_units: int
    left_out: int


@dataclass(frozen=True)
class Contrasts:
    """All pairs of one family. n_boot: resamples used; smallest_p: the least p they can give, before and after Holm."""

    contrasts: tuple[Contrast, ...]
    n_boot: int
    smallest_p: float
    smallest_holm: float


def scores_of(
    group: Group,
    checkpoints: Sequence[Checkpoint],
    task: str | Callable[[Checkpoint], TaskRun | None],
    metric: str,
    *,
    label: str | None = None,
    by: str = "cluster",
) -> Scores | None:
    """Scores of a condition, its checkpoints being seeds of it; None where no seed has samples with the metric.

    task: its name, or which run of a checkpoint has the metric.
    by: the field of a document that is resampled, ``cluster`` or ``concept`` (for ``ctxt_sep``: the mean of a document's
    concept's separation over documents is ConceptGuard's equation 8, so resampling concepts keeps its weights).
    """
    seeds = []
    for checkpoint in checkpoints:
        run = group.run(checkpoint, task) if isinstance(task, str) else task(checkpoint)
        found = _values(run.documents or (), metric, by) if run else {}
        if found:
            seeds.append(found)
    if not seeds:
        return None
    every = set.intersection(*(set(s) for s in seeds))
    values = {unit: (math.fsum(s[unit][0] for s in seeds) / len(seeds), seeds[0][unit][1]) for unit in sorted(every)}
    label = label or checkpoints[0].label
    if len(seeds) < len(checkpoints):
        label += f" ({len(seeds)} of {len(checkpoints)} seeds)"
    return Scores(label, values)


def paired_contrasts(
    conditions: Sequence[Scores], *, n_boot: int = 2000, seed: int = 0, alpha: float = 0.05
) -> Contrasts:
    """Every pair of conditions, a before b in the order given.

    n_boot is raised where so many pairs could not reach ``alpha`` after Holm's correction with it.
    """
    pairs = list(combinations(range(len(conditions)), 2))
    n_boot = max(n_boot, math.ceil(4 * len(pairs) / alpha))
    replicates_of = _replicates(conditions, n_boot, seed)
    found = [_contrast(conditions[i], conditions[j], i, j, replicates_of) for i, j in pairs]
    corrected = holm([c.p for c in found])
    smallest = 2 / (n_boot + 1)
    tested = sum(not math.isnan(c.p) for c in found)
    return Contrasts(
        tuple(replace(c, holm=h) for c, h in zip(found, corrected, strict=True)),
        n_boot,
        smallest,
        min(1.0, smallest * max(tested, 1)),
    )


def two_sided_p(replicates: Floats) -> float:
    """min(1, 2 · min(#{d <= 0} + 1, #{d >= 0} + 1) / (B + 1)) over the B replicates that are not NaN; NaN for none."""
    present = replicates[~np.isnan(replicates)]
    if not len(present):
        return math.nan
    below, above = int((present <= _ZERO).sum()), int((present >= -_ZERO).sum())
    return min(1.0, 2 * (min(below, above) + 1) / (len(present) + 1))


def holm(p: Sequence[float]) -> list[float]:
    """Holm's step-down correction: the i-th smallest of m is multiplied by m - i + 1, kept monotone, at most 1.

    NaN (no test was made) stays NaN and does not count into m.
    """
    order = sorted((i for i, value in enumerate(p) if not math.isnan(value)), key=lambda i: (p[i], i))
    out = [math.nan] * len(p)
    largest = 0.0
    for rank, i in enumerate(order):
        largest = max(largest, min(1.0, (len(order) - rank) * p[i]))
        out[i] = largest
    return out


def contrast_table(
    id: str,
    title: str,
    found: Mapping[Column, Contrasts],
    options: Options,
    *,
    clusters: str = "clusters",
    averaged: bool = True,
    digits: int = 3,
    caption: str = "",
) -> Table:
    """One block of rows a metric (its Column gives title, unit and direction); Holm's correction runs within a block.

    clusters: what was resampled, as the column's title (``pairs``, ``authors``). averaged: whether seeds were.
    """
    columns = (
        Column("a", "A", align="left"),
        Column("b", "B", align="left"),
        Column("difference", "A − B", "metric's own unit"),
        Column("interval", "95 % interval"),
        Column("p", "p", "two-sided"),
        Column("holm", "Holm p", "corrected"),
        Column("clusters", clusters, "n"),
        Column("favours", "favours", align="left"),
    )
    rows = tuple(
        Row(_cells(contrast, column, result, options, digits), _block(column))
        for column, result in found.items()
        for contrast in result.contrasts
    )
    return Table(
        id, title, columns, rows, " ".join(filter(None, (caption, _caption(found, options, averaged)))), _notes(found)
    )


def _block(column: Column) -> str:
    direction = f", {column.better} is better" if column.better else ""
    return f"{column.title} ({column.unit}{direction})" if column.unit else f"{column.title}{direction}"


def _caption(found: Mapping[Column, Contrasts], options: Options, averaged: bool) -> str:
    sizes = sorted({(r.n_boot, r.smallest_p, len(r.contrasts), r.smallest_holm) for r in found.values()})
    seeds = "scores are averaged over seeds first; " if averaged else ""
    resamples = "; ".join(
        f"B = {b:,} (the smallest p it can give is {p_text(p)}, {p_text(h)} after Holm over {m} pairs)"
        for b, p, m, h in sizes
    )
    return (
        f"Paired by document: {seeds}the interval is a percentile bootstrap over clusters and covers the draw of documents, not "
        f"of training seeds. {resamples}. Holm's correction runs over all pairs of one metric in this table. "
        f"★ where Holm p < {options.alpha:g}."
    )


def _notes(found: Mapping[Column, Contrasts]) -> tuple[str, ...]:
    few = sorted({c.n_clusters for r in found.values() for c in r.contrasts if 1 < c.n_clusters < FEW_CLUSTERS})
    if not few:
        return ()
    return (
        f"Intervals over fewer than {FEW_CLUSTERS} clusters (here {few[0]}–{few[-1]}) are too narrow: do not lean on them.",
    )


def _cells(c: Contrast, column: Column, result: Contrasts, options: Options, digits: int) -> tuple[Cell, ...]:
    star = c.holm < options.alpha
    left_out = f"{c.left_out} units that only one side has are left out" if c.left_out else ""
    names = (Cell(c.a), Cell(c.b))
    if math.isnan(c.difference):
        why = "no unit that both have"
        return (*names, *(Cell(MISSING, missing=True, note=why) for _ in range(4)), Cell("0", 0, n=0), Cell(MISSING))
    why = "fewer than two clusters: no interval and no test"
    tests = (
        tuple(Cell(MISSING, missing=True, note=why) for _ in range(3))
        if math.isnan(c.p)
        else (
            Cell(interval_text(c.lo, c.hi, digits, signed=True), lo=c.lo, hi=c.hi),
            Cell(p_text(c.p), c.p),
            Cell(p_text(c.holm), c.holm, star=star),
        )
    )
    return (
        *names,
        Cell(
            number(c.difference, digits, signed=True), c.difference, c.lo, c.hi, n=c.n_units, star=star, note=left_out
        ),
        *tests,
        Cell(f"{c.n_clusters}", c.n_clusters, n=c.n_clusters),
        Cell(_favours(c, column, star)),
    )


def _favours(c: Contrast, column: Column, star: bool) -> str:
    if not star:
        return "no clear difference"
    if column.better is None:
        return "differs"
    return c.a if (c.difference > 0) == (column.better == "higher") else c.b


def p_text(p: float) -> str:
    """Three decimals, more where three would print 0.000."""
    if math.isnan(p):
        return MISSING
    return f"{p:.3f}" if p >= 0.0005 else f"{p:.1e}"


def _values(documents: Sequence[Document], metric: str, by: str) -> dict[str, tuple[float, str]]:
    found = ((d, d.scores.get(metric, math.nan)) for d in documents)
    return {d.unit: (value, str(getattr(d, by))) for d, value in found if not math.isnan(value)}


def _contrast(a: Scores, b: Scores, i: int, j: int, replicates_of: Replicates) -> Contrast:
    units = tuple(sorted(a.values.keys() & b.values.keys()))
    left_out = len(a.values.keys() ^ b.values.keys())
    names = {a.values[unit][1] for unit in units}
    nothing = Contrast(
        a.label, b.label, math.nan, math.nan, math.nan, math.nan, math.nan, len(names), len(units), left_out
    )
    if not units:
        return nothing
    difference = math.fsum(a.values[u][0] - b.values[u][0] for u in units) / len(units)
    if len(names) < 2:
        return replace(nothing, difference=difference)
    replicates = replicates_of(i, j, units)
    found: Interval = interval_of_replicates(difference, replicates, n_clusters=len(names), n_values=len(units))
    return replace(nothing, difference=difference, lo=found.lo, hi=found.hi, p=two_sided_p(replicates))


def _replicates(conditions: Sequence[Scores], n_boot: int, seed: int) -> Replicates:
    """Resampled mean differences of two conditions over the units that both have."""
    known: dict[int, Floats] = {}

    def means(values: Sequence[float], index: int, units: tuple[str, ...]) -> Floats:
        clusters = [conditions[index].values[u][1] for u in units]
        return resampled_means(np.array(values), clusters, n_boot=n_boot, seed=seed)

    def of(i: int, j: int, units: tuple[str, ...]) -> Floats:
        a, b = conditions[i].values, conditions[j].values
        if len(units) < len(a) or len(units) < len(b):
            return means([a[u][0] - b[u][0] for u in units], i, units)
        # The same seed over the same clusters draws the same rows: the difference of two means is the paired one, and with
        # complete data each condition is resampled once, not once a pair.
        for index, values in ((i, a), (j, b)):
            if index not in known:
                known[index] = means([values[u][0] for u in units], index, units)
        return known[i] - known[j]

    return of
