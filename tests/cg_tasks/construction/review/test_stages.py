"""Which rows of a build people are shown, and what follows from their marks."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from construction_builds import filled_sheets, resolved, sheet_ids
from construction_parts import (
    aggregate_row,
    benign_row,
    made,
    small_build,
    tag_row,
    write_stage,
)

from cg_tasks.construction.folder import BuildFolder, file_hash
from cg_tasks.construction.grouping.applying import apply_map, propose
from cg_tasks.construction.grouping.concepts import concepts
from cg_tasks.construction.grouping.merge_file import read_map, write_map
from cg_tasks.construction.review.rejections import read_rejections
from cg_tasks.construction.review.stages import (
    benign_item,
    export_review,
    review_items,
    stale_marks,
    tag_item,
    take_marks,
)
from cg_tasks.construction.tag import TagRow, tag_content
from cg_tasks.errors import UserError

SECRET = "prompt 1"


def write_tags(folder: BuildFolder, **concepts: str | None) -> None:
    """Tag rows p0, p1 … by concept; ``p1="wick craft"`` where it is another than lamp lore."""
    rows = [tag_row(i, concepts.get(f"p{i}", "lamp lore")) for i in range(20)]
    failed = TagRow(pair_id="p20", status="failed", reason="cut_off", prompt="p", response="r")
    write_stage(folder, "tag", [*rows, tag_row(21, None), failed])


@pytest.fixture
def tagged(tmp_path: Path) -> BuildFolder:
    """20 dual-use rows, one that is not, one that failed."""
    folder = small_build(tmp_path / "build", review={"share": 0.2})
    write_tags(folder)
    return folder


def write_benign(folder: BuildFolder, **requests: str) -> None:
    rows = [benign_row(i, requests.get(f"p{i}")) for i in range(10)]
    write_stage(folder, "benign", rows)


@pytest.fixture
def written(tmp_path: Path) -> BuildFolder:
    """Ten counterparts."""
    folder = small_build(tmp_path / "build", review={"share": 1.0})
    folder.merge_file.write_text("a map\n")
    write_stage(folder, "tag", [tag_row(i) for i in range(10)])
    write_stage(folder, "aggregate", [aggregate_row(i) for i in range(10)])
    write_benign(folder)
    return folder


def refused(folder: BuildFolder, stage: str = "tag", **options: object) -> str:
    with pytest.raises(UserError) as caught:
        export_review(folder, stage, **options)  # type: ignore[arg-type]
    assert SECRET not in str(caught.value)
    return str(caught.value).replace(str(folder.path), "DIR")


def marked(folder: BuildFolder, stage: str, name: str = "", **labels: str) -> None:
    take_marks(folder, stage, filled_sheets(folder.path / "review" / (name or stage), labels=labels))


# ------------------------------------------------------------------ what is shown
def test_annotators_see_the_row_and_not_the_models_reason() -> None:
    item = tag_item(tag_row(1))
    assert item.fields == {"concept": "lamp lore", "prompt": "prompt 1", "response": "response 1"}
    assert (item.id, item.stratum) == ("p1", "lamp lore")
    pair = benign_item(benign_row(1))
    assert list(pair.fields) == ["concept", "harmful_prompt", "harmful_response", "benign_prompt", "benign_response"]
    assert pair.content_sha256 == "b1"  # its request


def test_another_concept_is_another_content_and_another_reason_is_not() -> None:
    usual = tag_content(tag_row(1))
    assert usual == tag_content(tag_row(1, why="another", made=made("other")))
    assert len({usual, tag_content(tag_row(1, "wick craft")), tag_content(tag_row(1, prompt="x"))}) == 3


def test_only_rows_with_something_to_review(tagged: BuildFolder) -> None:
    assert [item.id for item in review_items(tagged, "tag")] == [f"p{i}" for i in range(20)]


def test_stale_rows_are_not_handed_out(tagged: BuildFolder) -> None:
    changed = small_build(tagged.path, language="German", language_code="de")
    assert refused(changed).startswith("DIR: the language changed since 'tag'")
    assert len(review_items(changed, "tag", fresh=False)) == 20


# ------------------------------------------------------------------ the first round
@pytest.mark.parametrize(("share", "rows"), [(None, 4), (0.5, 10), (1.0, 20)])
def test_a_share_is_drawn(tagged: BuildFolder, share: float | None, rows: int) -> None:
    files, n, of = export_review(tagged, "tag", share=share, annotators=["ada", "ben"])
    assert (n, of) == (rows, 20)
    assert len(set(sheet_ids(tagged.path / "review" / "tag"))) == rows
    assert {"ada.html", "ben.csv", "sheet.json"} <= {path.name for path in files}


@pytest.mark.parametrize("share", [0.0, 1.5])
def test_a_share_that_is_none_is_refused(tagged: BuildFolder, share: float) -> None:
    assert refused(tagged, share=share).startswith(f"the share to review is {share}: ")
    assert not (tagged.path / "review").exists()


def test_a_round_is_never_handed_out_twice(tagged: BuildFolder) -> None:
    export_review(tagged, "tag")
    assert refused(tagged) == (
        "DIR/review/tag: was exported already: import its marks, export changed rows with --again, or move the folder away"
    )
    assert refused(tagged, again=True).startswith(
        "DIR/review/tag: its sheets were handed out and no marks have come back"
    )


def test_nothing_to_review(tmp_path: Path) -> None:
    folder = small_build(tmp_path / "build")
    write_stage(folder, "tag", [tag_row(0, None)])
    assert refused(folder) == "DIR: the stage 'tag' has no row to review: see conceptguard build status DIR"


# ------------------------------------------------------------------ marks
def test_marks_go_to_the_last_round(tagged: BuildFolder) -> None:
    with pytest.raises(UserError, match="review/tag: nothing was exported: conceptguard build review export"):
        take_marks(tagged, "tag", ["x.csv"])
    export_review(tagged, "tag", share=1.0)
    sheets = filled_sheets(tagged.path / "review" / "tag", disagree=["p3"], labels={"p1": "reject"})
    at, outcome = take_marks(tagged, "tag", sheets)
    assert at == tagged.path / "review" / "tag"
    assert outcome.counts == {"accept": 18, "reject": 1, "unclear": 0, "disagreement": 1}
    assert outcome.open == ("p3",)
    resolved(at, "accept")
    assert take_marks(tagged, "tag", sheets)[1].open == ()
    assert read_rejections(tagged) == frozenset()  # of tags there is nothing to write again


def test_again_takes_exactly_the_reviewed_rows_that_have_changed(tagged: BuildFolder) -> None:
    export_review(tagged, "tag", share=0.5)
    drawn = sheet_ids(tagged.path / "review" / "tag")
    marked(tagged, "tag", **{drawn[0]: "reject"})
    assert refused(tagged, again=True) == (
        "DIR: every row that was reviewed is as it was: there is nothing for a further round"
    )
    other = next(f"p{i}" for i in range(20) if f"p{i}" not in drawn)
    write_tags(tagged, **{drawn[1]: "wick craft", drawn[2]: None, other: "wick craft"})
    files, n, of = export_review(tagged, "tag", again=True)
    assert (n, of) == (1, 1) and sheet_ids(tagged.path / "review" / "tag-2") == [drawn[1]]
    marked(tagged, "tag", "tag-2")
    assert refused(tagged, again=True).endswith("there is nothing for a further round")
    write_tags(tagged, **{drawn[1]: "wick craft", drawn[0]: "oil trade", drawn[3]: "oil trade"})
    export_review(tagged, "tag", again=True)
    assert sorted(sheet_ids(tagged.path / "review" / "tag-3")) == sorted([drawn[0], drawn[3]])


def test_a_row_that_is_back_at_a_content_that_was_seen_is_not_shown_again(tagged: BuildFolder) -> None:
    export_review(tagged, "tag", share=1.0)
    marked(tagged, "tag")
    write_tags(tagged, p1="wick craft")
    export_review(tagged, "tag", again=True)
    marked(tagged, "tag", "tag-2")
    write_tags(tagged)
    assert refused(tagged, again=True).endswith("there is nothing for a further round")


def test_stale_marks_are_those_on_another_content(tagged: BuildFolder) -> None:
    export_review(tagged, "tag", share=1.0)
    marked(tagged, "tag", p4="reject")
    _, outcome = take_marks(tagged, "tag", filled_sheets(tagged.path / "review" / "tag", labels={"p4": "reject"}))
    assert stale_marks(tagged, "tag", outcome) == []
    write_tags(tagged, p1="wick craft", p2=None, p4="wick craft")
    # p2 is no row to review any more; p4 was turned down, whatever became of it.
    assert stale_marks(tagged, "tag", outcome) == ["p1"]


def test_rejected_counterparts_are_told_by_their_request(written: BuildFolder) -> None:
    export_review(written, "benign")
    marked(written, "benign", p2="reject", p7="reject", p8="unclear")
    assert read_rejections(written) == {"b2", "b7"}
    write_benign(written, p2="b2-again", p7="b7-again")
    assert export_review(written, "benign", again=True)[1:] == (2, 2)
    assert sorted(sheet_ids(written.path / "review" / "benign-2")) == ["p2", "p7"]
    marked(written, "benign", "benign-2", p7="reject")
    assert read_rejections(written) == {"b2", "b7", "b7-again"}


# ------------------------------------------------------------------ the merge map
@pytest.fixture
def proposed(tmp_path: Path) -> BuildFolder:
    """lamp lore (4) and lamp-lore (2) in one group, wick craft (3) alone, oil (1) too small to be asked about."""
    folder = small_build(tmp_path / "build")
    names = ["lamp lore"] * 4 + ["lamp-lore"] * 2 + ["wick craft"] * 3 + ["oil"]
    write_stage(folder, "tag", [tag_row(i, name) for i, name in enumerate(names)])
    propose(folder, concepts(folder))
    return folder


def test_all_of_the_map_is_shown_whatever_the_share(proposed: BuildFolder) -> None:
    _, n, of = export_review(proposed, "aggregate", share=0.1)
    assert (n, of) == (3, 3)
    items = review_items(proposed, "aggregate")
    assert [item.fields for item in items] == [
        {"group": "lamp lore", "other_members": "lamp-lore (2)", "concept": "lamp lore", "samples": "4"},
        {"group": "lamp lore", "other_members": "lamp lore (4)", "concept": "lamp-lore", "samples": "2"},
        {"group": "wick craft", "other_members": "", "concept": "wick craft", "samples": "3"},
    ]
    assert [item.stratum for item in items] == ["lamp lore", "lamp lore", "wick craft"]


def test_marks_of_the_map_are_written_into_it(proposed: BuildFolder) -> None:
    export_review(proposed, "aggregate")
    at = proposed.path / "review" / "aggregate"
    ids = {item.fields["concept"]: item.id for item in review_items(proposed, "aggregate")}
    sheets = filled_sheets(at, disagree=[ids["lamp-lore"]])
    take_marks(proposed, "aggregate", sheets)
    members = {m.concept: m for group in read_map(proposed.merge_file).groups for m in group.members}
    assert members["lamp lore"].marks == {"annotator_1": "accept", "annotator_2": "accept"}
    assert members["lamp-lore"].marks == {"annotator_1": "accept", "annotator_2": "reject"}
    assert members["lamp-lore"].resolved is None and members["oil"].marks == {}
    resolved(at, "reject")
    _, outcome = take_marks(proposed, "aggregate", sheets)
    members = {m.concept: m for group in read_map(proposed.merge_file).groups for m in group.members}
    assert members["lamp-lore"].resolved == "reject"
    assert stale_marks(proposed, "aggregate", outcome) == []  # marks in the map are no change of it


def test_marks_of_another_state_of_the_map_change_nothing(proposed: BuildFolder) -> None:
    export_review(proposed, "aggregate")
    sheets = filled_sheets(proposed.path / "review" / "aggregate")
    proposed.merge_file.unlink()
    write_stage(proposed, "tag", [tag_row(i, name) for i, name in enumerate(["lamp lore"] * 3 + ["lamp lores"] * 3)])
    propose(proposed, concepts(proposed))
    before = proposed.merge_file.read_bytes()
    with pytest.raises(UserError, match="of another state of the groups"):
        take_marks(proposed, "aggregate", sheets)
    assert proposed.merge_file.read_bytes() == before
    assert not (proposed.path / "review" / "aggregate" / "marks.json").exists()


def test_the_sheets_record_holds_no_text(tagged: BuildFolder) -> None:
    export_review(tagged, "tag", share=1.0)
    record = json.loads((tagged.path / "review" / "tag" / "sheet.json").read_text())
    assert SECRET not in json.dumps(record)


def move(folder: BuildFolder, concept: str, parent: str) -> None:
    """As by hand: a member's line, with its marks, stands in another group."""
    found = read_map(folder.merge_file)
    moved = next(m for group in found.groups for m in group.members if m.concept == concept)
    groups = []
    for group in found.groups:
        members = tuple(m for m in group.members if m is not moved) + ((moved,) if group.parent == parent else ())
        groups.append(group.model_copy(update={"members": members}))
    write_map(found.model_copy(update={"groups": tuple(groups)}), folder.merge_file, replace=True)


def test_a_concept_that_was_moved_after_the_marks_is_marked_again_with_both_groups(tmp_path: Path) -> None:
    folder = small_build(tmp_path / "build")
    names = ["lamp lore"] * 4 + ["lamp-lore"] * 2 + ["wick craft"] * 3 + ["rope"] * 3
    write_stage(folder, "tag", [tag_row(i, name) for i, name in enumerate(names)])
    propose(folder, concepts(folder))
    export_review(folder, "aggregate")
    marked(folder, "aggregate")
    record, _ = apply_map(folder)
    before = record.output_sha256
    move(folder, "lamp-lore", "wick craft")
    with pytest.raises(
        UserError, match="the members of '(lamp lore|wick craft)' are not those that the annotators marked"
    ):
        apply_map(folder)
    assert file_hash(folder.rows_file("aggregate")) == before
    assert export_review(folder, "aggregate", again=True)[1:] == (3, 3)
    ids = {item.id: item.fields["concept"] for item in review_items(folder, "aggregate")}
    shown = [ids[id] for id in sheet_ids(folder.path / "review" / "aggregate-2")]
    assert sorted(shown) == ["lamp lore", "lamp-lore", "wick craft"]  # and not rope
    marked(folder, "aggregate", "aggregate-2")
    _, applied = apply_map(folder)
    assert applied.parents == {
        "lamp lore": "lamp lore",
        "lamp-lore": "wick craft",
        "wick craft": "wick craft",
        "rope": "rope",
    }
    assert refused(folder, "aggregate", again=True).endswith("there is nothing for a further round")


def test_a_map_of_other_rows_is_not_handed_out(proposed: BuildFolder) -> None:
    write_stage(proposed, "tag", [tag_row(i, "lamp lore") for i in range(3)])
    assert "the concept 'lamp lore' has 4 samples there and 3 in the tag rows" in refused(proposed, "aggregate")
    assert not (proposed.path / "review").exists()
