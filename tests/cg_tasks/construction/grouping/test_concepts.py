"""Which tagged concepts reach aggregation, with how many samples."""

from __future__ import annotations

from pathlib import Path

import pytest
from construction_builds import filled_sheets
from construction_parts import small_build, tag_row, write_stage

from cg_tasks.construction.folder import BuildFolder
from cg_tasks.construction.grouping.concepts import concepts, tag_decisions
from cg_tasks.construction.review.stages import export_review, take_marks
from cg_tasks.errors import UserError

NAMES = ["lamp lore"] * 3 + ["lamp-lore"] * 2 + ["wick craft"] * 3 + ["oil"]


@pytest.fixture
def folder(tmp_path: Path) -> BuildFolder:
    found = small_build(tmp_path / "build")
    write_stage(found, "tag", [*(tag_row(i, name) for i, name in enumerate(NAMES)), tag_row(97, None)])
    return found


def test_concepts_are_counted_over_dual_use_rows(folder: BuildFolder) -> None:
    assert concepts(folder) == {"lamp lore": 3, "lamp-lore": 2, "oil": 1, "wick craft": 3}


def test_rows_that_the_review_turned_down_do_not_count(folder: BuildFolder) -> None:
    export_review(folder, "tag", share=1.0)
    with pytest.raises(UserError, match="no marks have come back"):
        concepts(folder)
    take_marks(folder, "tag", filled_sheets(folder.path / "review" / "tag", labels={"p0": "reject", "p8": "unclear"}))
    assert concepts(folder) == {"lamp lore": 2, "lamp-lore": 2, "wick craft": 3}


def test_nothing_left_to_group(tmp_path: Path) -> None:
    folder = small_build(tmp_path / "build")
    with pytest.raises(UserError, match="the stage 'tag' has not run"):
        concepts(folder)
    write_stage(folder, "tag", [tag_row(0, None)])
    with pytest.raises(UserError, match="no row is left to group: see conceptguard build status"):
        concepts(folder)


def test_a_mark_counts_for_the_concept_it_was_about(folder: BuildFolder) -> None:
    export_review(folder, "tag", share=1.0)
    take_marks(folder, "tag", filled_sheets(folder.review_folder("tag"), labels={"p0": "reject"}))
    decide = tag_decisions(folder)
    assert decide(tag_row(0, "lamp lore")) == "review: rejected"
    assert decide(tag_row(0, "wick craft")) is None and decide(tag_row(1, "lamp lore")) is None
