"""Rows of the stage ``queries`` made of the miniature pairs, and a manifest for them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from cg_tasks.construction.dataset.assemble import Assembled, assemble
from cg_tasks.construction.queries import QueriesRow
from cg_tasks.pairs import Pair, load_pairs

MINIATURE = load_pairs("miniature").pairs
SHA = "0123456789abcdef" * 4


def queries_row(pair: Pair, **changes: Any) -> QueriesRow:
    """An ok row that becomes ``pair``, but for ``changes``."""
    values = {
        "pair_id": pair.pair_id,
        "status": "ok",
        "concept": pair.concept,
        "harmful_prompt": f"The source's prompt of {pair.pair_id}",
        "harmful_response": pair.harmful_response,
        "benign_prompt": "not in the data set",
        "benign_response": pair.benign_response,
        "harmful_query": pair.harmful_query,
        "benign_query": pair.benign_query,
    }
    return QueriesRow(**{**values, **changes})


def rows(count: int = 12) -> list[QueriesRow]:
    """The first miniature pairs, last one first."""
    return [queries_row(pair) for pair in reversed(MINIATURE[:count])]


def stage(name: str, prompt: str | None, rows_in: int, ok: int, **more: Any) -> dict[str, Any]:
    """The summary of a stage whose model was asked as writer-1."""
    values: dict[str, Any] = {"stage": name, "rows": {"in": rows_in, "ok": ok}, "output_sha256": SHA}
    if prompt:
        values |= {
            "prompt": {"name": prompt, "version": 3, "sha256": SHA},
            "model": "writer-1",
            "base_url": "http://localhost:9/v1",
            "models_returned": {"writer-1-2026-01-31": ok},
            "attempts": {2: 1, 1: ok - 1},
            "calls": ok + 1,
            "usd": 1.5,
        }
    return {**values, **more}


def manifest_values(**changes: Any) -> dict[str, Any]:
    """What the caller of ``assemble`` gives."""
    values: dict[str, Any] = {
        "created": "2026-02-03",
        "conceptguard": "0.1.0",
        "packages": {"openai": "2.0"},
        "source": {"name": "prompts.jsonl", "sha256": SHA, "rows": 40},
        "language": "English",
        "settings": {"benign": {"judge": True, "min_words": 180}, "queries": {"overlap": 0.3}},
        "stages": [
            stage("tag", "tag", 40, 20, rows={"in": 40, "ok": 20, "failed": 2, "dropped": 18}),
            stage("aggregate", None, 20, 14),
            stage("benign", "benign", 14, 12),
            stage("queries", "query", 12, 12),
        ],
        "reviews": [REVIEW],
        "merge_map": {
            "sha256": SHA,
            "reviewed": True,
            "groups_kept": 6,
            "groups_dropped": 2,
            "rule": "more than 90 % of the samples marked by both",
        },
    }
    return {**values, **changes}


REVIEW = {
    "kind": "benign",
    "share": 0.15,
    "drawn": 375,
    "drawn_of": 2583,
    "annotators": 2,
    "kappa": 0.876,
    "lo": 0.8,
    "hi": 0.94,
    "raw": 0.98,
    "labels": {"reject": 5, "accept": 370},
}


def assembled(out: Path, count: int = 12, *, manifest: dict[str, Any] | None = None, **more: Any) -> Assembled:
    """A data set of the first miniature pairs in ``out``."""
    options: dict[str, Any] = {"name": "sigils", "license": "cc-by-4.0", "language_code": "en", "rows": rows(count)}
    options |= more
    return assemble(options.pop("rows"), out, manifest or manifest_values(), **options)
