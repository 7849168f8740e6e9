"""Cohen's kappa of annotators: by hand, and scikit-learn's on the shipped sheets."""

from __future__ import annotations

from pathlib import Path

import pytest
from sklearn.metrics import cohen_kappa_score

from cg_tasks.construction.review.agreement import UNDEFINED, Kappa, agreement_report, estimate, kappas
from cg_tasks.construction.review.marks import AnnotatorMarks, read_marks
from cg_tasks.construction.review.sheet import GUIDELINES, ReviewItem, Sheet, new_sheet

DATA = Path(__file__).parent / "data"


def sheet_of(ids: list[str]) -> Sheet:
    items = [ReviewItem(i, {"concept": "c"}, "s", "h") for i in ids]
    return new_sheet(GUIDELINES["tag"], items, ("annotator_1", "annotator_2"), 0, 10 * len(ids), "2026-01-01")


def of(one: str, two: str, more: str = "") -> tuple[Sheet, list[AnnotatorMarks], tuple[Kappa, ...]]:
    """Marks as letters: ``of("aar", "aru")``."""
    labels = {label[0]: label for label in GUIDELINES["tag"].labels}
    ids = [f"p-{i}" for i in range(len(one))]
    marks = [
        AnnotatorMarks(f"annotator_{n}", "x", {i: labels[letter] for i, letter in zip(ids, text, strict=True)})
        for n, text in enumerate(filter(None, (one, two, more)), start=1)
    ]
    return sheet_of(ids), marks, kappas(sheet_of(ids), marks)


def test_kappa_by_hand():
    # 10 items:        accept reject unclear
    #          accept       4      1       0     5
    #          reject       1      3       0     4
    #          unclear      0      0       1     1
    #                       5      4       1    10
    # observed po = (4 + 3 + 1) / 10 = 0.8; by chance pe = (5·5 + 4·4 + 1·1) / 100 = 0.42
    # kappa = (0.8 - 0.42) / (1 - 0.42) = 0.38 / 0.58 = 19/29
    _, _, (found,) = of("aaaaarrrru", "aaaararrru")
    assert found.confusion == ((4, 1, 0), (1, 3, 0), (0, 0, 1))
    assert (found.n, found.raw) == (10, 0.8)
    assert found.kappa == pytest.approx(19 / 29, abs=1e-12)
    assert found.lo is not None and found.hi is not None and found.lo < 19 / 29 < found.hi <= 1


def test_the_shipped_sheets():
    """40 rows; the second is saved as a spreadsheet does it: a BOM, semicolons, capitals, another order."""
    sheet = sheet_of([f"s-{i:02d}" for i in range(40)])
    marks = [read_marks(DATA / f"annotator_{n}.csv", sheet) for n in (1, 2)]
    (found,) = kappas(sheet, marks)
    one, two = ([m.labels[i] for i in sheet.ids] for m in marks)
    assert found.kappa == pytest.approx(cohen_kappa_score(one, two), abs=1e-12)
    # po = (20 + 10 + 4) / 40 = 0.85; pe = (22·23 + 12·12 + 6·5) / 1600 = 0.425; kappa = 0.425 / 0.575 = 17/23
    assert found.confusion == ((20, 1, 1), (2, 10, 0), (1, 1, 4))
    assert found.kappa == pytest.approx(17 / 23, abs=1e-12)
    assert found.lo == pytest.approx(0.54, abs=0.03) and found.hi == pytest.approx(0.90, abs=0.03)
    assert kappas(sheet, marks) == (found,)


def test_three_annotators_make_three_pairs():
    _, _, found = of("aarr", "aarr", "arar")
    assert [(k.first[-1], k.second[-1], k.kappa) for k in found] == [("1", "2", 1.0), ("1", "3", 0.0), ("2", "3", 0.0)]


def test_one_label_only_has_no_kappa():
    sheet, marks, (found,) = of("aaa", "aaa")
    assert (found.kappa, found.lo, found.hi, found.raw) == (None, None, None, 1.0)
    assert estimate(found) == UNDEFINED
    assert f"| annotator_1 – annotator_2 | 3 | 1.00 | {UNDEFINED} |" in agreement_report(sheet, marks, [found])


def test_one_item_has_no_interval():
    _, _, (found,) = of("a", "r")
    assert estimate(found) == "0.00 (no interval)"


def test_one_annotator_has_no_agreement():
    sheet, marks, found = of("aar", "")
    assert found == ()
    report = agreement_report(sheet, marks, found)
    assert "| annotator_1 | 2 | 1 | 0 |" in report and report.endswith("One annotator: no agreement.\n")


def test_the_report():
    sheet, marks, found = of("aaaaarrrru", "aaaararrru")
    report = agreement_report(sheet, marks, found)
    assert "10 of 100 rows (10.0%), seed 0; guideline version 1." in report
    assert "| annotator_2 | 5 | 4 | 1 |" in report
    assert "| annotator_1 – annotator_2 | 10 | 0.80 | 0.66 [" in report
    assert (
        "| | accept | reject | unclear |\n| --- | ---: | ---: | ---: |\n| accept | 4 | 1 | 0 |\n| reject | 1 | 3 | 0 |"
        in report
    )
    assert "bootstrap over items, 2000 resamples, seed 0." in report


def test_a_name_cannot_break_the_table():
    sheet, marks, _ = of("ar", "ar")
    odd = [marks[0], AnnotatorMarks("a|b\nc", "x", marks[1].labels)]
    assert "| annotator_1 – a\\|b c | 2 | 1.00 |" in agreement_report(sheet, odd, kappas(sheet, odd))
