"""Answers to queries, read back from lm-eval's samples logs, with the results file that tells what made them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cg_tasks.canary.parser import parse_tags
from cg_tasks.errors import UserError
from cg_tasks.judge.rubrics import RUBRIC_OF_INTENT, JudgeItem
from cg_tasks.judge.text import encodable
from cg_tasks.judge.verdicts import Verdict, verdict_from_json

# Tasks whose answers are answers to a query; HarmMem and HelpRet continue a text, which no rubric is for.
ANSWER_TASKS = tuple(f"conceptguard_{name}" for name in ("harmqa", "helpqa", "harmscore", "helpscore", "ctxtsep"))
_FILE = re.compile(r"samples_(?P<task>.+?)_(?P<date>\d{4}-\d{2}-\d{2}T[\d.-]+)\.jsonl")
_FIELDS = ("id", "concept", "intent", "query", "target")


@dataclass(frozen=True)
class Answer:
    """One logged answer. response: what was scored, without its trace; raw: as the model wrote it. verdict: where one is logged."""

    doc: dict[str, Any]
    prompt: str
    raw: str
    response: str
    trace_stripped: bool
    verdict: Verdict | None
    where: str

    @property
    def key(self) -> tuple[str, str]:
        return self.doc["id"], self.doc["intent"]

    @property
    def item(self) -> JudgeItem:
        return JudgeItem(self.doc["id"], RUBRIC_OF_INTENT[self.doc["intent"]], self.doc["query"], self.response)


@dataclass(frozen=True)
class SamplesFile:
    """One task's samples. results: the results file written with them, None where it is not there."""

    path: Path
    task: str
    answers: tuple[Answer, ...]
    results: dict[str, Any] | None

    @property
    def rescored(self) -> bool:
        """Whether ``judge rescore`` wrote it."""
        return bool(self.recorded("config").get("rescored"))

    @property
    def provenance(self) -> dict[str, Any]:
        """What the task wrote about itself; empty where the results file is not there."""
        return self.recorded("configs", self.task, "metadata", "provenance")

    def recorded(self, *keys: str) -> dict[str, Any]:
        """An object of the results file by its path of keys; empty where there is none."""
        found: Any = self.results
        for key in keys:
            found = found.get(key) if isinstance(found, dict) else None
        return dict(found) if isinstance(found, dict) else {}


def find_samples(paths: Sequence[str]) -> list[Path]:
    """The samples files among files and folders.

    Raises:
        UserError: a path that is not there, a file of another task, or a folder without any of ours.
    """
    found: dict[Path, None] = {}
    for given in paths:
        path = Path(given).expanduser()
        if path.is_dir():
            inside = [p for p in sorted(path.rglob("samples_*.jsonl")) if _task_of(p) in ANSWER_TASKS and p.is_file()]
            if not inside:
                raise UserError(
                    f"{path}: holds no samples of {', '.join(ANSWER_TASKS)}: run one of them with --log_samples --output_path"
                )
            found.update(dict.fromkeys(inside))
        elif not path.is_file():
            raise UserError(f"{path}: no such file or folder")
        elif _task_of(path) not in ANSWER_TASKS:
            raise UserError(
                f"{path}: not a samples file of a query task (samples_<task>_<date>.jsonl of {', '.join(ANSWER_TASKS)})"
            )
        else:
            found[path] = None
    return list(found)


def read_samples(path: Path) -> SamplesFile:
    """Every answer of one file, and the results file beside it.

    Raises:
        UserError: a line that is no sample, naming file, line and field.
    """
    answers = tuple(_answer(line, where) for line, where in _lines(path))
    if not answers:
        raise UserError(f"{path}: holds no sample")
    seen: dict[tuple[str, str], str] = {}
    for answer in answers:
        if answer.key in seen:
            raise UserError(
                f"{answer.where}: document '{answer.key[0]}' ({answer.key[1]}) comes twice, first at {seen[answer.key]}"
            )
        seen[answer.key] = answer.where
    return SamplesFile(path, _task_of(path), answers, _results_beside(path))


def _task_of(path: Path) -> str:
    match = _FILE.fullmatch(path.name)
    return match["task"] if match else ""


def _results_beside(path: Path) -> dict[str, Any] | None:
    match = _FILE.fullmatch(path.name)
    # results_<date>.json, or <name>_<date>.json where --output_path named a file
    found = sorted(path.parent.glob(f"*_{match['date']}.json")) if match else []
    if not found:
        return None
    beside = next((p for p in found if p.name.startswith("results_")), found[0])
    try:
        results = json.loads(beside.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"{beside}: cannot be read ({error}): take it away to go on without it") from None
    if not isinstance(results, dict):
        raise UserError(f"{beside}: not a results file of lm-eval: take it away to go on without it")
    return results


def _lines(path: Path) -> Iterator[tuple[dict[str, Any], str]]:
    try:
        with path.open(encoding="utf-8") as handle:
            for number, line in enumerate(handle, 1):
                where = f"{path}, line {number}"
                if not line.strip():
                    continue
                try:
                    sample = json.loads(line)
                except (ValueError, RecursionError) as error:  # ValueError: also a number of more than 4300 digits
                    problem = getattr(error, "msg", type(error).__name__)
                    raise UserError(f"{where}: not JSON ({problem}): was the run that wrote it cut off?") from None
                if not isinstance(sample, dict):
                    raise UserError(f"{where}: not a sample of lm-eval (a JSON object)")
                yield sample, where
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: not UTF-8 at byte {error.start}") from None
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror or type(error).__name__}") from None


def _answer(sample: dict[str, Any], where: str) -> Answer:
    doc = sample.get("doc")
    if not isinstance(doc, dict):
        raise UserError(f"{where}: 'doc' is missing: not a sample of lm-eval's --log_samples")
    for field in _FIELDS:
        if not isinstance(doc.get(field), str):
            raise UserError(f"{where}: 'doc.{field}' is missing or no text: not a sample of a ConceptGuard query task")
    if doc["intent"] not in RUBRIC_OF_INTENT:
        raise UserError(f"{where}: 'doc.intent' is {doc['intent']!r}: it must be {' or '.join(RUBRIC_OF_INTENT)}")
    response, verdict = _scored(_dig(sample, where, "filtered_resps", 0), where)
    raw = _dig(sample, where, "resps", 0, 0)
    if not isinstance(raw, str):
        raise UserError(f"{where}: 'resps' does not hold one text")
    return Answer(
        doc={key: encodable(value) if isinstance(value, str) else value for key, value in doc.items()},
        prompt=encodable(_prompt(sample, where)),
        raw=encodable(raw),
        response=encodable(response),
        trace_stripped=_trace_stripped(sample, raw, response),
        verdict=verdict,
        where=where,
    )


def _prompt(sample: dict[str, Any], where: str) -> str:
    """The rendered prompt, which only the samples log shows; empty where it was not logged."""
    return str(_dig(sample, where, "arguments", "gen_args_0", "arg_0")) if sample.get("arguments") else ""


def _trace_stripped(sample: dict[str, Any], raw: str, response: str) -> bool:
    """The metric of that name; --predict_only logs none, and a raw text also differs by the space around it."""
    if isinstance(logged := sample.get("trace_stripped"), (int, float)):
        return bool(logged)
    spec = sample["arguments"]["gen_args_0"].get("arg_2") if sample.get("arguments") else None
    _, closer = parse_tags(spec.get("think_tags") if isinstance(spec, dict) else None)
    return raw != response and closer in raw


def _dig(sample: Any, where: str, *keys: str | int) -> Any:
    for key in keys:
        kind: Any = list if isinstance(key, int) else dict
        if not isinstance(sample, kind):  # a text is a sequence too, whose first letter is no answer
            raise UserError(f"{where}: '{keys[0]}' is not what lm-eval logs")
        try:
            sample = sample[key]
        except (KeyError, IndexError):
            raise UserError(f"{where}: '{keys[0]}' is missing or empty") from None
    return sample


def _scored(value: Any, where: str) -> tuple[str, Verdict | None]:
    """A judged task logs [response, verdict], the others the response alone."""
    if isinstance(value, str):
        return value, None
    if isinstance(value, list) and len(value) == 2 and all(isinstance(part, str) for part in value):
        try:
            return value[0], verdict_from_json(value[1])
        except ValueError as error:
            raise UserError(f"{where}: 'filtered_resps' holds no verdict ({error})") from None
    raise UserError(f"{where}: 'filtered_resps' holds neither an answer nor an answer with its verdict")
