"""The rule: more than 90 % of the same samples, to the sample; checked by hand and against a count sample by sample."""

from __future__ import annotations

import random
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path

import pytest

from cg_tasks.construction.grouping.agreement_rule import Applied, GroupResult, apply, format_groups, in_words
from cg_tasks.construction.grouping.merge_file import map_text, read_map
from cg_tasks.construction.grouping.merge_map import Group, Member, MergeMap, Rule, accept_proposals, check_map
from cg_tasks.errors import UserError

LABELS = {"a": "accept", "r": "reject", "u": "unclear"}


def member(concept: str, samples: int, marks: str, resolved: str | None = None) -> Member:
    """marks: such as ``ar``: ann accepts, ben rejects."""
    given = {name: LABELS[mark] for name, mark in zip(("ann", "ben"), marks, strict=False)}
    return Member(concept=concept, samples=samples, marks=given, resolved=resolved)  # type: ignore[arg-type]


def outcome(*groups: Sequence[Member], rule: Rule | None = None) -> Applied:
    made = tuple(Group(parent=f"G{i}", members=tuple(members)) for i, members in enumerate(groups))
    merge_map = check_map(MergeMap(annotators=("ann", "ben"), rule=rule or Rule(), groups=made))
    return apply(merge_map, {m.concept: m.samples for group in made for m in group.members})


# ------------------------------------------------------------------ by hand
@pytest.mark.parametrize(
    ("both", "one", "kept"),
    [
        (9, 1, False),
        (10, 1, True),
        (90, 10, False),
        (91, 9, True),
        (9_000_000, 1_000_000, False),
        (9_000_001, 1_000_000, True),
    ],
)
def test_ninety_percent_is_not_more_than_ninety_percent(both: int, one: int, kept: bool):
    applied = outcome([member("x", both, "aa"), member("y", one, "ar")])
    (group,) = applied.groups
    assert group.kept is kept
    assert group.agreement == Fraction(both, both + one)
    assert applied.parents == ({"x": "G0"} if kept else {})


@pytest.mark.parametrize("tenths", range(1, 10))
def test_every_threshold_is_exact(tenths: int):
    members = [member("x", 10 * tenths, "aa"), member("y", 100 - 10 * tenths, "ar")]
    assert not outcome(members, rule=Rule(agreement=tenths / 10)).groups[0].kept
    assert outcome(members, rule=Rule(agreement=(tenths - 1) / 10)).groups[0].kept


def test_what_stays_in_a_group_that_stays():
    applied = outcome(
        [
            member("both", 95, "aa"),
            member("talked in", 2, "ar", "accept"),
            member("talked out", 1, "ra", "reject"),
            member("open", 1, "ua"),
            member("neither", 50, "rr"),
            member("unclear to both", 3, "uu"),
            member("unclear, then in", 4, "ru", "accept"),
        ]
    )
    # accepted by both 95, by either 95 + 2 + 1 + 1: 95 / 99; what nobody accepts is not in it
    assert applied.groups == [GroupResult("G0", 156, 101, Fraction(95, 99), True)]
    assert applied.parents == {"both": "G0", "talked in": "G0", "unclear, then in": "G0"}
    assert applied.dropped == {
        "talked out": "not in the group",
        "open": "unresolved disagreement",
        "neither": "not in the group",
        "unclear to both": "unresolved disagreement",
    }


def test_over_all_members_what_nobody_accepts_counts_against_the_group():
    members = [member("both", 95, "aa"), member("neither", 50, "rr")]
    assert outcome(members).groups[0].agreement == 1
    applied = outcome(members, rule=Rule(over="members"))
    assert applied.groups == [
        GroupResult("G0", 145, 0, Fraction(95, 145), False, "group 'G0': agreement 65.51 %, not above 90 %")
    ]
    assert set(applied.dropped.values()) == {"group 'G0': agreement 65.51 %, not above 90 %"}


def test_a_resolution_does_not_raise_the_agreement():
    applied = outcome([member("x", 8, "aa"), member("y", 2, "ar", "accept")])
    assert applied.groups[0].reason == "group 'G0': agreement 80 %, not above 90 %"
    assert applied.dropped == dict.fromkeys("xy", "group 'G0': agreement 80 %, not above 90 %")


def test_small_groups_go_after_the_marks():
    applied = outcome(
        [member("x", 2, "aa"), member("y", 7, "rr")],
        [member("z", 1, "aa")],
        [member("w", 3, "aa")],
        [member("v", 4, "ru")],
    )
    assert {r.parent: (r.kept, r.left, r.reason) for r in applied.groups} == {
        "G0": (False, 0, "group 'G0': 2 samples"),
        "G1": (False, 0, "group 'G1': 1 sample"),
        "G2": (True, 3, ""),
        "G3": (False, 0, "group 'G3': accepted by nobody"),
    }
    assert applied.dropped["y"] == "not in the group" and applied.dropped["x"] == "group 'G0': 2 samples"
    assert outcome([member("x", 2, "aa")], rule=Rule(smallest=2)).parents == {"x": "G0"}


def test_proposals_accepted_unseen_are_told_from_a_review():
    groups = (
        Group(parent="g", members=(member("x", 3, ""), member("y", 1, ""))),
        Group(parent="h", members=(member("z", 2, ""),)),
    )
    merge_map = MergeMap(groups=groups)
    counts = {"x": 3, "y": 1, "z": 2}
    with pytest.raises(UserError, match="nobody has marked the groups: .*--accept-proposals"):
        apply(merge_map, counts)
    applied = apply(accept_proposals(merge_map), counts)
    assert not applied.reviewed
    assert applied.parents == {"x": "g", "y": "g"} and applied.dropped == {"z": "group 'h': 2 samples"}
    assert "Not reviewed: the proposals were accepted as they are." in format_groups(applied)


def test_one_annotator_needs_the_other_rule():
    group = Group(parent="g", members=(member("x", 10, "a"), member("y", 1, "r")))
    merge_map = MergeMap(annotators=("ann",), groups=(group,))
    counts = {"x": 10, "y": 1}
    with pytest.raises(UserError, match="one annotator always agrees with the union"):
        apply(merge_map, counts)
    found = apply(merge_map.model_copy(update={"rule": Rule(over="members")}), counts)
    assert found.groups[0].agreement == Fraction(10, 11) and found.parents == {"x": "g"}


def test_the_table():
    applied = outcome([member("x", 95, "aa"), member("y", 3, "ar")], [member("z", 1, "aa")])
    assert format_groups(applied) == (
        "1 of 2 groups stay, with 95 of 99 samples.\n\n"
        "| group | samples | left | agreement | outcome |\n| --- | ---: | ---: | ---: | --- |\n"
        "| G0 | 98 | 95 | 96.93 % (95/98) | kept |\n"
        "| G1 | 1 | 0 | 100 % (1) | group 'G1': 1 sample |\n"
    )
    piped = Applied({}, {}, [GroupResult("a|b", 1, 1, None, True)], False)
    assert "| a\\|b | 1 | 1 | - | kept |" in format_groups(piped)


def test_the_rule_in_words():
    assert in_words(Rule()) == (
        "groups stay where more than 90 % of the samples that any of them accepted were accepted by all annotators, and at least 3 "
        "samples are left"
    )


# ------------------------------------------------------------------ a map of other rows, marks that are missing
TEXT = """\
version: 1
annotators: [ann, ben]
groups:
- parent: forging
  members:
  - {concept: sigil forging, samples: 9, marks: {ann: accept, ben: accept}}
  - {concept: forging of sigils, samples: 4, marks: {ann: accept}}
- parent: divination
  members:
  - {concept: divination, samples: 3}
"""
ROWS = {"sigil forging": 9, "forging of sigils": 4, "divination": 3}


@pytest.mark.parametrize(
    ("rows", "line", "message"),
    [
        (
            ROWS,
            7,
            "the group 'forging' lacks marks of 'ben' for 1 of its 2 concepts (and marks are missing in 1 more groups)",
        ),
        (
            {**ROWS, "sigil forging": 8},
            6,
            "'sigil forging' has 9 samples there and 8 in the tag rows: the map is of other rows",
        ),
        (
            {**ROWS, "ward breaking": 3},
            3,
            "lacks 1 of the 4 concepts of the tag rows (first: 'ward breaking', 3 samples)",
        ),
        (
            {"sigil forging": 9, "forging of sigil": 4},
            7,
            "'forging of sigils' is no tag row's: did you mean forging of sigil?",
        ),
    ],
)
def test_what_does_not_fit_the_rows_is_told_with_its_line(
    tmp_path: Path, rows: dict[str, int], line: int, message: str
):
    path = tmp_path / "merge.yaml"
    path.write_text(TEXT, encoding="utf-8")
    with pytest.raises(UserError) as caught:
        apply(read_map(path), rows)
    assert str(caught.value).startswith(f"{path}, line {line}: ") and message in str(caught.value)


# ------------------------------------------------------------------ at the paper's size, against a count sample by sample
def paper_sized(seed: int) -> MergeMap:
    """6,732 samples of 1,500 concepts in 400 groups, as marked by two people who mostly agree."""
    rng = random.Random(seed)
    counts = [1] * 1500
    for _ in range(6732 - 1500):
        counts[min(int(rng.paretovariate(0.5)), 1500) - 1] += 1
    groups: dict[int, list[Member]] = {}
    for i, samples in enumerate(counts):
        group = i if i < 400 else rng.randrange(400)
        usual = "a" if group % 4 else "r"
        marks = "".join(usual if rng.random() < 0.96 else rng.choice("aru") for _ in range(2))
        agree = marks in ("aa", "rr")
        groups.setdefault(group, []).append(
            member(f"concept {i}", samples, marks, None if agree else rng.choice(["accept", "reject", None]))
        )
    made = tuple(Group(parent=f"parent {i}", members=tuple(members)) for i, members in groups.items())
    return check_map(MergeMap(annotators=("ann", "ben"), rule=Rule(over=rng.choice(["union", "members"])), groups=made))


def sample_by_sample(merge_map: MergeMap) -> dict[str, list[str]]:
    """Parent -> the concept of each sample that stays, counted with lists of samples and whole numbers only."""
    kept: dict[str, list[str]] = {}
    for group in merge_map.groups:
        samples = [m for m in group.members for _ in range(m.samples)]
        by = {name: [m.marks[name] == "accept" for m in samples] for name in ("ann", "ben")}
        both = [x and y for x, y in zip(by["ann"], by["ben"], strict=True)]
        either = [x or y for x, y in zip(by["ann"], by["ben"], strict=True)]
        of = sum(either) if merge_map.rule.over == "union" else len(samples)
        if 10 * sum(both) <= 9 * of:
            continue
        in_it = []
        for m in samples:
            marks = [m.marks["ann"], m.marks["ben"]]
            if marks == ["accept", "accept"] or (marks != ["reject", "reject"] and m.resolved == "accept"):
                in_it.append(m.concept)
        if len(in_it) > 2:
            kept[group.parent] = in_it
    return kept


@pytest.mark.parametrize("seed", range(3))
def test_the_papers_size_against_a_count_sample_by_sample(seed: int, tmp_path: Path):
    merge_map = paper_sized(seed)
    counts = {m.concept: m.samples for group in merge_map.groups for m in group.members}
    assert sum(counts.values()) == 6732
    applied = apply(merge_map, counts)
    expected = sample_by_sample(merge_map)
    stays = {r.parent: r.left for r in applied.groups if r.kept}
    assert stays == {parent: len(samples) for parent, samples in expected.items()}
    assert applied.parents == {concept: parent for parent, samples in expected.items() for concept in samples}
    assert applied.parents.keys() | applied.dropped.keys() == counts.keys()
    assert not applied.parents.keys() & applied.dropped.keys()
    assert 20 < len(stays) < 380 and 0 < sum(stays.values()) < 6732  # the rule does something

    # Through the file, from groups in any order, twice: the same.
    path = tmp_path / "merge.yaml"
    groups = random.Random(seed).sample(merge_map.groups, len(merge_map.groups))
    path.write_text(map_text(merge_map.model_copy(update={"groups": tuple(groups)})), encoding="utf-8")
    again = apply(read_map(path), dict(reversed(counts.items())))
    assert again == applied and list(again.parents) == list(applied.parents)
    assert format_groups(again) == format_groups(applied)


def test_a_group_too_small_to_stay_needs_no_marks():
    """Two samples of at least three: whatever the annotators say, it goes."""
    unmarked = Group(parent="G", members=(Member(concept="x", samples=2),))
    applied = apply(MergeMap(annotators=("ann", "ben"), groups=(unmarked,)), {"x": 2})
    assert applied.dropped == {"x": "group 'G': 2 samples"}
    assert [(g.kept, g.left, g.agreement) for g in applied.groups] == [(False, 0, None)]
