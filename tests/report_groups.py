"""Groups of ConceptGuard results written by hand: only what decides the numbers is given."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from cg_tasks.report.runs import Checkpoint, Document, Group, Metric, TaskRun

NAN = math.nan


def checkpoint(method: str | None = None, *, base: str = "tiny", seed: int | None = None, **more: Any) -> Checkpoint:
    """None: the base model; ``finetune``: the fine-tuned one; else an unlearned one."""
    stage = {None: "base", "finetune": "finetuned"}.get(method, "unlearned")
    name = f"{base}/{method}/{seed}/{sorted(more.items())}"
    return Checkpoint(
        base=base,
        base_id="0" * 8,
        stage=stage,  # type: ignore[arg-type]
        weights=name,
        method=method if stage == "unlearned" else None,
        seed=seed,
        **more,
    )


def run(
    of: Checkpoint,
    task: str,
    metrics: Mapping[str, float | tuple[float, float, float]],
    *,
    n: int = 10,
    documents: Sequence[Document] | None = None,
    fingerprint: Mapping[str, Any] | None = None,
    provenance: Mapping[str, Any] | None = None,
) -> TaskRun:
    """metrics: name -> value, or (value, lo, hi)."""
    made = {m: Metric(v) if isinstance(v, float) else Metric(v[0], lo=v[1], hi=v[2]) for m, v in metrics.items()}
    return TaskRun(
        task=f"conceptguard_{task}",
        family="conceptguard",
        checkpoint=of,
        metrics=made,
        higher_is_better={},
        n=n,
        n_all=n,
        fingerprint=fingerprint or {},
        provenance=provenance or {},
        configuration={},
        config={},
        path=Path("results.json"),
        date="2026-01-02T03-04-05",
        documents=None if documents is None else tuple(documents),
    )


def group(*runs: TaskRun) -> Group:
    return Group("conceptguard", "conceptguard", "miniature", tuple(runs))


def separations(values: Mapping[str, float], sizes: Mapping[str, int] | int = 4) -> dict[str, Any]:
    """The provenance of a ctxtsep run: concept -> separation; sizes: queries of each intent."""
    size = sizes if isinstance(sizes, Mapping) else dict.fromkeys(values, sizes)
    total = sum(size.values())
    return {
        "separations": {
            concept: {
                "harm_score": None,
                "help_score": None,
                "separation": None if math.isnan(value) else value,
                "n_harmful": size[concept],
                "n_benign": size[concept],
                "weight": size[concept] / total,
            }
            for concept, value in values.items()
        }
    }
