"""The report as data: every number with what made it, for those who compute further."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from cg_tasks.judge.text import encodable
from cg_tasks.report.content import Cell, Figure, Report, Section, Table
from cg_tasks.report.runs import Metric, TaskRun

SCHEMA = "conceptguard-report/1"


def to_json(report: Report, runs: Sequence[TaskRun]) -> str:
    """``results.json``: strict JSON, the same text for the same input. A number that does not exist is null.

    Keys: schema, conceptguard (version), title, settings, problems, runs, sections (group, text, rules, verdicts, tables, figures,
    missing).
    """
    document = {
        "schema": SCHEMA,
        "conceptguard": _version(),
        "title": report.title,
        "settings": report.settings,
        "problems": [dataclasses.asdict(problem) for problem in report.problems],
        "runs": [_run(run) for run in runs],
        "sections": [_section(section) for section in report.sections],
    }
    return json.dumps(plain(document), ensure_ascii=False, allow_nan=False, indent=1) + "\n"


def plain(value: Any) -> Any:
    """``value`` as strict JSON can hold it: NaN and infinities null, surrogates joined or replaced, the unknown as text."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return value if value.isascii() else encodable(value)
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {encodable(str(k)): plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(v) for v in value]
    if isinstance(value, (set, frozenset)):
        return sorted((plain(v) for v in value), key=str)
    if isinstance(value, Path):
        return encodable(str(value))
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return plain({f.name: getattr(value, f.name) for f in dataclasses.fields(value)})
    if hasattr(value, "item") and getattr(value, "ndim", None) == 0:  # a number of numpy's
        return plain(value.item())
    return encodable(str(value))


def _run(run: TaskRun) -> dict[str, Any]:
    return {
        "task": run.task,
        "family": run.family,
        "checkpoint": {**dataclasses.asdict(run.checkpoint), "label": run.checkpoint.label},
        "metrics": {name: _metric(metric) for name, metric in run.metrics.items()},
        "higher_is_better": run.higher_is_better,
        "n": run.n,
        "n_all": run.n_all,
        "fingerprint": run.fingerprint,
        "provenance": run.provenance,
        "path": run.path,
        "samples": run.samples,
        "date": run.date,
    }


def _metric(metric: Metric) -> dict[str, float]:
    return {"value": metric.value, "stderr": metric.stderr, "lo": metric.lo, "hi": metric.hi}


def _section(section: Section) -> dict[str, Any]:
    return {
        "id": section.id,
        "title": section.title,
        "group": section.group,
        "text": section.text,
        "rules": section.rules,
        "verdicts": section.verdicts,
        "tables": [_table(table) for table in section.tables],
        "figures": [_figure(figure) for figure in section.figures],
        "missing": section.missing,
    }


def _table(table: Table) -> dict[str, Any]:
    rows = [{"block": row.block, "cells": [_cell(cell) for cell in row.cells]} for row in table.rows]
    words = {"id": table.id, "title": table.title, "caption": table.caption, "notes": table.notes}
    return {**words, "columns": table.columns, "rows": rows}


def _cell(cell: Cell) -> dict[str, Any]:
    """A cell without what it does not have, so that the file stays readable; a missing cell says so and has a null value."""
    found: dict[str, Any] = {"text": cell.text}
    numbers = {name: getattr(cell, name) for name in ("value", "lo", "hi", "sd", "change")}
    found.update({name: v for name, v in numbers.items() if not math.isnan(v) or (name == "value" and cell.missing)})
    found.update({name: getattr(cell, name) for name in ("n", "desirable") if getattr(cell, name) is not None})
    found.update({name: getattr(cell, name) for name in ("best", "star", "missing", "note") if getattr(cell, name)})
    return found


def _figure(figure: Figure) -> dict[str, str]:
    return {name: getattr(figure, name) for name in ("id", "title", "caption", "alt")}


def _version() -> str | None:
    try:
        return version("conceptguard")
    except PackageNotFoundError:
        return None
