"""``conceptguard build review export``: sheets for annotators to fill in offline, in three forms each."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Sequence
from pathlib import Path

from cg_tasks.construction.review import label_studio
from cg_tasks.construction.review.guidelines import Guideline
from cg_tasks.construction.review.html_sheet import render
from cg_tasks.construction.review.sheet import RESERVED, SHEET, ReviewItem, Sheet, annotator_names, new_sheet
from cg_tasks.errors import UserError
from cg_tasks.judge.text import encodable
from cg_tasks.sheet_files import safe_cell, write_rows
from cg_tasks.whole_files import now

CONFIG, GUIDELINE = "label-studio-config.xml", "guideline.md"


def export(
    folder: Path,
    guideline: Guideline,
    items: Sequence[ReviewItem],
    annotators: int | Sequence[str],
    seed: int,
    drawn_of: int,
) -> list[Path]:
    """Write a review's folder: sheet.json, the guideline, and for each annotator a CSV, an HTML and a Label Studio sheet.

    The folder appears as a whole. items: as drawn, all with the same fields; their order is kept, except that candidate groups are
    put together. drawn_of: how many they were drawn from.
    Returns the files, those of the annotators first.

    Raises:
        UserError: the folder holds something already, names or ids that cannot be used, or it cannot be written.
    """
    names = annotator_names(annotators)
    items = [ReviewItem(i.id, _encodable(i.fields), encodable(i.stratum), i.content_sha256) for i in items]
    if guideline.by_stratum:
        place = {name: number for number, name in reversed(list(enumerate(item.stratum for item in items)))}
        items.sort(key=lambda item: place[item.stratum])
    sheet = new_sheet(guideline, items, names, seed, drawn_of, now())
    _require_same_fields(items)
    partial = folder.with_name(f".{folder.name}.partial")
    try:
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            inside = f" ({min(p.name for p in folder.iterdir())!r})" if folder.is_dir() else ""
            raise UserError(
                f"{folder}: exists and is not empty{inside}: reviews are never overwritten; move it away first"
            )
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        written = _write_all(partial, sheet, items)
        if folder.exists():
            folder.rmdir()
        os.replace(partial, folder)
    except OSError as error:
        raise UserError(f"{folder}: cannot be written: {error.strerror or type(error).__name__}") from None
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return [folder / path.name for path in written]


def _encodable(fields: dict[str, str]) -> dict[str, str]:
    return {name: encodable(text) for name, text in fields.items()}


def _require_same_fields(items: Sequence[ReviewItem]) -> None:
    fields = list(items[0].fields)
    if not fields or any(list(item.fields) != fields for item in items):
        raise ValueError("review items need fields, all of them the same in the same order")
    if bad := [name for name in fields if name in RESERVED or not re.fullmatch(r"[a-z]\w*", name)]:
        raise ValueError(f"{bad[0]!r} is no name for a field of a review item")


def _write_all(folder: Path, sheet: Sheet, items: Sequence[ReviewItem]) -> list[Path]:
    written = []
    fields = list(items[0].fields)
    tasks = json.dumps(label_studio.tasks(items, sheet.sha256), ensure_ascii=False, indent=1)
    cells = [[safe_cell(i.id), *map(safe_cell, i.fields.values()), "", "", sheet_mark(sheet)] for i in items]
    for name in sheet.annotators:
        table = folder / f"{name}.csv"
        write_rows(table, ["id", *fields, "label", "note", "sheet"], cells)
        page, task_list = folder / f"{name}.html", folder / f"{name}.label-studio.json"
        page.write_text(render(sheet, items, name), encoding="utf-8", newline="\n")
        task_list.write_text(tasks + "\n", encoding="utf-8", newline="\n")
        written += [page, table, task_list]
    texts = {
        CONFIG: label_studio.config(sheet.guideline, fields),
        GUIDELINE: sheet.guideline.as_text(),
        SHEET: sheet.model_dump_json(indent=1) + "\n",
    }
    for file, text in texts.items():
        (folder / file).write_text(text, encoding="utf-8", newline="\n")
        written.append(folder / file)
    return written


def sheet_mark(sheet: Sheet) -> str:
    """What tells a CSV file's sheet from another: short, and nothing that a spreadsheet takes for a number."""
    return f"sheet-{sheet.sha256[:12]}"
