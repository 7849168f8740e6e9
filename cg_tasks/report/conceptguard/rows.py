"""ConceptGuard's rows and columns: which checkpoints are one condition, what it is called, where each number is read from."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from cg_tasks.report.content import Column
from cg_tasks.report.runs import METHOD_NAMES, Checkpoint, Group
from cg_tasks.report.seeds import Source, percent

PAPER_INSTANCES = 5166

ROUGE = "ROUGE-L F1"
JUDGE = "judge's score, 0–1"

# Column -> where its number is read from, the first that a checkpoint has. The paper's order (tables 2 and 3).
ROUGE_COLUMNS: dict[Column, tuple[Source, ...]] = {
    Column("harmmem", "HarmMem", ROUGE, "lower"): (("conceptguard_harmmem", "rougeL"),),
    Column("harmqa", "HarmQA", ROUGE, "lower"): (
        ("conceptguard_harmqa", "rougeL"),
        ("conceptguard_ctxtsep", "harm_rougeL"),
    ),
    Column("helpret", "HelpRet", ROUGE, "higher"): (("conceptguard_helpret", "rougeL"),),
    Column("helpqa", "HelpQA", ROUGE, "higher"): (
        ("conceptguard_helpqa", "rougeL"),
        ("conceptguard_ctxtsep", "help_rougeL"),
    ),
}
JUDGE_COLUMNS: dict[Column, tuple[Source, ...]] = {
    Column("harmscore", "HarmScore", JUDGE, "lower"): (
        ("conceptguard_ctxtsep", "harm_score"),
        ("conceptguard_harmscore", "harm_score"),
    ),
    Column("helpscore", "HelpScore", JUDGE, "higher"): (
        ("conceptguard_ctxtsep", "help_score"),
        ("conceptguard_helpscore", "help_score"),
    ),
    Column("ctxtsep", "CtxtSep", "HelpScore − HarmScore, −1–1", "higher"): (("conceptguard_ctxtsep", "ctxt_sep"),),
}
COVERAGE_COLUMNS: dict[Column, tuple[Source, ...]] = {
    Column("coverage", "coverage", "share with a verdict"): (("conceptguard_ctxtsep", "coverage"),),
    Column("coverage_harm", "coverage, harmful", "share with a verdict"): (("conceptguard_harmscore", "coverage"),),
    Column("coverage_help", "coverage, benign", "share with a verdict"): (("conceptguard_helpscore", "coverage"),),
}


@dataclass(frozen=True)
class Condition:
    """One row: checkpoints that are seeds of one recipe. label: unique within its block.

    series: of the method, for its colour and marker; -1 for the base and the fine-tuned model. nth: of the method's conditions.
    """

    label: str
    checkpoints: tuple[Checkpoint, ...]
    series: int
    nth: int = 0

    @property
    def stage(self) -> str:
        return self.checkpoints[0].stage

    @property
    def fraction(self) -> float:
        """Of the forget set that it unlearned; 1 where nothing else is recorded."""
        recorded = self.checkpoints[0].forget_fraction
        return 1.0 if recorded is None else recorded


@dataclass(frozen=True)
class Block:
    """The rows of one base model. id: fit for a file name, unique in the group."""

    id: str
    name: str
    conditions: tuple[Condition, ...]

    @property
    def base(self) -> Condition | None:
        return next((c for c in self.conditions if c.stage == "base"), None)

    @property
    def fraction(self) -> float:
        """The largest forget set that was unlearned, which tables and figures by concept show."""
        return max((c.fraction for c in self.conditions if c.stage == "unlearned"), default=1.0)

    @property
    def whole(self) -> tuple[Condition, ...]:
        """Conditions that are not of a smaller forget set."""
        return tuple(c for c in self.conditions if c.stage != "unlearned" or c.fraction == self.fraction)

    @property
    def parts(self) -> tuple[tuple[str, tuple[Condition, ...]], ...]:
        """(name, conditions) of what stands together in a table: all on the whole forget set, then each smaller share of it."""
        smaller = sorted({c.fraction for c in self.conditions} - {c.fraction for c in self.whole}, reverse=True)
        return (
            (self.name, self.whole),
            *(
                (
                    f"{self.name}, {percent(share)} of the forget set",
                    tuple(c for c in self.conditions if c.fraction == share and c not in self.whole),
                )
                for share in smaller
            ),
        )


def blocks(group: Group) -> tuple[Block, ...]:
    """One block a base model, in the order of the group's checkpoints."""
    conditions = list(group.conditions().values())
    methods = list(dict.fromkeys(_series_key(m[0]) for m in conditions if m[0].stage not in ("base", "finetuned")))
    shared = Counter(base for base, _ in group.bases)
    found = []
    for index, (base, base_id) in enumerate(group.bases):
        mine = [m for m in conditions if (m[0].base, m[0].base_id) == (base, base_id)]
        rows = []
        seen: Counter[str] = Counter()
        for label, members in zip(_labels([m[0] for m in mine]), mine, strict=True):
            key = _series_key(members[0])
            rows.append(Condition(label, members, methods.index(key) if key in methods else -1, seen[key]))
            seen[key] += 1
        name = f"{base} (tokenizer {base_id[:8]})" if shared[base] > 1 else base
        found.append(Block(f"b{index + 1}", name, tuple(rows)))
    return tuple(found)


def fractions(block: Block) -> list[float]:
    """All forget fractions that were unlearned, ascending."""
    return sorted({c.fraction for c in block.conditions if c.stage == "unlearned"})


def by_fraction(block: Block) -> dict[str, list[Condition]]:
    """Recipe -> its conditions, smallest forget set first.

    A smaller forget set often means fewer steps, so K tells recipes apart only where one fraction has several.
    """
    recipes: dict[tuple[str, ...], list[Condition]] = {}
    for condition in block.conditions:
        if condition.stage == "unlearned":
            first = condition.checkpoints[0]
            method = METHOD_NAMES.get(first.method or "", first.method or "unlearned")
            key = (method, first.variant, first.regime or "", first.target_span or "")
            recipes.setdefault(key, []).append(condition)
    shared = {i for i in (2, 3) if len({key[i] for key in recipes}) == 1}
    found: dict[str, list[Condition]] = {}
    for recipe, members in recipes.items():
        name = ", ".join(part for i, part in enumerate(recipe) if part and i not in shared)
        several = len({c.fraction for c in members}) < len(members)
        for condition in sorted(members, key=lambda c: c.fraction):
            k = condition.checkpoints[0].k
            found.setdefault(f"{name}, K={k}" if several and k is not None else name, []).append(condition)
    return found


def scaled(threshold: int, instances: int) -> int:
    """The paper's threshold on a concept's instances, for a set of ``instances``: in proportion, rounded up, at least 2."""
    return max(2, math.ceil(threshold * instances / PAPER_INSTANCES))


def threshold_words(threshold: int, instances: int) -> str:
    """``at least 2 instances (the paper's 50 of 5,166, scaled to the 120 evaluated)``."""
    used = scaled(threshold, instances)
    if instances == PAPER_INSTANCES:
        return f"at least {used} instances"
    return f"at least {used} instances (the paper's {threshold} of {PAPER_INSTANCES:,}, scaled to the {instances:,} evaluated)"


def _series_key(checkpoint: Checkpoint) -> str:
    return checkpoint.method or checkpoint.name or checkpoint.stage


def _labels(first: Sequence[Checkpoint]) -> list[str]:
    """Labels, with regime, span, or a number where they alone tell two conditions apart."""
    labels = [c.label for c in first]
    for field in ("regime", "target_span"):
        twice = {label for label, n in Counter(labels).items() if n > 1}
        told = {
            label
            for label in twice
            if len({getattr(c, field) for c, k in zip(first, labels, strict=True) if k == label}) > 1
        }
        labels = [
            f"{label}, {field.replace('_', ' ')} {getattr(c, field) or 'unknown'}" if label in told else label
            for c, label in zip(first, labels, strict=True)
        ]
    seen: Counter[str] = Counter()
    twice = {label for label, n in Counter(labels).items() if n > 1}
    out = []
    for label in labels:
        seen[label] += 1
        out.append(f"{label} ({seen[label]})" if label in twice else label)
    return out
