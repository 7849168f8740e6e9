"""Which logged answers belong together: the answers of one model to one data set's harmful and benign queries."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cg_tasks.errors import UserError
from cg_tasks.judge.samples import Answer, SamplesFile

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class AnswerSet:
    """One model's answers. files: those that the answers come from, what was generated before what was rescored."""

    folder: Path
    answers: tuple[Answer, ...]
    files: tuple[SamplesFile, ...]

    @property
    def intents(self) -> tuple[str, ...]:
        return tuple(i for i in ("harmful", "benign") if any(a.doc["intent"] == i for a in self.answers))

    @property
    def model(self) -> str:
        """The model's name as a folder's, as lm-eval recorded it."""
        return str((self.files[0].results or {}).get("model_name_sanitized") or self.folder.name)

    @property
    def task(self) -> str:
        """The judged task that these answers are all there is to: CtxtSep needs both intents."""
        if len(self.intents) == 2:
            return "conceptguard_ctxtsep"
        return "conceptguard_harmscore" if self.intents == ("harmful",) else "conceptguard_helpscore"


def answer_sets(files: Sequence[SamplesFile]) -> list[AnswerSet]:
    """One set for each folder, as lm-eval makes one for each model; what was rescored is left out beside what it came from.

    Raises:
        UserError: files of one folder that differ in data, settings, model or generation, or in an answer they share.
    """
    by_folder: dict[Path, list[SamplesFile]] = {}
    for file in files:
        by_folder.setdefault(file.path.parent.resolve(), []).append(file)
    sets = [_joined(folder, members) for folder, members in by_folder.items()]
    return [one for one in sets if not any(_repeats(one, other) for other in sets)]


def _repeats(one: AnswerSet, other: AnswerSet) -> bool:
    """Whether it is what ``judge rescore --out`` wrote of the other, where both lie below the folder that was named."""
    if not all(file.rescored for file in one.files) or all(file.rescored for file in other.files):
        return False
    return {(a.key, a.response) for a in one.answers} <= {(a.key, a.response) for a in other.answers}


def _joined(folder: Path, files: list[SamplesFile]) -> AnswerSet:
    files = sorted(files, key=lambda f: (f.rescored, f.results is None))
    for file in files:
        if file.results is None:
            logger.warning(
                "%s: its results file is not beside it, so that nothing tells which model and data it comes from",
                file.path,
            )
    for other in files[1:]:
        _check_comparable(files[0], other)
    answers: dict[tuple[str, str], Answer] = {}
    sources = []
    for file in files:
        if any(answer.key not in answers for answer in file.answers):
            sources.append(file)
        for answer in file.answers:
            known = answers.setdefault(answer.key, answer)
            if (known.doc, known.response) != (answer.doc, answer.response):
                raise UserError(
                    f"{answer.where}: another answer or query for document '{answer.key[0]}' ({answer.key[1]}) than at {known.where}: "
                    "name only the files that belong together"
                )
    return AnswerSet(folder, _in_task_order(list(answers.values())), tuple(sources))


def _in_task_order(answers: list[Answer]) -> tuple[Answer, ...]:
    """The two answers of a pair side by side, pairs in the order of their first appearance."""
    rank = {key: position for position, key in enumerate(dict.fromkeys(a.doc["id"] for a in answers))}
    return tuple(sorted(answers, key=lambda a: (rank[a.doc["id"]], a.doc["intent"] != "harmful")))


def _check_comparable(one: SamplesFile, other: SamplesFile) -> None:
    if one.results is None or other.results is None:
        return
    a, b = _what_made(one), _what_made(other)
    for name in (n for n in a if n in b):  # a setting that is newer than one of the two logs tells nothing
        if a[name] != b[name]:
            raise UserError(
                f"{other.path}: differs from {one.path.name} in {name} ({b[name]!r}, not {a[name]!r}): "
                "name only the files of one run, or rescore them one by one"
            )


def _what_made(file: SamplesFile) -> dict[str, Any]:
    provenance, config = file.provenance, file.recorded("config")
    data = file.recorded("configs", file.task, "metadata", "provenance", "data")
    settings = file.recorded("configs", file.task, "metadata", "provenance", "settings")
    settings.pop("judge", None)
    return {
        "model": config.get("model"),
        "model_args": config.get("model_args"),
        "data set": data.get("dataset"),
        "data set content": data.get("sha256"),
        **{f"setting {key}": value for key, value in settings.items()},
        "tokenizer and chat template": provenance.get("model"),
        "adapter": provenance.get("adapter"),
        "generation_kwargs": file.recorded("configs", file.task).get("generation_kwargs"),
        "system_instruction": (file.results or {}).get("system_instruction"),
    }
