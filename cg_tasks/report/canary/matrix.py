"""The verdicts at a glance: checkpoints by questions, each cell with its word, so that colour is never alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cg_tasks.report.canary.numbers import MINUS, authors
from cg_tasks.report.canary.runs import base_name
from cg_tasks.report.canary.verdicts import (
    CANNOT_BE_JUDGED,
    FLIPS,
    GAP,
    NEGATIVE_GAP,
    NO_GAP,
    NOT_CONTRADICTED,
    NOT_IDENTIFYING,
    QUESTIONS,
    Facts,
)
from cg_tasks.report.content import Figure, Verdict
from cg_tasks.report.drawing import canvas, rendered, styled, wrapped
from cg_tasks.report.runs import Group

_SMALL = 8
_FILLS = {"good": "#cfe4f5", "bad": "#fbd9c0", "open": "#eceef1"}
_HATCHES = {"good": "", "bad": "////", "open": ""}
_STATUS = {
    NO_GAP: "open",
    NEGATIVE_GAP: "open",
    NOT_IDENTIFYING: "bad",
    NOT_CONTRADICTED: "good",
    CANNOT_BE_JUDGED: "open",
}


_WIDTHS = (1.0,) * len(QUESTIONS) + (1.55,)


@styled
def verdict_figure(group: Group, found: Sequence[tuple[Facts, Verdict]], sizes: str) -> Figure:
    """Checkpoints by questions, each cell with its word, and the conclusion."""
    bases = list(dict.fromkeys(base_name(group, c) for c in group.checkpoints))
    shared = f"{bases[0]}, " if len(bases) == 1 else ""
    names = [wrapped(v.subject.removeprefix(shared), 46, 2) for _, v in found]
    longest = max(len(line) for name in names for line in name.split("\n"))
    figure, (axis,) = canvas(0.062 * longest + 0.3 + 1.25 * sum(_WIDTHS), 0.34 * len(found) + 1.2)
    axis.set_axis_off()
    axis.set_xlim(0, sum(_WIDTHS))
    axis.set_ylim(len(found), -1.25)
    heading = wrapped(f"Verdicts: {shared}n = {authors(sizes)}", 90, 2)
    figure.suptitle(heading, fontsize=10, x=0.01, ha="left", weight="bold")
    for column, title in enumerate((*QUESTIONS, "conclusion")):
        middle = sum(_WIDTHS[:column]) + _WIDTHS[column] / 2
        axis.text(middle, -0.2, wrapped(title, 18, 2), ha="center", va="bottom", fontsize=_SMALL, weight="bold")
    for row, (facts, v) in enumerate(found):
        axis.text(-0.08, row + 0.5, names[row], ha="right", va="center", fontsize=_SMALL)
        for column, (word, kind) in enumerate(words(facts, v)):
            _cell(axis, row, column, word, kind)
    caption = (
        f"The five questions and what follows from them, n = {authors(sizes)}. Blue: the answer leaves Δ standing; orange and "
        "hatched: it speaks against reading Δ as what the weights hold; grey: neutral or not known. (+), (−): Δ's side of zero."
    )
    alt = "; ".join(f"{v.subject}: {v.status} ({', '.join(c.answer for c in v.checks)})" for _, v in found)
    return Figure(f"{group.id}-verdict-matrix", "Verdicts at a glance", caption, f"{alt}.", *rendered(figure))


def words(facts: Facts, v: Verdict) -> list[tuple[str, str]]:
    """(word, kind) of each cell of a row; kind: ``good``, ``bad`` (hatched) or ``open``, for reading Δ as what weights hold."""
    cells: list[tuple[str, str]] = [(check.answer, _kind(check.question, check.answer)) for check in v.checks]
    if facts.gap is not None and facts.gap.excludes_zero:
        cells[0] = (f"yes ({'+' if facts.gap.lo > 0 else MINUS})", cells[0][1])
    return [*cells, (v.status, _STATUS.get(v.status, "open"))]


def _kind(question: str, answer: str) -> str:
    if answer == "unknown" or question == GAP:
        return "open"
    return "good" if (answer == "yes") != (question == FLIPS) else "bad"


def _cell(axis: Any, row: int, column: int, word: str, kind: str) -> None:
    from matplotlib.patches import Rectangle

    left, width = sum(_WIDTHS[:column]), _WIDTHS[column]
    edge = "#e9a87c" if kind == "bad" else "none"
    place = Rectangle(
        (left + 0.03, row + 0.06), width - 0.06, 0.88, facecolor=_FILLS[kind], edgecolor=edge, linewidth=0
    )
    place.set_hatch(_HATCHES[kind])
    axis.add_patch(place)
    weight = "bold" if column == len(_WIDTHS) - 1 else "normal"
    box = {"facecolor": _FILLS[kind], "edgecolor": "none", "pad": 1.2}  # keeps the hatching off the word
    axis.text(left + width / 2, row + 0.5, word, ha="center", va="center", fontsize=_SMALL, weight=weight, bbox=box)
