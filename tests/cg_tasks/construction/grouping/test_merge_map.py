"""The merge map: marks in by id, the same bytes for the same map, and errors that name the line."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from cg_tasks.construction.grouping.merge_file import HEADER, map_text, read_map, write_map
from cg_tasks.construction.grouping.merge_map import (
    Group,
    Member,
    MergeMap,
    ProposedBy,
    Rule,
    accept_proposals,
    check_map,
    item_id,
    items,
    new_map,
    with_marks,
)
from cg_tasks.construction.grouping.proposals import by_ngrams
from cg_tasks.errors import UserError

COUNTS = {"sigil forging": 9, "forging of sigils": 4, "lock opening": 5, "opening locks": 6, "占い: #1": 2}
TOP = HEADER.count("\n")
TEXT = """\
version: 1
tag_sha256: abc
rule: {agreement: 0.9, over: union, smallest: 3}
annotators: [ann, ben]
groups:
- parent: sigil forging
  proposed_by: {by: ngrams, similarity: 0.5}
  members:
  - {concept: sigil forging, samples: 9, marks: {ann: accept, ben: accept}}
  - {concept: forging of sigils, samples: 4, marks: {ann: accept, ben: unclear}, resolved: accept}
- parent: divination
  proposed_by: {by: hand}
  members:
  - {concept: '占い: #1', samples: 2, marks: {ann: reject, ben: accept}}
"""


def proposed(counts: dict[str, int] = COUNTS) -> MergeMap:
    return new_map(by_ngrams(counts, 0.5), counts, ProposedBy(by="ngrams", similarity=0.5), Rule(), "abc")


def in_file(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "merge.yaml"
    path.write_text(text, encoding="utf-8")
    return path


# ------------------------------------------------------------------ the file
def test_the_text_by_hand(tmp_path: Path):
    merge_map = read_map(in_file(tmp_path, TEXT))
    assert merge_map.groups[0].members[1].marks == {"ann": "accept", "ben": "unclear"}
    assert merge_map.groups[1].parent == "divination"
    assert map_text(merge_map) == HEADER + TEXT


def test_same_bytes_whatever_the_order_of_rows_groups_or_edits(tmp_path: Path):
    expected = map_text(proposed())
    for seed in range(5):
        rng = random.Random(seed)
        rows = list(COUNTS.items())
        rng.shuffle(rows)
        merge_map = proposed(dict(rows))
        assert map_text(merge_map) == expected
        groups = [
            g.model_copy(update={"members": tuple(rng.sample(g.members, len(g.members)))}) for g in merge_map.groups
        ]
        rng.shuffle(groups)
        assert map_text(merge_map.model_copy(update={"groups": tuple(groups)})) == expected
    write_map(proposed(), tmp_path / "merge.yaml")
    assert map_text(read_map(tmp_path / "merge.yaml")) == expected == (tmp_path / "merge.yaml").read_text("utf-8")


@pytest.mark.parametrize(
    "name",
    ["yes", "null", "123", "1e3", "2024-01-01", "- a", "a: b", "a #b", "{a}", "[a", "'", '"', "*a", "&a", "!a", "%a", "@a", "~", "=",
     "<<", "a\\b", "a\u2028b", "a\x85b", "a\x07", "é漢字🜁", "\u202eabc", " lead", "x" * 500, "a, b", "? a", "a\nb", "a\tb"],
)  # fmt: skip
def test_any_name_comes_back(tmp_path: Path, name: str):
    group = Group(parent="p", members=(Member(concept=name, samples=1, marks={"no": "accept"}),))
    write_map(check_map(MergeMap(annotators=("no",), groups=(group,))), tmp_path / "merge.yaml")
    found = read_map(tmp_path / "merge.yaml")
    assert found.groups == (group,) and found.annotators == ("no",)


def test_a_map_that_is_there_is_not_overwritten_unless_told(tmp_path: Path):
    path = in_file(tmp_path, TEXT)
    with pytest.raises(UserError, match="merge.yaml: is there already, perhaps with edits and marks"):
        write_map(proposed(), path)
    assert path.read_text("utf-8") == TEXT
    write_map(proposed(), path, replace=True)
    assert path.read_text("utf-8") == map_text(proposed())
    assert [p.name for p in tmp_path.iterdir()] == ["merge.yaml"]


def test_unreviewed_is_written_and_read(tmp_path: Path):
    path = tmp_path / "merge.yaml"
    write_map(accept_proposals(proposed()), path)
    assert "\nreviewed: false\nannotators: []\n" in path.read_text("utf-8")
    assert read_map(path).reviewed is False
    with pytest.raises(UserError, match=r"line 4: holds marks of ann, ben: proposals that people have marked"):
        accept_proposals(read_map(in_file(tmp_path, TEXT)))


# ------------------------------------------------------------------ what people write wrong
@pytest.mark.parametrize(
    ("old", "new", "line", "message"),
    [
        ("rule: {agreement", "rule: {agrement", 3, "unknown key 'agrement': did you mean agreement? (known: agreement, over,"),
        ("annotators: [ann", "anotators: [ann", 4, "unknown key 'anotators': did you mean annotators?"),
        ("samples: 4", "sample: 4", 10, "'samples' is missing: add it"),
        ("samples: 4", "samples: 4.5", 10, "'samples': Input should be a valid integer"),
        ("samples: 4", "samples: true", 10, "'samples': Input should be a valid integer"),
        ("samples: 4", "samples: 0", 10, "'samples': Input should be greater than or equal to 1"),
        ("'占い: #1'", "123", 14, "'concept' is no text: put quotes around it"),
        ("ben: unclear", "ben: maybe", 10, "the mark of 'ben' must be accept, reject or unclear"),
        ("ben: unclear", "ann: unclear", 10, "'ann' is given on line 10 already"),
        ("ben: unclear", "bem: unclear", 10, "'marks' holds one by 'bem', who is not among the annotators: did you mean ben?"),
        ("resolved: accept", "resolved: unclear", 10, "'resolved': Input should be 'accept' or 'reject'"),
        ("ben: accept}}", "ben: accept}, resolved: reject}", 9, "'resolved' is reject, but all annotators say accept"),
        ("parent: divination", "parent: Sigil  Forging", 11, "'parent': must be a name in one line"),
        ("parent: divination", "parent: Sigil Forging", 11, "the parent 'Sigil Forging' is that of another group (line 6)"),
        ("'占い: #1'", "sigil forging", 14, "the concept 'sigil forging' stands in the group 'sigil forging' already (line 9)"),
        ("[ann, ben]", "[ann, ben, ann]", 4, "the annotator 'ann' stands there twice"),
        ("[ann, ben]", "[]", 9, "'marks' holds one by 'ann', who is not among the annotators (the map names none)"),
        ("annotators", "reviewed: false\nannotators", 4, "'reviewed: false' is for a map without annotators, this one has 2"),
        ("over: union", "over: all", 3, "'over': Input should be 'union' or 'members'"),
        ("agreement: 0.9", "agreement: 1.0", 3, "'agreement': Input should be less than 1"),
        ("version: 1", "version: 2", 1, "'version': Input should be 1"),
        ("by: hand", "by: hands", 12, "'by': Input should be 'ngrams', 'model' or 'hand'"),
        (TEXT[TEXT.rindex("  members:") :], "  members: []\n", 13, "'members' is empty: add a member, or take the group away"),
        ("concept: '占い: #1'", "concept: a: b", 14, "not YAML ("),
    ],
)  # fmt: skip
def test_a_mistake_is_told_with_its_line(tmp_path: Path, old: str, new: str, line: int, message: str):
    assert old in TEXT
    path = in_file(tmp_path, TEXT.replace(old, new, 1))
    with pytest.raises(UserError) as caught:
        read_map(path)
    assert str(caught.value).startswith(f"{path}, line {line}: ")
    assert message in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "text", ["", "- a\n", "a\n", "groups: &a [*a]\n", "? [a]\n: b\n", "1: 2\n", "a: 2024-99-99\n", "[" * 3000]
)
def test_what_is_no_map_at_all(tmp_path: Path, text: str):
    with pytest.raises(UserError, match="merge.yaml"):
        read_map(in_file(tmp_path, text))


def test_no_file_and_no_utf8(tmp_path: Path):
    with pytest.raises(UserError, match="there is none: conceptguard build aggregate DIR --propose writes it"):
        read_map(tmp_path / "merge.yaml")
    (tmp_path / "merge.yaml").write_bytes(b"version: \xff")
    with pytest.raises(UserError, match="not UTF-8 at byte 9"):
        read_map(tmp_path / "merge.yaml")


# ------------------------------------------------------------------ items and marks
def test_items_show_a_concept_and_what_it_is_grouped_with():
    merge_map = proposed()
    found = items(merge_map)
    assert [fields for _, fields in found][1] == {
        "group": "sigil forging",
        "other members": "sigil forging (9)",
        "concept": "forging of sigils",
        "samples": "4",
    }
    # The group with two samples is too small to stay, whatever is said of it.
    assert len({name for name, _ in found}) == len(found) == len(COUNTS) - 1
    assert found[1][0] == item_id(merge_map.groups[0], "forging of sigils")
    many = Group(parent="p", members=tuple(Member(concept=f"c{i:02}", samples=1) for i in range(30)))
    shown = items(MergeMap(groups=(many,)))[0][1]["other members"]
    assert shown.startswith("c01 (1); c02 (1);") and shown.endswith("c25 (1); and 4 more")


def test_ids_outlive_another_name_of_the_parent_but_not_another_member():
    group = proposed().groups[0]
    renamed = group.model_copy(update={"parent": "forgery"})
    assert item_id(renamed, "sigil forging") == item_id(group, "sigil forging")
    turned = group.model_copy(update={"members": group.members[::-1]})
    assert item_id(turned, "sigil forging") == item_id(group, "sigil forging")
    smaller = group.model_copy(update={"members": group.members[:1]})
    assert item_id(smaller, "sigil forging") != item_id(group, "sigil forging")


def test_marks_come_in_by_annotator_one_sheet_after_the_other():
    merge_map = proposed()
    ids = {fields["concept"]: name for name, fields in items(merge_map)}
    ann = with_marks(merge_map, {"ann": dict.fromkeys(ids.values(), "accept")})
    both = with_marks(ann, {"ben": {ids["sigil forging"]: "accept", ids["forging of sigils"]: "reject"}})
    assert both.annotators == ("ann", "ben")
    first, second = both.groups[0].members
    assert (first.marks, second.marks) == ({"ann": "accept", "ben": "accept"}, {"ann": "accept", "ben": "reject"})
    assert both.groups[1].members[0].marks == {"ann": "accept"}
    item = ids["forging of sigils"]
    resolved = with_marks(both, {}, {item: "accept"})
    assert resolved.groups[0].members[1].resolved == "accept"
    assert with_marks(resolved, {}).groups == resolved.groups  # nothing given: nothing changes
    assert with_marks(resolved, {}, {item: "unclear"}).groups == both.groups  # still unclear after the talk
    agreed = with_marks(resolved, {"ben": {item: "accept"}}).groups[0].members[1]
    assert (agreed.marks["ben"], agreed.resolved) == ("accept", None)
    assert with_marks(accept_proposals(merge_map), {"ann": {item: "accept"}}).reviewed


def test_marks_on_something_else_are_refused():
    merge_map = proposed()
    name = items(merge_map)[0][0]
    with pytest.raises(
        UserError, match=r"the marks of 'ann' are of another state .*: 1 of 2 items are not .*first: 'm-0'"
    ):
        with_marks(merge_map, {"ann": {name: "accept", "m-0": "accept"}})
    with pytest.raises(UserError, match="the resolutions are of another state"):
        with_marks(merge_map, {}, {"m-0": "accept"})
    with pytest.raises(
        UserError, match=f"the marks of 'ann', item {name}: no mark: it must be accept, reject, unclear"
    ):
        with_marks(merge_map, {"ann": {name: "secret"}})
    with pytest.raises(UserError, match="'resolved' is reject, but all annotators say accept"):
        with_marks(merge_map, {"ann": {name: "accept"}}, {name: "reject"})
