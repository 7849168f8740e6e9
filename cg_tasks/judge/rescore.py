"""Judge logged answers later, without the model, through the very task that would have judged them in the run.

lm-eval runs the task with a model that only repeats what was logged, so the numbers, tables, results and samples are those of a run.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lm_eval.api.model import LM

from cg_tasks.errors import UserError
from cg_tasks.judge.answer_sets import AnswerSet
from cg_tasks.judge.judging import Judge
from cg_tasks.judged import JudgedTask, SeparationTask
from cg_tasks.pair_task import Answer as ScoredAnswer
from cg_tasks.pairs import PairTable
from cg_tasks.paths import task_configs_dir
from cg_tasks.requests import Generation

# What lm-eval records of a run beside its configuration.
_RECORDED: tuple[str, ...] = (
    "model_source",
    "model_name",
    "model_name_sanitized",
    "system_instruction",
    "system_instruction_sha",
    "chat_template",
    "chat_template_sha",
    "fewshot_as_multiturn",
)


class _Logged(Generation):
    """A raw generation from the log, with what was scored of it then."""

    answer: ScoredAnswer


class _LoggedTask(JudgedTask):
    """A judged task over logged answers: their documents, their provenance, a judge that is given."""

    answers: AnswerSet
    judge: Judge

    def load_table(self) -> PairTable:
        data = self.answers.files[0].provenance.get("data") or {}
        return PairTable(str(data.get("dataset") or "unknown data"), (), str(data.get("sha256") or ""))

    def check_weights(self) -> None:
        self.trained_model = None  # of another time, and perhaps another machine: the log tells

    def configure_judge(self) -> None:
        self.use_judge(self.judge)

    def tell_missing(self, missing: int) -> None:
        """The command says it, once for all models."""

    def documents(self) -> list[dict[str, str]]:
        return [answer.doc for answer in self.answers.answers]

    def scored_response(self, response: Any) -> Any:
        return response.answer

    def data_provenance(self) -> dict[str, Any]:
        data = self.answers.files[0].provenance.get("data") or {"dataset": self.table.name, "sha256": None}
        return {**data, "intent": self.split}

    def provenance(self) -> dict[str, Any]:
        made = self.answers.files[0].provenance
        kept: dict[str, Any] = {key: made.get(key) for key in ("model", "adapter", "trained_model", "templates_sha256")}
        # Also those that this process must not read again, such as a folder of another machine.
        settings = {**self.settings.as_json(), **_made_settings(self.answers), "judge": None}
        sources = [{"file": f.path.name, "versions": f.provenance.get("versions")} for f in self.answers.files]
        return {**super().provenance(), **kept, "settings": settings, "rescored_from": sources}


class _Replay(LM):
    """Repeats logged answers."""

    def __init__(self, answers: AnswerSet):
        super().__init__()
        self._by_key = {answer.key: answer for answer in answers.answers}

    def cg_generate(self, requests: Sequence[Any]) -> list[Generation]:
        out: list[Generation] = []
        for request in requests:
            logged = self._by_key[(request.doc["id"], request.doc["intent"])]
            request.arguments = (logged.prompt, *request.arguments[1:])
            generation = _Logged(logged.raw)
            generation.answer = ScoredAnswer(logged.response)
            generation.answer.trace_stripped = logged.trace_stripped
            out.append(generation)
        return out

    def loglikelihood(self, requests: Any) -> Any:
        """lm-eval's base class asks for these; a query task makes none of their requests."""
        raise TypeError("logged answers can only be repeated, not scored or continued")

    loglikelihood_rolling = generate_until = loglikelihood


def rescore(answers: AnswerSet, judge: Judge) -> dict[str, Any]:
    """lm-eval's results, ``samples`` included, of the judged task that these answers are all there is to."""
    from lm_eval import simple_evaluate
    from lm_eval.tasks import TaskManager

    task = _task(answers, judge)
    results = simple_evaluate(
        model=_Replay(answers),
        tasks=[task],
        task_manager=TaskManager(include_path=str(task_configs_dir()), include_defaults=False),
        bootstrap_iters=0,
    )
    assert results is not None
    source = answers.files[0].results or {}
    run = results["config"]
    results["config"] = {**run, **answers.files[0].recorded("config"), "rescored": True}
    if not source:
        results["config"]["model"] = f"unknown (rescored from {answers.files[0].path.name})"
    results.update({key: source[key] for key in _RECORDED if key in source})
    return dict(results)


def _task(answers: AnswerSet, judge: Judge) -> JudgedTask:
    from lm_eval.tasks._yaml_loader import load_yaml

    name = answers.task.removeprefix("conceptguard_")
    config = load_yaml(task_configs_dir() / "conceptguard" / f"{name}.yaml")
    base: type[JudgedTask] = SeparationTask if len(answers.intents) == 2 else JudgedTask
    kind = type("LoggedTask", (_LoggedTask, base), {"answers": answers, "judge": judge})
    first = answers.files[0]
    settings = {
        key: value
        for key, value in _made_settings(answers).items()
        if value is not None and key not in ("judge", "templates", "columns")
    }
    generation = first.recorded("configs", first.task).get("generation_kwargs")
    arguments = first.recorded("config").get("model_args")
    evaluated = {
        key: arguments[key] for key in ("pretrained", "model") if isinstance(arguments, dict) and key in arguments
    }
    config["metadata"] = {**(config.get("metadata") or {}), **settings, **evaluated}
    config["generation_kwargs"] = generation or config["generation_kwargs"]
    return kind(config)


def _made_settings(answers: AnswerSet) -> dict[str, Any]:
    first = answers.files[0]
    return first.recorded("configs", first.task, "metadata", "provenance", "settings")


def check_out(out: Path) -> None:
    """Refuse a folder for the results that can be none, before anyone is asked.

    Raises:
        UserError: it is a file, or lm-eval would take it for one.
    """
    if out.suffix == ".json":
        raise UserError(f"{out}: lm-eval takes a name that ends in .json for a file's: name another folder with --out")
    if out.exists() and not out.is_dir():
        raise UserError(f"{out}: not a folder: name another one with --out")


def write_results(results: Mapping[str, Any], out: Path, folder: str) -> tuple[Path, Path]:
    """Results and samples as lm-eval writes them: OUT/FOLDER/results_<date>.json and samples_<task>_<date>.jsonl.

    Raises:
        UserError: they could not be written.
    """
    from lm_eval.loggers import EvaluationTracker

    kept = dict(results)
    samples = kept.pop("samples")
    tracker = EvaluationTracker(output_path=str(out))
    for key in _RECORDED:
        setattr(tracker.general_config_tracker, key, kept.get(key))
    tracker.general_config_tracker.model_name_sanitized = folder
    tracker.save_results_aggregated(results=kept, samples=samples)
    (task,) = samples
    tracker.save_results_samples(task_name=task, samples=samples[task])
    written = out / folder / f"results_{tracker.date_id}.json", out / folder / f"samples_{task}_{tracker.date_id}.jsonl"
    if not (
        _is_json(written[0]) and _lines_of(written[1]) == len(samples[task])
    ):  # lm-eval logs a failed write and goes on
        for path in written:
            path.unlink(missing_ok=True)  # half of a file would stop every later command on this folder
        raise UserError(
            f"{written[1]}: could not be written whole: make room, or name another folder with --out (the verdicts are in the cache)"
        )
    return written


def _is_json(path: Path) -> bool:
    try:
        json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return True


def _lines_of(path: Path) -> int:
    try:
        with path.open("rb") as handle:
            return sum(line.endswith(b"\n") for line in handle)
    except OSError:
        return -1
