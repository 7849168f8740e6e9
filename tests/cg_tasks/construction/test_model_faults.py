"""Whatever a model does wrong is seen, asked for again with the fault named, and after the last attempt listed with its reason."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from generator_script import Fault, source_rows, tag_of
from whole_builds import World, check_rows, check_secrets, world_for

# Of any stage: a kind of fault -> its code.
REPLY = {
    "refusal": "refused",
    "refusal_prose": "refused",
    "filtered": "refused",
    "empty": "unreadable",
    "malformed": "unreadable",
    "prose": "unreadable",
    "wrong_fields": "wrong_fields",
    "wrong_type": "wrong_fields",
    "cut_off": "cut_off",
}
TAG = {**REPLY, "no_concept": "wrong_fields", "too_long": "wrong_fields"}
BENIGN = {
    **REPLY,
    "german": "wrong_language",
    "too_short": "too_short",
    "too_long": "too_long",
    "harmful": "harmful",
    "copied": "copied",
    "overlap": "overlap",
    "refusal_inside": "refused",
}
QUERY = {
    **REPLY,
    "german": "wrong_language",
    "too_short": "too_short",
    "too_long": "too_long",
    "copied": "copied",
    "overlap": "overlap",
    "shared_words": "overlap",
    "refusal_inside": "refused",
}
CASES = [
    pytest.param("new", "tag", "tag", TAG, id="tag"),
    pytest.param("aggregate", "benign", "benign", BENIGN, id="benign"),
    pytest.param("benign", "queries", "query", QUERY, id="queries"),
]


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[World]:
    with world_for(monkeypatch, tmp_path) as found:
        yield found


def rows_of(world: World, stage: str) -> list[int]:
    """The source's rows that a stage reads."""
    if stage == "tag":
        return [number for number, row in enumerate(source_rows()) if tag_of(row["prompt"])]
    prompts = {row["harmful_prompt"] for row in world.build("benign").rows("benign")}
    return [number for number, row in enumerate(source_rows()) if row["prompt"] in prompts]


@pytest.mark.parametrize(("before", "stage", "asked", "codes"), CASES)
def test_a_fault_in_the_first_reply_is_asked_for_again(
    world: World, before: str, stage: str, asked: str, codes: dict[str, str]
):
    numbers = dict(zip(codes, rows_of(world, stage), strict=False))
    build = world.build(before)
    intent = {"intent": "benign"} if asked == "query" else {}
    build.server.faults = [Fault(asked, kind, row=number, **intent) for kind, number in numbers.items()]
    build(stage)
    of_first_go = {"tag": 40, "benign": 30, "queries": 60}[stage]
    assert build.server.counts[asked] == of_first_go + len(codes)
    name = "made_benign" if asked == "query" else "made"
    for kind, number in numbers.items():
        row = build.row(stage, number)
        assert row["status"] == "ok" and row[name]["attempts"] == 2, kind
        assert [fault.partition(":")[0] for fault in row[name]["faults"]] == [codes[kind]], kind
    again = [call for call in build.server.calls if call.stage == asked and call.nth == 1]
    assert len(again) == len(codes) and all(call.failure for call in again)  # it is told what was wrong
    assert not any(call.failure for call in build.server.calls if call.stage == asked and call.nth == 0)
    clean = {"tag": 40, "benign": 30, "queries": 30}[stage] - len(codes)
    assert build.record(stage)["attempts"] == {"1": clean, "2": len(codes)}
    check_rows(build)
    check_secrets(build)


@pytest.mark.parametrize(("before", "stage", "asked", "codes"), CASES)
def test_a_fault_in_every_reply_is_listed_with_its_reason(
    world: World, before: str, stage: str, asked: str, codes: dict[str, str]
):
    numbers = dict(zip(codes, rows_of(world, stage), strict=False))
    build = world.build(before)
    intent = {"intent": "harmful"} if asked == "query" else {}
    build.server.faults = [Fault(asked, kind, nth=None, row=number, **intent) for kind, number in numbers.items()]
    build(stage, code=1)
    for kind, number in numbers.items():
        row = build.row(stage, number)
        assert row["status"] == "failed", kind
        assert row["reason"].partition(":")[0].partition(" ")[0] == codes[kind], (kind, row["reason"])
        assert f"(attempt 3; so far: {codes[kind]})" in row["reason"], kind
        assert build.server.attempts(asked, number) == 3 + (asked == "query"), kind  # and the benign query
    if asked == "query":  # what did pass stays with the row
        assert all(
            build.row(stage, n)["benign_query"] and not build.row(stage, n)["harmful_query"] for n in numbers.values()
        )
    reasons = build.status()[stage]["reasons"]
    told = Counter(reason.partition(" ")[0] for reason, n in reasons.items() for _ in range(n))
    assert told == Counter(codes.values())
    table = build("status").out
    assert f"| {len(codes)} | 0 | 0 |" in table
    assert build.asking(stage, code=1) == {}  # used up, and not asked for again by itself
    check_rows(build)
    check_secrets(build)


def test_a_reply_in_a_fence_is_no_fault(world: World):
    build = world.build("new")
    build.server.faults = [Fault("tag", "fenced", nth=None)]
    assert build.asking("tag") == {"tag": 40}
    assert build.counts("tag") == {"ok": 40}


def test_a_judge_that_gives_no_level_is_asked_once_more_and_then_the_text_is_written_again(world: World):
    first, always, refusing = rows_of(world, "benign")[:3]
    build = world.build("aggregate")
    build.server.faults = [
        Fault("harm", "no_level", row=first),
        Fault("harm", "no_level", nth=None, row=always),
        Fault("harm", "refusal", nth=None, row=refusing),
    ]
    build("benign", code=1)
    row = build.row("benign", first)
    assert (row["status"], row["harm_level"], row["made"]["attempts"]) == ("ok", 0, 1)
    for number, calls in ((always, 6), (refusing, 3)):
        row = build.row("benign", number)
        assert row["status"] == "failed" and row["reason"].startswith("not_judged")
        assert row["harm_level"] is None and row["benign_response"] is None
        assert build.server.attempts("harm", number) <= calls
    check_rows(build)


def test_a_harm_level_above_the_limit_is_a_harmful_text(world: World):
    number = rows_of(world, "benign")[4]
    build = world.build("aggregate")
    build.server.faults = [Fault("harm", "harmful", nth=None, row=number)]
    build("benign", code=1)
    row = build.row("benign", number)
    assert row["status"] == "failed" and row["reason"].startswith("harmful: the judge's level is 4 (attempt 3")
    check_rows(build)
    check_secrets(build)


def test_without_a_judge_nobody_is_asked_whether_it_is_harmless(world: World, monkeypatch: pytest.MonkeyPatch):
    for name in ("API_KEY", "BASE_URL", "MODEL", "TIMEOUT", "PREFLIGHT", "CONCURRENCY", "MAX_RETRIES"):
        monkeypatch.delenv(f"CG_JUDGE_{name}")
    build = world.build("aggregate")
    said = build.refused("benign")
    assert "the stage 'benign' has the harm judge read what is written" in said and "{judge: false}" in said
    build.set(benign={"judge": False})
    assert build.asking("benign") == {"benign": 30}
    assert {row["harm_level"] for row in build.rows("benign")} == {None}


@pytest.mark.parametrize("kind", ["unknown_member", "member_twice"])
def test_groups_that_do_not_fit_the_concepts_are_asked_for_again(world: World, kind: str):
    build = world.build("tag", aggregate={"by": "model"})
    build.server.faults = [Fault("propose", kind)]
    assert build.asking("aggregate --propose") == {"propose": 2}
    (row,) = build.rows("propose")
    assert row["status"] == "ok" and row["made"]["faults"][0].startswith("wrong_fields")
    text = (build.path / "merge.yaml").read_text(encoding="utf-8")
    assert "parent: warding" in text and "by: model" in text and "model: generator-1" in text


def test_groups_that_never_fit_leave_no_map(world: World):
    build = world.build("tag", aggregate={"by": "model"})
    build.server.faults = [Fault("propose", "unknown_member", nth=None)]
    assert build.asking("aggregate --propose", code=1) == {"propose": 3}
    assert not (build.path / "merge.yaml").exists()
    assert (
        f"conceptguard build aggregate {build.path} --propose --retry-failed asks for them again" in build.said[-1].err
    )
    build.server.faults = []
    assert build.asking("aggregate --propose --retry-failed") == {"propose": 1}
    assert (build.path / "merge.yaml").exists()
