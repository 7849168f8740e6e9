"""The report on the tags: numbers someone can count, and no text unless asked for."""

from __future__ import annotations

from pathlib import Path

import pytest
from construction_parts import small_build, tag_row, write_stage

from cg_tasks.construction.folder import BuildFolder
from cg_tasks.construction.rows import StageRow
from cg_tasks.construction.tag import TagRow
from cg_tasks.construction.tag_report import tag_report, tags_of


def failed(i: int, reason: str) -> TagRow:
    return TagRow(pair_id=f"p{i}", status="failed", reason=reason, prompt=f"prompt {i}", response="r")


@pytest.fixture
def folder(tmp_path: Path) -> BuildFolder:
    found = small_build(tmp_path / "build")
    rows: list[StageRow] = [
        tag_row(1, "lamp lore"),
        tag_row(2, None),
        tag_row(3, "lamp lore"),
        tag_row(4, "wick | craft"),
        failed(5, "cut_off (attempt 3; so far: cut_off)"),
        failed(6, "unreadable: no JSON object (attempt 3; so far: unreadable)"),
    ]
    write_stage(found, "tag", rows)
    return found


def test_the_whole_report(folder: BuildFolder) -> None:
    assert tag_report(folder, {}, limit=None, show=False) == (
        "# Tags of 6 rows\n"
        "\n"
        "4 tagged; 3 of them dual-use (75%); 2 concepts, 1 with one row only\n"
        "\n"
        "| concept | rows |\n"
        "| --- | ---: |\n"
        "| lamp lore | 2 |\n"
        "| wick \\| craft | 1 |\n"
        "\n"
        "without a tag: 1 cut_off\n"
        "\n"
        "without a tag: 1 unreadable\n"
        "\n"
    )


def test_what_differs_from_the_last_run(folder: BuildFolder) -> None:
    old = {"p1": (True, "lamps"), "p2": (True, "oil"), "p3": (True, "lamp lore"), "p4": (False, ""), "p9": (True, "x")}
    said = tag_report(folder, old, limit=None, show=False)
    assert "3 rows are tagged otherwise than in the last run:" in said
    assert "| p1 | lamps | lamp lore |\n| p2 | oil | not dual-use |\n| p4 | not dual-use | wick \\| craft |\n" in said
    assert "p3" not in said and "p9" not in said
    assert "0 rows are tagged otherwise than in the last run." in tag_report(
        folder, tags_of(folder), limit=None, show=False
    )


def test_texts_only_where_they_are_asked_for(folder: BuildFolder) -> None:
    assert "prompt 1" not in tag_report(folder, {}, limit=None, show=False)
    shown = tag_report(folder, {}, limit=None, show=True)
    assert "### p1: lamp lore\n\nprompt 1\n\n*because*\n" in shown and "### p2: not dual-use" in shown


def test_a_limit_is_of_rows(folder: BuildFolder) -> None:
    assert "2 tagged; 1 of them dual-use (50%); 1 concepts" in tag_report(folder, {}, limit=2, show=False)


def test_more_concepts_than_are_shown(tmp_path: Path) -> None:
    folder = small_build(tmp_path / "many")
    write_stage(folder, "tag", [tag_row(i, f"concept {i:02d}") for i in range(27)] + [tag_row("x", "concept 00")])
    said = tag_report(folder, {}, limit=None, show=False)
    assert "| concept 00 | 2 |\n" in said and said.count("| concept ") == 1 + 25
    assert "| 2 more | 2 |" in said


def test_tags_before_the_first_run_and_after(folder: BuildFolder, tmp_path: Path) -> None:
    assert tags_of(small_build(tmp_path / "new")) == {}
    assert tags_of(folder) == {
        "p1": (True, "lamp lore"),
        "p2": (False, ""),
        "p3": (True, "lamp lore"),
        "p4": (True, "wick | craft"),
    }
