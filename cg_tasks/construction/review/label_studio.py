"""Label Studio: tasks to import there, one labelling configuration, and its two JSON exports read back.

Formats: Label Studio's task format, and its exports JSON (annotations nested in tasks) and JSON-MIN (one flat object an annotation).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from xml.sax.saxutils import quoteattr

from cg_tasks.construction.review.guidelines import Guideline
from cg_tasks.construction.review.sheet import ReviewItem
from cg_tasks.errors import UserError
from cg_tasks.pair_files import kind_of

ITEM_ID, SHEET_SHA256, LABEL, NOTE = "item_id", "sheet_sha256", "label", "note"


@dataclass(frozen=True)
class Annotation:
    """One annotator's mark on one task. annotator: as Label Studio names them, "" where it does not. label: None if unmarked."""

    where: str
    id: str
    sheet_sha256: str
    annotator: str
    label: str | None
    note: str


def tasks(items: Sequence[ReviewItem], sheet_sha256: str) -> list[dict[str, Any]]:
    """Tasks to import. Label Studio numbers tasks anew, so an item's own id and its sheet stand in the data."""
    return [
        {"id": number, "data": {ITEM_ID: item.id, SHEET_SHA256: sheet_sha256, **item.fields}}
        for number, item in enumerate(items, start=1)
    ]


def config(guideline: Guideline, fields: Sequence[str]) -> str:
    """The labelling configuration: open fields first, harmful ones folded, then the labels (hotkeys a, r, u) and a note."""
    shown = [name for name in fields if name in guideline.open_fields]
    folded = [name for name in fields if name not in guideline.open_fields]
    lines = [
        "<View>",
        f"  <Header value={quoteattr(guideline.title)}/>",
        *_headers((guideline.question, *guideline.points)),
    ]
    lines += _headers(f"{label}: {meaning}" for label, meaning in guideline.meanings.items())
    for name in shown:
        lines += [f"  <Header value={quoteattr(caption(name))}/>", f'  <Text name="{name}" value="${name}"/>']
    for name in folded:
        lines += [
            "  <Collapse>",
            f"    <Panel value={quoteattr(caption(name) + ' (harmful: open to read)')}>",
            f'      <View><Text name="{name}" value="${name}"/></View>',
            "    </Panel>",
            "  </Collapse>",
        ]
    to = (shown or folded)[0]
    lines.append(f'  <Choices name="{LABEL}" toName="{to}" choice="single" required="true" showInline="true">')
    lines += [f'    <Choice value="{label}" hotkey="{label[0]}"/>' for label in guideline.labels]
    lines += [
        "  </Choices>",
        f'  <TextArea name="{NOTE}" toName="{to}" placeholder="Note" maxSubmissions="1" rows="2"/>',
    ]
    return "\n".join([*lines, "</View>"]) + "\n"


def _headers(texts: Any) -> Iterator[str]:
    for text in texts:
        yield f'  <Header size="6" value={quoteattr(text)}/>'


def caption(name: str) -> str:
    """A field's name as people read it."""
    return name.replace("_", " ").capitalize()


def read_export(document: list[Any], path: str) -> list[Annotation]:
    """What annotators marked, from a JSON or a JSON-MIN export. Skipped (cancelled) annotations are no marks.

    Raises:
        UserError: a task of another shape, or without what tells which item of which sheet it is.
    """
    found: list[Annotation] = []
    for number, task in enumerate(document, start=1):
        where = f"{path}, task {number}"
        if not isinstance(task, dict):
            raise UserError(
                f"{where}: {kind_of(task)} where a task (an object) belongs: export from Label Studio as JSON"
            )
        found += _full(task, where) if "annotations" in task or "data" in task else [_flat(task, where)]
    return found


def _full(task: Mapping[str, Any], where: str) -> Iterator[Annotation]:
    data, marked = task.get("data"), task.get("annotations")
    if not isinstance(data, dict) or not isinstance(marked, list):
        raise UserError(
            f"{where}: no 'data' object with an 'annotations' list: export from Label Studio as JSON, not what was imported there"
        )
    for entry in marked:
        if not isinstance(entry, dict) or not isinstance(entry.get("result", []), list):
            raise UserError(
                f"{where}, field 'annotations': an annotation without a 'result' list: export the project again"
            )
        if entry.get("was_cancelled"):
            continue
        label, note = None, ""
        for part in entry.get("result", []):
            value = part.get("value") if isinstance(part, dict) else None
            if not isinstance(value, dict):
                raise UserError(f"{where}, field 'result': a part without a 'value' object: export the project again")
            if part.get("from_name") == LABEL:
                label = _one(value.get("choices"), where)
            elif part.get("from_name") == NOTE:
                note = _joined(value.get("text"))
        yield Annotation(where, *_item(data, where), _annotator(entry.get("completed_by")), label, note)


def _flat(task: Mapping[str, Any], where: str) -> Annotation:
    label = _one(task[LABEL], where) if task.get(LABEL) is not None else None
    return Annotation(where, *_item(task, where), _annotator(task.get("annotator")), label, _joined(task.get(NOTE)))


def _item(data: Mapping[str, Any], where: str) -> tuple[str, str]:
    for name in (ITEM_ID, SHEET_SHA256):
        if not isinstance(data.get(name), str):
            raise UserError(
                f"{where}, field {name!r}: {kind_of(data.get(name))} where our export has a string: is it our sheet?"
            )
    return data[ITEM_ID], data[SHEET_SHA256]


def _one(choices: Any, where: str) -> str:
    """The one chosen label, as JSON ("accept"), as a list, or as {"choices": [...]}."""
    if isinstance(choices, dict):
        choices = choices.get("choices")
    if isinstance(choices, str):
        return choices
    if not isinstance(choices, list) or len(choices) != 1 or not isinstance(choices[0], str):
        count = f"{len(choices)} labels" if isinstance(choices, list) else kind_of(choices)
        raise UserError(f"{where}, field {LABEL!r}: {count} where one label belongs: mark it again with one")
    return choices[0]


def _joined(text: Any) -> str:
    if isinstance(text, dict):
        text = text.get("text")
    if isinstance(text, list):
        return "\n".join(_joined(part) for part in text)
    return text if isinstance(text, str) else ""


def _annotator(value: Any) -> str:
    """A user's id, or with more known of them the e-mail address."""
    if isinstance(value, dict):
        value = value.get("email") or value.get("username") or value.get("id")
    return str(value) if isinstance(value, (str, int)) and not isinstance(value, bool) else ""
