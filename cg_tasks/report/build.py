"""A report from result folders: read, group what is comparable, and let each family's sections say what it shows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from cg_tasks.report import other, study_state
from cg_tasks.report.canary.sections import sections as canary_sections
from cg_tasks.report.conceptguard.sections import sections as conceptguard_sections
from cg_tasks.report.content import Cell, Column, Missing, Report, Row, Section, Table
from cg_tasks.report.options import Options
from cg_tasks.report.results.comparing import coverage, groups
from cg_tasks.report.results.reading import read_results
from cg_tasks.report.runs import Checkpoint, Family, Group, TaskRun

FAMILY_NAMES: dict[Family, str] = {"conceptguard": "ConceptGuard", "canary": "Canary audit", "other": "Other tasks"}
SECTIONS: dict[Family, Callable[[Group, Options], list[Section]]] = {
    "conceptguard": conceptguard_sections,
    "canary": canary_sections,
    "other": lambda group, options: other.sections(group),
}


def build_report(
    paths: Sequence[str | Path],
    *,
    title: str = "ConceptGuard report",
    options: Options | None = None,
    joined: Sequence[str] = (),
    described: Mapping[str, Any] | None = None,
    studies: Sequence[Path] = (),
) -> tuple[Report, tuple[TaskRun, ...]]:
    """The report on all results below ``paths``, and the runs it shows, which the sample browser reads.

    joined: patterns of fields in which results of one column may differ. described: of checkpoints of other tools.
    studies: ``state.json`` files, whose failed jobs are named.

    Raises:
        UserError: a path or description that cannot be read, or no results at all.
    """
    options = options or Options()
    states = [(str(path), study_state.read_state(path)) for path in studies]
    read = read_results(paths, described)
    found = groups(read.runs, joined)
    problems = [*read.problems, *(p for group in found for p in group.problems)]
    for where, state in states:
        problems += study_state.problems(state, where)
    sections = [overview(found)]
    for group in found:
        sections += _of_group(group, SECTIONS[group.family](group, options))
    if states:
        sections.append(study_state.section([state for _, state in states]))
    sections.append(provenance(found))
    runs = tuple(run for group in found for run in group.runs)
    return Report(title, tuple(sections), tuple(dict.fromkeys(problems))), runs


def _of_group(group: Group, made: Sequence[Section]) -> list[Section]:
    """The group's sections under its title; those that only tell what is missing become one."""
    title = f"{FAMILY_NAMES[group.family]}: {group.title}"
    shown = [s for s in made if s.text or s.verdicts or s.tables or s.figures]
    missing = tuple(m for s in made if s not in shown for m in s.missing)
    if missing:
        shown.append(Section(f"{group.id}-not-shown", "Not shown", missing=missing))
    return [replace(section, group=title) for section in shown]


def overview(found: Sequence[Group]) -> Section:
    """Which checkpoint was evaluated on what: documents a cell, and what is missing."""
    tables, missing = [], []
    for group in found:
        tables.append(_coverage_table(group))
        missing += [Missing(f"{group.title}: {m.what}" if len(found) > 1 else m.what, m.why) for m in coverage(group)]
    text = []
    if any(group.differs for group in found):
        text.append(
            "Results that differ in data, settings, prompts, generation, judge or versions stand in tables of their own. "
            "What differs stands in each title, and in full at the end of the page."
        )
    return Section("overview", "What was evaluated", tuple(text), tables=tuple(tables), missing=tuple(missing))


def _coverage_table(group: Group) -> Table:
    columns = (
        Column("checkpoint", "checkpoint", align="left"),
        Column("seed", "seed"),
        *(
            Column(task, task.removeprefix("conceptguard_").removeprefix("canary_"), "documents")
            for task in group.tasks
        ),
    )
    rows = []
    several = len({c.regime for c in group.checkpoints if c.regime}) > 1
    for c in group.checkpoints:
        trace = f", {c.regime} trace" if several and c.regime else ""
        cells = [Cell(c.label + trace), Cell(_seed(c))]
        for task in group.tasks:
            run = group.run(c, task)
            if run is None:
                cells.append(Cell("–", missing=True, note=f"no results of {task} for this checkpoint"))
            else:
                whole = run.n == run.n_all
                cells.append(Cell(str(run.n), run.n, note="" if whole else f"of {run.n_all} in the data"))
        rows.append(Row(tuple(cells), block=c.base))
    caption = "Documents evaluated, by checkpoint and task. – : no results were found."
    return Table(f"{group.id}-coverage", group.title, columns, tuple(rows), caption)


def _seed(checkpoint: Checkpoint) -> str:
    """Its seed, and that of the fine-tuned model it started from where that is another."""
    if checkpoint.seed is None or checkpoint.start_seed in (None, checkpoint.seed):
        return "" if checkpoint.seed is None else str(checkpoint.seed)
    return f"{checkpoint.seed} (from {checkpoint.start_seed})"


def provenance(found: Sequence[Group]) -> Section:
    """The fields that every result of a group shares, group beside group."""
    fields = sorted({name for group in found for run in group.runs for name in run.fingerprint})
    columns = (Column("field", "field", align="left"), *(Column(g.id, g.title, align="left") for g in found))
    rows = []
    for name in fields:
        cells = [_values(group, name) for group in found]
        rows.append(Row((Cell(name), *cells)))
    caption = "What decides whether numbers can be compared. Several values in one cell: several tasks, or fields that were joined."
    table = Table("provenance", "What made the numbers", columns, tuple(rows), caption)
    return Section("provenance", "Provenance", tables=(table,))


def _values(group: Group, name: str) -> Cell:
    values = dict.fromkeys(_short(run.fingerprint[name]) for run in group.runs if name in run.fingerprint)
    return Cell("; ".join(values)) if values else Cell("", missing=True, note="not recorded")


def _short(value: Any) -> str:
    text = str(value)
    return text[:12] + "…" if len(text) == 64 and text.isalnum() else text
