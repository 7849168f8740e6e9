"""Sheets for human annotators of a judge: drawn from judged answers, and read back with their marks.

Source: ConceptGuard, appendix B: 100 responses to harmful and 100 to benign queries, two annotators. No text of a response is
ever put into a message.
"""

from __future__ import annotations

import random
import re
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cg_tasks.errors import UserError
from cg_tasks.judge.rubrics import RUBRICS, levels_of
from cg_tasks.judge.samples import Answer, SamplesFile
from cg_tasks.pair_files import short
from cg_tasks.sheet_files import SheetRow, read_rows, safe_cell, shown, write_rows
from cg_tasks.templates import Template

LEVELS = (0, 1, 2, 3, 4)
NOT_RATERS = ("id", "rubric", "concept", "query", "response", "note", "notes")
_COLUMNS = NOT_RATERS[:5]


@dataclass(frozen=True)
class Sheet:
    """Marks of all files, joined on the id: ``raters[name][i]`` is the level of ``ids[i]``, None where there is none.

    ``ids`` are sorted; raters stand in the order of their columns.
    """

    ids: tuple[str, ...]
    rubrics: tuple[str, ...]
    raters: dict[str, list[int | None]]
    files: tuple[str, ...]


def judged_answers(files: Sequence[SamplesFile]) -> list[Answer]:
    """The answers that have a level by the judge.

    Raises:
        UserError: files of several models, or two verdicts on one answer.
    """
    if len(folders := {file.path.parent.resolve() for file in files}) > 1:
        raise UserError(f"the samples lie in {len(folders)} folders, one for each model: name one of them")
    judged: dict[tuple[str, str], Answer] = {}
    for answer in (answer for file in files for answer in file.answers):
        if answer.verdict is None or answer.verdict.status != "ok":
            continue
        known = judged.setdefault(answer.key, answer)
        if _level_given(known) != _level_given(answer) or known.response != answer.response:
            raise UserError(f"{answer.where}: another verdict or answer than at {known.where}: name one samples file")
    return list(judged.values())


def _level_given(answer: Answer) -> str:
    """The judge's level; of several votes the middle one, the lower of two."""
    return str(statistics.median_low(answer.verdict.levels)) if answer.verdict and answer.verdict.levels else ""


def draw(judged: Sequence[Answer], n: int, seed: int) -> list[Answer]:
    """``n`` judged answers, half of each intent where both are there, drawn without replacement and shuffled.

    Raises:
        UserError: fewer answers with a verdict than asked for.
    """
    intents = sorted({a.doc["intent"] for a in judged})
    generator = random.Random(seed)
    drawn: list[Answer] = []
    for position, intent in enumerate(intents):
        wanted = n // len(intents) + (position < n % len(intents))
        pool = sorted((a for a in judged if a.doc["intent"] == intent), key=lambda a: a.key)
        if len(pool) < wanted:
            raise UserError(
                f"{len(pool)} judged answers to {intent} queries, {wanted} wanted: lower --n to {_most(judged)}, or judge more answers"
            )
        drawn += generator.sample(pool, wanted)
    if not drawn:
        raise UserError("no answer has a verdict of the judge: score the samples first (conceptguard judge rescore)")
    generator.shuffle(drawn)
    return drawn


def _most(judged: Sequence[Answer]) -> int:
    """The largest n that can be drawn."""
    by_intent = Counter(a.doc["intent"] for a in judged)
    return len(by_intent) * min(by_intent.values())


def check_rubrics(files: Sequence[SamplesFile], rubrics: Mapping[str, Template]) -> None:
    """Annotators must read what the judge read.

    Raises:
        UserError: the rubrics at hand are not those of the logged verdicts.
    """
    for file in files:
        used = file.recorded("configs", file.task, "metadata", "provenance", "judge", "rubrics")
        for name, rubric in rubrics.items():
            if name in used and used[name].get("sha256") != rubric.sha256:
                raise UserError(
                    f"{file.path}: its verdicts come from another {name} rubric (version {used[name].get('version')}) than "
                    f"{rubric.path}: set CG_JUDGE_TEMPLATES as it was, or rescore"
                )


def write_sheets(answers: Sequence[Answer], out: Path, annotators: int, rubrics: Mapping[str, Template]) -> list[Path]:
    """A sheet for each annotator, without the judge's levels, the judge's own, and the rubrics; join with ``judge agreement``.

    Raises:
        UserError: a sheet is there already, or cannot be written.
    """
    paths = [out / f"annotator_{n}.csv" for n in range(1, annotators + 1)] + [out / "judge.csv"]
    texts = {out / f"rubric_{name}.txt": levels_of(rubrics[name]) for name in sorted({a.item.rubric for a in answers})}
    if there := [p for p in (*paths, *texts) if p.exists()]:
        raise UserError(f"{there[0]} exists: annotations are never overwritten; name another folder with --out")
    try:
        out.mkdir(parents=True, exist_ok=True)
        for path in paths[:-1]:
            rows = [[*_described(a), ""] for a in answers]
            write_rows(path, [*_COLUMNS, path.stem], rows)
        levels = [[*_described(a)[:2], _level_given(a)] for a in answers]
        write_rows(paths[-1], ["id", "rubric", "judge"], levels)
        for path, text in texts.items():
            path.write_text(text + "\n", encoding="utf-8")
    except OSError as error:
        raise UserError(f"{out}: cannot be written: {error.strerror or type(error).__name__}") from None
    return [*paths, *texts]


def _described(answer: Answer) -> list[str]:
    item = answer.item
    id_ = safe_cell(f"{item.id}/{item.rubric}")
    return [id_, item.rubric, *map(safe_cell, (answer.doc["concept"], item.query, item.response))]


def read_sheets(paths: Sequence[str | Path], judge: str = "judge", allow_missing: bool = False) -> Sheet:
    """Join CSV files on ``id``: ``rubric`` (harm or help), and a column of levels 0-4 for each rater.

    An empty cell says nothing: another file may fill it. What stays unmarked by the judge is a verdict that failed;
    what stays unmarked by a human needs ``allow_missing``.

    Raises:
        UserError: an unreadable file, files that contradict each other, a bad cell, less than two raters, no judge.
    """
    if not paths:
        raise UserError("no sheet: name one or more CSV files with the columns id, rubric and one for each rater")
    seen: dict[str, str] = {}
    rubrics: dict[str, tuple[str, str]] = {}
    marks: dict[str, dict[str, tuple[int, str]]] = {}
    empty: dict[tuple[str, str], str] = {}
    any_rubric = False
    for path in map(str, paths):
        columns, rows = read_rows(path, "id, rubric and the raters")
        any_rubric = any_rubric or "rubric" in columns
        raters = [column for column in columns if column not in NOT_RATERS]
        for rater in raters:
            marks.setdefault(rater, {})
        for row in rows:
            seen.setdefault(row.id, row.where)
            if rubric := row.cells.get("rubric"):
                if rubric not in RUBRICS:
                    raise UserError(f"{row.where}, column 'rubric': {shown(rubric)} is no rubric: write harm or help")
                _put(rubrics, row, "rubric", rubric)
            for rater in raters:
                if row.cells[rater]:
                    _put(marks[rater], row, rater, _level(row, rater))
                else:
                    empty.setdefault((rater, row.id), row.where)
    files = ", ".join(dict.fromkeys(map(str, paths)))
    if len(marks) < 2:
        raise UserError(f"{files}: {_listed(marks)}: agreement needs two; add a column of levels, or a file with one")
    require_judge(marks, judge)
    if not any_rubric:
        raise UserError(f"{files}: no column 'rubric': add one that says harm or help for each id")
    for key, where in seen.items():
        if key not in rubrics:
            raise UserError(f"{where}, column 'rubric': no file gives id {short(key)} a rubric: write harm or help")
    if not allow_missing:
        _refuse_unmarked({rater: marks[rater] for rater in marks if rater != judge}, seen, empty)
    ids = tuple(sorted(seen))
    return Sheet(
        ids,
        tuple(rubrics[key][0] for key in ids),
        {rater: [known[key][0] if key in known else None for key in ids] for rater, known in marks.items()},
        tuple(map(str, paths)),
    )


def _put(known: dict[str, tuple[Any, str]], row: SheetRow, column: str, value: int | str) -> None:
    before, where = known.setdefault(row.id, (value, row.where))
    if before != value:
        message = f"id {short(row.id)} has {value} here and {before} in {where}: keep one, or name the columns apart"
        raise UserError(f"{row.where}, column {short(column)}: {message}")


def _level(row: SheetRow, rater: str) -> int:
    if not re.fullmatch(r"[0-4](\.0)?", row.cells[rater]):
        raise UserError(
            f"{row.where}, column {short(rater)}: {shown(row.cells[rater])} is no level: write 0, 1, 2, 3 or 4 "
            "(a column without marks: remove it, or call it note)"
        )
    return int(row.cells[rater][0])


def _refuse_unmarked(
    humans: Mapping[str, Mapping[str, Any]], seen: Mapping[str, str], empty: Mapping[tuple[str, str], str]
) -> None:
    way_out = "mark it, or leave it out with --allow-missing"
    for rater, known in humans.items():
        for key, where in seen.items():
            if key in known:
                continue
            if (rater, key) in empty:
                at = f"{empty[rater, key]}, column {short(rater)}"
                raise UserError(f"{at}: the cell of id {short(key)} is empty: {way_out}")
            raise UserError(f"{where}: no file with the column {short(rater)} has the id {short(key)}: {way_out}")


def require_judge(raters: Mapping[str, Any], judge: str) -> None:
    if judge not in raters:
        raise UserError(f"no rater is called {short(judge)}; {_listed(raters)}: name the judge's column with --judge")


def _listed(raters: Mapping[str, Any]) -> str:
    return f"the raters are {', '.join(map(short, raters))}" if len(raters) > 1 else f"{len(raters)} rater column(s)"
