"""Proposals: names alike are put together whatever their order, spelling or script; a model's reply is taken as far as it is sound."""

from __future__ import annotations

import random
import time

import pytest

from cg_tasks.construction.grouping.proposals import Group, by_ngrams, comparable, from_reply
from cg_tasks.construction.rows import Faulty

COUNTS = {"sigil forging": 9, "forging of sigils": 4, "lock opening": 5, "opening locks": 6, "divination": 2}


def sets(groups: list[Group]) -> set[frozenset[str]]:
    return {frozenset(group.members) for group in groups}


# ------------------------------------------------------------------ by the likeness of names
def test_words_in_another_order_are_together_and_the_largest_member_is_the_parent():
    assert by_ngrams(COUNTS, 0.5) == [
        Group("sigil forging", ("sigil forging", "forging of sigils")),
        Group("opening locks", ("opening locks", "lock opening")),
        Group("divination", ("divination",)),
    ]


def test_the_order_of_the_input_does_not_matter():
    expected = by_ngrams(COUNTS, 0.5)
    for seed in range(10):
        shuffled = list(COUNTS.items())
        random.Random(seed).shuffle(shuffled)
        assert by_ngrams(dict(shuffled), 0.5) == expected


def test_a_higher_similarity_parts_what_a_lower_one_joins():
    counts = {"ward breaking": 3, "ward building": 3}
    assert len(by_ngrams(counts, 0.1)) == 1
    assert len(by_ngrams(counts, 0.9)) == 2


def test_none_one_and_equal_after_normalisation():
    assert by_ngrams({}, 0.5) == []
    assert by_ngrams({"a": 1}, 0.5) == [Group("a", ("a",))]
    # full-width letters, case, spaces: equal, so together even where nothing else would be
    same = {"Rune Craft": 1, "rune  craft": 3, "ｒｕｎｅ craft": 3}
    assert by_ngrams(same, 1.0) == [Group("rune  craft", ("rune  craft", "ｒｕｎｅ craft", "Rune Craft"))]
    assert by_ngrams({"Straße": 1, "STRASSE": 1}, 1.0) == [Group("STRASSE", ("STRASSE", "Straße"))]


def test_other_scripts():
    counts = {"鍵開け": 3, "鍵開け術": 1, "взлом замков": 2, "замков взлом": 1, "占い": 1}
    assert sets(by_ngrams(counts, 0.4)) == {
        frozenset({"鍵開け", "鍵開け術"}),
        frozenset({"взлом замков", "замков взлом"}),
        frozenset({"占い"}),
    }


def test_comparable_is_stable():
    for name in ("Ǆ  İ", "ﬁre\tMaking", "ͅ a", "ẞ"):
        assert comparable(comparable(name)) == comparable(name)


def test_thousands_of_concepts():
    rng = random.Random(0)
    words = ["".join(rng.choices("abcdefghiklmnoprstuvw", k=rng.randint(4, 10))) for _ in range(300)]
    counts = {" ".join(rng.sample(words, rng.randint(1, 3))): rng.randint(1, 9) for _ in range(3000)}
    started = time.monotonic()
    groups = by_ngrams(counts, 0.5)
    assert time.monotonic() - started < 30  # takes one, alone
    assert sorted(member for group in groups for member in group.members) == sorted(counts)


# ------------------------------------------------------------------ a model's
def reply(*groups: tuple[str, list[str]]) -> dict[str, object]:
    return {"groups": [{"parent": parent, "members": members} for parent, members in groups]}


def test_a_models_groups_and_what_it_did_not_name():
    found = from_reply(reply(("locks", ["opening locks", "Lock Opening "])), COUNTS)
    assert found == [
        Group("locks", ("opening locks", "lock opening")),
        Group("sigil forging", ("sigil forging",)),
        Group("forging of sigils", ("forging of sigils",)),
        Group("divination", ("divination",)),
    ]
    assert sets(from_reply(reply(), {"a": 1, "A": 2, "b": 1})) == {frozenset("aA"), frozenset("b")}


def test_a_concept_with_the_name_of_a_parent_joins_its_group():
    found = from_reply(reply(("Divination", ["lock opening"])), {"lock opening": 1, "divination": 2})
    assert found == [Group("Divination", ("divination", "lock opening"))]


@pytest.mark.parametrize(
    ("given", "detail"),
    [
        (reply(("x", ["lock opening", "secret word"])), "no concepts: 1; concepts named twice: 0; parents named twice: 0"),
        (reply(("x", ["divination"]), ("y", ["Divination"])), "members that are no concepts: 0; concepts named twice: 1; parents"),
        (reply(("x", ["divination", "divination"])), "concepts named twice: 1"),
        (reply(("x", ["divination"]), ("X ", ["lock opening"])), "parents named twice: 1"),
        (reply(("x", ["divination"]), ("", ["lock opening"])), "groups without a parent or without members: 1 of 2"),
        (reply(("x", [])), "groups without a parent or without members: 1 of 1"),
        ({"groups": ["secret word", {"parent": "x", "members": "secret word"}]}, "members: 2 of 2"),
        ({"groups": {"secret word": 1}}, "groups is no list"),
        ({}, "groups is no list"),
    ],
)  # fmt: skip
def test_what_is_wrong_with_a_reply_is_told_in_numbers(given: dict[str, object], detail: str):
    with pytest.raises(Faulty) as caught:
        from_reply(given, COUNTS)
    assert caught.value.fault.code == "wrong_fields"
    assert detail in caught.value.fault.detail
    assert "secret" not in str(caught.value) and "divination" not in str(caught.value)


def test_a_member_that_compares_equal_to_two_concepts_must_be_as_written():
    counts = {"Rune": 1, "rune": 2}
    assert from_reply(reply(("x", ["Rune", "rune"])), counts) == [Group("x", ("rune", "Rune"))]
    with pytest.raises(Faulty, match="no concepts: 1"):
        from_reply(reply(("x", ["RUNE"])), counts)
