"""When the judge stops asking: servers that are down, money, calls at once, Ctrl-C."""

from __future__ import annotations

import asyncio
import math
import signal
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from judge_server import (
    Call,
    JudgeServer,
    Say,
    fail,
    judge_server,
    level,
    say,
    without_a_judge,
)
from judging import by_number, items, number, numbered, of, rows, statuses
from support import ctrl_c_works

from cg_tasks.judge.budget import estimated_tokens
from cg_tasks.judge.judging import Judge, judge_of
from cg_tasks.judge.rubrics import JudgeItem, messages_of
from cg_tasks.judge.settings import JudgeSettings
from cg_tasks.judge.verdicts import Verdict


@pytest.fixture(autouse=True)
def no_judge(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    without_a_judge(monkeypatch, tmp_path)


# ------------------------------------------------------------------ servers that are down
def test_a_refused_key_stops_at_once():
    with judge_server(lambda call: fail(401, "no such key", delay=0.05)) as server:
        verdicts = Judge(of(server, concurrency=4, max_retries=3)).judge(numbered(40))
    assert statuses(verdicts) == ["api_error"] * 40 and len(server.calls) == 4
    assert all("HTTP 401: no such key" in v.detail for v in verdicts)
    assert sum("not asked" in v.detail for v in verdicts) == 36


def test_one_text_that_moderation_stops_does_not_stop_the_run():
    with judge_server(lambda call: fail(403, "flagged") if number(call) == 0 else by_number(call)) as server:
        verdicts = Judge(of(server, concurrency=1)).judge(numbered(10))
    assert statuses(verdicts) == ["judge_refused", *["ok"] * 9] and len(server.calls) == 10


def test_a_404_amid_answers_is_that_calls_alone():
    with judge_server(lambda call: fail(404) if number(call) == 3 else by_number(call)) as server:
        verdicts = Judge(of(server, concurrency=1)).judge(numbered(10))
    assert statuses(verdicts).count("api_error") == 1 and len(server.calls) == 10


def test_failures_in_a_row_end_the_asking_and_single_ones_do_not():
    with judge_server(lambda call: fail(500)) as server:
        verdicts = Judge(of(server, concurrency=1, give_up_after=5)).judge(numbered(30))
        assert len(server.calls) == 5 and statuses(verdicts) == ["api_error"] * 30
        assert "5 calls in a row failed" in verdicts[-1].detail and "HTTP 500" in verdicts[-1].detail
        server.forget()
        server.script = lambda call: (
            by_number(call) if number(call) % 5 == 0 else fail(500)
        )  # four failures, one answer
        verdicts = Judge(of(server, concurrency=1, give_up_after=5)).judge(numbered(30))
        assert len(server.calls) == 30 and statuses(verdicts).count("ok") == 6


def test_refusals_in_a_row_are_answers_of_a_server_that_is_up():
    with judge_server(lambda call: fail(400, "flagged") if number(call) < 20 else by_number(call)) as server:
        verdicts = Judge(of(server, concurrency=1, give_up_after=5)).judge(numbered(25))
    assert statuses(verdicts) == [*["judge_refused"] * 20, *["ok"] * 5]


def test_a_server_that_was_given_up_is_tried_again_by_the_next_task():
    with judge_server(lambda call: fail(500)) as server:
        judge = Judge(of(server, concurrency=1, give_up_after=2))
        judge.judge(numbered(5))
        server.script = by_number
        assert statuses(judge.judge(numbered(5))) == ["ok"] * 5


# ------------------------------------------------------------------ money
def priced(server: JudgeServer, usd: float, **more: Any) -> JudgeSettings:
    return of(server, budget_usd=usd, price_input=1e6, price_output=0.0, **more)  # one USD a prompt token


def tokens(item: JudgeItem) -> int:
    return estimated_tokens(messages_of(Judge(JudgeSettings()).rubrics["harm"], item, structured=True))


@pytest.mark.parametrize("concurrency", [1, 4])
def test_the_budget_stops_the_run_and_keeps_what_was_scored(concurrency: int):
    asked = items(*(f"response {i:02}" for i in range(12)))
    cost = tokens(asked[0])

    def script(call: Call) -> Say:
        return level(number(call) % 5, usage=(cost, 0), delay=0.01)

    with judge_server(script) as server:
        judge = Judge(priced(server, 5.5 * cost, concurrency=concurrency))
        verdicts = judge.judge(asked)
        assert sorted(statuses(verdicts)) == [*["ok"] * 5, *["over_budget"] * 7] and len(server.calls) == 5
        assert judge.budget.spent == 5 * cost == judge.provenance()["spent_usd"]
        assert all("the budget of" in v.detail and math.isnan(v.score) for v in verdicts if v.status == "over_budget")
        server.forget()
        richer = Judge(priced(server, 100 * cost, concurrency=concurrency))
        assert [v.level for v in richer.judge(asked)] == [i % 5 for i in range(12)]
        assert len(server.calls) == 7 and richer.budget.spent == 7 * cost


def test_spending_never_passes_the_limit_where_the_server_needs_no_more_than_estimated():
    asked = numbered(30)
    cost = tokens(asked[0])
    with judge_server(lambda call: level(1, usage=(cost // 2, 0), delay=0.005)) as server:
        judge = Judge(priced(server, 4.2 * cost, concurrency=3))
        judge.judge(asked)
    assert 2 * cost <= judge.budget.spent <= 4.2 * cost and len(server.calls) * (cost // 2) == judge.budget.spent


def test_failed_calls_cost_nothing_and_a_second_question_its_own():
    asked = numbered(1)
    with judge_server(lambda call: fail(500)) as server:
        judge = Judge(priced(server, 1e9))
        judge.judge(asked)
        assert judge.budget.spent == 0
        server.script = lambda call: say("Well.", usage=(10, 1))
        assert statuses(judge.judge(asked)) == ["parse_error"] and judge.budget.spent == 20


def test_the_second_question_is_not_asked_beyond_the_budget():
    asked = numbered(3)
    cost = tokens(asked[0])
    with judge_server(lambda call: say("Well.", usage=(cost, 1))) as server:
        verdicts = Judge(priced(server, 1.01 * cost, concurrency=1)).judge(asked)
    assert statuses(verdicts) == ["parse_error", "over_budget", "over_budget"] and len(server.calls) == 1


def test_what_is_cached_costs_nothing():
    with judge_server() as server:
        Judge(of(server)).judge(numbered(3))
        judge = Judge(priced(server, 1.0))
        assert statuses(judge.judge(numbered(3))) == ["ok"] * 3 and judge.budget.spent == 0


def test_tasks_of_one_run_share_a_judge_and_its_budget():
    with judge_server() as server:
        settings = of(server)
        assert judge_of(settings) is judge_of(of(server))
        assert judge_of(settings) is not judge_of(of(server, votes=2))
        assert judge_of(settings) is not judge_of(of(server, api_key="another"))


# ------------------------------------------------------------------ at once
@pytest.mark.parametrize(("concurrency", "world", "most"), [(1, "1", 1), (6, "1", 6), (6, "2", 3), (2, "8", 1)])
def test_calls_in_flight(concurrency: int, world: str, most: int, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("WORLD_SIZE", world)
    with judge_server(lambda call: level(1, delay=0.15)) as server:
        Judge(of(server, concurrency=concurrency)).judge(numbered(2 * most + 2))
    assert server.most == most


def test_ranks_divide_the_budget(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("WORLD_SIZE", "4")
    assert Judge(JudgeSettings(budget_usd=10, price_input=1, price_output=1)).budget.limit == 2.5


def test_works_in_a_notebook():
    async def cell() -> list[Verdict]:
        with judge_server(by_number) as server:
            return Judge(of(server)).judge(numbered(7))

    assert [v.level for v in asyncio.run(cell())] == [0, 1, 2, 3, 4, 0, 1]


def test_two_judges_on_two_threads():
    found: dict[int, list[int | None]] = {}
    with judge_server(by_number) as server:

        def work(k: int) -> None:
            found[k] = [v.level for v in Judge(of(server, params={"seed": k})).judge(numbered(10))]

        threads = [threading.Thread(target=work, args=(k,)) for k in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(20)
    assert found == {0: [i % 5 for i in range(10)], 1: [i % 5 for i in range(10)]}


def test_ctrl_c_ends_promptly_and_keeps_what_landed():
    with judge_server(lambda call: level(1, delay=0.0 if number(call) < 9 else 20.0)) as server:

        def press() -> None:
            while len(server.calls) < 12:
                time.sleep(0.01)
            time.sleep(0.2)
            signal.raise_signal(signal.SIGINT)

        threading.Thread(target=press, daemon=True).start()
        start = time.monotonic()
        with ctrl_c_works(), pytest.raises(KeyboardInterrupt):
            Judge(of(server, concurrency=3, timeout=60)).judge(numbered(40))
        assert time.monotonic() - start < 12 and rows() == 9
        server.forget()
        server.script = by_number
        assert statuses(Judge(of(server)).judge(numbered(40))) == ["ok"] * 40 and len(server.calls) == 31


PRICED = {"price_input": 1.0, "price_output": 1.0, "structured": "text"}


def test_a_budget_waits_for_calls_in_flight_before_it_says_no():
    """Money set aside for calls in flight comes back when they turn out cheaper than feared."""
    with judge_server(lambda call: level(1, usage=(10, 1), delay=0.03)) as server:
        # Room for about two reserved calls at once, and for a hundred at what they cost.
        judge = Judge(of(server, budget_usd=2 * 600e-6 + 200e-6, concurrency=16, **PRICED))
        verdicts = judge.judge(numbered(40))
    assert statuses(verdicts) == ["ok"] * 40 and judge.budget.spent == pytest.approx(40 * 11e-6)


@pytest.mark.parametrize("usage", [(-(10**9), 5), (10**400, 1), (5, 10**12)])
def test_usage_that_cannot_be_is_not_booked(usage: tuple[int, int]):
    with judge_server(lambda call: level(1, usage=usage)) as server:
        judge = Judge(of(server, budget_usd=1, **PRICED))
        (verdict,) = judge.judge(numbered(1))
    assert verdict.status == "ok" and verdict.usage is None
    assert 0 < judge.budget.spent < 0.01  # the estimate


def test_requests_that_are_too_long_do_not_stop_the_others():
    too_long = fail(400, "maximum context length is 4096 tokens")
    with judge_server(lambda call: too_long if number(call) < 30 else level(2)) as server:
        verdicts = Judge(of(server, give_up_after=5, concurrency=4)).judge(numbered(40))
    assert statuses(verdicts) == ["api_error"] * 30 + ["ok"] * 10


def test_use_since():
    with judge_server(1) as server:
        judge = Judge(of(server, price_input=1, price_output=1))
        judge.judge(items("a"))
        before = judge.use()
        judge.judge(items("b", "c"))
        assert judge.use(since=before) == {
            "models_returned": {"judge-1": 2},
            "calls": 2,
            "prompt_tokens": 200,
            "completion_tokens": 40,
            "spent_usd": pytest.approx(240e-6),
        }


def test_an_odd_world_size_is_one_process(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("WORLD_SIZE", "abc")
    assert Judge(JudgeSettings(budget_usd=10, price_input=1, price_output=1)).budget.limit == 10
