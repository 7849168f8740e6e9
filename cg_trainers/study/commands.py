"""Command lines of a study's jobs: the same that a person would type."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from cg_tasks.errors import UserError
from cg_trainers.study.jobs import MODULES
from cg_trainers.study.schema import Evaluate, Judge, Model

# Tasks with answers to queries, which the rubrics are for; the second are judged in the run unless told to wait.
_ANSWERED = {"conceptguard", "conceptguard_rouge", "conceptguard_harmqa", "conceptguard_helpqa"}
_JUDGED = {"conceptguard", "conceptguard_ctxtsep", "conceptguard_harmscore", "conceptguard_helpscore"}


def launched(command: Sequence[str], launcher: Sequence[str]) -> tuple[str, ...]:
    """The command with ``launcher`` in the place of ``python -m``, which ``lm_eval`` and ``conceptguard`` are short for."""
    if not launcher:
        return tuple(command)
    if tuple(command[:2]) == ("python", "-m"):
        return (*launcher, *command[2:])
    if command[0] in MODULES:
        return (*launcher, MODULES[command[0]], *command[1:])
    return tuple(command)


def train(module: str, recipe: str, options: Mapping[str, Any], overrides: Mapping[str, Any]) -> tuple[str, ...]:
    """``python -m cg_trainers.<module>`` with a recipe. options: what the study sets; overrides: what its author does.

    Raises:
        UserError: an override that the command line cannot say.
    """
    words = ["python", "-m", f"cg_trainers.{module}", "--config", recipe]
    for name, value in {**options, **overrides}.items():
        words += [f"--{name}", *_values(name, value)]
    return tuple(words)


def _values(name: str, value: Any) -> list[str]:
    if value is None or value == []:
        raise UserError(
            f"{name}: {'null' if value is None else '[]'} cannot be said on a command line: write a recipe with 'include:' and "
            "this value, and name it as the recipe"
        )
    return [_text(item) for item in (value if isinstance(value, list) else [value])]


def _text(value: Any) -> str:
    if isinstance(value, str):
        return value
    return json.dumps(value, ensure_ascii=False)  # true, 0.1, {"a": 1}


def evaluate(
    entry: Evaluate, model: Model, checkpoint: tuple[str, str | None], output: str, judge: Judge | None
) -> tuple[str, ...]:
    """``lm_eval`` for one checkpoint: (model, adapter or None).

    Raises:
        UserError: a value that lm_eval would cut in two, a backend that does not say which adapter it evaluated, a judge set twice.
    """
    pretrained, peft = checkpoint
    if peft is not None and entry.backend != "hf":
        raise UserError(
            f"backend: {entry.backend}: an adapter is evaluated with hf, because results of other backends do not say which adapter "
            "they are of: set backend: hf, or when: [base]"
        )
    arguments = {"pretrained": pretrained, **model.model_args, **entry.model_args}
    if peft is not None:
        arguments["peft"] = peft
    for name, value in arguments.items():
        if "," in str(value):
            raise UserError(f"{name}: {value}: lm_eval cuts model arguments at commas: use a path without one")
    metadata = dict(entry.metadata)
    if judge is not None and _JUDGED & set(entry.tasks) and metadata.setdefault("judge", "later") != "later":
        raise UserError("metadata.judge: the study has a judge of its own: remove one of the two")
    words = ["lm_eval", "--model", entry.backend]
    words += ["--model_args", ",".join(f"{name}={_plain(value)}" for name, value in arguments.items())]
    words += ["--tasks", ",".join(entry.tasks)]
    if metadata:
        words += ["--metadata", *(f"{name}={_text(value)}" for name, value in metadata.items())]
    if entry.apply_chat_template:
        words += [
            "--apply_chat_template",
            *([entry.apply_chat_template] if entry.apply_chat_template is not True else []),
        ]  # type: ignore[list-item]
    options: tuple[tuple[str, Any], ...] = (("--limit", entry.limit), ("--batch_size", entry.batch_size))
    for flag, value in options:
        words += [flag, str(value)] if value is not None else []
    if entry.gen_kwargs:
        words += ["--gen_kwargs", *(f"{name}={_plain(value)}" for name, value in entry.gen_kwargs.items())]
    return (*words, *entry.arguments, "--log_samples", "--output_path", output)


def _plain(value: Any) -> str:
    """As lm_eval reads it back with ``ast.literal_eval``: True, 0.1, text without quotes."""
    return str(value)


def is_judged(entry: Evaluate) -> bool:
    """Whether ``judge rescore`` has something to do with the answers."""
    return bool((_ANSWERED | _JUDGED) & set(entry.tasks))


def rescore(results: str, judge: Judge, output: str) -> tuple[str, ...]:
    """``conceptguard judge rescore`` of one evaluation."""
    settings = ("--judge", judge.settings) if judge.settings else ()
    return ("conceptguard", "judge", "rescore", results, *settings, "--out", output)


def subset(dataset: str, columns: Any, fraction: float, seed: int, output: str) -> tuple[str, ...]:
    """``conceptguard data subset``: the pairs with a smaller forget set."""
    named = ("--columns", columns if isinstance(columns, str) else json.dumps(columns)) if columns else ()
    words = ("conceptguard", "data", "subset", dataset, *named)
    return (*words, "--forget-fraction", f"{fraction:g}", "--seed", str(seed), "--out", output)
