"""From annotators' marks to one decision a row: equal marks decide, others are listed, talked over and read back.

Source: ConceptGuard, appendix A.1: disagreements are resolved by discussion, what stays unclear is discarded.
"""

from __future__ import annotations

import csv
import io
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cg_tasks.construction.review import label_studio
from cg_tasks.construction.review.agreement import kappas
from cg_tasks.construction.review.exporting import sheet_mark
from cg_tasks.construction.review.guidelines import Label
from cg_tasks.construction.review.marks import AnnotatorMarks
from cg_tasks.construction.review.outcome import Decision, Outcome, Verdict, count
from cg_tasks.construction.review.sheet import Sheet
from cg_tasks.errors import UserError
from cg_tasks.sheet_files import named, read_rows, safe_cell, shown
from cg_tasks.whole_files import now, replace_file

DISAGREEMENTS = "disagreements.csv"
_LABEL, _NOTE, _RESOLUTION = "label: ", "note: ", "resolution"


@dataclass(frozen=True)
class Resolution:
    """A row of disagreements.csv. labels: the annotators' when it was written. resolution: None while the cell is empty."""

    where: str
    labels: dict[str, str]
    resolution: Label | None


def merge(sheet: Sheet, marks: Sequence[AnnotatorMarks], resolutions: Mapping[str, Resolution]) -> Outcome:
    """Decide each row: the label that all annotators gave; else, and where that is unclear, what the discussion resolved.

    A resolution counts while the labels are still those that it was written for.
    """
    decisions = tuple(_decide(sheet, item.id, item.content_sha256, marks, resolutions) for item in sheet.items)
    resolved = {d.id for d in decisions if d.resolved}
    return Outcome(
        kind=sheet.kind,
        guideline_version=sheet.guideline_version,
        sheet_sha256=sheet.sha256,
        annotators=tuple(one.annotator for one in marks),
        share=sheet.share,
        drawn_of=sheet.drawn_of,
        seed=sheet.seed,
        exported=sheet.date,
        imported=now(),
        counts=count(decisions),
        kappas=kappas(sheet, marks),
        stale_resolutions=tuple(i for i, r in resolutions.items() if r.resolution and i not in resolved),
        decisions=decisions,
    )


def _decide(
    sheet: Sheet, id: str, sha256: str, marks: Sequence[AnnotatorMarks], resolutions: Mapping[str, Resolution]
) -> Decision:
    labels = {one.annotator: one.labels[id] for one in marks}
    notes = {one.annotator: one.notes[id] for one in marks if id in one.notes}
    first, *others = labels.values()
    decision: Verdict = "disagreement" if any(label != first for label in others) else first
    given, resolved = resolutions.get(id), None
    if given is not None and given.labels == labels and decision in ("disagreement", "unclear"):
        resolved = given.resolution
    return Decision(
        id=id,
        content_sha256=sha256,
        decision=resolved or decision,
        resolved=resolved is not None,
        labels=labels,
        notes=notes,
    )


def read_resolutions(path: Path, sheet: Sheet) -> dict[str, Resolution]:
    """Id -> row of a disagreements.csv; nothing where there is no such file.

    Raises:
        UserError: an unreadable file, one of another sheet, ids that are not on the sheet, or a resolution that is no label.
    """
    if not path.exists():
        return {}
    columns, rows = read_rows(str(path), "id and resolution")
    if _RESOLUTION not in columns:
        raise UserError(f"{path}, line 1: no column '{_RESOLUTION}': keep the columns as they were written")
    ids = {safe_cell(item_id): item_id for item_id in sheet.ids}
    if extra := [row for row in rows if row.id not in ids]:
        extra_ids = named([row.id for row in extra])
        raise UserError(f"{extra[0].where}: {len(extra)} id(s) not on the sheet: {extra_ids}; remove the rows")
    found = {}
    for row in rows:
        if row.cells.get("sheet") not in (None, "", sheet_mark(sheet)):
            raise UserError(f"{row.where}, column 'sheet': the row is of another sheet than {sheet_mark(sheet)}")
        cell = row.cells[_RESOLUTION]
        label = sheet.guideline.label_of(cell)
        if cell and label is None:
            wanted = ", ".join(sheet.labels)
            what = shown(cell) if cell.isalnum() else "the cell"
            raise UserError(
                f"{row.where}, column '{_RESOLUTION}': {what} is no label: write one of {wanted}, or nothing"
            )
        labels = {name.removeprefix(_LABEL): row.cells[name] for name in columns if name.startswith(_LABEL)}
        found[ids[row.id]] = Resolution(row.where, labels, label)
    return found


def write_disagreements(
    folder: Path, sheet: Sheet, outcome: Outcome, resolutions: Mapping[str, Resolution]
) -> list[Path]:
    """List what needs discussion in disagreements.csv: rows with unequal labels, and rows that all found unclear.

    A file that lists the same rows with the same labels stays as it is. Else it is written anew: rows that are still the same keep
    their resolution, and an older file with any resolution is kept beside it under a number. Returns the files written.

    Raises:
        UserError: the exported texts are missing, or a file cannot be written.
    """
    path = folder / DISAGREEMENTS
    listed = [d for d in outcome.decisions if d.resolved or d.decision in ("disagreement", "unclear")]
    if {d.id: d.labels for d in listed} == {i: r.labels for i, r in resolutions.items()}:
        return []
    kept = []
    if any(r.resolution for r in resolutions.values()):
        kept.append(_keep(path))
    if not listed:
        path.unlink(missing_ok=True)
        return kept
    texts = _texts(folder, sheet)
    fields = list(next(iter(texts.values())))
    names = outcome.annotators
    buffer = io.StringIO(newline="")
    writer = csv.writer(buffer)
    labels, notes = ([f"{what}{name}" for name in names] for what in (_LABEL, _NOTE))
    writer.writerow(["id", *labels, _RESOLUTION, *notes, *fields, "sheet"])
    for d in listed:
        resolution = d.decision if d.resolved else ""
        given = [*(d.labels[n] for n in names), resolution, *(d.notes.get(n, "") for n in names), *texts[d.id].values()]
        writer.writerow(map(safe_cell, [d.id, *given, sheet_mark(sheet)]))
    replace_file(path, buffer.getvalue().encode("utf-8-sig", "replace"))
    return [path, *kept]


def _keep(path: Path) -> Path:
    """Copy a file that people wrote in to the first free number."""
    number = 1
    while (kept := path.with_name(f"{path.stem}.{number}{path.suffix}")).exists():
        number += 1
    try:
        os.link(path, kept)
    except OSError:  # a file system without links
        replace_file(kept, path.read_bytes())
    return kept


def _texts(folder: Path, sheet: Sheet) -> dict[str, dict[str, str]]:
    """Id -> fields, from the Label Studio tasks, which nobody edits."""
    paths = [folder / f"{name}.label-studio.json" for name in sheet.annotators]
    for path in paths:
        texts = dict(_texts_of(path, sheet))
        if set(texts) == set(sheet.ids):
            return texts
    raise UserError(f"{paths[0]}: missing or changed, and the texts of disagreements come from it: restore it")


def _texts_of(path: Path, sheet: Sheet) -> Iterator[tuple[str, dict[str, str]]]:
    try:
        document: Any = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return
    for task in document if isinstance(document, list) else []:
        data = task.get("data") if isinstance(task, dict) else None
        if isinstance(data, dict) and data.get(label_studio.SHEET_SHA256) == sheet.sha256:
            ours = (label_studio.ITEM_ID, label_studio.SHEET_SHA256)
            yield str(data[label_studio.ITEM_ID]), {name: str(text) for name, text in data.items() if name not in ours}
