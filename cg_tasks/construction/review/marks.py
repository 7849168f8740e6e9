"""Annotators' marks, read from whatever form of the sheet they filled in, and refused where they are not all there.

Notes are kept, and stand in no message: annotators quote what they read.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cg_tasks.construction.review import label_studio
from cg_tasks.construction.review.exporting import sheet_mark
from cg_tasks.construction.review.guidelines import Label
from cg_tasks.construction.review.sheet import Sheet
from cg_tasks.errors import UserError
from cg_tasks.pair_files import kind_of, short
from cg_tasks.sheet_files import named, read_rows, safe_cell

_ENDINGS = (".label-studio.json", ".marks.json", ".json", ".csv", ".html")


@dataclass(frozen=True)
class AnnotatorMarks:
    """One annotator's label of every item of the sheet. notes: those that are not empty."""

    annotator: str
    file: str
    labels: dict[str, Label]
    notes: dict[str, str] = field(default_factory=dict, repr=False)


@dataclass(frozen=True)
class _Mark:
    where: str
    id: str
    label: str  # as it was written, "" where there is none
    note: str = field(repr=False)


def read_marks(path: str | Path, sheet: Sheet) -> AnnotatorMarks:
    """The marks in a file of one annotator: a filled-in CSV, the HTML sheet's marks.json, or a Label Studio export.

    Raises:
        UserError: as ``read_all_marks``, or a file of several annotators.
    """
    found = read_all_marks(path, sheet)
    if len(found) > 1:
        raise UserError(f"{path}: holds the marks of {len(found)} annotators: export one annotator's")
    return found[0]


def read_all_marks(path: str | Path, sheet: Sheet) -> list[AnnotatorMarks]:
    """The marks in a file, by annotator: only a Label Studio export can hold several.

    Raises:
        UserError: an unreadable file, one of another sheet, an annotator it was not made for; items that are missing, extra, there
            twice or marked with no label of the sheet.
    """
    path = str(path)
    suffix = Path(path).suffix.lower()
    if suffix == ".csv":
        return [_read_csv(path, sheet)]
    if suffix == ".html":
        raise UserError(
            f"{path}: an HTML sheet holds no marks: press Save in it, and name the .marks.json it gives you"
        )
    if suffix != ".json":
        raise UserError(
            f"{path}: name a .csv sheet, a .marks.json of the HTML sheet, or a .json export of Label Studio"
        )
    document = _read_json(path)
    if isinstance(document, dict) and "marks" in document:
        return [_read_ours(document, path, sheet)]
    if isinstance(document, list) and document:
        return _read_label_studio(document, path, sheet)
    what = "an empty list" if document == [] else kind_of(document)
    raise UserError(
        f"{path}: {what}, neither the marks of an HTML sheet nor an export of Label Studio: save or export it again"
    )


def collect(files: Iterable[str | Path], sheet: Sheet, allow_single: bool = False) -> list[AnnotatorMarks]:
    """The marks of all files: in the order of the sheet's annotators, others after them by name.

    Raises:
        UserError: as ``read_all_marks``; files of one annotator that differ; one annotator alone, unless that is allowed.
    """
    by_name: dict[str, AnnotatorMarks] = {}
    for marks in (marks for path in files for marks in read_all_marks(path, sheet)):
        known = by_name.setdefault(marks.annotator, marks)
        if differing := [i for i in sheet.ids if known.labels[i] != marks.labels[i]]:
            raise UserError(
                f"{marks.file}: marks {len(differing)} items otherwise than {known.file}, both by {short(marks.annotator)}: "
                f"{named(differing)}; name one of the files (or a Label Studio export after its annotator)"
            )
        by_name[marks.annotator] = AnnotatorMarks(known.annotator, known.file, known.labels, marks.notes | known.notes)
    if not by_name:
        raise UserError("no file of marks: name one for each annotator (.csv, .marks.json or a Label Studio export)")
    if len(by_name) == 1 and not allow_single:
        raise UserError(
            f"marks of {short(next(iter(by_name)))} alone: agreement needs two annotators: name another's file, or give --allow-single"
        )
    rank = {name: number for number, name in enumerate(sheet.annotators)}
    return sorted(by_name.values(), key=lambda marks: (rank.get(marks.annotator, len(rank)), marks.annotator))


def stem(path: str) -> str:
    """A file's name without the endings of a sheet's files."""
    name = Path(path).name
    ending = next((e for e in _ENDINGS if name.lower().endswith(e)), "")
    return name[: len(name) - len(ending)]


def _read_csv(path: str, sheet: Sheet) -> AnnotatorMarks:
    columns, rows = read_rows(path, "id and label")
    if "label" not in columns:
        raise UserError(f"{path}, line 1: no column 'label': keep the columns as they were exported")
    _require_annotator(stem(path), sheet, f"{path}: the file's name", "name the file after its annotator")
    for row in rows:
        if row.cells.get("sheet") not in (None, "", sheet_mark(sheet)):
            raise UserError(
                f"{row.where}, column 'sheet': the row is of another sheet than {sheet_mark(sheet)}: fill in this one"
            )
    ids = {safe_cell(item_id): item_id for item_id in sheet.ids}
    marks = [_Mark(r.where, ids.get(r.id, r.id), r.cells["label"], r.cells.get("note", "")) for r in rows]
    return _checked(stem(path), path, marks, sheet)


def _read_json(path: str) -> Any:
    try:
        return json.loads(Path(path).read_bytes().decode("utf-8-sig"))
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror or type(error).__name__}") from None
    except UnicodeDecodeError:
        raise UserError(f"{path}: not UTF-8: save or export it again") from None
    except json.JSONDecodeError as error:
        raise UserError(
            f"{path}, line {error.lineno}: not JSON, or cut off ({error.msg}): save or export it again"
        ) from None
    except RecursionError:
        raise UserError(f"{path}: nested too deeply to be marks: save or export it again") from None


def _read_ours(document: dict[str, Any], path: str, sheet: Sheet) -> AnnotatorMarks:
    for name, kind in (("sheet_sha256", str), ("annotator", str), ("marks", list)):
        if not isinstance(document.get(name), kind):
            raise UserError(
                f"{path}, field {name!r}: {kind_of(document.get(name))}: save the marks from the HTML sheet again"
            )
    _require_sheet(document["sheet_sha256"], sheet, path)
    _require_annotator(
        document["annotator"], sheet, f"{path}, field 'annotator'", "save the marks from your HTML sheet"
    )
    marks = []
    for number, entry in enumerate(document["marks"], start=1):
        where = f"{path}, mark {number}"
        if not isinstance(entry, dict):
            raise UserError(
                f"{where}: {kind_of(entry)} where an object belongs: save the marks from the HTML sheet again"
            )
        label, note = entry.get("label"), entry.get("note", "")
        for name, value in (("id", entry.get("id")), ("label", "" if label is None else label), ("note", note)):
            if not isinstance(value, str):
                raise UserError(
                    f"{where}, field {name!r}: {kind_of(value)} where a string belongs: save the marks again"
                )
        marks.append(_Mark(where, entry["id"], label or "", note))
    return _checked(document["annotator"], path, marks, sheet)


def _read_label_studio(document: list[Any], path: str, sheet: Sheet) -> list[AnnotatorMarks]:
    found = label_studio.read_export(document, path)
    for entry in found:
        _require_sheet(entry.sheet_sha256, sheet, entry.where)
    by_annotator: dict[str, list[_Mark]] = {}
    for entry in found:
        mark = _Mark(entry.where, entry.id, entry.label or "", entry.note)
        by_annotator.setdefault(entry.annotator, []).append(mark)
    if not by_annotator:
        raise UserError(f"{path}: none of its {len(document)} tasks is annotated: mark them, and export again")
    # Everybody is user 1 of their own Label Studio, so that the file's name says more where it names an annotator.
    if len(by_annotator) == 1 and stem(path) in sheet.annotators:
        by_annotator = {stem(path): next(iter(by_annotator.values()))}
    return [_checked(_named_user(name) or stem(path), path, marks, sheet) for name, marks in by_annotator.items()]


def _named_user(name: str) -> str:
    return f"label-studio-{name}" if name.isdigit() else name


def _require_sheet(sha256: str, sheet: Sheet, where: str) -> None:
    if sha256 != sheet.sha256:
        raise UserError(
            f"{where}: marks of another sheet ({short(sha256[:12])}, not {sheet.sha256[:12]!r}): name the files of this one"
        )


def _require_annotator(name: str, sheet: Sheet, where: str, way_out: str) -> None:
    if name not in sheet.annotators:
        known = ", ".join(map(short, sheet.annotators[:8]))
        raise UserError(f"{where} is {short(name)}, no annotator of the sheet ({known}): {way_out}")


def _checked(annotator: str, path: str, marks: Sequence[_Mark], sheet: Sheet) -> AnnotatorMarks:
    """Every item once, with a label of the sheet."""
    on_sheet = set(sheet.ids)
    _refuse(marks, lambda mark: mark.id not in on_sheet, "not on the sheet", "remove what was not exported")
    first: dict[str, _Mark] = {}
    again = [mark for mark in marks if first.setdefault(mark.id, mark) is not mark]
    if again:
        before = first[again[0].id].where.removeprefix(f"{path}, ")
        _refuse(
            again, lambda _: True, f"marked twice by {short(annotator)} (before: {before})", "keep one mark of each"
        )
    guideline = sheet.guideline
    numbers = f", {', '.join(guideline.numbers)}" if guideline.numbers else ""
    wanted = f"write one of {', '.join(sheet.labels)}{numbers}"
    unknown = [m for m in marks if m.label.strip() and guideline.label_of(m.label) is None]
    _refuse(unknown, lambda _: True, f"marked with no label of the sheet{_written(unknown)}", wanted)
    labels = {mark.id: label for mark in marks if (label := guideline.label_of(mark.label))}
    if missing := [item_id for item_id in sheet.ids if item_id not in labels]:
        at = first[missing[0]].where if missing[0] in first else f"{path} (no row or task of it)"
        raise UserError(f"{at}: {len(missing)} of {len(sheet.ids)} items are not marked: {named(missing)}; {wanted}")
    notes = {mark.id: mark.note.strip() for mark in marks if mark.note.strip()}
    return AnnotatorMarks(annotator, path, labels, notes)


def _refuse(marks: Sequence[_Mark], bad: Callable[[_Mark], bool], what: str, way_out: str) -> None:
    if found := [mark for mark in marks if bad(mark)]:
        ids = list(dict.fromkeys(mark.id for mark in found))
        raise UserError(f"{found[0].where}: {len(ids)} item{'s' * (len(ids) > 1)} {what}: {named(ids)}; {way_out}")


def _written(marks: Sequence[_Mark]) -> str:
    """What stands instead, where it is one short word: else it may be a note."""
    word = marks[0].label.strip() if marks else ""
    return f" ({word!r})" if word.isalnum() and len(word) <= 12 else ""
