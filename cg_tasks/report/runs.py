"""What was read from lm-eval's result folders: which model, which task, which numbers, and what they may stand beside."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

Stage = Literal["base", "finetuned", "unlearned", "other"]
Family = Literal["conceptguard", "canary", "other"]

STAGES: tuple[Stage, ...] = ("base", "finetuned", "unlearned", "other")
METHOD_NAMES = {
    "graddiff": "GradDiff",
    "grad_ascent": "GradAscent",
    "simnpo": "SimNPO",
    "rmu": "RMU",
    "undial": "UNDIAL",
    "npo": "NPO",
    "dpo": "DPO",
    "idk": "IDK",
    "wga": "WGA",
    "r2mu": "R2MU",
}


@dataclass(frozen=True)
class Metric:
    """One number of a results file. stderr, lo, hi: NaN where lm-eval has none; lo and hi bound its 95 % interval."""

    value: float
    stderr: float = math.nan
    lo: float = math.nan
    hi: float = math.nan

    @property
    def excludes_zero(self) -> bool:
        """Whether zero lies outside [lo, hi]; False where there is no interval."""
        return self.lo > 0 or self.hi < 0


@dataclass(frozen=True)
class Checkpoint:
    """What was evaluated: equal for all tasks' results of the same weights.

    base: the base model's name as shown. base_id: what tells bases of one name apart (tokenizer and chat template hashes).
    method, k, seed, forget_fraction: of unlearning (seed: of fine-tuning where stage is ``finetuned``); None where unknown.
    start_seed: of the fine-tuned model it starts from. regime: the thinking trace it was memorised with (bio, meta, none).
    variant: what else differs from other checkpoints of the method, in words, such as ``learning_rate=1e-05``; often empty.
    weights: a hash of the adapter's files, or the model's name where nothing is hashed.
    """

    base: str
    base_id: str
    stage: Stage
    weights: str
    method: str | None = None
    k: int | None = None
    seed: int | None = None
    start_seed: int | None = None
    forget_fraction: float | None = None
    regime: str | None = None
    target_span: str | None = None
    variant: str = ""
    name: str = ""

    @property
    def condition(self) -> tuple[Any, ...]:
        """Everything but the seeds: checkpoints of one condition are seeds of one cell."""
        return (
            self.base,
            self.base_id,
            self.stage,
            self.method,
            self.k,
            self.forget_fraction,
            self.regime,
            self.target_span,
            self.variant,
            self.name if self.stage == "other" else "",
        )

    @property
    def label(self) -> str:
        """Words for a row, without base and seed: ``NPO, K=400``."""
        if self.stage == "base":
            head = "base"
        elif self.stage == "finetuned":
            head = "fine-tuned"
        elif self.stage == "unlearned":
            head = METHOD_NAMES.get(self.method or "", self.method or "unlearned")
        else:
            head = self.name
        parts = [head]
        if self.stage == "unlearned" and self.k is not None:
            parts.append(f"K={self.k}")
        if self.forget_fraction not in (None, 1.0):
            parts.append(f"forget {self.forget_fraction:g}")
        if self.variant:
            parts.append(self.variant)
        return ", ".join(parts)


@dataclass(frozen=True)
class Document:
    """One document's scores, without its texts.

    id: of the document; unit: what is paired between checkpoints (id and, with two intents, the intent); cluster: what is
    resampled (pair, author). concept, intent, role: as logged, empty where the task has none. scores: metric -> value, NaN
    where the metric does not exist for it. status: of its verdict.
    """

    id: str
    unit: str
    cluster: str
    concept: str = ""
    intent: str = ""
    role: str = ""
    scores: Mapping[str, float] = field(default_factory=dict)
    status: str = ""


@dataclass(frozen=True)
class TaskRun:
    """One task's results for one checkpoint.

    n, n_all: documents evaluated, and in the data. fingerprint: field -> value of everything that two results must share
    to stand in one column (data, settings, templates, generation, judge, versions). documents: None where the samples
    were not logged. configuration: lm-eval's for the task; config: of the whole run.
    """

    task: str
    family: Family
    checkpoint: Checkpoint
    metrics: Mapping[str, Metric]
    higher_is_better: Mapping[str, bool | None]
    n: int
    n_all: int
    fingerprint: Mapping[str, Any]
    provenance: Mapping[str, Any]
    configuration: Mapping[str, Any]
    config: Mapping[str, Any]
    path: Path
    date: str
    samples: Path | None = None
    documents: tuple[Document, ...] | None = None

    @cached_property
    def fingerprint_key(self) -> str:
        """Equal for equal fingerprints."""
        return repr(sorted((name, repr(value)) for name, value in self.fingerprint.items()))

    def value(self, metric: str) -> float:
        """The metric's value; NaN where the results have none."""
        return self.metrics[metric].value if metric in self.metrics else math.nan

    def scores(self, metric: str) -> dict[str, tuple[float, str]]:
        """Unit -> (value, cluster) of the documents that have a value; empty without samples."""
        found = ((d, d.scores.get(metric, math.nan)) for d in self.documents or ())
        return {d.unit: (value, d.cluster) for d, value in found if not math.isnan(value)}


@dataclass(frozen=True)
class Problem:
    """Something a reader must know. severity: ``error`` (something was left out) or ``note``. where: a file or folder."""

    severity: Literal["error", "note"]
    where: str
    message: str

    def __str__(self) -> str:
        return f"{self.where}: {self.message}"


@dataclass(frozen=True)
class Group:
    """Results that may stand side by side: one family, equal in every field of the fingerprint that they share.

    id: unique, fit for a file name and a fragment of an address. title: the data's name and what tells it from the
    family's other groups. differs: field -> value, for the fields in which the family's groups differ; empty for one group.
    """

    id: str
    family: Family
    title: str
    runs: tuple[TaskRun, ...]
    differs: Mapping[str, Any] = field(default_factory=dict)
    problems: tuple[Problem, ...] = ()

    @cached_property
    def checkpoints(self) -> tuple[Checkpoint, ...]:
        """In the order of a table: by base, then base, fine-tuned, unlearned by method and K, then others; seeds last."""
        return tuple(sorted({run.checkpoint for run in self.runs}, key=_table_order))

    @property
    def bases(self) -> tuple[tuple[str, str], ...]:
        """(base, base_id) of every block of rows, in the order of :attr:`checkpoints`."""
        return tuple(dict.fromkeys((c.base, c.base_id) for c in self.checkpoints))

    @property
    def tasks(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(sorted(run.task for run in self.runs)))

    @cached_property
    def _by_key(self) -> dict[tuple[Checkpoint, str], TaskRun]:
        return {(run.checkpoint, run.task): run for run in self.runs}

    def run(self, checkpoint: Checkpoint, task: str) -> TaskRun | None:
        """The run of a task for a checkpoint, None where it is missing."""
        return self._by_key.get((checkpoint, task))

    def conditions(self) -> dict[tuple[Any, ...], tuple[Checkpoint, ...]]:
        """Condition -> its checkpoints (one a seed), in the order of :attr:`checkpoints`.

        Other weights of a seed that is there already are no further seed: they make a condition of their own.
        """
        found: dict[tuple[Any, ...], list[Checkpoint]] = {}
        seen: dict[tuple[Any, ...], int] = {}
        for checkpoint in self.checkpoints:
            same = (checkpoint.condition, checkpoint.seed, checkpoint.start_seed)
            again = seen[same] = seen.get(same, -1) + 1
            found.setdefault((*checkpoint.condition, again), []).append(checkpoint)
        return {condition: tuple(members) for condition, members in found.items()}


# The papers' order of methods; others follow by name.
_METHOD_ORDER = {name: i for i, name in enumerate(METHOD_NAMES)}


def _table_order(c: Checkpoint) -> tuple[Any, ...]:
    return (
        c.base,
        c.base_id,
        STAGES.index(c.stage),
        c.regime or "",
        _METHOD_ORDER.get(c.method or "", len(_METHOD_ORDER)),
        c.method or "",
        c.variant,
        -(1.0 if c.forget_fraction is None else c.forget_fraction),
        -1 if c.k is None else c.k,
        c.name,
        -1 if c.start_seed is None else c.start_seed,
        -1 if c.seed is None else c.seed,
        c.weights,
    )
