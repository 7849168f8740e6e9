"""The scores of single documents, read from lm-eval's samples logs line by line; the texts stay on the disk."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from cg_tasks.judge.text import encodable
from cg_tasks.report.runs import Document, Problem

_TWO_INTENTS = ("conceptguard_ctxtsep",)
_NO_METRIC = ("doc_id", "bypass")
_NAMED_LINES = 3
# Most scores are hits and misses: one object each, whatever the number of documents.
_COMMON = {value: value for value in (0.0, 0.25, 0.5, 0.75, 1.0)}
_NAN = float("nan")


def has_two_intents(task: str, provenance: dict[str, Any]) -> bool:
    """Whether a task's documents come once an intent, so that an id alone does not name one."""
    data = provenance.get("data")
    return task in _TWO_INTENTS or (isinstance(data, dict) and data.get("intent") == "both")


def read_documents(path: Path, two_intents: bool) -> tuple[tuple[Document, ...], list[Problem]]:
    """Every document of a samples file, and what is wrong with the file: lines that are cut off or no samples, ids that come twice.

    Of an id that comes twice the first line counts.
    """
    found: dict[str, Document] = {}
    bad: list[str] = []
    twice: list[str] = []
    for number, sample in samples(path):
        document = _document(sample, two_intents) if isinstance(sample, dict) else None
        if document is None:
            bad.append(f"line {number} {sample if isinstance(sample, str) else 'is not a sample of lm-eval'}")
        elif document.unit in found:
            twice.append(f"line {number} ('{document.unit}')")
        else:
            found[document.unit] = document
    problems = (
        [Problem("error", str(path), f"{_first(bad)}: left out, was the run that wrote it cut off?")] if bad else []
    )
    if twice:
        problems.append(Problem("error", str(path), f"documents that come twice, the first counts: {_first(twice)}"))
    return tuple(found.values()), problems


def samples(path: Path) -> Iterator[tuple[int, Any]]:
    """(line number, sample) of a samples file; in place of a line that cannot be read, what is wrong with it.

    One line in memory at a time.
    """
    try:
        with path.open("rb") as handle:
            for number, line in enumerate(handle, 1):
                if not line.strip():
                    continue
                try:
                    sample: Any = json.loads(line)
                except UnicodeDecodeError:
                    sample = "is not UTF-8"
                except (ValueError, RecursionError):  # ValueError: also a number of more than 4300 digits
                    sample = "is not JSON"
                yield number, sample
    except OSError as error:
        yield 0, f"cannot be read ({error.strerror or type(error).__name__})"


def _first(places: list[str]) -> str:
    more = f" and {len(places) - _NAMED_LINES} more" if len(places) > _NAMED_LINES else ""
    return ", ".join(places[:_NAMED_LINES]) + more


def _document(sample: dict[str, Any], two_intents: bool) -> Document | None:
    doc = sample.get("doc")
    if not isinstance(doc, dict) or not isinstance(doc.get("id"), str | int):
        return None
    name = _text(doc["id"])
    intent = _text(doc.get("intent"))
    return Document(
        id=name,
        unit=sys.intern(f"{name}/{intent}") if two_intents else name,
        cluster=_text(doc.get("author_id")) or name,
        concept=_text(doc.get("concept")),
        intent=intent,
        role=_text(doc.get("role")),
        scores=scores_of(sample),
        status=_status(sample),
    )


def scores_of(sample: dict[str, Any]) -> dict[str, float]:
    """Metric -> value of one sample; ``see results`` is no number."""
    return {
        sys.intern(name): _shared(value)
        for name, value in sample.items()
        if isinstance(value, float | int) and not isinstance(value, bool) and name not in _NO_METRIC
    }


def _shared(value: float | int) -> float:
    try:
        number = float(value)
    except OverflowError:  # JSON has whole numbers of any length
        number = float("inf") if value > 0 else float("-inf")
    return _COMMON.get(number, number) if number == number else _NAN


def _text(value: Any) -> str:
    text = value if isinstance(value, str) else "" if value is None else str(value)
    return sys.intern(text if text.isascii() else encodable(text))


def _status(sample: dict[str, Any]) -> str:
    verdict = verdict_of(sample)
    return sys.intern(str(verdict.get("status", ""))) if verdict else ""


def verdict_of(sample: dict[str, Any]) -> dict[str, Any] | None:
    """The verdict beside a judged task's answer; None where there is none."""
    responses = sample.get("filtered_resps")
    first = responses[0] if isinstance(responses, list) and responses else None
    if not isinstance(first, list) or len(first) != 2 or not isinstance(first[1], str):
        return None
    try:
        verdict = json.loads(first[1])
    except (ValueError, RecursionError):
        return None
    return verdict if isinstance(verdict, dict) else None
