"""``conceptguard judge agreement``: does a judge mark as people do? Cohen's kappa of human raters and a judge.

Source: ConceptGuard, appendix B: 200 responses (100 harmful queries, 100 benign), two annotators, kappa of each with the
judge, averaged over the annotators. No text of a response is ever put into a message.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np

from cg_tasks.bootstrap import Floats, Interval, interval_of_replicates
from cg_tasks.errors import UserError
from cg_tasks.judge.rubrics import RUBRICS
from cg_tasks.judge.sheets import LEVELS, Sheet, read_sheets, require_judge
from cg_tasks.pair_files import short

TOGETHER = "both"
UNDEFINED = "undefined: both raters used one level only"
PLAIN: Floats = 1.0 - np.eye(len(LEVELS))
QUADRATIC: Floats = np.subtract.outer(LEVELS, LEVELS).astype(np.float64) ** 2


@dataclass(frozen=True)
class Agreement:
    """Of two raters over ``n`` items. ``kappa.mean`` is Cohen's kappa, NaN where it is undefined.

    ``confusion[i][j]`` counts items at level i by the first rater and j by the second. ``undefined_replicates`` is the
    share of resamples in which kappa is undefined; the intervals are of the others.
    """

    n: int
    raw: float
    kappa: Interval
    kappa_quadratic: Interval
    confusion: tuple[tuple[int, ...], ...]
    undefined_replicates: float
    n_boot: int
    seed: int


@dataclass(frozen=True)
class PairAgreement:
    """Two raters on one rubric (or ``both``); ``left_out`` counts the items that one of them or both did not mark."""

    rubric: str
    first: str
    second: str
    left_out: int
    agreement: Agreement


@dataclass(frozen=True)
class Headline:
    """Kappas averaged over the human raters: each with the judge, and over the pairs of humans (None with one human).

    NaN where the kappa of one of the pairs is undefined.
    """

    rubric: str
    n_humans: int
    with_judge: float
    with_judge_quadratic: float
    between_humans: float | None
    between_humans_quadratic: float | None


def kappas(counts: Floats, weights: Floats) -> Floats:
    """Cohen's kappa [...] of confusion counts [..., 5, 5]: 1 - Σ w·observed / Σ w·expected; NaN for 0 / 0.

    ``weights`` [5, 5] is how far apart two levels count: ``PLAIN`` or ``QUADRATIC``. Sums of counts are exact, so 0 / 0
    (all items in one cell of the diagonal) is told from a small number without a tolerance.
    """
    observed = (weights * counts).sum(axis=(-2, -1)) * counts.sum(axis=(-2, -1))
    expected = np.einsum("...i,ij,...j->...", counts.sum(axis=-1), weights, counts.sum(axis=-2))
    ratio = np.divide(observed, expected, out=np.full(np.shape(expected), np.nan), where=expected > 0)
    return np.asarray(1.0 - ratio)


def agreement(a: Sequence[int], b: Sequence[int], *, seed: int = 0, n_boot: int = 2000) -> Agreement:
    """Raw agreement and Cohen's kappa of levels ``a`` [n] and ``b`` [n], with 95 % bootstrap intervals over items.

    A resample of n items is a multinomial draw of the confusion matrix, which no order of the items changes.
    One item has no interval. Raises ValueError for no items, unequal lengths, other levels or n_boot < 1.
    """
    if not len(a) or len(a) != len(b) or n_boot < 1 or not {*a, *b} <= set(LEVELS):
        raise ValueError(f"agreement needs n >= 1 levels 0-4 twice and n_boot >= 1, not {len(a)}, {len(b)}, {n_boot}")
    n, size = len(a), len(LEVELS)
    counts = np.bincount(np.asarray(a) * size + np.asarray(b), minlength=size * size)
    occupied = np.flatnonzero(counts)  # an empty cell must stay empty, whatever rounding does to the probabilities
    generator = np.random.Generator(np.random.PCG64(seed))
    drawn = np.zeros((n_boot, size * size))
    drawn[:, occupied] = generator.multinomial(n, counts[occupied] / n, size=n_boot)
    resamples = drawn.reshape(-1, size, size)

    def estimate(name: str | None, weights: Floats) -> Interval:
        replicates = kappas(resamples, weights) if n > 1 else np.empty(0)
        return interval_of_replicates(_kappa(a, b, name), replicates, n_clusters=n, n_values=n)

    return Agreement(
        n,
        sum(x == y for x, y in zip(a, b, strict=True)) / n,
        estimate(None, PLAIN),
        estimate("quadratic", QUADRATIC),
        tuple(tuple(int(cell) for cell in row) for row in counts.reshape(size, size)),
        float(np.isnan(kappas(resamples, PLAIN)).mean()),
        n_boot,
        seed,
    )


def _kappa(a: Sequence[int], b: Sequence[int], weights: str | None) -> float:
    from sklearn.metrics import cohen_kappa_score

    if len({*a, *b}) == 1:  # scikit-learn warns, or divides by zero, depending on its version
        return math.nan
    return float(cohen_kappa_score(a, b, labels=list(LEVELS), weights=weights))


def agreement_report(sheet: Sheet, judge: str = "judge", seed: int = 0) -> list[PairAgreement]:
    """Every pair of raters on harm, on help and on both together (a sheet with one rubric: on that one).

    Each human with the judge first (the judge is ``second``), then the humans with each other.

    Raises:
        UserError: no such judge, or two raters who have no item in common.
    """
    require_judge(sheet.raters, judge)
    humans = [name for name in sheet.raters if name != judge]
    pairs = [*((human, judge) for human in humans), *combinations(humans, 2)]
    present = [rubric for rubric in RUBRICS if rubric in sheet.rubrics]
    report = []
    for rubric in [*present, TOGETHER] if len(present) > 1 else present:
        at = [i for i, other in enumerate(sheet.rubrics) if rubric in (other, TOGETHER)]
        for first, second in pairs:
            both = [(sheet.raters[first][i], sheet.raters[second][i]) for i in at]
            marked = [(x, y) for x, y in both if x is not None and y is not None]
            if not marked:
                raise UserError(
                    f"{', '.join(sheet.files)}: no item of rubric {rubric} is marked by both {short(first)} and "
                    f"{short(second)}: check that the files use the same ids, or leave one of the two raters out"
                )
            found = agreement([x for x, _ in marked], [y for _, y in marked], seed=seed)
            report.append(PairAgreement(rubric, first, second, len(both) - len(marked), found))
    return report


def headlines(report: Sequence[PairAgreement], judge: str = "judge") -> list[Headline]:
    """For each rubric the mean kappa of a human with the judge, and that between humans (appendix B)."""
    found = []
    for rubric in dict.fromkeys(pair.rubric for pair in report):
        here = [pair for pair in report if pair.rubric == rubric]
        judged = [pair.agreement for pair in here if pair.second == judge]
        human = [pair.agreement for pair in here if pair.second != judge]
        found.append(
            Headline(
                rubric,
                len(judged),
                _mean([x.kappa.mean for x in judged]),
                _mean([x.kappa_quadratic.mean for x in judged]),
                _mean([x.kappa.mean for x in human]) if human else None,
                _mean([x.kappa_quadratic.mean for x in human]) if human else None,
            )
        )
    return found


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)


def format_report(report: Sequence[PairAgreement], judge: str = "judge") -> str:
    """Markdown: the pairs, the means over the human raters, the confusion matrices."""
    first = report[0].agreement
    lines = [
        f"# Agreement of human raters with {_cell(judge)}",
        "",
        "| rubric | raters | n | left out | raw agreement | kappa | quadratic kappa |",
        "| --- | --- | ---: | ---: | ---: | ---: | ---: |",
    ]
    for pair in report:
        x = pair.agreement
        lines.append(
            f"| {pair.rubric} | {_names(pair)} | {x.n} | {pair.left_out} | {x.raw:.2f} | {_estimate(x.kappa)} "
            f"| {_estimate(x.kappa_quadratic)} |"
        )
    lines += [
        "",
        f"n: items that both raters marked. Intervals: 95 %, bootstrap over items, {first.n_boot} resamples, "
        f"seed {first.seed}.",
    ]
    if without := [pair for pair in report if pair.agreement.undefined_replicates]:
        shares = [f"{pair.rubric}, {_names(pair)}: {pair.agreement.undefined_replicates:.2%}" for pair in without]
        lines.append("Resamples without a kappa, left out of the interval: " + "; ".join(shares) + ".")
    lines += ["", f"Mean over the human raters of Cohen's kappa with {_cell(judge)} (ConceptGuard, appendix B):", ""]
    lines += [_headline(line) for line in headlines(report, judge)]
    for pair in report:
        lines += ["", f"## {pair.rubric}: {_cell(pair.first)} (rows), {_cell(pair.second)} (columns)", ""]
        lines += ["| | " + " | ".join(map(str, LEVELS)) + " |", "| ---: |" + " ---: |" * len(LEVELS)]
        lines += [
            f"| {level} | " + " | ".join(map(str, row)) + " |"
            for level, row in zip(LEVELS, pair.agreement.confusion, strict=True)
        ]
    return "\n".join(lines) + "\n"


def _headline(line: Headline) -> str:
    text = f"- {line.rubric}: {_number(line.with_judge)} (quadratic {_number(line.with_judge_quadratic)}), "
    text += f"{line.n_humans} human rater{'s' if line.n_humans > 1 else ''}"
    if line.between_humans is None or line.between_humans_quadratic is None:
        return text
    between, quadratic = _number(line.between_humans), _number(line.between_humans_quadratic)
    return f"{text}; between the humans {between} (quadratic {quadratic})"


def _number(value: float) -> str:
    return UNDEFINED if math.isnan(value) else f"{value:.2f}"


def _estimate(kappa: Interval) -> str:
    if math.isnan(kappa.mean):
        return UNDEFINED
    return f"{kappa.mean:.2f} " + ("(no interval)" if math.isnan(kappa.lo) else f"[{kappa.lo:.2f}, {kappa.hi:.2f}]")


def _names(pair: PairAgreement) -> str:
    return f"{_cell(pair.first)} – {_cell(pair.second)}"


def _cell(name: str) -> str:
    return " ".join(name.split()).replace("|", "\\|")


def as_json(report: Sequence[PairAgreement], judge: str = "judge") -> dict[str, Any]:
    """The report as JSON values. JSON has no NaN: what is undefined is null, and ``undefined`` beside it says why."""
    return {
        "judge": judge,
        "n_boot": report[0].agreement.n_boot,
        "seed": report[0].agreement.seed,
        "pairs": [
            {
                "rubric": pair.rubric,
                "raters": [pair.first, pair.second],
                "n": pair.agreement.n,
                "left_out": pair.left_out,
                "raw_agreement": pair.agreement.raw,
                "kappa": _json_estimate(pair.agreement.kappa),
                "kappa_quadratic": _json_estimate(pair.agreement.kappa_quadratic),
                "undefined_replicates": pair.agreement.undefined_replicates,
                "confusion": [list(row) for row in pair.agreement.confusion],
            }
            for pair in report
        ],
        "headline": [
            {key: _json_number(value) for key, value in vars(line).items()} for line in headlines(report, judge)
        ],
    }


def _json_estimate(kappa: Interval) -> dict[str, Any]:
    values = {"value": kappa.mean, "se": kappa.se, "lo": kappa.lo, "hi": kappa.hi}
    reason = {"undefined": UNDEFINED} if math.isnan(kappa.mean) else {}
    return {key: _json_number(value) for key, value in values.items()} | reason


def _json_number(value: Any) -> Any:
    return None if isinstance(value, float) and math.isnan(value) else value


def run_agreement(args: argparse.Namespace) -> int:
    """Print the report, after writing it as JSON where ``--json`` asks for it."""
    if args.seed < 0:
        raise UserError(f"--seed is {args.seed}: it must be 0 or more")
    sheet = read_sheets(args.sheets, args.judge, args.allow_missing)
    report = agreement_report(sheet, args.judge, args.seed)
    if args.json:
        text = json.dumps({"files": list(sheet.files), **as_json(report, args.judge)}, indent=2, ensure_ascii=False)
        try:
            with open(args.json, "x", encoding="utf-8") as stream:
                stream.write(text + "\n")
        except FileExistsError:
            raise UserError(f"--json {args.json}: the file exists: name a new one, or remove it") from None
        except OSError as error:
            raise UserError(f"--json {args.json}: cannot be written: {error.strerror}; name another file") from None
    sys.stdout.write(format_report(report, args.judge))
    return 0
