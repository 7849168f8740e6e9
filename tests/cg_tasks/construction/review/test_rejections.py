"""Replies that people have turned down in any round."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
from construction_builds import filled_sheets
from construction_parts import benign_row, small_build

from cg_tasks.construction.folder import BuildFolder
from cg_tasks.construction.review.exporting import export
from cg_tasks.construction.review.importing import import_review
from cg_tasks.construction.review.rejections import read_rejections
from cg_tasks.construction.review.sheet import GUIDELINES
from cg_tasks.construction.review.stages import benign_item
from cg_tasks.errors import UserError


@pytest.fixture
def folder(tmp_path: Path) -> BuildFolder:
    return small_build(tmp_path / "build")


def hand_out(folder: BuildFolder, name: str, requests: Mapping[int, str]) -> Path:
    """Sheets of counterparts, row -> hash of the request."""
    at = folder.path / "review" / name
    items = [benign_item(benign_row(i, sha)) for i, sha in requests.items()]
    export(at, GUIDELINES["benign"], items, 2, 0, len(items))
    return at


def mark(at: Path, **labels: str) -> None:
    import_review(at, filled_sheets(at, labels=labels))


def test_they_are_the_rejected_requests_of_all_rounds(folder: BuildFolder) -> None:
    assert read_rejections(folder) == frozenset()
    first = hand_out(folder, "benign", {1: "a", 2: "b", 3: "c"})
    assert read_rejections(folder) == frozenset()  # nobody has marked yet
    mark(first, p1="reject", p2="unclear", p3="reject")
    assert read_rejections(folder) == {"a", "c"}
    mark(hand_out(folder, "benign-2", {1: "a2", 2: "b2"}), p2="reject")
    assert read_rejections(folder) == {"a", "c", "b2"}  # the first round's stays turned down


def test_marks_that_are_imported_again_count_as_they_are_then(folder: BuildFolder) -> None:
    at = hand_out(folder, "benign", {1: "a", 2: "b"})
    mark(at, p1="reject")
    mark(at, p2="reject")
    assert read_rejections(folder) == {"b"}


def test_tags_that_were_turned_down_are_none(folder: BuildFolder) -> None:
    mark(hand_out(folder, "tag", {1: "a"}), p1="reject")
    assert read_rejections(folder) == frozenset()


def test_damaged_marks_are_named(folder: BuildFolder) -> None:
    at = hand_out(folder, "benign", {1: "a"})
    mark(at, p1="reject")
    (at / "marks.json").write_text("{")
    with pytest.raises(UserError, match=r"benign/marks\.json: not JSON, or cut off"):
        read_rejections(folder)
