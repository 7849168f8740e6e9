"""Which results may stand side by side: groups whose runs agree in every field of the fingerprint that they share."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any

from cg_tasks.report.results.coverage import GIVEN_BY, coverage
from cg_tasks.report.results.fingerprints import IDS, STRICT, fingerprint
from cg_tasks.report.runs import Checkpoint, Family, Group, Problem, TaskRun

__all__ = ["coverage", "fingerprint", "groups"]

_FAMILIES: tuple[Family, ...] = ("conceptguard", "canary", "other")
# What a whole results file shares: compared between different tasks too, so that no table mixes it.
_OF_THE_FILE = ("data", "data sha256", "dtype", "backend")
_OF_THE_FILE_BEGINNINGS = ("setting ", "version ", "template ", "model ")
# What two tasks that fill one column need not share: each counts its own documents.
_OF_THE_TASK = ("documents", "task version", "few-shot examples")
_NOT_SET = "not set"
_TITLE_FIELDS = 3
_TITLE_ORDER = ("judge", "documents", "generation max_gen_toks", "backend", "dtype", "chat template applied")
_ABSENT = object()


@dataclass
class _Growing:
    runs: list[TaskRun] = field(default_factory=list)
    replaced: list[tuple[TaskRun, TaskRun]] = field(default_factory=list)


def groups(runs: Sequence[TaskRun], joined: Sequence[str] = ()) -> tuple[Group, ...]:
    """``runs`` split wherever a field of the fingerprint differs, one family at a time; a family's largest group comes first.

    Runs of one task are compared in all fields; data, settings, templates, versions, dtype and backend between tasks too.
    A checkpoint's results in one file stay together and join the first group, by date, with which they agree. Of a
    checkpoint's equal results the newest counts, and a note names both files.
    joined: patterns (``version torch``, ``version *``) of fields that may differ; a note says which do, and how.
    """
    found: list[Group] = []
    for family in _FAMILIES:
        growing: list[_Growing] = []
        for unit in _units(run for run in runs if run.family == family):
            home = next((g for g in growing if _fits(unit, g.runs, joined)), None)
            if home is None:
                growing.append(home := _Growing())
            _add(unit, home)
        growing.sort(key=lambda g: -len({run.checkpoint for run in g.runs}))
        for i, group in enumerate(growing):
            others = [g.runs for g in growing if g is not group]
            found.append(_finished(family, i, group, others, joined))
    return tuple(found)


def _units(runs: Iterable[TaskRun]) -> list[list[TaskRun]]:
    """The runs of one checkpoint in one results file, oldest first."""
    found: dict[tuple[Any, ...], list[TaskRun]] = {}
    for run in sorted(runs, key=lambda run: (run.date, str(run.path), run.task)):
        found.setdefault((str(run.path), run.checkpoint), []).append(run)
    return list(found.values())


# ------------------------------------------------------------------ what may stand side by side
def _fits(unit: Sequence[TaskRun], members: Sequence[TaskRun], joined: Sequence[str]) -> bool:
    tasks = _tasks_by_checkpoint([*members, *unit])
    mine = {run.checkpoint for run in unit}
    others = _distinct(members, tasks, mine)
    return not any(
        not _is_joined(name, joined) for run in unit for member in others for name in _differences(run, member, tasks)
    )


def _distinct(
    runs: Sequence[TaskRun], tasks: Mapping[Checkpoint, set[str]], kept: Collection[Checkpoint] = ()
) -> list[TaskRun]:
    """One run for all that compare alike; hundreds of runs mostly agree. Those of ``kept`` checkpoints all stay."""
    found: dict[Any, TaskRun] = {}
    for run in runs:
        itself = (run.checkpoint, run.path) if run.checkpoint in kept else None
        found.setdefault((run.task, run.fingerprint_key, frozenset(tasks[run.checkpoint]), itself), run)
    return list(found.values())


def _tasks_by_checkpoint(runs: Sequence[TaskRun]) -> dict[Checkpoint, set[str]]:
    found: dict[Checkpoint, set[str]] = {}
    for run in runs:
        found.setdefault(run.checkpoint, set()).add(run.task)
    return found


def _differences(a: TaskRun, b: TaskRun, tasks: Mapping[Checkpoint, set[str]]) -> Iterator[str]:
    """The fields in which two runs differ, of those that must be equal. tasks: what each checkpoint was evaluated on."""
    if a.fingerprint_key == b.fingerprint_key:
        return
    same_task = a.task == b.task
    one_column = same_task or _fill_one_column(a, b, tasks)
    shared = a.fingerprint.keys() & b.fingerprint.keys()
    for name in a.fingerprint.keys() | b.fingerprint.keys() if one_column else shared:
        if not one_column and not _is_of_the_file(name) or not same_task and name in _OF_THE_TASK:
            continue
        if name not in shared and not _counts_when_absent(name, a, b):
            continue
        if _plain(a.fingerprint.get(name, _ABSENT)) != _plain(b.fingerprint.get(name, _ABSENT)):
            yield name


def _fill_one_column(a: TaskRun, b: TaskRun, tasks: Mapping[Checkpoint, set[str]]) -> bool:
    """Whether one task's numbers stand in for the other's (HarmQA from CtxtSep): not where both checkpoints have both."""
    if not (GIVEN_BY.get(a.task) == b.task or GIVEN_BY.get(b.task) == a.task):
        return False
    if a.checkpoint == b.checkpoint:
        return a.path != b.path
    return not (b.task in tasks[a.checkpoint] and a.task in tasks[b.checkpoint])


def _is_of_the_file(name: str) -> bool:
    return name in _OF_THE_FILE or name.startswith(_OF_THE_FILE_BEGINNINGS)


def _counts_when_absent(name: str, a: TaskRun, b: TaskRun) -> bool:
    """Whether a field that only one side has is unset on the other, and not merely unrecorded."""
    kind = next((kind for kind in STRICT if name.startswith(kind)), None)
    if kind is None:
        return False
    witness = {"generation ": "generation ", "judge parameter ": "judge", "model ": "backend"}.get(
        kind, "chat template applied"
    )
    return all(any(other.startswith(witness) for other in run.fingerprint) for run in (a, b))


def _plain(value: Any) -> str:
    return _NOT_SET if value is _ABSENT else repr(value)


def _is_joined(name: str, joined: Sequence[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in joined)


# ------------------------------------------------------------------ one group
def _add(unit: Sequence[TaskRun], home: _Growing) -> None:
    for run in unit:
        older = next((r for r in home.runs if (r.checkpoint, r.task) == (run.checkpoint, run.task)), None)
        if older is not None:
            home.runs.remove(older)
            home.replaced.append((older, run))
        home.runs.append(run)


def _replaced_problems(replaced: Sequence[tuple[TaskRun, TaskRun]]) -> Iterator[Problem]:
    """One note for each pair of files."""
    found: dict[tuple[Any, ...], list[TaskRun]] = {}
    for older, newer in replaced:
        found.setdefault((older.path, newer.path, newer.checkpoint), []).append(newer)
    for (old, new, checkpoint), runs in found.items():
        tasks = ", ".join(run.task for run in runs)
        again = "judged again" if runs[0].config.get("rescored") else "evaluated twice"
        message = f"{tasks} of '{_name(checkpoint)}' {'was' if len(runs) == 1 else 'were'} {again}"
        yield Problem("note", str(new), f"{message}: this newer result is shown, not that of {old}")


def _name(c: Checkpoint) -> str:
    seeds = "" if c.seed is None else f", seed {c.seed}"
    return f"{c.base}, {c.label}{seeds}" if c.stage != "base" else c.base


def _finished(
    family: Family, i: int, group: _Growing, others: Sequence[Sequence[TaskRun]], joined: Sequence[str]
) -> Group:
    differs = _differing(group.runs, others)
    name = f"{family}-{i + 1}" if others else family
    problems = [*_replaced_problems(group.replaced), *_joined_problems(group.runs, joined), *_base_problems(group.runs)]
    return Group(name, family, _title(group.runs, differs), tuple(group.runs), differs, tuple(problems))


def _differing(runs: Sequence[TaskRun], others: Sequence[Sequence[TaskRun]]) -> dict[str, Any]:
    """Field -> this group's value, of the fields in which it differs from another group of its family."""
    names = set()
    for other in others:
        tasks = _tasks_by_checkpoint([*runs, *other])
        mine, theirs = _distinct(runs, tasks), _distinct(other, tasks)
        names |= {name for run in mine for member in theirs for name in _differences(run, member, tasks)}
    for told, implied in (("data", "data sha256"), ("documents", IDS)):
        if told in names:
            names -= {name for name in names if name.startswith(implied)}
    return {name: _value_in(runs, name) for name in sorted(names)}


def _value_in(runs: Sequence[TaskRun], name: str) -> Any:
    """The group's value of a field; by task where its tasks have several."""
    by_task: dict[str, list[Any]] = {}
    for run in runs:
        if name in run.fingerprint and run.fingerprint[name] not in by_task.setdefault(run.task, []):
            by_task[run.task].append(run.fingerprint[name])
    values = [value for values in by_task.values() for value in values]
    if not values:
        return _NOT_SET
    if all(_plain(value) == _plain(values[0]) for value in values):
        return values[0]
    return {task: found[0] if len(found) == 1 else found for task, found in by_task.items()}


def _title(runs: Sequence[TaskRun], differs: Mapping[str, Any]) -> str:
    data = dict.fromkeys(str(run.fingerprint["data"]) for run in runs if "data" in run.fingerprint)
    head = ", ".join(data) or ("other tasks" if runs[0].family == "other" else "unknown data")
    order = {name: i for i, name in enumerate(_TITLE_ORDER)}
    names = sorted((name for name in differs if name != "data"), key=lambda name: order.get(name, len(order)))
    words = [_words(name, differs[name]) for name in names]
    more = [f"and {len(words) - _TITLE_FIELDS} more"] if len(words) > _TITLE_FIELDS else []
    shown = ", ".join([*words[:_TITLE_FIELDS], *more])
    return f"{head} ({shown})" if shown else head


def _words(name: str, value: Any) -> str:
    if isinstance(value, dict):
        value = "/".join(dict.fromkeys(map(_short, value.values())))
    if name == "documents":
        return f"{_short(value)} documents"
    return f"{name.removeprefix('generation ').removeprefix('setting ')} {_short(value)}"


def _short(value: Any) -> str:
    text = ",".join(map(str, value)) if isinstance(value, list) else str(value)
    return text[:8] if len(text) == 64 and text.isalnum() else text if len(text) <= 40 else text[:39] + "…"


def _joined_problems(runs: Sequence[TaskRun], joined: Sequence[str]) -> Iterator[Problem]:
    """What stands side by side although it differs, because the user accepts it."""
    if not joined:
        return
    tasks = _tasks_by_checkpoint(runs)
    alike = _distinct(runs, tasks)
    names = {name for i, run in enumerate(alike) for other in alike[:i] for name in _differences(run, other, tasks)}
    for name in sorted(names):
        files: dict[str, TaskRun] = {}
        for run in runs:
            if name in run.fingerprint or not _is_of_the_file(name):
                files.setdefault(_short(run.fingerprint.get(name, _NOT_SET)), run)
        values = "; ".join(f"{value} ({_name(run.checkpoint)}, {run.path})" for value, run in files.items())
        yield Problem("note", runs[0].family, f"results with different '{name}' were joined (--join): {values}")


def _base_problems(runs: Sequence[TaskRun]) -> Iterator[Problem]:
    ids: dict[str, dict[str, TaskRun]] = {}
    for run in runs:
        ids.setdefault(run.checkpoint.base, {}).setdefault(run.checkpoint.base_id, run)
    for base, found in ids.items():
        if len(found) > 1:
            where = "; ".join(f"{base_id or 'not recorded'}: {run.path}" for base_id, run in found.items())
            yield Problem(
                "note",
                str(next(iter(found.values())).path),
                f"'{base}' was evaluated with different tokenizers or chat templates, which stand in blocks of their own ({where})",
            )
