from __future__ import annotations

import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from cg_tasks.errors import UserError
from cg_tasks.judge.budget import COMPLETION_TOKENS, Budget, estimated_tokens, ranks
from cg_tasks.judge.cache import ReplyCache, mean_usage
from cg_tasks.judge.client import Reply

FULL = Reply(
    '{"level": 3, "reasoning": "ü😀\\n\0"}', None, "stop", "m-1", {"prompt_tokens": 9, "completion_tokens": 4}, 0.25
)
BARE = Reply(None, "No.", None, None, None, 1.0)


def reply(text: str, completion_tokens: int | None = None) -> Reply:
    usage = None if completion_tokens is None else {"prompt_tokens": 1, "completion_tokens": completion_tokens}
    return Reply(text, None, "stop", "m", usage, 0.1)


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "new" / "folder" / "cache.sqlite")


def test_a_reply_comes_back_as_it_was(path: str):
    with ReplyCache(path) as cache:
        assert cache.get("a") is None
        cache.put("a", FULL)
        cache.put("b", BARE)
        assert (cache.get("a"), cache.get("b"), cache.get("A"), len(cache)) == (FULL, BARE, None, 2)
    with ReplyCache(path) as cache:
        assert (cache.get("a"), cache.get("b"), len(cache)) == (FULL, BARE, 2)


def test_the_first_reply_stays(path: str):
    with ReplyCache(path) as cache:
        cache.put("a", reply("first"))
        cache.put("a", reply("second"))
        assert (cache.get("a"), len(cache)) == (reply("first"), 1)


def test_two_connections_see_each_others_replies_at_once(path: str):
    with ReplyCache(path) as one, ReplyCache(path) as two:
        one.put("a", reply("of one"))
        assert two.get("a") == reply("of one")
        two.put("a", reply("of two"))
        two.put("b", reply("of two"))
        assert (one.get("a"), one.get("b"), len(one)) == (reply("of one"), reply("of two"), 2)


def test_a_killed_process_loses_nothing_that_landed(path: str):
    program = (
        "import os, signal, sys\n"
        "from cg_tasks.judge.cache import ReplyCache\n"
        "from cg_tasks.judge.client import Reply\n"
        "cache = ReplyCache(sys.argv[1])\n"
        "for i in range(50):\n"
        "    cache.put(str(i), Reply(f'r{i}', None, 'stop', 'm', None, 0.5))\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    done = subprocess.run([sys.executable, "-c", program, path], timeout=60, capture_output=True, text=True)
    assert done.returncode == -signal.SIGKILL, done.stderr
    with ReplyCache(path) as cache:
        assert len(cache) == 50
        assert cache.get("49") == Reply("r49", None, "stop", "m", None, 0.5)
        cache.put("50", FULL)
        assert len(cache) == 51


def test_a_connection_left_open_hinders_nobody(path: str):
    left = ReplyCache(path)
    left.put("a", FULL)
    with ReplyCache(path) as cache:
        cache.put("b", BARE)
        assert cache.get("a") == FULL
    assert left.get("b") == BARE


def a_folder(path: Path) -> None:
    path.mkdir()


def a_text_file(path: Path) -> None:
    path.write_text("my notes, which are no database, and longer than its header\n" * 20, encoding="utf-8")


def another_database(path: Path) -> None:
    with sqlite3.connect(path) as database:
        database.execute("CREATE TABLE replies (id INTEGER, stars INTEGER)")
    database.close()


@pytest.mark.parametrize("make", [a_folder, a_text_file, another_database])
def test_a_path_that_cannot_be_used(tmp_path: Path, make: Callable[[Path], None]):
    path = tmp_path / "cache.sqlite"
    make(path)
    with pytest.raises(UserError) as caught:
        ReplyCache(str(path))
    assert str(caught.value).startswith(f"{path}: the judge's cache cannot be used (")
    assert "CG_JUDGE_CACHE" in str(caught.value)


def test_a_folder_that_cannot_be_made(tmp_path: Path):
    a_text_file(tmp_path / "notes")
    with pytest.raises(UserError, match=r"notes/cache\.sqlite: the judge's cache cannot be used .*CG_JUDGE_CACHE"):
        ReplyCache(str(tmp_path / "notes" / "cache.sqlite"))


def test_the_home_folder_is_understood(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    with ReplyCache("~/cache.sqlite") as cache:
        assert cache.path == tmp_path / "cache.sqlite"
        assert cache.path.is_file()


def test_which_server_takes_no_schema_is_remembered(path: str):
    with ReplyCache(path) as cache:
        assert not cache.is_text_only("http://a m")
        cache.note_text_only("http://a m")
        cache.note_text_only("http://a m")
        assert (cache.is_text_only("http://a m"), cache.is_text_only("http://b m")) == (True, False)
    with ReplyCache(path) as cache:
        assert (cache.is_text_only("http://a m"), len(cache)) == (True, 0)


def test_mean_completion_tokens_of_the_replies_that_say_them(path: str):
    with ReplyCache(path) as cache:
        assert mean_usage(cache) is None
        for key, tokens in (("a", 100), ("b", None), ("c", 200)):
            cache.put(key, reply(key, tokens))
        assert mean_usage(cache) == {"completion_tokens": 150, "replies": 2}


def test_cost_by_hand():
    # 1,000 tokens at 2 USD and 500 at 8 USD per million
    assert Budget(price_input=2, price_output=8).cost(1000, 500) == pytest.approx(0.002 + 0.004)
    assert Budget(price_output=8).cost(1000, 500) == pytest.approx(0.004)
    assert Budget().cost(1000, 500) == 0


@pytest.mark.parametrize(
    ("prices", "known"), [((None, None), False), ((1, None), False), ((None, 1), False), ((1, 2), True), ((0, 0), True)]
)
def test_whether_the_prices_are_known(prices: tuple[float | None, float | None], known: bool):
    assert Budget(None, *prices).priced is known


def test_tokens_are_estimated_from_the_length():
    messages = [{"role": "system", "content": "x" * 400}, {"role": "user", "content": "y" * 40}]
    assert estimated_tokens(messages) == 440 // 4 + 8


def dollar_a_call(limit: float | None) -> Budget:
    """A prompt token costs 0.01 USD, a completion token nothing."""
    return Budget(limit, price_input=1e4, price_output=0)


def test_nothing_is_reserved_past_the_limit():
    budget = dollar_a_call(2.5)
    assert budget.reserve(100) == pytest.approx(1)
    assert budget.reserve(100) == pytest.approx(1)
    assert budget.reserve(100) is None  # both calls are in flight
    assert budget.reserve(40) == pytest.approx(0.4)
    assert (budget.spent, budget.tokens_in) == (0, 0)


def test_a_refused_reservation_takes_nothing():
    budget = dollar_a_call(1.5)
    assert budget.reserve(200) is None
    assert budget.reserve(100) == pytest.approx(1)


def test_the_limit_itself_may_be_spent():
    budget = dollar_a_call(1)
    assert budget.reserve(100) == pytest.approx(1)


def test_without_a_limit_nothing_is_refused():
    assert dollar_a_call(None).reserve(10**9) == pytest.approx(1e7)


def test_what_the_server_says_it_used_is_booked():
    budget = Budget(1, price_input=2, price_output=8)
    reserved = budget.reserve(1000)
    assert reserved == pytest.approx((1000 * 2 + 120 * 8) / 1e6)
    budget.settle(reserved, {"prompt_tokens": 900, "completion_tokens": 50}, prompt_tokens=1000, answered=True)
    assert budget.spent == pytest.approx((900 * 2 + 50 * 8) / 1e6)
    assert (budget.tokens_in, budget.tokens_out) == (900, 50)


def test_the_estimate_is_booked_where_the_server_says_nothing():
    budget = Budget(1, price_input=2, price_output=8)
    budget.settle(budget.reserve(1000) or 0, None, prompt_tokens=1000, answered=True)
    assert (budget.tokens_in, budget.tokens_out) == (1000, COMPLETION_TOKENS) == (1000, 120)
    assert budget.spent == pytest.approx((1000 * 2 + 120 * 8) / 1e6)


def test_a_call_without_an_answer_costs_nothing_and_frees_what_it_held():
    budget = dollar_a_call(1)
    reserved = budget.reserve(100)
    assert reserved is not None
    assert budget.reserve(100) is None
    budget.settle(reserved, None, prompt_tokens=100, answered=False)
    assert (budget.spent, budget.tokens_in, budget.tokens_out) == (0, 0, 0)
    assert budget.reserve(100) == pytest.approx(1)


def test_long_answers_are_expected_after_long_answers():
    budget = Budget(1, price_input=0, price_output=1e3)  # 0.001 USD a completion token
    first = budget.reserve(10)
    assert first == pytest.approx(0.12)
    budget.settle(first, {"prompt_tokens": 10, "completion_tokens": 500}, prompt_tokens=10, answered=True)
    assert budget.spent == pytest.approx(0.5)
    assert budget.reserve(10) == pytest.approx(0.5)
    assert budget.reserve(10) is None


@pytest.mark.parametrize(("world_size", "expected"), [(None, 1), ("", 1), ("0", 1), ("1", 1), ("4", 4)])
def test_ranks(world_size: str | None, expected: int, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    if world_size is not None:
        monkeypatch.setenv("WORLD_SIZE", world_size)
    assert ranks() == expected
