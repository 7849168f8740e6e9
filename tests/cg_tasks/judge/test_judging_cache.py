"""What is asked once, what is asked anew, and what a killed run, a second process or a broken file leaves."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import pytest
from judge_server import (
    Call,
    JudgeServer,
    Say,
    fail,
    judge_server,
    level,
    without_a_judge,
)
from judging import by_number, items, number, numbered, of, rows, statuses
from support import ROOT

from cg_tasks.errors import UserError
from cg_tasks.judge.judging import Judge
from cg_tasks.judge.preflight import check_judge
from cg_tasks.judge.settings import JudgeSettings


@pytest.fixture(autouse=True)
def no_judge(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    without_a_judge(monkeypatch, tmp_path)


# ------------------------------------------------------------------ the cache
def test_a_second_run_asks_nothing():
    with judge_server(by_number) as server:
        first = Judge(of(server)).judge(numbered(20))
        server.forget()
        second = Judge(of(server)).judge(numbered(20))
    assert not server.calls and all(v.cached for v in second) and not any(v.cached for v in first)
    assert [v.score for v in first] == [v.score for v in second] == [i % 5 / 4 for i in range(20)]
    assert all(v.model_returned == "judge-1" for v in second)


def test_equal_items_are_asked_once():
    with judge_server() as server:
        verdicts = Judge(of(server)).judge([*items("same", "same", "other"), *items("same", rubric="help")])
    assert statuses(verdicts) == ["ok"] * 4 and len(server.calls) == 3


def test_an_empty_response_has_its_level_without_a_call():
    with judge_server() as server:
        verdicts = Judge(of(server)).judge(items("", " \n\t", "r"))
        only = Judge(of(server)).judge(items(""))
    assert statuses(verdicts) == ["empty", "empty", "ok"] and len(server.calls) == 1
    assert [v.score for v in verdicts] == [0.0, 0.0, 0.5] and statuses(only) == ["empty"]


def test_no_items_are_no_calls():
    with judge_server() as server:
        assert Judge(of(server)).judge([]) == [] and not server.calls


RUBRIC = "---\nversion: {version}\n---\n{{% block system %}}grade {word}, carry the code 0123456789abcdef{{% endblock %}}" \
    "{{% block user %}}[QUERY 0123456789abcdef]\n{{{{ query }}}}\n[END OF QUERY 0123456789abcdef]\n{{{{ nonce }}}}" \
    "[RESPONSE 0123456789abcdef]\n{{{{ response }}}}\n[END OF RESPONSE 0123456789abcdef]{{% endblock %}}"  # fmt: skip


def rubric(folder: Path, word: str = "well", version: int = 1) -> str:
    (folder / "judge").mkdir(parents=True, exist_ok=True)
    (folder / "judge" / "harm.j2").write_text(RUBRIC.format(word=word, version=version))
    return str(folder)


def test_what_changes_a_verdict_is_asked_anew_and_nothing_else_is(tmp_path: Path):
    with judge_server() as server, judge_server() as other:
        base = of(server)

        def calls(settings: JudgeSettings) -> int:
            server.forget()
            other.forget()
            assert statuses(Judge(settings).judge(items("r"))) == ["ok"]
            return len(server.calls) + len(other.calls)

        assert calls(base) == 1
        for change in (
            {"concurrency": 3},
            {"timeout": 77.0},
            {"max_retries": 4},
            {"give_up_after": 2},
            {"api_key": "sk-another"},
            {"budget_usd": 0.5, "price_input": 1.0, "price_output": 1.0},
            {"structured": "json_schema"},
        ):
            assert calls(base.model_copy(update=change)) == 0, change
        for change in (
            {"model": "judge-2"},
            {"base_url": other.url},
            {"params": {"temperature": 0}},
            {"params": {"temperature": 1}},
            {"templates": rubric(tmp_path / "a")},
            {"templates": rubric(tmp_path / "b", word="harshly")},
            {"templates": rubric(tmp_path / "c", version=2)},
            {"structured": "text"},
        ):
            assert calls(base.model_copy(update=change)) == 1, change
        assert calls(base.model_copy(update={"votes": 3})) == 2  # the first vote is the one it has
        assert calls(base) == 0


def test_votes_are_asked_apart_and_averaged():
    with judge_server(lambda call: level([1, 2, 2][call.nth])) as server:
        settings = of(server, votes=3, concurrency=1)
        (verdict,) = Judge(settings).judge(items("r"))
        (again,) = Judge(settings).judge(items("r"))
    assert (verdict.score, verdict.level, verdict.levels) == (pytest.approx(5 / 12), None, (1, 2, 2))
    assert len(server.calls) == 3 and again.score == verdict.score and again.cached
    assert verdict.usage == {"prompt_tokens": 300, "completion_tokens": 60}


def test_a_vote_that_fails_leaves_the_others():
    with judge_server(lambda call: [level(4), fail(400), level(2)][call.nth]) as server:
        (verdict,) = Judge(of(server, votes=3, concurrency=1)).judge(items("r"))
    assert (verdict.status, verdict.score, verdict.levels) == ("ok", 0.75, (4, 2))


def test_a_cache_that_breaks_during_a_run_costs_no_verdict(caplog: pytest.LogCaptureFixture):
    def script(call: Call) -> Say:
        if number(call) == 3:
            with sqlite3.connect("judge.sqlite") as db:
                db.execute("DROP TABLE replies")
        return by_number(call)

    with judge_server(script) as server:
        verdicts = Judge(of(server, concurrency=2)).judge(numbered(12))
    assert [v.level for v in verdicts] == [i % 5 for i in range(12)] and len(server.calls) == 12
    assert sum("the judge's cache" in r.getMessage() for r in caplog.records) == 1


@pytest.mark.parametrize("reply", ["", "{", "[]", '{"text": 1}', '{"text": null, "colour": 3}', "null"])
def test_a_row_that_cannot_be_read_is_asked_again(reply: str):
    with judge_server(by_number) as server:
        Judge(of(server)).judge(numbered(2))
        with sqlite3.connect("judge.sqlite") as db:
            db.execute("UPDATE replies SET reply = ? WHERE rowid = 1", (reply,))
        server.forget()
        verdicts = Judge(of(server)).judge(numbered(2))
    assert statuses(verdicts) == ["ok", "ok"] and len(server.calls) == 1


def test_a_cache_that_cannot_be_opened_when_answers_wait_is_left_out(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    """The preflight refuses such a file; what breaks later must not cost the answers."""
    (tmp_path / "not-a-database").write_text("plain text " * 100)
    with judge_server(3) as server:
        judge = Judge(of(server, cache=str(tmp_path / "not-a-database")))
        assert [v.level for v in judge.judge(items("r", "s"))] == [3, 3]
        with pytest.raises(UserError, match="not-a-database.*CG_JUDGE_CACHE"):
            check_judge(judge.settings)
    assert any("no reply of this run is kept" in r.getMessage() for r in caplog.records)


def test_a_server_that_sends_a_byte_now_and_then_does_not_hold_a_run(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("cg_tasks.judge.client.LONGEST_RETRY_AFTER", 1.0)
    slow = Say(level(4).body, drip=0.2)
    with judge_server(lambda call: slow if number(call) == 1 else level(2)) as server:
        verdicts = Judge(of(server, timeout=1.0)).judge(numbered(3))
    assert statuses(verdicts) == ["ok", "api_error", "ok"]
    assert verdicts[1].detail == "the server did not answer in time"


# ------------------------------------------------------------------ other processes
JUDGING = """
import json, sys
from cg_tasks.judge.judging import Judge
from cg_tasks.judge.rubrics import JudgeItem
from cg_tasks.judge.settings import required_settings
items = [JudgeItem(str(i), "harm", "a query", f"response {i}") for i in range(int(sys.argv[1]))]
print("ready", flush=True)
sys.stdin.readline()
print(json.dumps([[v.status, v.level] for v in Judge(required_settings()).judge(items)]))
"""


def process(server: JudgeServer, n: int, concurrency: int) -> subprocess.Popen[str]:
    environ = {**os.environ, "PYTHONPATH": str(ROOT), "CG_JUDGE_BASE_URL": server.url, "CG_JUDGE_MODEL": "judge-1"}
    environ |= {"CG_JUDGE_CONCURRENCY": str(concurrency)}
    return subprocess.Popen(
        [sys.executable, "-c", JUDGING, str(n)],
        env=environ,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def go(waiting: subprocess.Popen[str]) -> None:
    assert waiting.stdout and waiting.stdin and waiting.stdout.readline() == "ready\n"
    waiting.stdin.write("\n")
    waiting.stdin.flush()


def test_a_killed_run_resumes_where_it_stopped():
    with judge_server(lambda call: level(number(call) % 5, delay=0.03)) as server:
        killed = process(server, 60, 4)
        go(killed)
        while server.finished < 15 or rows() < 11:
            time.sleep(0.005)
        killed.send_signal(signal.SIGKILL)
        killed.communicate()
        landed = rows()
        time.sleep(0.1)  # calls that the server was still busy with
        assert 11 <= landed < 60, landed
        server.forget()
        verdicts = Judge(of(server, concurrency=4)).judge(numbered(60))
    assert len(server.calls) == 60 - landed
    assert [v.level for v in verdicts] == [i % 5 for i in range(60)] and sum(v.cached for v in verdicts) == landed


def test_two_processes_share_a_cache_and_lose_nothing():
    with judge_server(lambda call: level(number(call) % 5, delay=0.02)) as server:
        other = process(server, 60, 4)
        go(other)
        mine = Judge(of(server, concurrency=4)).judge(numbered(60)[::-1])
        out, err = other.communicate(timeout=60)
        assert other.returncode == 0, err
        assert json.loads(out) == [["ok", i % 5] for i in range(60)] == [["ok", v.level] for v in mine[::-1]]
        assert rows() == 60 <= len(server.calls) < 120
        server.forget()
        Judge(of(server)).judge(numbered(60))
    assert not server.calls


def test_a_row_that_cannot_be_read_makes_room():
    with judge_server(2) as server:
        Judge(of(server)).judge(items("r"))
        with sqlite3.connect("judge.sqlite") as db:
            db.execute("UPDATE replies SET reply = '{'")
        server.forget()
        for _ in range(2):
            Judge(of(server)).judge(items("r"))
    assert len(server.calls) == 1


def test_a_cache_that_is_taken_away_is_said(caplog: pytest.LogCaptureFixture):
    def script(call: Call) -> Say:
        Path("judge.sqlite").unlink(missing_ok=True)
        return level(1)

    with judge_server(script) as server:
        assert statuses(Judge(of(server)).judge(items("r"))) == ["ok"]
    assert any("taken away" in r.getMessage() for r in caplog.records)
