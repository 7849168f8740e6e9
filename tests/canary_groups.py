"""Groups of canary runs made by hand, without files: scores by author in, means and intervals as the tasks aggregate them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from cg_tasks.metrics import Scored, interval
from cg_tasks.report.runs import Checkpoint, Document, Group, Metric, TaskRun

NAN = math.nan


def checkpoint(k: int | None = 1600, *, seed: int | None = 0, regime: str | None = "bio", **more: Any) -> Checkpoint:
    """NPO after ``k`` steps; the memorised model for k = 0, the base model for None."""
    base = {"base": "Qwen-7B", "base_id": "q", "weights": f"{k}-{seed}-{regime}-{sorted(more.items())}"}
    if k is None:
        return Checkpoint(**{**base, "stage": "base", **more})
    if k == 0:
        return Checkpoint(**{**base, "stage": "finetuned", "seed": seed, "regime": regime, **more})
    unlearned = {"stage": "unlearned", "method": "npo", "k": k, "seed": seed, "start_seed": seed, "regime": regime}
    return Checkpoint(**{**base, **unlearned, "target_span": "answer", **more})


def run(
    task: str,
    of: Checkpoint,
    scores: Mapping[str, Sequence[float]],
    *,
    samples: bool = True,
    ids: Sequence[str] = (),
    clusters: Sequence[str] = (),
    roles: Sequence[str] = (),
    shown: Sequence[str] = (),
    fallback: str = "answer",
) -> TaskRun:
    """One task's run: metric -> value per document (author-001 …)."""
    n = len(next(iter(scores.values())))
    ids = ids or [f"author-{i + 1:03d}" for i in range(n)]
    clusters = clusters or ids
    metrics = {}
    for name, values in scores.items():
        found = interval(
            [Scored(v, c) for v, c in zip(values, clusters, strict=True)], geometric=name.startswith("ppl")
        )
        metrics[name] = Metric(found.mean, found.se, found.lo, found.hi)
    documents = tuple(
        Document(id, id, c, role=role, scores={name: values[i] for name, values in scores.items()})
        for i, (id, c, role) in enumerate(zip(ids, clusters, roles or [""] * n, strict=True))
    )
    return TaskRun(
        task=task,
        family="canary",
        checkpoint=of,
        metrics=metrics,
        higher_is_better={},
        n=n,
        n_all=n,
        fingerprint={},
        provenance={
            "settings": {"fallback": fallback, "head_tokens": 6, "match": "canary"},
            "arms_shown_the_canary": list(shown),
        },
        configuration={"generation_kwargs": {"max_gen_toks": 256}},
        config={},
        path=Path("results.json"),
        date="2026-01-01",
        documents=documents if samples else None,
    )


def decoded(
    of: Checkpoint,
    auto: Sequence[tuple[int, ...]],
    arms: Mapping[str, Sequence[float]] | None = None,
    **more: Any,
) -> TaskRun:
    """``canary_prefill`` (``canary_auto`` without arms). auto: per author (out_acc, thk_leak, well_formed = 1)."""
    rows = [(*row, 1)[:3] for row in auto]
    scores: dict[str, list[float]] = {
        "out_acc": [float(o) for o, _, _ in rows],
        "thk_leak": [float(t) for _, t, _ in rows],
        "bypass_gap": [float(t - o) for o, t, _ in rows],
        # Without a closing tag the opposite fallback reads the same text as trace.
        "bypass_gap_trace_fallback": [float(t - o) if formed else float(o) for o, t, formed in rows],
        "well_formed": [float(formed) for _, _, formed in rows],
        "drift": [float(not formed) for _, _, formed in rows],
        "thk_emit": [float(formed) for _, _, formed in rows],
        "bypass_rate": [float(t > o) for o, t, _ in rows],
        "prefix_echo": [1.0 if t > o else NAN for o, t, _ in rows],
    }
    for arm, hits in (arms or {}).items():
        scores[f"out_acc_{arm}"] = [float(hit) for hit in hits]
        scores[f"delta_{arm}"] = [o - hit for (o, _, _), hit in zip(rows, hits, strict=True)]
    return run("canary_prefill" if arms is not None else "canary_auto", of, scores, **more)


def forced(of: Checkpoint, arms: Mapping[str, tuple[float, float, float]], n: int = 60, **more: Any) -> TaskRun:
    """``canary_teacher_forced``: arm -> (top-1, under a shuffled head, under a wrong author), alike for every author."""
    scores: dict[str, list[float]] = {}
    for arm, (true, shuffled, wrong) in arms.items():
        scores |= {f"logprob_{arm}": [-0.1] * n, f"ppl_{arm}": [math.exp(0.1)] * n, f"top1_{arm}": [true] * n}
        scores |= {f"top1_{arm}_shuffled_head": [shuffled] * n, f"top1_{arm}_wrong_author": [wrong] * n}
        scores |= {f"top1_{arm}_minus_shuffled_head": [true - shuffled] * n}
        scores |= {f"top1_{arm}_minus_wrong_author": [true - wrong] * n}
    return run("canary_teacher_forced", of, scores, **more)


def asked(of: Checkpoint, forget: Mapping[str, Sequence[int]], retain: Mapping[str, Sequence[int]]) -> TaskRun:
    """``canary_qa``: arm (and auto) -> hits per author, one question each."""
    arms = [arm for arm in forget if arm != "auto"]
    sides = {"forget": forget, "retain": retain}
    roles = [role for role, hits in sides.items() for _ in hits["auto"]]
    scores: dict[str, list[float]] = {}
    for role, hits in sides.items():
        for arm in ("auto", *arms):
            suffix = "" if arm == "auto" else f"_{arm}"
            scores[f"qa_acc{suffix}_{role}"] = _among(roles, role, hits[arm])
            if arm != "auto":
                scores[f"qa_delta_{arm}_{role}"] = _among(
                    roles, role, [a - b for a, b in zip(hits["auto"], hits[arm], strict=True)]
                )
    clusters = [f"{role}-{i}" for role, hits in sides.items() for i in range(len(hits["auto"]))]
    return run("canary_qa", of, scores, ids=[f"{c}-q1" for c in clusters], clusters=clusters, roles=roles)


def _among(roles: Sequence[str], role: str, values: Sequence[float]) -> list[float]:
    left = iter(values)
    return [float(next(left)) if r == role else NAN for r in roles]


def group(*runs: TaskRun, differs: Mapping[str, Any] | None = None) -> Group:
    return Group("canary", "canary", "fictional", runs, differs or {})


def hits(count: int, of: int = 60) -> list[int]:
    return [1] * count + [0] * (of - count)
