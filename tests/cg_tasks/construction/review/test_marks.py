"""Each form of a filled-in sheet gives the same marks, and one with anything missing, extra or unclear is refused by name."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cg_tasks.construction.review.exporting import export
from cg_tasks.construction.review.marks import collect, read_all_marks, read_marks
from cg_tasks.construction.review.sheet import GUIDELINES, ReviewItem, read_sheet
from cg_tasks.errors import UserError

MARKS = dict(zip([f"p-{i:02d}" for i in range(6)], ["accept", "reject", "unclear"] * 2, strict=True))
NOTES = {"p-02": "Is it, though?"}
ONE = "annotator_1"
Make = Callable[..., Any]


@pytest.fixture
def made(review: Make) -> Any:
    return review()


def refused(path: Path, made: Any) -> str:
    with pytest.raises(UserError) as caught:
        read_marks(path, made.sheet)
    message = str(caught.value)
    assert "\n" not in message and "Brannmoor" not in message and message.startswith(str(path))
    return message.removeprefix(str(path))


# ------------------------------------------------------------------ round trips
def test_a_filled_in_csv(made: Any):
    found = read_marks(made.csv(ONE, MARKS, NOTES), made.sheet)
    assert (found.annotator, found.labels, found.notes) == (ONE, MARKS, NOTES)


@pytest.mark.parametrize("form", [{"delimiter": ";"}, {"encoding": "utf-8"}, {"delimiter": ";", "encoding": "utf-8"}])
def test_as_a_spreadsheet_saves_it(made: Any, form: dict[str, str]):
    found = read_marks(made.csv(ONE, {i: f" {label.upper()} " for i, label in MARKS.items()}, **form), made.sheet)
    assert found.labels == MARKS


def test_ids_like_formulas_come_back(tmp_path: Path):
    export(tmp_path / "f", GUIDELINES["tag"], [ReviewItem("=1", {"concept": "c"}, "s", "h")], 2, 0, 1)
    path = tmp_path / "f" / "annotator_1.csv"
    path.write_text(path.read_text(encoding="utf-8-sig").replace("c,,", "c,accept,"), encoding="utf-8-sig")
    assert read_marks(path, read_sheet(tmp_path / "f")).labels == {"=1": "accept"}


def test_ones_and_zeros_of_the_benign_guideline(review: Make):
    made = review(kind="benign", n=2)
    assert read_marks(made.csv(ONE, {"p-00": "1", "p-01": "0"}), made.sheet).labels == {
        "p-00": "accept",
        "p-01": "reject",
    }


def test_ones_are_no_labels_of_a_tag(made: Any):
    said = refused(made.csv(ONE, dict.fromkeys(MARKS, "1")), made)
    assert said.startswith(", line 2: 6 items marked with no label of the sheet ('1'): 'p-00'")
    assert said.endswith("'p-04' and 1 more; write one of accept, reject, unclear")


def test_the_html_sheets_file(made: Any):
    found = read_marks(made.ours(ONE, MARKS), made.sheet)
    assert (found.annotator, found.labels) == (ONE, MARKS)


def test_label_studios_json(made: Any):
    found = read_marks(made.label_studio("export.json", {4: MARKS}, NOTES), made.sheet)
    assert (found.annotator, found.labels, found.notes) == ("label-studio-4", MARKS, NOTES)
    by_mail = made.label_studio("x.json", {4: MARKS})
    by_mail.write_text(
        by_mail.read_text().replace('"completed_by": 4', '"completed_by": {"id": 4, "email": "a@b.example"}')
    )
    assert read_marks(by_mail, made.sheet).annotator == "a@b.example"


def test_label_studios_json_min(made: Any):
    found = read_marks(made.json_min("min.json", MARKS), made.sheet)
    assert (found.annotator, found.labels) == ("label-studio-3", MARKS)
    assert read_marks(made.json_min("annotator_2.json", MARKS), made.sheet).annotator == "annotator_2"
    assert read_marks(made.json_min("bo.json", MARKS, None), made.sheet).annotator == "bo"


def test_a_label_studio_export_of_both_annotators(made: Any):
    other = {**MARKS, "p-00": "unclear"}
    path = made.label_studio("both.json", {1: MARKS, 2: other})
    assert [(m.annotator, m.labels) for m in read_all_marks(path, made.sheet)] == [
        ("label-studio-1", MARKS),
        ("label-studio-2", other),
    ]
    assert refused(path, made) == ": holds the marks of 2 annotators: export one annotator's"


# ------------------------------------------------------------------ refusals
def test_unmarked_rows_are_named(made: Any):
    said = refused(made.csv(ONE, {"p-03": "accept"}), made)
    assert said.startswith(
        ", line 2: 5 of 6 items are not marked: 'p-00', 'p-01', 'p-02', 'p-04', 'p-05'; write one of"
    )


def test_absent_rows_are_named(review: Make):
    made = review(n=9)
    said = refused(made.ours(ONE, {"p-08": "accept"}), made)
    assert said.startswith(
        " (no row or task of it): 8 of 9 items are not marked: 'p-00', 'p-01', 'p-02', 'p-03', 'p-04' and 3 more;"
    )


def test_a_row_that_was_deleted(made: Any):
    path = made.csv(ONE, MARKS)
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([*lines[:3], *lines[4:]]))
    assert "1 of 6 items are not marked: 'p-02'" in refused(path, made)


def test_a_mark_without_a_label_is_none(made: Any):
    said = refused(made.ours(ONE, {**MARKS, "p-04": None}), made)
    assert said.startswith(", mark 5: 1 of 6 items are not marked: 'p-04'")


def test_skipped_tasks_are_unmarked(made: Any):
    path = made.label_studio("x.json", {1: MARKS})
    document = json.loads(path.read_text())
    document[2]["annotations"][0]["was_cancelled"] = True
    path.write_text(json.dumps(document))
    assert "1 of 6 items are not marked: 'p-02'" in refused(path, made)


def test_rows_that_were_not_exported_are_named(made: Any):
    extra = {f"q-{i}": "accept" for i in range(7)}
    said = refused(made.ours(ONE, {**MARKS, **extra}), made)
    assert said.startswith(", mark 7: 7 items not on the sheet: 'q-0', 'q-1', 'q-2', 'q-3', 'q-4' and 2 more;")


def test_rows_that_stand_there_twice_are_named(made: Any):
    path = made.csv(ONE, MARKS)
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([*lines, *lines[1:4]]))
    said = refused(path, made)
    assert said.startswith(
        f", line 8, column 'id': id 'p-00' stands in {path}, line 2 already: remove one (so do 'p-01', 'p-02'"
    )


@pytest.mark.parametrize("label", ["accept", "reject"])
def test_marks_that_stand_there_twice_are_named(made: Any, label: str):
    path = made.ours(ONE, MARKS)
    document = json.loads(path.read_text())
    document["marks"].append({"id": "p-00", "label": label, "note": ""})
    path.write_text(json.dumps(document))
    assert refused(path, made).startswith(
        ", mark 7: 1 item marked twice by 'annotator_1' (before: mark 1): 'p-00'; keep one"
    )


def test_two_annotations_by_one_annotator(made: Any):
    path = made.label_studio("x.json", {1: MARKS})
    document = json.loads(path.read_text())
    document[1]["annotations"] *= 2
    path.write_text(json.dumps(document))
    assert refused(path, made).startswith(", task 2: 1 item marked twice by 'label-studio-1' (before: task 2): 'p-01'")


def test_an_unknown_label_is_shown_and_a_sentence_is_not(made: Any):
    assert ", line 3: 1 item marked with no label of the sheet ('acept'): 'p-01'" in refused(
        made.csv(ONE, {**MARKS, "p-01": "acept"}), made
    )
    said = refused(made.csv(ONE, {**MARKS, "p-01": "sluice at 5"}), made)
    assert "sluice" not in said and "no label of the sheet: 'p-01'" in said


def test_marks_of_another_sheet(made: Any, review: Make):
    other = review(kind="benign")
    assert "marks of another sheet (" in refused(made.ours(ONE, MARKS, sheet_sha256="0" * 64), made)
    assert refused(other.label_studio("y.json", {1: MARKS}), made).startswith(", task 1: marks of another sheet (")
    path = other.csv(ONE, MARKS)
    assert refused(path, made).startswith(", line 2, column 'sheet': the row is of another sheet than sheet-")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"marks": [{"id": "p-00"', ", line 1: not JSON, or cut off"),
        ("", ", line 1: not JSON, or cut off"),
        ("[" * 100_000, ": nested too deeply"),
        ("[]", ": an empty list, neither the marks of an HTML sheet nor an export"),
        ('"text"', ": a string, neither"),
        ('{"marks": 3, "annotator": "a", "sheet_sha256": "b"}', ", field 'marks': a number"),
        ('{"marks": []}', ", field 'sheet_sha256': null"),
        ("[3]", ", task 1: a number where a task"),
        ('[{"data": {}}]', ", task 1: no 'data' object with an 'annotations' list"),
        ('[{"id": 1, "label": "accept"}]', ", task 1, field 'item_id': null where our export has a string"),
        (
            '[{"data": {}, "annotations": [{"result": 3}]}]',
            ", task 1, field 'annotations': an annotation without a 'result'",
        ),
        ('[{"data": {}, "annotations": [{"result": [3]}]}]', ", task 1, field 'result': a part without a 'value'"),
    ],
)
def test_files_of_another_shape(made: Any, text: str, message: str):
    path = made.json("x.json", None)
    path.write_text(text)
    assert refused(path, made).startswith(message)


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        (7, ", mark 1: a number where an object belongs"),
        ({"id": 7, "label": "accept"}, ", mark 1, field 'id': a number where a string"),
        ({"id": "p-00", "label": 1}, ", mark 1, field 'label': a number"),
        ({"id": "p-00", "label": "accept", "note": ["x"]}, ", mark 1, field 'note': a list"),
    ],
)
def test_marks_of_another_shape(made: Any, entry: Any, message: str):
    assert refused(made.ours(ONE, {}, marks=[entry]), made).startswith(message)


def test_two_labels_on_one_task(made: Any):
    path = made.label_studio("x.json", {1: MARKS})
    path.write_text(path.read_text().replace('["reject"]', '["reject", "accept"]', 1))
    assert refused(path, made).startswith(", task 2, field 'label': 2 labels where one label belongs")


def test_the_tasks_that_were_exported_are_no_marks(made: Any):
    path = made.folder / "annotator_1.label-studio.json"
    assert refused(path, made).startswith(
        ", task 1: no 'data' object with an 'annotations' list: export from Label Studio"
    )
    assert "none of its 6 tasks is annotated" in refused(made.label_studio("x.json", {}), made)


def test_files_that_are_no_marks(made: Any, tmp_path: Path):
    assert "an HTML sheet holds no marks: press Save" in refused(made.folder / "annotator_1.html", made)
    assert "name a .csv sheet" in refused(tmp_path / "marks.xlsx", made)
    assert "cannot be read: No such file" in refused(tmp_path / "none.json", made)
    path = made.folder / "annotator_1.csv"
    path.write_text("id,mark\np-00,accept\n")
    assert "line 1: no column 'label'" in refused(path, made)
    latin = made.json("latin.json", None)
    latin.write_bytes('{"marks": "\xe9"}'.encode("latin-1"))
    assert refused(latin, made) == ": not UTF-8: save or export it again"


def test_a_file_of_nobody(made: Any):
    path = made.csv(ONE, MARKS).rename(made.folder / "annotator_1 (1).csv")
    assert "the file's name is 'annotator_1 (1)', no annotator of the sheet ('annotator_1', 'annotator_2')" in refused(
        path, made
    )
    assert "field 'annotator' is 'eve', no annotator of the sheet" in refused(made.ours("eve", MARKS), made)


# ------------------------------------------------------------------ several files
def test_annotators_stand_in_the_order_of_the_sheet(made: Any):
    files = [made.csv("annotator_2", MARKS), made.ours(ONE, MARKS)]
    assert [m.annotator for m in collect(files, made.sheet)] == [ONE, "annotator_2"]


def test_one_annotator_alone(made: Any):
    path = made.csv(ONE, MARKS)
    with pytest.raises(UserError, match="marks of 'annotator_1' alone: agreement needs two"):
        collect([path, path], made.sheet)
    assert len(collect([path], made.sheet, allow_single=True)) == 1
    with pytest.raises(UserError, match="no file of marks"):
        collect([], made.sheet)


def test_two_files_of_one_annotator(made: Any):
    other = made.csv("annotator_2", MARKS)
    same = [made.csv(ONE, MARKS), made.ours(ONE, MARKS), other]
    assert len(collect(same, made.sheet)) == 2
    made.ours(ONE, {**MARKS, "p-01": "accept", "p-05": "accept"})
    with pytest.raises(
        UserError, match="marks 2 items otherwise than .*annotator_1.csv, both by 'annotator_1': 'p-01', 'p-05'"
    ):
        collect(same, made.sheet)
