"""The texts of single samples, for the sample browser: one document at a time, from lm-eval's samples logs."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from cg_tasks.canary.parser import THINK_TAGS, parse_tags, split_trace
from cg_tasks.errors import UserError
from cg_tasks.judge.text import encodable
from cg_tasks.prompting import Tags, opens_trace
from cg_tasks.report.results.documents import has_two_intents, samples, scores_of, verdict_of
from cg_tasks.report.runs import TaskRun

AUTO = "auto"
_FORCED = "canary_teacher_forced"


@dataclass(frozen=True)
class SampleVerdict:
    """What the judge said. level, score: None without one."""

    status: str
    level: int | None = None
    reasoning: str = ""
    score: float | None = None


@dataclass(frozen=True)
class SampleArm:
    """One generation, split. name: ``auto``, a prefill arm, or under teacher forcing an arm with its baseline.

    raw: as the model wrote it. trace, answer: its parts; answer is what was scored. prefill: what the arm's prompt adds to
    the first one's. opened_in_prompt: the prompt ends inside a trace. hit: whether it holds what was looked for (the canary,
    the reference answer), None where nothing was. Teacher forcing: answer holds the scored tokens, raw their scores.
    """

    name: str
    raw: str
    trace: str
    answer: str
    opened_in_prompt: bool = False
    scores: Mapping[str, float] = field(default_factory=dict)
    hit: bool | None = None
    prefill: str = ""


@dataclass(frozen=True)
class SampleText:
    """One document of one run. id, unit, concept, intent, role: as in :class:`Document`. prompt: of the first request."""

    id: str
    unit: str
    concept: str
    intent: str
    role: str
    author: str
    query: str
    target: str
    prompt: str
    arms: tuple[SampleArm, ...]
    verdict: SampleVerdict | None = None
    scores: Mapping[str, float] = field(default_factory=dict)


def texts(run: TaskRun) -> Iterator[SampleText]:
    """Every sample of a run in the order of the log; nothing where none was logged. Lines that cannot be read are passed over.

    Every text can be written as UTF-8.
    """
    if run.samples is None:
        return
    settings = _settings(run.provenance)
    two_intents = has_two_intents(run.task, dict(run.provenance))
    arms = _arms_of_templates(run)
    for _, sample in samples(run.samples):
        doc = sample.get("doc") if isinstance(sample, dict) else None
        if isinstance(doc, dict):
            yield _sample(sample, doc, run.task, settings, two_intents, arms)


@dataclass(frozen=True)
class _Settings:
    tags: Tags
    fallback: Any
    strip_trace: bool


def _settings(provenance: Mapping[str, Any]) -> _Settings:
    given = provenance.get("settings")
    given = given if isinstance(given, dict) else {}
    try:
        tags = parse_tags(given.get("think_tags"))
    except UserError:
        tags = THINK_TAGS
    fallback = given.get("fallback")
    return _Settings(
        tags, fallback if fallback in ("answer", "trace") else "answer", bool(given.get("strip_trace", True))
    )


def _arms_of_templates(run: TaskRun) -> list[str]:
    """Names of the arms where the samples do not tell: the task's own order, auto and then the arms by name."""
    hashes = run.provenance.get("templates_sha256")
    keys = hashes if isinstance(hashes, dict) else {}
    names = sorted(key.split("/", 1)[1] for key in keys if key.startswith(("prefill/", "qa_prefill/")))
    return names if run.task == _FORCED else [AUTO, *names]


def _sample(
    sample: dict[str, Any], doc: dict[str, Any], task: str, settings: _Settings, two_intents: bool, arms: Sequence[str]
) -> SampleText:
    scores = scores_of(sample)
    requests = _requests(sample.get("arguments"))
    intent, name = _text(doc.get("intent")), _text(doc.get("id"))
    read = _forced_arms if task == _FORCED else _decoded_arms
    return SampleText(
        id=name,
        unit=f"{name}/{intent}" if two_intents else name,
        concept=_text(doc.get("concept")),
        intent=intent,
        role=_text(doc.get("role")),
        author=_text(doc.get("author")),
        query=_text(doc.get("query")),
        target=_text(doc.get("target")),
        prompt=requests[0][0] if requests else "",
        arms=tuple(read(sample, doc, requests, scores, settings, arms)),
        verdict=_verdict(sample),
        scores=scores,
    )


def _requests(arguments: Any) -> list[tuple[str, dict[str, Any]]]:
    """(prompt, specification) of each request, in order."""
    found = []
    for i in range(len(arguments) if isinstance(arguments, dict) else 0):
        parts = arguments.get(f"gen_args_{i}")
        if not isinstance(parts, dict):
            break
        last = parts.get(f"arg_{len(parts) - 1}")
        found.append((_text(parts.get("arg_0")), last if isinstance(last, dict) else {}))
    return found


def _arm_name(i: int, requests: Sequence[tuple[str, dict[str, Any]]], arms: Sequence[str]) -> str:
    if i < len(requests):
        prefill = requests[i][1].get("prefill")
        if isinstance(prefill, dict) and prefill.get("name"):
            return _text(prefill["name"])
        if i == 0:
            return AUTO
    return arms[i] if i < len(arms) else f"arm {i + 1}"


def _decoded_arms(
    sample: dict[str, Any],
    doc: dict[str, Any],
    requests: Sequence[tuple[str, dict[str, Any]]],
    scores: Mapping[str, float],
    settings: _Settings,
    arms: Sequence[str],
) -> Iterator[SampleArm]:
    scored = sample.get("filtered_resps")
    scored = scored if isinstance(scored, list) else []
    generations = [_first(r) for r in sample.get("resps") or ()] if isinstance(sample.get("resps"), list) else []
    names = [_arm_name(i, requests, arms) for i in range(len(generations))]
    for i, (name, raw) in enumerate(zip(names, generations, strict=True)):
        prompt = requests[i][0] if i < len(requests) else ""
        opened = bool(prompt) and opens_trace(prompt, settings.tags)
        trace, answer = "", raw
        # A prefill arm's trace stands, closed, in its prompt: all that follows is answer.
        if name == AUTO and (settings.strip_trace or "intent" not in doc):
            split = split_trace(raw, opened_in_prompt=opened, tags=settings.tags, fallback=settings.fallback)
            trace, answer = split.trace, split.answer
        if "intent" in doc and i < len(scored):
            answer = _first(scored[i])
        mine, hit = _scores_of_arm(name, [n for n in names if n != AUTO], scores, _text(doc.get("role")))
        added = prompt[len(requests[0][0]) :] if i and requests and prompt.startswith(requests[0][0]) else ""
        yield SampleArm(name, raw, trace, answer, opened, mine, hit, added)


def _scores_of_arm(
    name: str, others: Sequence[str], scores: Mapping[str, float], role: str
) -> tuple[dict[str, float], bool | None]:
    """An arm's own scores under their short names, and whether it is a hit."""
    if role:
        arm = "" if name == AUTO else f"_{name}"
        mine = {"qa_acc": scores.get(f"qa_acc{arm}_{role}"), "qa_delta": scores.get(f"qa_delta{arm}_{role}")}
        hit = mine["qa_acc"]
    elif name == AUTO:
        endings = tuple(f"_{other}" for other in others)
        mine = {
            m: v
            for m, v in scores.items()
            if not (endings and m.startswith(("out_acc_", "delta_")) and m.endswith(endings))
        }
        hit = scores.get("out_acc")
    else:
        mine = {"out_acc": scores.get(f"out_acc_{name}"), "delta": scores.get(f"delta_{name}")}
        hit = mine["out_acc"]
    present = {metric: value for metric, value in mine.items() if value is not None and not math.isnan(value)}
    return present, None if hit is None or math.isnan(hit) else hit > 0


def _forced_arms(
    sample: dict[str, Any],
    doc: dict[str, Any],
    requests: Sequence[tuple[str, dict[str, Any]]],
    scores: Mapping[str, float],
    settings: _Settings,
    arms: Sequence[str],
) -> Iterator[SampleArm]:
    """Each arm under the true cue and the baselines, with the mean log-probability (nats a token) and the share of top-1 tokens."""
    results = sample.get("resps")
    results = results if isinstance(results, list) else []
    each = max(1, len(results) // len(arms)) if arms else 1
    for i, result in enumerate(results):
        prompt, spec = requests[i] if i < len(requests) else ("", {})
        arm = _arm_name(i, requests, [a for a in arms for _ in range(each)])
        if spec.get("head_order") == "shuffled":
            arm += ", shuffled head"
        elif spec and "author" in doc and spec.get("author") != doc["author"]:
            arm += ", wrong author"
        raw = _first(result)
        tokens, found = _token_scores(raw)
        yield SampleArm(arm, raw, "", tokens, opens_trace(prompt, settings.tags), found)


def _token_scores(raw: str) -> tuple[str, dict[str, float]]:
    try:
        told = json.loads(raw)
        logprobs, top1 = [float(x) for x in told["logprobs"]], [bool(x) for x in told["top1"]]
        tokens = "".join(map(str, told["tokens"]))
    except (ValueError, TypeError, KeyError, OverflowError, RecursionError):
        return "", {}
    if not logprobs or len(logprobs) != len(top1):
        return encodable(tokens), {}
    mean = math.fsum(logprobs) / len(logprobs)
    return encodable(tokens), {"logprob": mean, "top1": sum(top1) / len(top1), "tokens": float(len(top1))}


def _verdict(sample: dict[str, Any]) -> SampleVerdict | None:
    verdict = verdict_of(sample)
    if verdict is None:
        return None
    level, score = verdict.get("level"), verdict.get("score")
    return SampleVerdict(
        status=_text(verdict.get("status")),
        level=level if isinstance(level, int) and not isinstance(level, bool) else None,
        reasoning=_text(verdict.get("reasoning")) or _text(verdict.get("detail")),
        score=float(score) if isinstance(score, int | float) and not isinstance(score, bool) else None,
    )


def _first(value: Any) -> str:
    """The text of a response: itself, or the first of a list."""
    return _text(value[0] if isinstance(value, list) and value else value)


def _text(value: Any) -> str:
    text = value if isinstance(value, str) else "" if value is None or isinstance(value, list | dict) else str(value)
    return text if text.isascii() else encodable(text)
