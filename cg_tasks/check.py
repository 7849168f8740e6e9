"""``conceptguard tasks check``: load tasks, render documents, score fake responses, aggregate — no model needed.

``lm_eval validate`` looks only at names. This walks the whole path a run takes, with a word tokenizer and canned answers in
place of a model, so that a fault in a template, a canary file or a task's YAML shows before a GPU is waited for.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from cg_tasks.binding import Bound, bind_all
from cg_tasks.errors import UserError
from cg_tasks.judge.rubrics import JudgeItem
from cg_tasks.judge.settings import read_judge_settings
from cg_tasks.judge.verdicts import TOP_LEVEL, Verdict, empty_verdict, of_level
from cg_tasks.requests import CG_GENERATE, CG_TEACHER_FORCED, Generation, TeacherForced

_WORD = re.compile(r"\s*\S+|\s+")


class WordTokenizer:
    """A token is a word with the white space before it. Enough of a fast tokenizer's interface to cut and join texts."""

    is_fast = True
    chat_template = "words"
    name_or_path = "words (conceptguard tasks check)"
    eos_token, eos_token_id, bos_token_id, pad_token_id = "", 0, None, 0

    def __init__(self) -> None:
        self._ids: dict[str, int] = {}
        self._words: list[str] = []

    def __call__(self, text: str, **kwargs: Any) -> dict[str, Any]:
        spans = [m.span() for m in _WORD.finditer(text)]
        return {"input_ids": [self._id(text[a:b]) for a, b in spans], "offset_mapping": spans}

    def _id(self, word: str) -> int:
        if word not in self._ids:
            self._ids[word] = len(self._words)
            self._words.append(word)
        return self._ids[word]

    def decode(self, ids: Sequence[int], **kwargs: Any) -> str:
        return "".join(self._words[i] for i in ids)

    def get_vocab(self) -> dict[str, int]:
        return {}


class RehearsalLM:
    """Stands where a model would: renders prompts with words as tokens, and answers with a canned text."""

    rank, world_size = 0, 1

    def __init__(self, tokenizer: Any = None) -> None:
        self.tokenizer = tokenizer or WordTokenizer()

    def apply_chat_template(self, turns: Sequence[dict[str, str]], add_generation_prompt: bool = True) -> str:
        if isinstance(self.tokenizer, WordTokenizer):
            return "".join(f"[{t['role']}] {t['content']}\n" for t in turns) + "[assistant]\n"
        return str(self.tokenizer.apply_chat_template(list(turns), tokenize=False, add_generation_prompt=True))

    def tok_encode(self, text: str, **kwargs: Any) -> list[int]:
        return list(self.tokenizer(text)["input_ids"])


@dataclass(frozen=True)
class TaskReport:
    """What a rehearsal of one task found."""

    name: str
    documents: int
    prompts: list[tuple[str, str]]  # what it is, and its text
    metrics: dict[str, float]
    problems: list[str]


def check_task(task: Any, n_docs: int = 2, tokenizer: Any = None) -> TaskReport:
    """Rehearse one loaded task.

    Every document's prompts are bound, as a run would; ``n_docs`` of them are returned for reading. Then each document is
    scored three times, against its own target, an empty text, and a foreign one, and the metrics are aggregated.

    Raises:
        UserError: what a run would raise before generation.
    """
    lm, problems = RehearsalLM(tokenizer), []
    task.build_all_requests(limit=None, apply_chat_template=False)
    bound = bind_all(lm, task.instances)
    prompts = [
        (_label(request), _conditioned_on(request, b))
        for request, b in zip(task.instances, bound, strict=True)
        if request.doc_id < n_docs
    ]
    if hasattr(task, "ask"):
        task.ask = canned_verdicts
    by_doc: dict[int, list[Any]] = {}
    for request in task.instances:
        by_doc.setdefault(request.doc_id, []).append(request)
    collected: dict[str, dict[str, list[Any]]] = {"echo": {}, "empty": {}, "foreign": {}}
    for kind, values in collected.items():
        for request, b in zip(task.instances, bound, strict=True):
            request.resps, request.filtered_resps = [_fake(request, b, kind)], {}
        task.apply_filters()
        for requests in by_doc.values():
            responses = [next(iter(r.filtered_resps.values())) for r in requests]
            for metric, value in task.process_results(requests[0].doc, responses).items():
                values.setdefault(metric, []).append(value)
    aggregation = task.aggregation()
    if missing := [m for m in collected["echo"] if m not in aggregation]:
        problems.append(f"metric '{missing[0]}' has no aggregation")
    echo, empty = (
        {m: aggregation[m](v) for m, v in collected[k].items() if m in aggregation} for k in ("echo", "empty")
    )
    headline = task.metric_names[0]
    if not echo[headline] > empty[headline] and not math.isnan(echo[headline]) and task.REQUEST == CG_GENERATE:
        problems.append(
            f"'{headline}' is {echo[headline]:.3f} for the true text and {empty[headline]:.3f} for an empty one: it measures nothing"
        )
    return TaskReport(task.config.task, len(by_doc), prompts, {m: echo[m] for m in task.metric_names}, problems)


def canned_verdicts(items: Sequence[JudgeItem]) -> list[Verdict]:
    """Stands where a judge would: 0 for an empty response, else a little harm and all the help there can be."""
    level = {"harm": 1, "help": TOP_LEVEL}
    return [of_level(i.rubric, level[i.rubric]) if i.response.strip() else empty_verdict(i.rubric) for i in items]


def _label(request: Any) -> str:
    """Which document, arm and baseline a prompt belongs to."""
    spec = request.arguments[-1]
    parts = [spec["id"]]
    if "probe" in spec:
        parts.append(spec["prefill"]["name"] if "prefill" in spec else "auto")
    if spec.get("head_order") == "shuffled":
        parts.append("shuffled head")
    if "target" in spec and spec["author"] != request.doc["author"]:
        parts.append("wrong author")
    return ", ".join(parts)


def _conditioned_on(request: Any, b: Bound) -> str:
    """The prompt, and for teacher forcing the head that is put behind it."""
    return b.prompt + b.head if request.request_type == CG_TEACHER_FORCED else b.prompt


def _fake(request: Any, b: Bound, kind: str) -> Any:
    if request.request_type == CG_TEACHER_FORCED:
        scored = TeacherForced("rehearsal")
        scored.logprobs, scored.top1 = (
            ([-0.1, -0.2], [True, True]) if kind == "echo" else ([-9.0, -9.0], [False, False])
        )
        return scored
    target = request.doc["target"]
    text = {"echo": target[len(b.start) :], "empty": "", "foreign": "An answer about something else."}[kind]
    generation = Generation(text)
    generation.prompt, generation.head, generation.start = b.prompt, b.head, b.start
    return generation


def check_tasks(
    names: Sequence[str], metadata: dict[str, Any], tokenizer: str | None = None
) -> list[TaskReport | UserError]:
    """Rehearse tasks and groups by name, each on its own, so that one fault does not hide the next.

    tokenizer: a folder or Hub id whose tokenizer and chat template render the prompts, instead of words as tokens.

    Raises:
        UserError: a name that is no task of ours.
    """
    from lm_eval.tasks import TaskManager

    from cg_tasks.paths import task_configs_dir

    if read_judge_settings() is None:  # a rehearsal asks no judge; one that is configured is checked
        metadata = {"judge": "later", **metadata}
    manager = TaskManager(include_path=str(task_configs_dir()), include_defaults=False, metadata=metadata)
    known = manager.all_subtasks
    wanted = list(names) or known
    for name in wanted:
        if name not in manager.all_tasks:
            raise UserError(f"no task or group '{name}' (known: {', '.join(manager.all_tasks)})")
    loaded = _tokenizer(tokenizer) if tokenizer else None
    reports: list[TaskReport | UserError] = []
    seen: set[str] = set()
    for name in wanted:
        try:
            for task_name, task in manager.load([name])["tasks"].items():
                if task_name not in seen:
                    seen.add(task_name)
                    reports.append(check_task(task, tokenizer=loaded))
        except UserError as error:
            reports.append(UserError(f"{name}: {error}"))
    return reports


def _tokenizer(name: str) -> Any:
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(name)
    except Exception as error:  # transformers and the Hub client raise many types for "there is none"
        reason = " ".join(str(error).split())[:200]
        raise UserError(
            f"--tokenizer {name}: no tokenizer could be loaded from there ({type(error).__name__}: {reason})"
        ) from error
