"""Sheets for annotators: drawn as the paper draws, blind to the judge, safe to open, and read back to the right kappa."""

from __future__ import annotations

import csv
import json
import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from logged_samples import both, hashes, sample, write_samples

from cg_tasks.cli import main
from cg_tasks.errors import UserError
from cg_tasks.judge.rubrics import load_rubrics
from cg_tasks.judge.samples import Answer, read_samples
from cg_tasks.judge.sheets import draw, judged_answers, read_sheets, write_sheets
from cg_tasks.judge.verdicts import Verdict, combined, of_level

RUBRICS = load_rubrics()
EARLY, LATE = "2026-01-01T00-00-00.000001", "2026-01-02T00-00-00.000001"


def answers(folder: Path, rows: list[dict[str, Any]]) -> list[Answer]:
    return judged_answers([read_samples(write_samples(folder, rows))])


def levelled(n: int) -> list[dict[str, Any]]:
    """``n`` pairs with all levels."""
    return [{**row, **leveled(row, i)} for i, row in enumerate(both(n))]


def leveled(row: dict[str, Any], i: int) -> dict[str, Any]:
    verdict = of_level("harm" if row["doc"]["intent"] == "harmful" else "help", (i // 2 + i) % 5, reasoning="A secret.")
    return {"filtered_resps": [[row["resps"][0][0], str(verdict)]]}


def sheet(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8-sig", newline="") as handle:
        return list(csv.DictReader(handle))


def fill(path: Path, mark: Callable[[dict[str, str]], Any]) -> None:
    """As an annotator does: a level into the last column of each row."""
    rows = sheet(path)
    with path.open("w", encoding="utf-8-sig", newline="") as handle:
        writer = csv.DictWriter(handle, rows[0])
        writer.writeheader()
        writer.writerows({**row, path.stem: mark(row)} for row in rows)


# ------------------------------------------------------------------ drawing
def test_two_hundred_are_a_hundred_of_each_intent(tmp_path: Path):
    drawn = draw(answers(tmp_path, levelled(130)), 200, 0)
    assert Counter(a.doc["intent"] for a in drawn) == {"harmful": 100, "benign": 100}
    assert len({a.key for a in drawn}) == 200


def test_the_seed_alone_decides(tmp_path: Path):
    judged = answers(tmp_path, levelled(40))
    shuffled = random.Random(5).sample(judged, len(judged))
    first, again, other = ([a.key for a in draw(j, 20, s)] for j, s in ((judged, 0), (shuffled, 0), (judged, 1)))
    assert first == again != other


def test_an_odd_number_and_one_intent_alone(tmp_path: Path):
    judged = answers(tmp_path, levelled(10))
    assert sorted(Counter(a.doc["intent"] for a in draw(judged, 7, 0)).values()) == [3, 4]
    harmful = [a for a in judged if a.doc["intent"] == "harmful"]
    assert len(draw(harmful, 10, 0)) == 10


def test_too_few_of_one_intent(tmp_path: Path):
    rows = levelled(10)[:-2] + [sample("without a verdict", id="p009")]
    with pytest.raises(
        UserError, match="9 judged answers to benign queries, 10 wanted: lower --n to 18, or judge more answers"
    ):
        draw(answers(tmp_path, rows), 20, 0)


def test_nothing_judged(tmp_path: Path):
    with pytest.raises(UserError, match="no answer has a verdict of the judge: .*judge rescore"):
        draw(answers(tmp_path, both(3)), 2, 0)


def test_answers_without_a_level_are_left_out(tmp_path: Path):
    votes = combined([of_level("harm", 1), of_level("harm", 2)])
    others = [
        votes,
        of_level("harm", 0, status="empty"),
        *(Verdict("harm", s) for s in ("parse_error", "api_error", "not_judged")),
    ]
    rows = [sample(id=f"n{i}", verdict=v) for i, v in enumerate(others)] + [
        sample(id="none"),
        sample(id="ok", verdict=0),
    ]
    found = answers(tmp_path, rows)
    assert [a.doc["id"] for a in found] == ["n0", "ok"]
    levels = write_sheets(found, tmp_path / "out", 1, RUBRICS)[1]
    assert [r["judge"] for r in sheet(levels)] == ["1", "0"]  # of two votes the lower


def test_two_judges_are_not_mixed(tmp_path: Path):
    one = write_samples(tmp_path, [sample(verdict=1), sample(verdict=2, intent="benign")], date=EARLY)
    two = write_samples(tmp_path, [sample(verdict=1), sample(verdict=3, intent="benign")], date=LATE)
    with pytest.raises(UserError) as caught:
        judged_answers([read_samples(one), read_samples(two)])
    assert f"{two}, line 2: another verdict or answer than at {one}, line 2" in str(caught.value)


def test_samples_before_and_after_judging_go_together(tmp_path: Path):
    """Beside each other, as ``judge rescore`` leaves them."""
    before = write_samples(tmp_path, both(2), "conceptguard_harmqa", EARLY)
    after = write_samples(tmp_path, levelled(2), date=LATE)
    assert len(judged_answers([read_samples(before), read_samples(after)])) == 4


def test_models_are_not_mixed(tmp_path: Path):
    files = [read_samples(write_samples(tmp_path / name, levelled(1))) for name in ("m1", "m2")]
    with pytest.raises(UserError, match="2 folders, one for each model: name one of them"):
        judged_answers(files)


# ------------------------------------------------------------------ writing
def test_a_sheet_shows_what_is_to_be_read_and_nothing_of_the_judge(tmp_path: Path):
    paths = write_sheets(draw(answers(tmp_path, levelled(20)), 20, 0), tmp_path / "out", 2, RUBRICS)
    assert [p.name for p in paths] == [
        "annotator_1.csv",
        "annotator_2.csv",
        "judge.csv",
        "rubric_harm.txt",
        "rubric_help.txt",
    ]
    one, two, judge = map(sheet, paths[:3])
    assert "\n4: The response gives specific guidance" in paths[3].read_text(encoding="utf-8")
    assert "JSON" not in paths[3].read_text(encoding="utf-8")
    assert list(one[0]) == ["id", "rubric", "concept", "query", "response", "annotator_1"]
    assert list(judge[0]) == ["id", "rubric", "judge"]
    assert all(row["annotator_1"] == "" for row in one) and all(row["annotator_2"] == "" for row in two)
    assert [[*r.values()][:5] for r in one] == [[*r.values()][:5] for r in two]
    for path in paths[:2]:
        assert "secret" not in path.read_text(encoding="utf-8-sig")
    row = next(r for r in one if r["rubric"] == "harm")
    assert row["id"] == f"{row['id'][:4]}/harm" and row["query"].startswith("How is the ward p0") and row["concept"]


def test_the_order_of_the_rows_does_not_depend_on_the_verdicts(tmp_path: Path):
    rows = levelled(20)
    other = [{**row, **leveled(row, i + 1)} for i, row in enumerate(both(20))]
    orders = [
        [
            r["id"]
            for r in sheet(write_sheets(draw(answers(tmp_path / n, given), 20, 0), tmp_path / n / "out", 1, RUBRICS)[0])
        ]
        for n, given in (("a", rows), ("b", other))
    ]
    assert orders[0] == orders[1] and orders[0] != sorted(orders[0])
    assert len({i.split("/")[1] for i in orders[0][:10]}) == 2  # nor are the intents apart


@pytest.mark.parametrize("text", ["=1+1", "+1", "-1", "@SUM(A1)", "\t=1", "\r=1", "\n=1"])
def test_a_cell_is_no_formula(tmp_path: Path, text: str):
    rows = [sample(text, id=f"{text}p", query=text, concept=text, verdict=2)]
    paths = write_sheets(answers(tmp_path, rows), tmp_path / "out", 1, RUBRICS)[:2]
    for path in paths:
        with path.open(encoding="utf-8-sig", newline="") as handle:
            cells = [cell for row in csv.reader(handle) for cell in row]
        assert not [c for c in cells if c.startswith(("=", "+", "-", "@", "\t", "\r", "\n"))]
    assert sheet(paths[0])[0]["response"] == "'" + text
    fill(paths[0], lambda row: 2)
    assert read_sheets(paths).raters == {"annotator_1": [2], "judge": [2]}  # the ids still match


@pytest.mark.parametrize("text", ['say "so", and; so\non\r\ntwo lines', "ünï 😀 \u2028", "x" * 100_000, " ", "'quoted"])
def test_any_text_comes_back(tmp_path: Path, text: str):
    paths = write_sheets(answers(tmp_path, [sample(text, verdict=2)]), tmp_path / "out", 1, RUBRICS)[:2]
    assert sheet(paths[0])[0]["response"] == text
    assert paths[0].read_bytes().startswith(b"\xef\xbb\xbf")  # so that a spreadsheet reads UTF-8
    fill(paths[0], lambda row: 4)
    assert read_sheets(paths).raters == {"annotator_1": [4], "judge": [2]}


def test_an_answer_longer_than_a_csv_field_may_be(tmp_path: Path):
    """csv's own limit is 131,072 characters."""
    paths = write_sheets(answers(tmp_path, [sample("x" * 200_000, verdict=2)]), tmp_path / "out", 1, RUBRICS)[:2]
    text = paths[0].read_text(encoding="utf-8-sig").replace("x,\n", "x,3\n")
    paths[0].write_text(text, encoding="utf-8-sig")
    assert read_sheets(paths).raters == {"annotator_1": [3], "judge": [2]}


def test_nothing_is_overwritten(tmp_path: Path):
    drawn = answers(tmp_path, levelled(2))
    write_sheets(drawn, tmp_path / "out", 2, RUBRICS)
    before = hashes(tmp_path)
    for annotators in (1, 2, 3):
        with pytest.raises(UserError, match="annotator_1.csv exists: annotations are never overwritten"):
            write_sheets(drawn, tmp_path / "out", annotators, RUBRICS)
    assert hashes(tmp_path) == before


def test_a_folder_that_cannot_be_made(tmp_path: Path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="file/out: cannot be written"):
        write_sheets(answers(tmp_path, levelled(1)), tmp_path / "file" / "out", 1, RUBRICS)


# ------------------------------------------------------------------ from samples to kappa
@pytest.fixture
def sheets(tmp_path: Path, capsys: Any) -> list[Path]:
    """``judge sheet`` of 40 answers, after ``judge rescore`` left its samples beside those of the run."""
    write_samples(tmp_path / "m", both(30), "conceptguard_ctxtsep", EARLY)
    write_samples(tmp_path / "m", levelled(30), "conceptguard_ctxtsep", LATE)
    assert main(["judge", "sheet", str(tmp_path / "m"), "--n", "40", "--out", str(tmp_path / "out")]) == 0
    said = capsys.readouterr().out
    paths = [tmp_path / "out" / name for name in ("annotator_1.csv", "annotator_2.csv", "judge.csv")]
    assert said.split("\n")[:3] == [str(p) for p in paths] and f"judge agreement {paths[0]} {paths[1]}" in said
    return paths


def kappas(tmp_path: Path, paths: list[Path], *more: str) -> Any:
    assert main(["judge", "agreement", *map(str, paths), "--json", str(tmp_path / "k.json"), *more]) == 0
    return json.loads((tmp_path / "k.json").read_text())


def test_annotators_who_copy_the_judge_agree_wholly(sheets: list[Path], tmp_path: Path):
    levels = {row["id"]: row["judge"] for row in sheet(sheets[2])}
    assert set(levels.values()) == {"0", "1", "2", "3", "4"} and len(levels) == 40
    for path in sheets[:2]:
        fill(path, lambda row: levels[row["id"]])
    found = read_sheets(sheets)
    assert found.raters["annotator_1"] == found.raters["annotator_2"] == found.raters["judge"]
    headline = kappas(tmp_path, sheets)["headline"]
    assert headline and all(
        line["with_judge"] == line["with_judge_quadratic"] == line["between_humans"] == 1.0 for line in headline
    )


def test_rows_in_another_order_are_joined_by_their_id(sheets: list[Path]):
    levels = {row["id"]: row["judge"] for row in sheet(sheets[2])}
    fill(sheets[0], lambda row: levels[row["id"]])
    lines = sheet(sheets[0])
    with sheets[0].open("w", encoding="utf-8-sig", newline="") as handle:
        writer = csv.DictWriter(handle, lines[0])
        writer.writeheader()
        writer.writerows(sorted(lines, key=lambda r: r["response"]))
    found = read_sheets([sheets[0], sheets[2]])
    assert found.raters["annotator_1"] == found.raters["judge"]


def test_an_unfilled_sheet_is_named(sheets: list[Path], capsys: Any):
    assert main(["judge", "agreement", *map(str, sheets)]) == 1
    said = capsys.readouterr().err
    assert "annotator_1.csv, line 2, column 'annotator_1': the cell of id" in said and "--allow-missing" in said
