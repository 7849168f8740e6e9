"""Candidate groups from the model: what it is asked, and which replies are taken."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from construction_parts import GENERATOR, Answers, reply, small_build

from cg_tasks.construction.engine.asking import NoReply
from cg_tasks.construction.grouping.propose import ProposeRow, ProposeStage

COUNTS = {"lamp lore": 4, "lamp-lore": 1, "wick craft": 3}
GOOD = {"groups": [{"parent": "lamps", "members": ["lamp lore", "lamp-lore"]}]}


@pytest.fixture
def stage(tmp_path: Path) -> ProposeStage:
    return ProposeStage(small_build(tmp_path / "build"), {"generator": GENERATOR}, COUNTS)


def made(stage: ProposeStage, *said: Any) -> tuple[ProposeRow, Answers]:
    """The one row. said: replies in the order of attempts."""
    replies = iter(said)
    ask = Answers(calls=lambda asked: next(replies))
    (row,) = stage.rows()
    return asyncio.run(stage.make(row, ask)), ask


def grouped(groups: Any) -> Any:
    return reply(json.dumps(groups))


def test_the_model_sees_concepts_and_numbers_in_one_question(stage: ProposeStage) -> None:
    _, ask = made(stage, grouped(GOOD))
    (asked,) = ask.asked
    assert asked.key.startswith("propose/") and asked.schema_name == "propose"
    shown = asked.messages[1]["content"]
    assert "]\nlamp lore (4 samples)\nlamp-lore (1 sample)\nwick craft (3 samples)\n[END OF CONCEPTS " in shown


def test_concepts_that_no_group_names_stay_alone(stage: ProposeStage) -> None:
    row, _ = made(stage, grouped(GOOD))
    assert (row.pair_id, row.status) == ("concepts", "ok")
    assert row.groups == (("lamps", ("lamp lore", "lamp-lore")), ("wick craft", ("wick craft",)))
    assert row.made is not None and row.made.attempts == 1 and stage.made(row) == (row.made,)
    assert ProposeRow.model_validate_json(row.model_dump_json()) == row


@pytest.mark.parametrize(
    "groups",
    [
        {"groups": [{"parent": "lamps", "members": ["lamp lore", "nobody's"]}]},
        {"groups": [{"parent": "a", "members": ["lamp lore"]}, {"parent": "b", "members": ["lamp lore"]}]},
        {"groups": "none"},
    ],
)
def test_a_reply_that_does_not_group_these_concepts_is_asked_for_again(stage: ProposeStage, groups: Any) -> None:
    row, ask = made(stage, grouped(groups), grouped(GOOD))
    assert row.status == "ok" and row.made is not None and row.made.attempts == 2 and len(row.made.faults) == 1
    assert len({asked.key for asked in ask.asked}) == 2
    assert "nobody's" not in row.made.faults[0]


def test_attempts_are_those_of_tag(tmp_path: Path) -> None:
    stage = ProposeStage(small_build(tmp_path / "build", tag={"attempts": 2}), {"generator": GENERATOR}, COUNTS)
    row, ask = made(stage, reply("no object"), reply("no object"))
    assert row.status == "failed" and row.groups == () and len(ask.asked) == 2
    assert row.reason == "unreadable: no JSON object (attempt 2; so far: unreadable)"


def test_without_a_reply_it_is_not_run(stage: ProposeStage) -> None:
    row, _ = made(stage, NoReply("not_run", "not asked: --no-calls"))
    assert (row.status, row.reason, row.made) == ("not_run", "not asked: --no-calls", None)
    assert stage.made(row) == ()


def test_other_concepts_are_another_question(tmp_path: Path) -> None:
    folder = small_build(tmp_path / "build")
    stages = [
        ProposeStage(folder, {"generator": GENERATOR}, c)
        for c in (COUNTS, {**COUNTS, "oil": 1}, {**COUNTS, "wick craft": 4})
    ]
    assert len({stage.made_from()["the concepts"] for stage in stages}) == 3
    assert len({made(stage, reply(""), reply(""), reply(""))[1].asked[0].key for stage in stages}) == 3
