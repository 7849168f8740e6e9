"""lm-eval's result folders, read: every task's numbers, what made them, and what is wrong with the files."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from cg_tasks.errors import UserError
from cg_tasks.provenance import sha256_of
from cg_tasks.report.results.checkpoints import UNKNOWN, checkpoint_of, dig, model_names, record_of
from cg_tasks.report.results.descriptions import Described
from cg_tasks.report.results.documents import has_two_intents, read_documents
from cg_tasks.report.results.finding import date_of, find_results, read_json, samples_of
from cg_tasks.report.results.fingerprints import IDS, fingerprint
from cg_tasks.report.results.identities import completed, doubtful_identities, told_apart
from cg_tasks.report.results.recorded import well_formed
from cg_tasks.report.results.variants import with_variants
from cg_tasks.report.runs import Document, Family, Metric, Problem, TaskRun

TASKS = {
    *(f"conceptguard_{n}" for n in ("harmmem", "helpret", "harmqa", "helpqa", "harmscore", "helpscore", "ctxtsep")),
    *(f"canary_{n}" for n in ("auto", "prefill", "teacher_forced", "qa")),
}
_OURS: tuple[Family, ...] = ("conceptguard", "canary")
_TASK, _TASKS = ", task ", ", tasks "
_DERIVED = ("_stderr", "_ci_lo", "_ci_hi")
_NO_METRICS = ("alias", "name", "sample_len", "sample_count", " ")


@dataclass(frozen=True)
class Read:
    """Every task's results, by date, and what a reader must know about the files."""

    runs: tuple[TaskRun, ...]
    problems: tuple[Problem, ...]


def read_results(paths: Sequence[str | Path], described: Described | None = None) -> Read:
    """All results below ``paths``; what cannot be read is named in ``problems``, and the rest is read.

    described: of checkpoints made by other tools (:func:`checkpoints.read_descriptions`).

    Raises:
        UserError: a path that does not exist, or nothing that can be read below any of them.
    """
    runs: list[TaskRun] = []
    problems: list[Problem] = []
    records: dict[str, dict[str, Any]] = {}
    used: set[str] = set()
    files = find_results(paths)
    for path in files:
        results = read_json(path)
        if isinstance(results, str):
            problems.append(Problem("error", str(path), results))
            continue
        used.update(model_names(results))
        found = list(_read_file(path, results, described, problems))
        if not found:
            problems.append(Problem("error", str(path), "holds no task with numbers"))
        for run in found:
            if record := record_of(results, run.task):
                records[run.checkpoint.weights] = record
        runs += found
    if not runs:
        raise UserError(f"{problems[0]} (of {len(files)} results files, none can be read)")
    for name in described or ():
        if name not in used:
            problems.append(
                Problem("note", name, "is described, but no results were made with a model or adapter of this name")
            )
    runs = list(with_variants(told_apart(completed(runs)), records))
    problems += doubtful_identities(runs)
    runs.sort(key=lambda run: (run.date, str(run.path), run.task))
    return Read(tuple(runs), _together(problems))


def _together(problems: Sequence[Problem]) -> tuple[Problem, ...]:
    """Each problem once; what several tasks of a file share is told once, with their names."""
    found: dict[tuple[Any, ...], list[str]] = {}
    for problem in problems:
        where, _, task = problem.where.partition(_TASK)
        tasks = found.setdefault((problem.severity, where, problem.message), [])
        if task and task not in tasks:
            tasks.append(task)
    named = {1: _TASK}
    return tuple(
        Problem(severity, where + (named.get(len(tasks), _TASKS) + ", ".join(tasks) if tasks else ""), message)
        for (severity, where, message), tasks in found.items()
    )


def family_of(task: str) -> Family:
    """``conceptguard`` or ``canary`` by the task's name, else ``other``."""
    return next((family for family in _OURS if task.startswith(f"{family}_")), "other")


# ------------------------------------------------------------------ one file
def _read_file(
    path: Path, results: dict[str, Any], described: Described | None, problems: list[Problem]
) -> Iterator[TaskRun]:
    groups = dig(results, "group_subtasks")
    for task, numbers in results["results"].items():
        if not isinstance(numbers, dict) or task == "conceptguard":
            continue
        family = family_of(task)
        metrics = _metrics(numbers, family, f"{path}{_TASK}{task}", problems)
        if task in groups and (family != "other" or not metrics):
            continue
        if not metrics:
            problems.append(Problem("error", f"{path}{_TASK}{task}", _why_no_metrics(numbers)))
            continue
        yield _read_task(path, results, task, family, metrics, described, problems)


def _why_no_metrics(numbers: Mapping[str, Any]) -> str:
    if any(name.partition(",")[0] == "bypass" for name in numbers):
        return "was run with --predict_only: it has texts and no scores"
    return "holds no number"


def _read_task(
    path: Path,
    results: dict[str, Any],
    task: str,
    family: Family,
    metrics: Mapping[str, Metric],
    described: Described | None,
    problems: list[Problem],
) -> TaskRun:
    where = f"{path}{_TASK}{task}"
    configuration = dig(results, "configs", task)
    provenance = well_formed(dig(configuration, "metadata", "provenance"), where, problems)
    samples = samples_of(path, task)
    documents: tuple[Document, ...] | None = None
    if family != "other":
        if task not in TASKS:
            problems.append(
                Problem("note", where, "not a task of this version: its numbers stand in results.json alone")
            )
        if not provenance:
            problems.append(
                Problem(
                    "note",
                    where,
                    "records no provenance, so nothing tells data, settings and versions: compare with care",
                )
            )
        if samples is not None:
            documents, faults = read_documents(samples, has_two_intents(task, provenance))
            problems += faults
    n, n_all = _sizes(results, task, documents)
    checkpoint = checkpoint_of(results, task, described)
    if checkpoint.stage == "base" and checkpoint.base == UNKNOWN:  # two unknown models must not pass for one
        name = "/".join(path.parts[-3:-1]) or path.name
        checkpoint = replace(checkpoint, stage="other", weights=str(path), name=name)
        problems.append(Problem("note", str(path), f"does not tell which model was evaluated: it is shown as '{name}'"))
    run = TaskRun(
        task=task,
        family=family,
        checkpoint=checkpoint,
        metrics=metrics,
        higher_is_better=_directions(results, task),
        n=n,
        n_all=n_all,
        fingerprint=fingerprint(results, task),
        provenance=provenance,
        configuration=configuration,
        config=dig(results, "config"),
        path=path,
        date=date_of(path, results),
        samples=samples,
        documents=documents,
    )
    return _with_documents_checked(run, problems) if family != "other" else run


def _with_documents_checked(run: TaskRun, problems: list[Problem]) -> TaskRun:
    where = f"{run.path}{_TASK}{run.task}"
    if run.documents is None:
        why = "its samples are not there: contrasts, figures over documents and the sample browser leave it out (--log_samples)"
        problems.append(Problem("note", where, why))
        return run
    if len(run.documents) != run.n:
        why = f"{len(run.documents)} documents can be read, and the results are of {run.n}"
        problems.append(Problem("error", str(run.samples), why))
        return run
    # Two runs over as many documents may be over others (lm-eval's --samples). By intent: CtxtSep has both, HarmQA one.
    by_intent: dict[str, list[str]] = {}
    for document in run.documents:
        by_intent.setdefault(document.intent, []).append(document.id)
    ids = {f"{IDS} {intent}".strip(): sha256_of(sorted(found)) for intent, found in by_intent.items()}
    return replace(run, fingerprint={**run.fingerprint, **ids})


def _metrics(numbers: Mapping[str, Any], family: Family, where: str, problems: list[Problem]) -> dict[str, Metric]:
    """Ours under their names; others' with lm-eval's filter, such as ``exact_match,strict-match``."""
    found: dict[str, Metric] = {}
    for key, value in numbers.items():
        name, _, filter_name = key.partition(",")
        if key in _NO_METRICS or not filter_name or name == "bypass" or name.endswith(_DERIVED):
            continue
        if not _is_number(value):
            problems.append(Problem("note", where, f"the metric '{name}' is {value!r}, no number: it is left out"))
            continue
        parts = (numbers.get(f"{name}{suffix},{filter_name}") for suffix in _DERIVED)
        metric = Metric(_number(value), *(_number(part) for part in parts))
        found[name if family != "other" and filter_name == "none" else key] = metric
    return found


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _number(value: Any) -> float:
    """A float, NaN for what is no number."""
    if not _is_number(value):
        return math.nan
    try:
        return float(value)
    except OverflowError:  # JSON has whole numbers of any length
        return math.inf if value > 0 else -math.inf


def _directions(results: Mapping[str, Any], task: str) -> dict[str, bool | None]:
    return {m: b if isinstance(b, bool) else None for m, b in dig(results, "higher_is_better", task).items()}


def _sizes(results: Mapping[str, Any], task: str, documents: Sequence[Document] | None) -> tuple[int, int]:
    """(documents evaluated, documents in the data); of a group of others' tasks, the sum over its tasks."""
    counts = dig(results, "n-samples")
    subtasks = dig(results, "group_subtasks").get(task)
    members = [task] if task in counts else subtasks if isinstance(subtasks, list) else []
    sizes = [dig(counts, name) for name in members if isinstance(name, str) and name in counts]
    effective = [s["effective"] for s in sizes if _is_count(s.get("effective"))]
    original = [s["original"] for s in sizes if _is_count(s.get("original"))]
    if not effective:
        length = dig(results, "results", task).get("sample_len")
        effective = [length if _is_count(length) else len(documents or ())]
    n = sum(effective)
    return n, max(n, sum(original))
