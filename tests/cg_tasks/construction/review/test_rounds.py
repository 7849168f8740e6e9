"""Rounds of one review: their folders, and which of them decides on a row."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
from construction_builds import filled_sheets
from construction_parts import small_build

from cg_tasks.construction.folder import BuildFolder
from cg_tasks.construction.review.exporting import export
from cg_tasks.construction.review.importing import import_review
from cg_tasks.construction.review.rounds import marks_hash, outcomes, reason_to_drop, rounds
from cg_tasks.construction.review.sheet import GUIDELINES, ReviewItem
from cg_tasks.errors import UserError


@pytest.fixture
def folder(tmp_path: Path) -> BuildFolder:
    return small_build(tmp_path / "build")


def hand_out(folder: BuildFolder, name: str, contents: Mapping[str, str]) -> Path:
    """Sheets of rows, id -> hash of content."""
    at = folder.path / "review" / name
    items = [ReviewItem(i, {"concept": "c", "prompt": "p", "response": "r"}, "c", sha) for i, sha in contents.items()]
    export(at, GUIDELINES["tag"], items, 2, 0, len(items))
    return at


def mark(at: Path, labels: Mapping[str, str], disagree: tuple[str, ...] = ()) -> None:
    import_review(at, filled_sheets(at, disagree=disagree, labels=labels))


def test_rounds_are_numbered_from_the_second_on(folder: BuildFolder) -> None:
    assert rounds(folder, "tag") == []
    made = [hand_out(folder, name, {"a": "1"}) for name in ("tag", "tag-2", "tag-3", "tag-5", "benign")]
    assert rounds(folder, "tag") == made[:3]  # a gap ends them
    assert rounds(folder, "benign") == [made[4]]


def test_a_folder_without_a_sheet_is_no_round(folder: BuildFolder) -> None:
    (folder.path / "review" / "tag").mkdir(parents=True)
    assert rounds(folder, "tag") == [] and marks_hash(folder, "tag") == ""


def test_a_round_without_marks_is_waited_for(folder: BuildFolder) -> None:
    mark(hand_out(folder, "tag", {"a": "1"}), {})
    at = hand_out(folder, "tag-2", {"a": "2"})
    with pytest.raises(UserError) as caught:
        outcomes(folder, "tag")
    assert str(caught.value) == (
        f"{at}: its sheets were handed out and no marks have come back: conceptguard build review import {folder.path} tag "
        "FILES, or remove the folder"
    )


def test_the_hash_is_of_all_rounds_marks(folder: BuildFolder) -> None:
    first = hand_out(folder, "tag", {"a": "1", "b": "1"})
    waiting = marks_hash(folder, "tag")
    mark(first, {"b": "reject"})
    marked = marks_hash(folder, "tag")
    mark(first, {"b": "accept"})
    changed = marks_hash(folder, "tag")
    mark(hand_out(folder, "tag-2", {"a": "2"}), {})
    assert len({"", waiting, marked, changed, marks_hash(folder, "tag")}) == 5


def test_each_verdict_but_accept_is_a_reason(folder: BuildFolder) -> None:
    at = hand_out(folder, "tag", dict.fromkeys("abcd", "1"))
    mark(at, {"b": "reject", "c": "unclear", "d": "accept"}, disagree=("d",))
    decide = reason_to_drop(outcomes(folder, "tag"))
    assert {id: decide(id, "1") for id in "abcde"} == {
        "a": None,
        "b": "review: rejected",
        "c": "review: unclear",
        "d": "review: unresolved disagreement",
        "e": None,  # not drawn
    }


def test_marks_on_another_content_say_nothing(folder: BuildFolder) -> None:
    mark(hand_out(folder, "tag", {"a": "1"}), {"a": "reject"})
    decide = reason_to_drop(outcomes(folder, "tag"))
    assert decide("a", "1") == "review: rejected" and decide("a", "2") is None


def test_the_last_round_that_saw_the_content_decides(folder: BuildFolder) -> None:
    mark(
        hand_out(folder, "tag", {"a": "1", "b": "1", "c": "1", "d": "1"}), {"a": "reject", "c": "reject", "d": "reject"}
    )
    mark(hand_out(folder, "tag-2", {"a": "2", "b": "2", "c": "1"}), {"b": "reject"})
    decide = reason_to_drop(outcomes(folder, "tag"))
    now = {"a": "2", "b": "2", "c": "1", "d": "1"}
    assert {id: decide(id, sha) for id, sha in now.items()} == {
        "a": None,  # rewritten, and accepted
        "b": "review: rejected",  # rewritten, and rejected
        "c": None,  # seen again as it was: the later word counts
        "d": "review: rejected",  # only the first round saw it
    }
    assert decide("a", "1") == "review: rejected" and decide("b", "1") is None  # back at the old content


def test_without_a_review_nothing_is_dropped(folder: BuildFolder) -> None:
    assert reason_to_drop(outcomes(folder, "tag"))("a", "1") is None
