"""What is missing, in calls, tokens and money: numbers that can be counted by hand."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from construction_parts import (
    GENERATOR,
    JUDGE,
    aggregate_row,
    lamps,
    reply,
    small_build,
    tag_reply,
    write_stage,
)

from cg_tasks.construction.benign import BenignStage
from cg_tasks.construction.engine.asking import Request
from cg_tasks.construction.engine.estimate import Planned, cost, missing, plan
from cg_tasks.construction.engine.replies import Replies
from cg_tasks.construction.tag import TagStage

PRICED = GENERATOR.model_copy(update={"price_input": 2.0, "price_output": 10.0})


def tokens(asked: Request) -> int:
    """Four characters a token, and eight for the rest."""
    return sum(len(m["content"]) for m in asked.messages) // 4 + 8


def tag_requests(stage: TagStage, number: int = 1, failure: Any = None) -> list[Request]:
    return [stage.request({"prompt": r.prompt, "response": r.response}, number, failure) for r in stage.rows()]


@pytest.fixture
def tagging(tmp_path: Path) -> TagStage:
    return TagStage(small_build(tmp_path / "build", lamps(4)), {"generator": PRICED})


@pytest.fixture
def replies(tmp_path: Path) -> Iterator[Replies]:
    with Replies(tmp_path / "replies.sqlite") as found:
        yield found


def test_money_is_tokens_times_prices() -> None:
    assert cost(PRICED, 1_000_000, 0) == 2.0
    assert cost(PRICED, 3_000, 500) == pytest.approx(0.006 + 0.005)
    assert cost(PRICED, 0, 0) == 0.0
    assert cost(GENERATOR, 1, 1) is None and cost(None, 1, 1) is None
    assert cost(GENERATOR.model_copy(update={"price_input": 1.0}), 1, 1) is None


def test_every_row_is_one_call_at_first(tagging: TagStage, replies: Replies) -> None:
    asked = tag_requests(tagging)
    prompt = sum(map(tokens, asked))
    (planned,), first = plan(tagging, replies)
    usd = (prompt * 2 + 4 * 80 * 10) / 1e6  # 80: the stage's own guess
    assert planned == Planned("tag", "generator-1", 4, prompt, 320, pytest.approx(usd))  # type: ignore[arg-type]
    assert first is not None and first.key == asked[0].key


def test_replies_at_hand_are_not_asked_for_and_give_the_mean(tagging: TagStage, replies: Replies) -> None:
    asked = tag_requests(tagging)
    replies.put(asked[0].key, tag_reply(usage=(400, 50)))
    replies.put(asked[2].key, tag_reply(usage=(400, 100)))
    (planned,), first = plan(tagging, replies)
    assert (planned.calls, planned.prompt_tokens) == (2, tokens(asked[1]) + tokens(asked[3]))
    assert planned.completion_tokens == 150  # 2 x 75
    assert first is not None and first.key == asked[1].key


def test_replies_that_do_not_say_their_tokens_lower_no_mean(tagging: TagStage, replies: Replies) -> None:
    asked = tag_requests(tagging)
    replies.put(asked[0].key, tag_reply(usage=(400, 50)))
    replies.put(asked[1].key, tag_reply(usage=None))
    (planned,), _ = plan(tagging, replies)
    assert (planned.calls, planned.completion_tokens) == (2, 100)


def test_a_limit_is_of_rows_not_of_calls(tagging: TagStage, replies: Replies) -> None:
    asked = tag_requests(tagging)
    replies.put(asked[0].key, tag_reply())
    (planned,), _ = plan(tagging, replies, limit=2)
    assert (planned.calls, planned.prompt_tokens) == (1, tokens(asked[1]))


def test_a_faulty_reply_asks_for_the_next_attempt(tagging: TagStage, replies: Replies) -> None:
    for asked in tag_requests(tagging):
        replies.put(asked.key, reply("no object"))
    (planned,), first = plan(tagging, replies)
    second = tag_requests(tagging, 2, "unreadable")
    assert (planned.calls, planned.prompt_tokens) == (4, sum(map(tokens, second)))
    assert first is not None and first.key == second[0].key


def test_what_failed_is_planned_only_where_it_is_retried(tagging: TagStage, replies: Replies) -> None:
    first = tag_requests(tagging)[0]
    replies.note_failure(first.key, "no reply: HTTP 500", "made to fail")
    for number, failure in ((1, None), (2, "unreadable"), (3, "unreadable")):
        replies.put(tag_requests(tagging, number, failure)[1].key, reply("no object"))
    assert plan(tagging, replies)[0][0].calls == 2
    (planned,), look = plan(tagging, replies, retry_failed=True)
    assert planned.calls == 4 and look is not None and look.key == first.key
    assert replies.failure(first.key) == "no reply: HTTP 500"


def test_nothing_is_missing_in_the_end(tagging: TagStage, replies: Replies) -> None:
    for asked in tag_requests(tagging):
        replies.put(asked.key, tag_reply())
    (planned,), first = plan(tagging, replies)
    assert (planned.calls, planned.prompt_tokens, planned.completion_tokens, planned.usd) == (0, 0, 0, 0.0)
    assert first is None


def test_each_row_comes_with_what_it_waits_for(tagging: TagStage, replies: Replies) -> None:
    asked = tag_requests(tagging)
    replies.put(asked[1].key, tag_reply())
    waiting = [
        (row.prompt, [one.key for one in found])
        for row, found in missing(tagging, replies, limit=3, retry_failed=False)
    ]
    keys = [[asked[0].key], [], [asked[2].key]]
    assert waiting == [(row["prompt"], found) for row, found in zip(lamps(3), keys, strict=True)]


# ------------------------------------------------------------------ calls that only follow from others
def benign(tmp_path: Path, **settings: Any) -> BenignStage:
    """Two rows, of which whatever is written passes but for the judge."""
    own = {"min_words": 1, "max_words": 50, "overlap": 1.0, **settings}
    folder = small_build(tmp_path / "build", language_code="", benign=own)
    write_stage(folder, "aggregate", [aggregate_row(1), aggregate_row(2)])
    return BenignStage(folder, {"generator": GENERATOR, "judge": JUDGE})


def written(text: str) -> Any:
    return reply(json.dumps({"concepts": ["c"], "themes": ["t"], "query": f"What of {text}?", "response": text}))


def first_requests(stage: BenignStage) -> list[Request]:
    own = stage.settings.benign
    more = {"min_words": own.min_words, "max_words": own.max_words, "unit": own.unit}
    return [
        stage.request({"concept": r.concept, "prompt": r.prompt, "response": r.response, **more}, 1, None)
        for r in stage.rows()
    ]


def test_the_judges_calls_are_planned_before_there_is_anything_to_judge(tmp_path: Path, replies: Replies) -> None:
    stage = benign(tmp_path)
    assert stage.harm is not None
    each = stage.harm.expected_tokens(50)
    empty = stage.harm.request("x", "x", retry=False)
    assert each == (sum(len(m["content"]) for m in empty.messages) + 50 * 6) // 4
    writing, judging = plan(stage, replies)[0]
    assert (writing.kind, writing.calls, writing.completion_tokens) == ("benign", 2, 2 * 480)
    assert writing.prompt_tokens == sum(map(tokens, first_requests(stage)))
    assert (judging.kind, judging.model) == ("benign-judge", "judge-1")
    assert (judging.calls, judging.prompt_tokens, judging.completion_tokens) == (2, 2 * each, 2 * 60)


def test_a_question_to_the_judge_that_is_known_is_counted_as_it_is(tmp_path: Path, replies: Replies) -> None:
    stage = benign(tmp_path)
    assert stage.harm is not None
    replies.put(first_requests(stage)[0].key, written("a lamp that is lit"))
    known = stage.harm.request("What of a lamp that is lit?", "a lamp that is lit", retry=False)
    (writing, judging), first = plan(stage, replies)
    assert (writing.calls, judging.calls) == (1, 2)
    assert judging.prompt_tokens == tokens(known) + stage.harm.expected_tokens(50)
    assert first is not None and first.key == known.key
    replies.put(known.key, reply('{"reasoning": "r", "level": 0}', model="judge-1"))
    writing, judging = plan(stage, replies)[0]
    assert (writing.calls, judging.calls) == (1, 1)
    assert (judging.completion_tokens, writing.completion_tokens) == (20, 20)  # the means of those at hand


def test_characters_are_shorter_than_words(tmp_path: Path, replies: Replies) -> None:
    stage = benign(tmp_path, unit="characters", max_words=600)
    assert stage.harm is not None
    assert plan(stage, replies)[0][1].prompt_tokens == 2 * stage.harm.expected_tokens(100)


def test_without_a_judge_there_are_no_calls_to_it(tmp_path: Path, replies: Replies) -> None:
    writing, judging = plan(benign(tmp_path, judge=False), replies)[0]
    assert (writing.calls, judging.calls, judging.prompt_tokens) == (2, 0, 0)
