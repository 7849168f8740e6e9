"""The merge map proposed from the tags and applied to them, with what the reviews left."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from construction_builds import filled_sheets
from construction_parts import small_build, tag_row, write_stage

from cg_tasks.construction.folder import BuildFolder, file_hash
from cg_tasks.construction.grouping.aggregate import AggregateRow
from cg_tasks.construction.grouping.applying import apply_map, propose, rule_of
from cg_tasks.construction.grouping.concepts import concepts
from cg_tasks.construction.grouping.merge_file import read_map
from cg_tasks.construction.grouping.merge_map import Rule
from cg_tasks.construction.grouping.proposals import Group
from cg_tasks.construction.review.stages import export_review, take_marks
from cg_tasks.construction.rows import StageRow
from cg_tasks.construction.tag import TagRow
from cg_tasks.errors import UserError

NAMES = ["lamp lore"] * 3 + ["lamp-lore"] * 2 + ["wick craft"] * 3 + ["oil"]


def write_tags(folder: BuildFolder, names: list[str]) -> None:
    rows: list[StageRow] = [tag_row(i, name) for i, name in enumerate(names)]
    failed = TagRow(
        pair_id="p98", status="failed", reason="cut_off (attempt 3; so far: cut_off)", prompt="p", response="r"
    )
    write_stage(folder, "tag", [*rows, tag_row(97, None), failed])


@pytest.fixture
def folder(tmp_path: Path) -> BuildFolder:
    found = small_build(tmp_path / "build")
    write_tags(found, NAMES)
    return found


def outcome(folder: BuildFolder) -> dict[str, tuple[str | None, str]]:
    return {row.pair_id: (row.concept, row.reason) for row in folder.rows("aggregate", AggregateRow)}


def refused(folder: BuildFolder, **options: bool) -> str:
    with pytest.raises(UserError) as caught:
        apply_map(folder, **options)
    return str(caught.value).replace(str(folder.path), "DIR")


def test_proposals_are_written_with_where_they_came_from(folder: BuildFolder) -> None:
    assert propose(folder, concepts(folder)) == 3
    found = read_map(folder.merge_file)
    assert [(g.parent, [m.concept for m in g.members]) for g in found.groups] == [
        ("lamp lore", ["lamp lore", "lamp-lore"]),
        ("wick craft", ["wick craft"]),
        ("oil", ["oil"]),
    ]
    assert {(g.proposed_by.by, g.proposed_by.similarity) for g in found.groups} == {("ngrams", 0.5)}
    assert found.tag_sha256 == file_hash(folder.rows_file("tag")) and found.rule == Rule()
    with pytest.raises(UserError, match="is there already, perhaps with edits and marks"):
        propose(folder, concepts(folder))


def test_the_models_groups_carry_its_name(folder: BuildFolder) -> None:
    groups = [Group("lamps", ("lamp lore", "lamp-lore", "wick craft")), Group("oil", ("oil",))]
    assert propose(folder, concepts(folder), groups, "generator-1") == 2
    found = read_map(folder.merge_file)
    assert {(g.proposed_by.by, g.proposed_by.model) for g in found.groups} == {("model", "generator-1")}


def test_the_rule_is_build_yamls(tmp_path: Path) -> None:
    folder = small_build(tmp_path / "build", aggregate={"agreement": 0.75, "over": "members", "smallest": 2})
    assert rule_of(folder) == Rule(agreement=0.75, over="members", smallest=2)


def test_accepted_proposals_are_applied_and_recorded_as_not_reviewed(folder: BuildFolder) -> None:
    propose(folder, concepts(folder))
    assert refused(folder).startswith("DIR/merge.yaml, line ") and "nobody has marked the groups" in refused(folder)
    record, applied = apply_map(folder, accept=True)
    assert applied.reviewed is False and read_map(folder.merge_file).reviewed is False
    small = "group 'oil': 1 sample"
    lamp = [(f"p{i}", ("lamp lore", "")) for i in range(5)]
    wick = [(f"p{i}", ("wick craft", "")) for i in range(5, 8)]
    rest = [("p8", (None, small)), ("p97", (None, "not dual-use")), ("p98", (None, "tag: failed (cut_off)"))]
    assert list(outcome(folder).items()) == [*lamp, *wick, *rest]
    assert (record.rows_in, record.rows) == (11, {"ok": 8, "dropped": 3})
    assert record.reasons[small] == 1 and record.reasons["not dual-use"] == 1
    assert record.model is None and record.prompt is None and record.attempts == {}
    folder.require_fresh("aggregate", record.made_from)


def test_applying_again_gives_the_same_rows(folder: BuildFolder) -> None:
    propose(folder, concepts(folder))
    first, _ = apply_map(folder, accept=True)
    again, _ = apply_map(folder)
    assert first.output_sha256 == again.output_sha256 and first.made_from == again.made_from


def test_marked_groups_are_applied_by_the_rule(folder: BuildFolder) -> None:
    propose(folder, concepts(folder))
    export_review(folder, "aggregate")
    at = folder.path / "review" / "aggregate"
    ids = {(m["stratum"], i): m["id"] for i, m in enumerate(_items(at))}
    wick = next(id for (stratum, _), id in ids.items() if stratum == "wick craft")
    take_marks(folder, "aggregate", filled_sheets(at, labels={wick: "reject"}))
    _, applied = apply_map(folder)
    assert applied.reviewed and {parent for parent, _ in outcome(folder).values()} == {"lamp lore", None}
    assert outcome(folder)["p5"] == (None, "group 'wick craft': accepted by nobody")


def test_another_rule_than_the_maps_is_refused(folder: BuildFolder) -> None:
    propose(folder, concepts(folder))
    changed = small_build(folder.path, aggregate={"smallest": 2})
    said = refused(changed, accept=True)
    assert said.startswith("DIR/merge.yaml, line ")
    assert said.endswith(": the rule is not the one of aggregate in build.yaml: make them the same")


def test_a_map_of_other_rows_is_refused(folder: BuildFolder) -> None:
    propose(folder, concepts(folder))
    write_tags(folder, [*NAMES, "oil"])
    before = folder.merge_file.read_bytes()
    assert "the concept 'oil' has 1 samples there and 2 in the tag rows" in refused(folder, accept=True)
    assert not folder.rows_file("aggregate").exists()
    assert folder.merge_file.read_bytes() == before  # nor is the map one that somebody accepted


def test_without_a_map_or_with_stale_tags(folder: BuildFolder) -> None:
    assert refused(folder) == "DIR/merge.yaml: there is none: conceptguard build aggregate DIR --propose writes it"
    assert refused(small_build(folder.path, tag={"attempts": 9})).startswith(
        "DIR: how replies are read changed since 'tag'"
    )


def _items(at: Path) -> list[dict[str, str]]:
    items: list[dict[str, str]] = json.loads((at / "sheet.json").read_text())["items"]
    return items
