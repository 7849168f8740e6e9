"""How far annotators agree: Cohen's kappa of each pair over the labels (ConceptGuard, appendix A: 0.81 on tags, 0.88 on benign)."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from itertools import combinations

from pydantic import BaseModel, ConfigDict

from cg_tasks.construction.review.marks import AnnotatorMarks
from cg_tasks.construction.review.sheet import Sheet

UNDEFINED = "undefined: both annotators used one label only"


class Kappa(BaseModel):
    """Of two annotators over ``n`` items. kappa: None where it is undefined; lo, hi: 95 % bootstrap interval over items, or None.

    confusion[i][j]: items with label i of the sheet by the first and j by the second. undefined_replicates: share of the resamples
    without a kappa, which the interval leaves out.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    first: str
    second: str
    n: int
    raw: float
    kappa: float | None
    lo: float | None
    hi: float | None
    confusion: tuple[tuple[int, ...], ...]
    undefined_replicates: float
    n_boot: int
    seed: int


def kappas(sheet: Sheet, marks: Sequence[AnnotatorMarks], seed: int = 0) -> tuple[Kappa, ...]:
    """Every pair of annotators, in their order; none where there is one annotator."""
    return tuple(_of_pair(sheet, first, second, seed) for first, second in combinations(marks, 2))


def _of_pair(sheet: Sheet, first: AnnotatorMarks, second: AnnotatorMarks, seed: int) -> Kappa:
    from cg_tasks.judge.agreement import agreement  # numpy: not for whoever only reads an outcome

    number = {label: i for i, label in enumerate(sheet.labels)}
    a, b = ([number[marks.labels[i]] for i in sheet.ids] for marks in (first, second))
    found = agreement(a, b, seed=seed)
    size = len(sheet.labels)
    return Kappa(
        first=first.annotator,
        second=second.annotator,
        n=found.n,
        raw=found.raw,
        kappa=_known(found.kappa.mean),
        lo=_known(found.kappa.lo),
        hi=_known(found.kappa.hi),
        confusion=tuple(row[:size] for row in found.confusion[:size]),
        undefined_replicates=found.undefined_replicates,
        n_boot=found.n_boot,
        seed=found.seed,
    )


def _known(value: float) -> float | None:
    return None if math.isnan(value) else value


def agreement_report(sheet: Sheet, marks: Sequence[AnnotatorMarks], found: Sequence[Kappa]) -> str:
    """Markdown: labels of each annotator, kappas, confusion matrices. No text of an item, no note."""
    drawn = f"{len(sheet.items)} of {sheet.drawn_of} rows ({sheet.share:.1%}), seed {sheet.seed}"
    lines = [f"# {sheet.guideline.title}: agreement", "", f"{drawn}; guideline version {sheet.guideline_version}.", ""]
    lines += ["| annotator | " + " | ".join(sheet.labels) + " |", "| --- |" + " ---: |" * len(sheet.labels)]
    for one in marks:
        counts = Counter(one.labels.values())
        lines.append(f"| {_cell(one.annotator)} | " + " | ".join(str(counts[label]) for label in sheet.labels) + " |")
    if not found:
        return "\n".join([*lines, "", "One annotator: no agreement."]) + "\n"
    lines += ["", "| annotators | n | raw agreement | Cohen's kappa |", "| --- | ---: | ---: | ---: |"]
    lines += [f"| {_names(k)} | {k.n} | {k.raw:.2f} | {estimate(k)} |" for k in found]
    lines += ["", f"Intervals: 95 %, bootstrap over items, {found[0].n_boot} resamples, seed {found[0].seed}."]
    if without := [k for k in found if k.undefined_replicates]:
        shares = "; ".join(f"{_names(k)}: {k.undefined_replicates:.2%}" for k in without)
        lines.append(f"Resamples without a kappa, left out of the interval: {shares}.")
    for k in found:
        lines += ["", f"## {_cell(k.first)} (rows), {_cell(k.second)} (columns)", ""]
        lines += ["| | " + " | ".join(sheet.labels) + " |", "| --- |" + " ---: |" * len(sheet.labels)]
        rows = zip(sheet.labels, k.confusion, strict=True)
        lines += [f"| {label} | " + " | ".join(map(str, row)) + " |" for label, row in rows]
    return "\n".join(lines) + "\n"


def estimate(k: Kappa) -> str:
    """``0.81 [0.70, 0.90]``, or why there is none."""
    if k.kappa is None:
        return UNDEFINED
    interval = "(no interval)" if k.lo is None or k.hi is None else f"[{k.lo:.2f}, {k.hi:.2f}]"
    return f"{k.kappa:.2f} {interval}"


def _names(k: Kappa) -> str:
    return f"{_cell(k.first)} – {_cell(k.second)}"


def _cell(name: str) -> str:
    return " ".join(name.split()).replace("|", "\\|")
