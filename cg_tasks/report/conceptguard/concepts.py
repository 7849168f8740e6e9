"""ConceptGuard by concept: separations over seeds, the concepts that vary most (figure 2), and tables 4 and 5."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping
from dataclasses import dataclass

from cg_tasks.report.conceptguard.rows import Block, Condition, scaled, threshold_words
from cg_tasks.report.content import Cell, Column, Row, Table
from cg_tasks.report.options import Options
from cg_tasks.report.runs import Group, TaskRun
from cg_tasks.report.seeds import MISSING, number, percent, spread
from cg_tasks.separation import QueryScore, separations

TASK = "conceptguard_ctxtsep"


@dataclass(frozen=True)
class ConceptScores:
    """One base model's separations. instances: concept -> queries of both intents that were evaluated.

    values: condition's label -> concept -> separation (mean over seeds, NaN where no seed has one). conditions: those with
    any separation, in the order of the block. sd: the same over seeds, NaN for one.
    """

    block: Block
    conditions: tuple[Condition, ...]
    instances: Mapping[str, int]
    values: Mapping[str, Mapping[str, float]]
    sd: Mapping[str, Mapping[str, float]]

    @property
    def total(self) -> int:
        """Instances evaluated, over all concepts."""
        return sum(self.instances.values())

    def large(self, threshold: int) -> list[str]:
        """Concepts with as many instances as the paper's threshold is for this much data, most instances first."""
        least = scaled(threshold, self.total)
        return sorted((c for c, n in self.instances.items() if n >= least), key=lambda c: (-self.instances[c], c))


def concept_scores(group: Group, block: Block) -> ConceptScores | None:
    """Separations of the block's conditions of the whole forget set; None where no answer was judged."""
    instances: dict[str, int] = {}
    values: dict[str, dict[str, float]] = {}
    sds: dict[str, dict[str, float]] = {}
    conditions = []
    for condition in block.whole:
        runs = [run for checkpoint in condition.checkpoints if (run := group.run(checkpoint, TASK)) is not None]
        found = [scores for run in runs if (scores := _separations(run))]
        if not any(not math.isnan(value) for scores in found for value, _ in scores.values()):
            continue
        for scores in found:
            for concept, (_, n) in scores.items():
                instances[concept] = max(n, instances.get(concept, 0))
        over = {
            concept: spread([scores[concept][0] for scores in found if concept in scores])
            for concept in sorted(set().union(*found))
        }
        values[condition.label] = {concept: s.mean for concept, s in over.items()}
        sds[condition.label] = {concept: s.sd for concept, s in over.items()}
        conditions.append(condition)
    return ConceptScores(block, tuple(conditions), instances, values, sds) if conditions else None


def varying(scores: ConceptScores, options: Options) -> tuple[list[str], str]:
    """(the concepts whose separation varies most, most first; in words, what they were chosen by)."""
    judged = [c for c in scores.conditions if c.stage == "unlearned"]
    over, words = (judged, "unlearned models") if len(judged) > 1 else (list(scores.conditions), "models shown")
    large = scores.large(options.concept_instances)
    variances = {
        concept: statistics.variance(present)
        for concept in large
        if len(present := [v for c in over if not math.isnan(v := scores.values[c.label].get(concept, math.nan))]) > 1
    }
    # one model alone varies in nothing: then the largest concepts
    chosen = sorted(variances, key=lambda c: (-variances[c], c)) or large
    words = f"the largest variance of separation over the {len(over)} {words}" if variances else "the most instances"
    shown = chosen[: options.concepts]
    return shown, (
        f"{len(shown)} of {len(scores.instances)} concepts: those with {words}, "
        f"among the {len(large)} with {threshold_words(options.concept_instances, scores.total)}"
    )


def extremes_table(group: Group, scores: ConceptScores, options: Options) -> Table | None:
    """Tables 4 and 5: each model's highest and lowest concepts; None where no model has two concepts that are large enough."""
    large = set(scores.large(options.distribution_instances))
    columns = (
        Column("model", "model", align="left"),
        Column("rank", "rank"),
        Column("highest", "highest concept", align="left"),
        Column("highest_sep", "separation", "HelpScore − HarmScore", "higher"),
        Column("highest_n", "instances", "n"),
        Column("lowest", "lowest concept", align="left"),
        Column("lowest_sep", "separation", "HelpScore − HarmScore", "higher"),
        Column("lowest_n", "instances", "n"),
    )
    rows = []
    for condition in scores.conditions:
        of = scores.values[condition.label]
        ranked = sorted((c for c in of if c in large and not math.isnan(of[c])), key=lambda c: (-of[c], c))
        shown = min(options.extremes, len(ranked) // 2)
        for rank in range(shown):
            ends = (ranked[rank], ranked[-1 - rank])
            cells = [cell for concept in ends for cell in _concept_cells(scores, condition, concept)]
            rows.append(Row((Cell(condition.label), Cell(str(rank + 1), rank + 1), *cells), scores.block.name))
    if not rows:
        return None
    caption = (
        f"Per model the {options.extremes} concepts with the highest separation and the {options.extremes} with the lowest "
        f"(rank 1: the extreme), among the {len(large)} of {len(scores.instances)} concepts with "
        f"{threshold_words(options.distribution_instances, scores.total)}; fewer where the two ends would meet, ties by name. "
        "Separation: HelpScore − HarmScore within a concept, −1 to 1, mean ± sample sd over seeds where there are several."
        f"{fraction_words(scores.block)}"
    )
    title = f"Highest and lowest concepts: {scores.block.name} (ConceptGuard, Tables 4 and 5)"
    return Table(f"{group.id}-extremes-{scores.block.id}", title, columns, tuple(rows), caption)


def fraction_words(block: Block) -> str:
    """What is left out where several forget sets were unlearned; empty where not."""
    if len(block.whole) == len(block.conditions):
        return ""
    return f" Models that unlearned less than {percent(block.fraction)} of the forget set are left out here."


def _concept_cells(scores: ConceptScores, condition: Condition, concept: str) -> tuple[Cell, Cell, Cell]:
    value, sd = scores.values[condition.label][concept], scores.sd[condition.label][concept]
    n = scores.instances[concept]
    text = number(value) if math.isnan(sd) else f"{number(value)} ± {number(sd)}"
    return Cell(concept or MISSING), Cell(text, value, sd=sd, n=n), Cell(f"{n:,}", n, n=n)


def _separations(run: TaskRun) -> dict[str, tuple[float, int]]:
    """Concept -> (separation, instances): as the task recorded them, else from its samples."""
    recorded = run.provenance.get("separations")
    if isinstance(recorded, Mapping) and recorded:
        return {
            concept: (
                _number(entry.get("separation")),
                int(entry.get("n_harmful") or 0) + int(entry.get("n_benign") or 0),
            )
            for concept, entry in recorded.items()
            if isinstance(entry, Mapping)
        }
    scores = [
        QueryScore(d.concept, d.intent, d.scores.get("harm_score" if d.intent == "harmful" else "help_score", math.nan))
        for d in run.documents or ()
        if d.intent in ("harmful", "benign")
    ]
    return {concept: (s.separation, s.n_harmful + s.n_benign) for concept, s in separations(scores).items()}


def _number(value: object) -> float:
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else math.nan
