"""A report's folder: index.html, tables/, figures/ and results.json, which appear together or not at all."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from cg_tasks.errors import UserError
from cg_tasks.report.content import Figure, Report, Table, slug
from cg_tasks.report.page import table_formats as formats
from cg_tasks.report.page.rendering import render
from cg_tasks.report.page.results_json import SCHEMA, to_json
from cg_tasks.report.page.samples_data import pack
from cg_tasks.report.runs import TaskRun

CONTENTS = ("index.html", "results.json", "tables", "figures")


def write_report(report: Report, runs: Sequence[TaskRun], out: Path, samples: bool = True) -> None:
    """Write the report into the folder ``out``; an older report there is replaced as a whole.

    Everything is written beside it first, so that a run that is killed leaves the older report or none, never half of one.
    samples: whether the page holds the sample browser.

    Raises:
        UserError: ``out`` holds something else than a report, or cannot be written.
    """
    out = out.expanduser().absolute()
    require_writable(out)
    if out.is_symlink():
        out = out.resolve()
    partial, replaced = (out.with_name(f".{out.name}.{what}") for what in ("partial", "replaced"))
    try:
        for leftover in (partial, replaced):
            shutil.rmtree(leftover, ignore_errors=True)
        partial.mkdir(parents=True)
        _write_all(report, runs, partial, samples)
        if out.exists():
            os.replace(out, replaced)
        os.replace(partial, out)
    except OSError as error:
        raise UserError(f"{out}: cannot be written ({error})") from None
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    shutil.rmtree(replaced, ignore_errors=True)


def require_writable(out: Path) -> None:
    """Raises:
    UserError: ``out`` is a file, or a folder that holds something else than a report.
    """
    out = out.expanduser()
    if not out.exists():
        return
    if not out.is_dir():
        raise UserError(f"{out}: is a file, and --out names a folder")
    inside = sorted(p.name for p in out.iterdir())
    foreign = [name for name in inside if name not in CONTENTS]
    if foreign:
        raise UserError(f"{out}: holds {foreign[0]!r}, which is not a report's: choose an empty or a new folder")
    if inside and not _is_report(out / "results.json"):
        raise UserError(f"{out}: holds files that no report of ours wrote: choose an empty or a new folder")


def _is_report(results: Path) -> bool:
    try:
        document = json.loads(results.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return False
    return isinstance(document, dict) and str(document.get("schema", "")).startswith(SCHEMA.split("/")[0])


def _write_all(report: Report, runs: Sequence[TaskRun], folder: Path, samples: bool) -> None:
    page = render(report, runs, pack(runs) if samples else None)
    _write(folder / "index.html", page.encode())
    _write(folder / "results.json", to_json(report, runs).encode())
    for name in ("tables", "figures"):
        (folder / name).mkdir()
    for table in _distinct([t for s in report.sections for t in s.tables]):
        for ending, form in (("md", formats.to_markdown), ("csv", formats.to_csv), ("tex", formats.to_latex)):
            _write(folder / "tables" / f"{slug(table.id)}.{ending}", form(table).encode("utf-8", "replace"))
    for figure in _distinct([f for s in report.sections for f in s.figures]):
        for ending, content in (("svg", figure.svg), ("png", figure.png)):
            _write(folder / "figures" / f"{slug(figure.id)}.{ending}", content)


def _distinct(items: Sequence[Table] | Sequence[Figure]) -> Sequence:
    """The same with a number where two would have one file: names of others' tasks may differ in a sign or in case alone."""
    seen: dict[str, int] = {}
    found = []
    for item in items:
        name = slug(item.id).lower()
        seen[name] = seen.get(name, 0) + 1
        found.append(item if seen[name] == 1 else replace(item, id=f"{item.id}-{seen[name]}"))
    return found


def _write(path: Path, content: bytes) -> None:
    path.write_bytes(content)
