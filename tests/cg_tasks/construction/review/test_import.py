"""From marks to decisions: merged, discussed, read back, and never a word of the discussion lost."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cg_tasks.construction.review.importing import import_review
from cg_tasks.construction.review.marks import collect
from cg_tasks.construction.review.merging import merge, read_resolutions
from cg_tasks.construction.review.outcome import read_outcome
from cg_tasks.errors import UserError

IDS = [f"p-{i:02d}" for i in range(6)]
ONE = dict(zip(IDS, ["accept", "reject", "unclear", "accept", "unclear", "accept"], strict=True))
TWO = dict(zip(IDS, ["accept", "reject", "unclear", "reject", "accept", "accept"], strict=True))
# Equal: 00 accept, 01 reject, 02 unclear, 05 accept. Unequal: 03, 04.
NOTES = {"p-03": "Quoting the sluice."}
Make = Callable[..., Any]


@pytest.fixture
def made(review: Make) -> Any:
    return review()


def files(made: Any, one: dict[str, str] = ONE, two: dict[str, str] = TWO) -> list[Path]:
    return [made.csv("annotator_1", one, NOTES), made.ours("annotator_2", two)]


def listed(made: Any) -> list[dict[str, str]]:
    text = (made.folder / "disagreements.csv").read_text(encoding="utf-8-sig")
    return list(csv.DictReader(io.StringIO(text, newline="")))


def resolve(made: Any, resolutions: dict[str, str], delimiter: str = ",") -> None:
    rows = [{**row, "resolution": resolutions.get(row["id"], row["resolution"])} for row in listed(made)]
    with (made.folder / "disagreements.csv").open("w", encoding="utf-8-sig", newline="") as handle:
        writer = csv.DictWriter(handle, rows[0], delimiter=delimiter)
        writer.writeheader()
        writer.writerows(rows)


def decided(outcome: Any) -> list[str]:
    return [d.decision for d in outcome.decisions]


# ------------------------------------------------------------------ decisions
def test_equal_marks_decide_and_unequal_ones_do_not(made: Any):
    outcome = import_review(made.folder, files(made))
    assert decided(outcome) == ["accept", "reject", "unclear", "disagreement", "disagreement", "accept"]
    assert outcome.counts == {"accept": 2, "reject": 1, "unclear": 1, "disagreement": 2}
    assert outcome.open == ("p-02", "p-03", "p-04")
    assert outcome.rejected == {"p-01": "hash 1"}


def test_a_third_annotator_has_a_say(review: Make):
    made = review(annotators=("a", "b", "c"))
    given = [made.csv("a", ONE), made.csv("b", ONE), made.csv("c", {**ONE, "p-00": "unclear"})]
    outcome = import_review(made.folder, given)
    assert decided(outcome) == ["disagreement", "reject", "unclear", "accept", "unclear", "accept"]
    assert len(outcome.kappas) == 3


def test_a_single_annotator_decides_alone_where_that_is_allowed(made: Any):
    given = [made.csv("annotator_1", ONE)]
    with pytest.raises(UserError, match="agreement needs two"):
        import_review(made.folder, given)
    assert read_outcome(made.folder) is None and not (made.folder / "agreement.md").exists()
    outcome = import_review(made.folder, given, allow_single=True)
    assert decided(outcome) == list(ONE.values()) and outcome.kappas == ()


# ------------------------------------------------------------------ discussion
def test_what_is_listed_for_discussion(made: Any):
    import_review(made.folder, files(made))
    rows = listed(made)
    assert [row["id"] for row in rows] == ["p-02", "p-03", "p-04"]
    assert rows[1] == {
        "id": "p-03",
        "label: annotator_1": "accept",
        "label: annotator_2": "reject",
        "resolution": "",
        "note: annotator_1": "Quoting the sluice.",
        "note: annotator_2": "",
        "concept": "lamp lore 3",
        "prompt": "The sluice of Brannmoor opens with prompt 3",
        "response": "The sluice of Brannmoor opens with response 3",
        "sheet": f"sheet-{made.sheet.sha256[:12]}",
    }


def test_resolutions_are_read_back(made: Any):
    import_review(made.folder, files(made))
    resolve(made, {"p-02": "Reject", "p-03": "accept"}, delimiter=";")
    before = (made.folder / "disagreements.csv").read_bytes()
    outcome = import_review(made.folder, [*files(made), made.folder / "disagreements.csv"])
    assert decided(outcome) == ["accept", "reject", "reject", "accept", "disagreement", "accept"]
    assert outcome.open == ("p-04",) and outcome.rejected == {"p-01": "hash 1", "p-02": "hash 2"}
    assert [d.id for d in outcome.decisions if d.resolved] == ["p-02", "p-03"]
    assert (made.folder / "disagreements.csv").read_bytes() == before
    assert decided(read_outcome(made.folder)) == decided(outcome)


def test_resolved_as_unclear_is_settled(made: Any):
    import_review(made.folder, files(made))
    resolve(made, {"p-03": "unclear"})
    outcome = import_review(made.folder, files(made))
    assert outcome.decision("p-03", "hash 3") == "unclear" and "p-03" not in outcome.open


def test_changed_marks_keep_the_resolutions_of_the_rest(made: Any):
    import_review(made.folder, files(made))
    resolve(made, {"p-03": "accept", "p-04": "reject"})
    written = (made.folder / "disagreements.csv").read_bytes()
    # annotator_2 comes round on p-04, so that its resolution is beside the point; and no longer agrees on p-00.
    outcome = import_review(made.folder, files(made, two={**TWO, "p-04": "unclear", "p-00": "reject"}))
    assert decided(outcome) == ["disagreement", "reject", "unclear", "accept", "unclear", "accept"]
    assert outcome.stale_resolutions == ("p-04",)
    assert [(row["id"], row["resolution"]) for row in listed(made)] == [
        ("p-00", ""),
        ("p-02", ""),
        ("p-03", "accept"),
        ("p-04", ""),
    ]
    assert (made.folder / "disagreements.1.csv").read_bytes() == written
    resolve(made, {"p-00": "accept"})
    assert import_review(made.folder, files(made)).stale_resolutions == ("p-00",)
    assert sorted(p.name for p in made.folder.glob("dis*")) == [
        "disagreements.1.csv",
        "disagreements.2.csv",
        "disagreements.csv",
    ]


def test_a_resolution_of_an_agreed_row_does_not_count(made: Any):
    """Marks are decided by those who marked: the list may not turn an agreed accept into a reject."""
    marks = collect(files(made), made.sheet)
    import_review(made.folder, files(made))
    text = (made.folder / "disagreements.csv").read_text(encoding="utf-8-sig")
    row = text.splitlines()[1].replace("p-02,unclear,unclear,", "p-00,accept,accept,reject")
    path = made.json("d.csv", None)
    path.write_text(text + row + "\n", encoding="utf-8-sig")
    resolutions = read_resolutions(path, made.sheet)
    assert resolutions["p-00"].resolution == "reject"
    assert merge(made.sheet, marks, resolutions).decision("p-00", "hash 0") == "accept"


def test_nothing_to_discuss_makes_no_list(made: Any):
    agreed = dict.fromkeys(IDS, "accept")
    import_review(made.folder, files(made, agreed, agreed))
    assert not (made.folder / "disagreements.csv").exists()
    import_review(made.folder, files(made))
    import_review(made.folder, files(made, agreed, agreed))
    assert not list(made.folder.glob("disagreements*"))


def test_importing_again_changes_nothing_but_the_time(made: Any):
    first = import_review(made.folder, files(made))
    listing = (made.folder / "disagreements.csv").stat().st_mtime_ns
    again = import_review(made.folder, files(made))
    assert first.model_copy(update={"imported": ""}) == again.model_copy(update={"imported": ""})
    assert (made.folder / "disagreements.csv").stat().st_mtime_ns == listing


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("p-03,", "x-03,"), "line 3: 1 id.s. not on the sheet: 'x-03'; remove the rows"),
        (("reject,,", "reject,maybe,"), "line 3, column 'resolution': 'maybe' is no label: write one of accept"),
        (("reject,,", "reject,open the sluice,"), "line 3, column 'resolution': the cell is no label"),
        (("resolution", "decision"), "line 1: no column 'resolution'"),
        (("sheet-", "sheet-0"), "line 2, column 'sheet': the row is of another sheet"),
        (("p-03,", "p-02,"), "line 3, column 'id': id 'p-02' stands in .* line 2 already"),
    ],
)
def test_lists_that_are_refused(made: Any, change: tuple[str, str], message: str):
    before = import_review(made.folder, files(made))
    path = made.folder / "disagreements.csv"
    path.write_text(path.read_text(encoding="utf-8-sig").replace(*change), encoding="utf-8-sig")
    with pytest.raises(UserError, match=message) as caught:
        import_review(made.folder, files(made))
    assert "sluice" not in str(caught.value)
    assert read_outcome(made.folder) == before


def test_the_texts_for_a_discussion_are_missing(made: Any):
    for path in made.folder.glob("*.label-studio.json"):
        path.unlink()
    with pytest.raises(UserError, match="annotator_1.label-studio.json: missing or changed.*restore it"):
        import_review(made.folder, [made.csv("annotator_1", ONE), made.csv("annotator_2", TWO)])


# ------------------------------------------------------------------ the outcome
def test_a_decision_is_on_a_content(made: Any):
    outcome = import_review(made.folder, files(made))
    assert outcome.decision("p-00", "hash 0") == "accept"
    assert outcome.decision("p-00", "another") is None
    assert outcome.decision("p-99", "hash 0") is None
    assert outcome.stale({"p-00": "hash 0", "p-01": "another", "p-99": "x"}) == ["p-01"]


def test_the_outcome_comes_back(made: Any):
    assert read_outcome(made.folder) is None
    outcome = import_review(made.folder, files(made))
    assert read_outcome(made.folder) == outcome
    assert outcome.decisions[3].labels == {"annotator_1": "accept", "annotator_2": "reject"}
    assert outcome.decisions[3].notes == {"annotator_1": "Quoting the sluice."}
    assert "sluice" not in repr(outcome)
    assert not list(made.folder.glob(".*"))


def test_what_a_manifest_is_told(made: Any):
    summary = import_review(made.folder, files(made)).summary()
    # 6 items: observed 4/6; by chance (3·3 + 1·2 + 2·1) / 36 = 13/36; kappa = (24 - 13) / (36 - 13) = 11/23
    (pair,) = summary["agreement"]
    assert (pair["n"], pair["raw"], pair["kappa"]) == (6, pytest.approx(4 / 6), pytest.approx(11 / 23))
    assert (summary["reviewed"], summary["drawn_of"], summary["share"], summary["annotators"]) == (6, 60, 0.1, 2)
    assert (
        summary["decisions"] == {"accept": 2, "reject": 1, "unclear": 1, "disagreement": 2} and summary["resolved"] == 0
    )
    text = json.dumps(summary)
    assert "annotator_1" not in text and "p-0" not in text and "sluice" not in text


def test_a_damaged_outcome_is_told(made: Any):
    import_review(made.folder, files(made))
    path = made.folder / "marks.json"
    path.write_text(path.read_text()[:-30])
    with pytest.raises(UserError, match="marks.json: not JSON, or cut off"):
        read_outcome(made.folder)


def test_the_agreement_is_written(made: Any):
    import_review(made.folder, files(made))
    assert "| annotator_1 – annotator_2 | 6 | 0.67 | 0.48 [" in (made.folder / "agreement.md").read_text(
        encoding="utf-8"
    )


def test_kinds_of_files_go_together(made: Any):
    given = [made.label_studio("annotator_1.json", {1: ONE}), made.json_min("annotator_2.json", TWO)]
    outcome = import_review(made.folder, given)
    assert outcome.annotators == ("annotator_1", "annotator_2")
    assert decided(outcome) == decided(import_review(made.folder, files(made)))
