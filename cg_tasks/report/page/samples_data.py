"""The samples of every run, packed for the page: texts once, compressed, unpacked by the browser when someone looks at them."""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from cg_tasks.errors import UserError
from cg_tasks.report.page.results_json import plain
from cg_tasks.report.runs import TaskRun

if TYPE_CHECKING:
    from cg_tasks.report.results.texts import SampleArm, SampleText

_LEVEL = 6  # of gzip: 9 is three times as slow and saves 1 %
_DOC_FIELDS = ("id", "concept", "intent", "role", "author", "query", "target")


@dataclass(frozen=True)
class SamplesData:
    """index: one entry a run, which names its chunks. chunks: name -> base64 of gzip'd JSON."""

    index: list[dict[str, Any]] = field(default_factory=list)
    chunks: dict[str, str] = field(default_factory=dict)


def pack(runs: Sequence[TaskRun], read: Callable[[TaskRun], Iterable[SampleText]] | None = None) -> SamplesData:
    """The samples of ``runs`` (those of our tasks) for the sample browser, one run in memory at a time.

    What runs share, such as queries, targets and prompts, is stored once: a chunk's name is a hash of what it holds.
    A run without samples stays in the index with the reason. read: gives a run's samples; :func:`texts.texts` by default.
    """
    data = SamplesData()
    keys: set[str] = set()
    for run in {(r.path, r.task): r for r in runs if r.family != "other"}.values():
        entry = _entry(run, read or _read, data.chunks)
        while entry["key"] in keys:  # the same task, checkpoint and settings twice
            entry["key"] += "x"
        keys.add(entry["key"])
        data.index.append(entry)
    return data


def _read(run: TaskRun) -> Iterable[SampleText]:
    from cg_tasks.report.results.texts import texts

    return texts(run)


def chunk(value: Any) -> str:
    """JSON, gzip'd, in base64: what a page can hold whatever a model wrote. Equal for equal values."""
    return _compressed(_json(value))


def _json(value: Any) -> bytes:
    return json.dumps(plain(value), ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()


def _compressed(text: bytes) -> str:
    return base64.b64encode(gzip.compress(text, _LEVEL, mtime=0)).decode("ascii")


def _entry(run: TaskRun, read: Callable[[TaskRun], Iterable[SampleText]], chunks: dict[str, str]) -> dict[str, Any]:
    c = run.checkpoint
    entry: dict[str, Any] = {
        "key": _key(run),
        "task": run.task,
        "data": str(run.fingerprint.get("data", "")),
        "base": c.base,
        "checkpoint": c.label + (f", {c.regime}" if c.regime else ""),
        "seed": c.seed if c.start_seed in (None, c.seed) else f"{c.seed} (start {c.start_seed})",
        "date": run.date,
        "metrics": {name: metric.value for name, metric in run.metrics.items()},
        "n": 0,
        "why": "",
    }
    if run.samples is None:
        return {**entry, "why": "Its samples were not logged: run lm_eval with --log_samples."}
    try:
        samples = list(read(run))
    except (UserError, OSError) as error:
        return {**entry, "why": f"Its samples cannot be read: {error}"}
    if not samples:
        return {**entry, "why": f"{run.samples} holds no sample that can be read."}
    parts = {"docs": _documents(samples), "prompts": _prompts(samples), "said": _said(samples)}
    for part, value in parts.items():
        text = _json(value)
        name = hashlib.sha256(text).hexdigest()[:12]
        if name not in chunks:
            chunks[name] = _compressed(text)
        entry[part] = name
    return {**entry, "n": len(samples)}


def _key(run: TaskRun) -> str:
    """Stable while other results come and go, so that links to samples stay valid."""
    what = plain([run.task, run.checkpoint.weights, run.fingerprint])
    return hashlib.sha256(json.dumps(what, sort_keys=True).encode()).hexdigest()[:8]


def _documents(samples: Sequence[SampleText]) -> dict[str, list[Any]]:
    columns = {name: [getattr(s, name) for s in samples] for name in _DOC_FIELDS}
    if any(s.unit != s.id for s in samples):
        columns["unit"] = [s.unit for s in samples]
    return {name: values for name, values in columns.items() if any(values)}


def _prompts(samples: Sequence[SampleText]) -> dict[str, list[Any]]:
    """A prompt as what stands before and after the query, where it holds it: mostly the same two texts for every document."""
    return {"prompt": [_around(s.query, s.prompt) for s in samples]}


def _around(query: str, prompt: str) -> str | list[str]:
    before, found, after = prompt.partition(query) if query else (prompt, "", "")
    return [before, after] if found else prompt


def _said(samples: Sequence[SampleText]) -> dict[str, Any]:
    names = dict.fromkeys(arm.name for s in samples for arm in s.arms)
    metrics = dict.fromkeys(name for s in samples for name in s.scores)
    verdicts = {
        part: [_round(getattr(s.verdict, part)) if s.verdict else None for s in samples]
        for part in ("status", "level", "score", "reasoning")
    }
    return {
        "arms": [_arm(name, [next((a for a in s.arms if a.name == name), None) for s in samples]) for name in names],
        "scores": {name: [_round(s.scores.get(name)) for s in samples] for name in metrics},
        "verdict": {part: values for part, values in verdicts.items() if any(v is not None for v in values)},
    }


def _arm(name: str, arms: Sequence[SampleArm | None]) -> dict[str, Any]:
    metrics = dict.fromkeys(metric for a in arms if a for metric in a.scores)
    found: dict[str, list[Any]] = {
        "trace": [a.trace if a else None for a in arms],
        "answer": [a.answer if a else None for a in arms],
        "raw": [_raw(a) if a else None for a in arms],
        "prefill": [a.prefill if a else None for a in arms],
        "opened": [int(a.opened_in_prompt) if a else None for a in arms],
    }
    return {
        "name": name,
        "hit": [None if a is None or a.hit is None else int(a.hit) for a in arms],
        **{part: values for part, values in found.items() if any(v not in (None, "", 0) for v in values)},
        "scores": {m: [_round(a.scores.get(m)) if a else None for a in arms] for m in metrics},
    }


def _raw(arm: SampleArm) -> Any:
    """The raw generation as what stands before, between and behind trace and answer; None where it is the answer and no more."""
    if arm.raw == arm.answer and not arm.trace:
        return None
    at = arm.raw.find(arm.trace)
    then = arm.raw.find(arm.answer, at + len(arm.trace)) if at >= 0 else -1
    if then < 0:
        return arm.raw
    return [arm.raw[:at], arm.raw[at + len(arm.trace) : then], arm.raw[then + len(arm.answer) :]]


def _round(value: Any) -> Any:
    return round(value, 6) if isinstance(value, float) else value
