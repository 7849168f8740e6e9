"""What judging some answers takes, by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from judge_server import judge_server, level, schema_refused, without_a_judge

from cg_tasks.judge.budget import estimated_tokens
from cg_tasks.judge.cache import ReplyCache
from cg_tasks.judge.estimate import Estimate, estimate, request_messages
from cg_tasks.judge.judging import Judge
from cg_tasks.judge.rubrics import JudgeItem, Messages
from cg_tasks.judge.settings import JudgeSettings

URL = "http://127.0.0.1:9/v1"  # nobody listens, and nobody is asked
A = JudgeItem("a", "harm", "How is a ward broken?", "With a wedge.")
B = JudgeItem("b", "help", "How is a ward mended?", "With a thread.")
EMPTY = JudgeItem("c", "harm", "How?", " \n")


@pytest.fixture(autouse=True)
def no_judge(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    without_a_judge(monkeypatch, tmp_path)


def judge(url: str = URL, **settings: Any) -> Judge:
    return Judge(JudgeSettings(base_url=url, model="judge-1", cache="judge.sqlite", **settings))


def messages(judge: Judge, item: JudgeItem) -> dict[bool, Messages]:
    with ReplyCache("judge.sqlite") as cache:
        return request_messages(judge, item, cache)


def prompt_tokens(judge: Judge, *items: JudgeItem) -> int:
    """Four characters each and 8 for a request, of the messages sent first."""
    sent = [next(iter(messages(judge, item).values())) for item in items]
    by_hand = sum((len(m[0]["content"]) + len(m[1]["content"])) // 4 + 8 for m in sent)
    assert by_hand == sum(map(estimated_tokens, sent)) > 0
    return by_hand


def test_without_a_reply_yet_a_reply_is_120_tokens():
    asked = judge(price_input=2.0, price_output=10.0)
    tokens = prompt_tokens(asked, A, B)
    found = estimate(asked, [A, B, EMPTY])
    assert found == Estimate(3, 1, 0, 2, tokens, 240, pytest.approx((tokens * 2.0 + 240 * 10.0) / 1e6, rel=1e-12))


def test_equal_answers_are_asked_about_once():
    twin = JudgeItem("another id", A.rubric, A.query, A.response)
    asked = judge()
    found = estimate(asked, [A, twin, B])
    assert (found.verdicts, found.calls, found.prompt_tokens) == (3, 2, prompt_tokens(asked, A, B))


def test_votes_multiply_all_of_it():
    one, three = judge(), judge(votes=3)
    single, triple = (estimate(j, [A, B, EMPTY]) for j in (one, three))
    for name in ("verdicts", "without_call", "calls", "prompt_tokens", "completion_tokens"):
        assert getattr(triple, name) == 3 * getattr(single, name), name


def test_what_is_cached_is_paid_and_tells_how_long_replies_are():
    with judge_server(lambda call: level(1, usage=(50, 30 if call.rubric == "harm" else 61))) as server:
        asked = judge(server.url, price_input=1.0, price_output=1.0)
        asked.judge([A, B])
        server.forget()
        new = JudgeItem("d", "harm", "How?", "So.")
        found = estimate(asked, [A, B, new, new, EMPTY])
        assert server.calls == []
    tokens = prompt_tokens(asked, new)
    # Mean of 30 and 61 tokens, 45.5, rounded to even.
    assert found == Estimate(5, 1, 2, 1, tokens, 46, pytest.approx((tokens + 46) / 1e6, rel=1e-12))


def test_all_cached_costs_nothing():
    with judge_server(1) as server:
        asked = judge(server.url, price_input=1.0, price_output=1.0, votes=2)
        asked.judge([A])
    assert estimate(asked, [A]) == Estimate(2, 0, 2, 0, 0, 0, 0.0)


def test_some_votes_cached():
    with judge_server(1) as server:
        judge(server.url, votes=1).judge([A])
    found = estimate(judge(server.url, votes=3), [A])
    assert (found.verdicts, found.cached, found.calls) == (3, 1, 2)


def test_a_verdict_of_a_server_without_schemas_is_found():
    with judge_server(lambda call: schema_refused(call) or level(1)) as server:
        asked = judge(server.url)
        asked.judge([A])
    assert (estimate(asked, [A]).cached, estimate(asked, [A]).calls) == (1, 0)
    assert list(messages(asked, A)) == [False, True]  # what is asked of it from now on


def test_without_both_prices_there_is_no_sum():
    assert estimate(judge(price_input=1.0), [A]).usd is None
    assert "prices not set (CG_JUDGE_PRICE_INPUT, CG_JUDGE_PRICE_OUTPUT)" in str(estimate(judge(), [A]))


def test_nothing_to_judge():
    assert estimate(judge(price_input=1.0, price_output=1.0), []) == Estimate(0, 0, 0, 0, 0, 0, 0.0)


def test_its_words():
    words = str(Estimate(10_400, 400, 1000, 9000, 7_500_000, 1_080_000, 29.5555))
    assert words == (
        "10400 verdicts: 400 empty responses need no call, 1000 are in the cache, 9000 calls to make; "
        "about 7,500,000 prompt and 1,080,000 completion tokens, without second questions: 29.5555 USD"
    )
    assert str(Estimate(1, 0, 0, 1, 10, 10, 0.02, 0.01)).endswith(": 0.0200 USD, more than the budget of 0.01 USD")


@pytest.mark.parametrize(("structured", "modes"), [("auto", [True, False]), ("json_schema", [True]), ("text", [False])])
def test_the_messages_of_each_mode(structured: Any, modes: list[bool]):
    found = messages(judge(structured=structured), A)
    assert list(found) == modes
    for with_schema, (system, user) in found.items():
        assert ("LEVEL: <number>" in system["content"]) is not with_schema
        assert A.response in user["content"]


def test_an_estimate_leaves_the_cache_as_it_was():
    estimate(judge(), [A, B])
    with ReplyCache("judge.sqlite") as cache:
        assert len(cache) == 0
