"""One call to a real local server: its reply, or why there is none; and where the key goes."""

from __future__ import annotations

import asyncio
import json
import logging
import re
import signal
import threading
import time
from collections.abc import Callable
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
    unused_port,
    without_a_judge,
)
from servers import chat_answer
from support import ctrl_c_works

from cg_tasks.errors import UserError
from cg_tasks.judge.blocking import run_blocking
from cg_tasks.judge.client import CallFailed, ChatClient, Reply, check_server
from cg_tasks.judge.judging import Judge
from cg_tasks.judge.preflight import check_judge
from cg_tasks.judge.rubrics import JudgeItem, load_rubrics, messages_of
from cg_tasks.judge.settings import JudgeSettings

KEY = "sk-DONOTLEAK-5f1c9a7e"
ITEM = JudgeItem("", "harm", "q", "r")


@pytest.fixture(autouse=True)
def no_judge(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    without_a_judge(monkeypatch, tmp_path)


def complete(server: JudgeServer, key: str = KEY, *, timeout: float = 5, max_retries: int = 0, **params: Any) -> Reply:
    """One call about one response."""
    messages = messages_of(load_rubrics()["harm"], ITEM, structured=False)

    async def call() -> Reply:
        async with ChatClient(server.url, key, timeout=timeout, max_retries=max_retries) as client:
            return await client.complete("judge-1", messages, params)

    return run_blocking(call())


def failure(said: Say, **client: Any) -> CallFailed:
    with judge_server(lambda call: said) as server, pytest.raises(CallFailed) as caught:
        complete(server, **client)
    return caught.value


# ------------------------------------------------------------------ replies
def test_a_reply_is_what_the_server_said():
    with judge_server(lambda call: say("LEVEL: 3", usage=(7, 5), delay=0.1)) as server:
        reply = complete(server, temperature=0, top_k=4)
    assert (reply.text, reply.refusal, reply.finish_reason, reply.model) == ("LEVEL: 3", None, "stop", "judge-1")
    assert reply.usage == {"prompt_tokens": 7, "completion_tokens": 5} and 0.1 <= reply.latency < 2
    sent = server.calls[0].payload
    assert set(sent) == {"model", "messages", "temperature", "top_k"}  # a server's own parameter is passed on
    assert (sent["model"], sent["temperature"], sent["top_k"]) == ("judge-1", 0, 4)
    assert server.calls[0].headers["authorization"] == f"Bearer {KEY}"


def test_nothing_is_sent_that_nobody_asked_for():
    with judge_server() as server:
        complete(server)
    assert set(server.calls[0].payload) == {"model", "messages"}  # GPT-5 refuses a temperature


def test_blank_lines_before_the_answer_are_passed_over():
    body = b"\n\n\n" + json.dumps(chat_answer("LEVEL: 1")).encode()  # how some hosts keep a connection alive
    with judge_server(lambda call: Say(body)) as server:
        assert complete(server).text == "LEVEL: 1"


@pytest.mark.parametrize(
    "usage", [None, {}, "many", {"prompt_tokens": "7", "completion_tokens": 5}, {"prompt_tokens": 7}]
)
def test_usage_that_cannot_be_read_is_none_and_costs_no_reply(usage: Any):
    with judge_server(lambda call: Say({**chat_answer("LEVEL: 1"), "usage": usage})) as server:
        reply = complete(server)
    assert reply.usage is None and reply.text == "LEVEL: 1"


def test_surrogates_in_a_reply_are_mended():
    with judge_server(lambda call: say("a\ud800 \ud83d\ude00 LEVEL: 1", model="m\udfff", finish="s\ud800")) as server:
        reply = complete(server)
    assert (reply.text, reply.model, reply.finish_reason) == ("a\ufffd \U0001f600 LEVEL: 1", "m\ufffd", "s\ufffd")


# ------------------------------------------------------------------ failures
@pytest.mark.parametrize(
    ("said", "says"),
    [
        (Say(b""), "no chat completion"),
        (Say(b"{"), "no chat completion"),
        (Say(b"\xff\xfe{}"), "no chat completion"),
        (Say(b"<html>Welcome</html>", headers={"Content-Type": "text/html"}), "holds no message"),
        (Say({}), "holds no message"),
        (Say([1]), "holds no message"),
        (Say("hello"), "holds no message"),
        (Say(None), "holds no message"),
        (Say({"choices": []}), "holds no message"),
        (Say({"choices": None}), "holds no message"),
        (Say({"choices": [None]}), "holds no message"),
        (Say({"choices": "none"}), "holds no message"),
        (Say({"choices": [{"index": 0, "message": None}]}), "holds no message"),
        (Say({"choices": [{"index": 0, "message": "LEVEL: 1"}]}), "no chat completion|holds no message"),
        (Say({"error": {"message": "overloaded"}}), "holds no message"),
        (Say(b"not gzip", headers={"Content-Encoding": "gzip"}), "no connection"),
        (Say(b"{}", headers={"Content-Length": "100"}), "did not answer in time|no connection"),
        (Say(drop=True), "no connection"),
        (Say(delay=1.0), "did not answer in time"),
        (fail(400, "bad\nrequest"), "HTTP 400: .*bad"),
        (fail(503, "x" * 9000), "HTTP 503"),
        (Say(b"<html>\n<h1>Bad Gateway</h1>", 502), "HTTP 502: .*Bad Gateway"),
        (Say(b"", 500), "HTTP 500"),
    ],
)
def test_what_is_no_reply_is_said_in_one_short_line(said: Say, says: str):
    failed = failure(said, timeout=0.3)
    assert re.search(says, str(failed)), str(failed)
    assert "\n" not in str(failed) and len(str(failed)) <= 500 and not failed.hopeless


@pytest.mark.parametrize(
    ("said", "empty"),
    [
        (Say({"choices": []}), True),
        (Say({"choices": [{"index": 0, "message": None}]}), True),
        (Say({"error": {"message": "overloaded"}}), False),  # no completion at all: the text is not to blame
        (Say([1]), False),
        (Say({"choices": []}, 500), False),
    ],
)
def test_only_a_completion_without_a_message_is_empty(said: Say, empty: bool):
    assert failure(said).empty == empty


@pytest.mark.parametrize(
    ("said", "brief"),
    [
        (fail(422, "cannot read: THE TEXT"), "HTTP 422"),
        (fail(500, "cannot read: THE TEXT"), "HTTP 500"),
        (fail(401, "no THE TEXT"), "HTTP 401: is the key right?"),
    ],
)
def test_in_brief_a_failure_holds_no_words_about_the_text(said: Say, brief: str):
    assert failure(said).brief == brief


@pytest.mark.parametrize(("status", "hopeless"), [(401, True), (404, True), (400, False), (403, False), (429, False)])
def test_only_a_wrong_key_or_address_is_hopeless(status: int, hopeless: bool):
    failed = failure(fail(status))
    assert (failed.status, failed.hopeless) == (status, hopeless)


@pytest.mark.parametrize(
    ("status", "message", "schema", "refused"),
    [
        (400, "'response_format' of type 'json_schema' is not supported", True, False),
        (422, "extra fields not permitted: response_format", True, False),
        (500, "failed to compile the grammar", True, False),
        (400, "the model's context is 4096 tokens", False, False),
        (429, "too many requests with response_format", False, False),
        (400, "Invalid prompt: your prompt was flagged as potentially violating our usage policy", False, True),
        (400, "The response was filtered due to Azure OpenAI's content management policy", False, True),
        (403, "Your input was flagged by moderation", False, True),
        (403, "Country, region, or territory not supported", False, False),
        (429, "flagged", False, False),
    ],
)
def test_refusals_of_the_schema_and_of_the_text_are_told_apart(status: int, message: str, schema: bool, refused: bool):
    failed = failure(fail(status, message))
    assert (failed.refuses_schema, failed.refuses_text) == (schema, refused)


@pytest.mark.parametrize(
    "body",
    [
        {"error": {"message": "no json_schema here", "code": 7}},
        {"error": "unknown field response_format"},
        {"detail": [{"loc": ["body", "response_format"], "msg": "Extra inputs are not permitted"}]},
        {"object": "error", "message": "guided decoding is off", "code": 400},
        b"Unsupported: structured output",
    ],
)
def test_a_refusal_of_the_schema_is_understood_however_a_server_words_its_errors(body: Any):
    failed = failure(Say(body, 400))
    assert failed.refuses_schema and not failed.refuses_text and "\n" not in str(failed)


def test_the_code_of_an_error_counts():
    assert failure(Say({"error": {"message": "Bad prompt.", "code": "content_filter"}}, 400)).refuses_text


@pytest.mark.parametrize(
    ("first", "least", "most"),
    [
        (fail(429, retry_after_ms="40"), 0.04, 0.35),
        (fail(429, retry_after="0.6"), 0.6, 1.2),
        (fail(500), 0.3, 1.5),
    ],
)
def test_what_passes_is_tried_again_and_retry_after_is_honoured(first: Say, least: float, most: float):
    with judge_server(lambda call: level(1) if call.nth else first) as server:
        reply = complete(server, max_retries=1)
    assert reply.text and len(server.calls) == 2 and least <= reply.latency <= most


@pytest.mark.parametrize("status", [400, 401, 403, 404, 422])
def test_what_does_not_pass_is_not_tried_again(status: int):
    with judge_server(lambda call: fail(status)) as server, pytest.raises(CallFailed):
        complete(server, max_retries=6)
    assert len(server.calls) == 1


# ------------------------------------------------------------------ on a thread of its own
def test_works_inside_a_running_event_loop_and_leaves_it_running():
    async def notebook() -> tuple[Reply, int]:
        with judge_server() as server:
            return complete(server), await asyncio.sleep(0, 42)

    reply, after = asyncio.run(notebook())
    assert reply.text and after == 42


def test_what_a_coroutine_raises_is_raised():
    async def broken() -> None:
        raise UserError("the file is gone")

    with pytest.raises(UserError, match="the file is gone"):
        run_blocking(broken())


def test_ctrl_c_ends_a_call_that_hangs_and_waits_for_its_end():
    ended = []

    async def call(url: str) -> None:
        try:
            async with ChatClient(url, KEY, timeout=30, max_retries=0) as client:
                await client.complete("judge-1", messages_of(load_rubrics()["harm"], ITEM, structured=False), {})
        finally:
            await asyncio.sleep(0.3)  # what a cache or a connection needs to be closed
            ended.append(True)

    with judge_server(lambda call: level(1, delay=20)) as server:

        def press() -> None:
            while not server.calls:
                time.sleep(0.01)
            signal.raise_signal(signal.SIGINT)

        threading.Thread(target=press, daemon=True).start()
        start = time.monotonic()
        with ctrl_c_works(), pytest.raises(KeyboardInterrupt):
            run_blocking(call(server.url))
        assert ended and time.monotonic() - start < 12


# ------------------------------------------------------------------ before a model is loaded
def test_a_refused_key_is_one_line_with_the_way_out():
    with judge_server() as server:
        server.listing = fail(401, f"Incorrect API key provided: {KEY}")
        with pytest.raises(UserError, match="refuses the key .*CG_JUDGE_API_KEY") as caught:
            check_server(server.url, KEY, "judge-1")
    assert "\n" not in str(caught.value) and KEY not in str(caught.value)
    assert server.listed[0]["authorization"] == f"Bearer {KEY}" and not server.calls


def test_nobody_there_is_one_line_with_the_ways_out():
    with pytest.raises(UserError, match="cannot be reached .*CG_JUDGE_BASE_URL") as caught:
        check_server(f"http://127.0.0.1:{unused_port()}/v1", KEY, "judge-1")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "said",
    [fail(501), fail(429), fail(500), Say(b""), Say(b"<html>"), Say({"data": None}), Say([]), Say("x")],
)
def test_a_server_without_a_list_passes(said: Say):
    with judge_server() as server:
        server.listing = said
        assert check_server(server.url, KEY, "judge-1") is None
    assert len(server.listed) == 1


def test_a_wrong_path_is_guessed_at():
    with judge_server() as server:
        server.listing = fail(404)
        warning = check_server(server.url, KEY, "judge-1")
    assert warning == f"{server.url}/models answers with HTTP 404: is CG_JUDGE_BASE_URL right, up to and with /v1?"


@pytest.mark.parametrize(("model", "hint"), [("judge-2", "did you mean 'judge-1'?"), ("zzz", "it has judge-1")])
def test_a_model_that_is_not_listed(model: str, hint: str):
    with judge_server() as server:
        assert (
            check_server(server.url, KEY, model)
            == f"the judge's server {server.url} does not list the model {model!r}: {hint}"
        )


def test_a_slow_list_passes(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("cg_tasks.judge.client.LIST_TIMEOUT", 0.2)
    with judge_server() as server:
        server.listing = Say({"data": []}, delay=1.0)
        start = time.monotonic()
        assert check_server(server.url, KEY, "judge-1") is None
        assert time.monotonic() - start < 0.9


def test_a_model_that_is_not_listed_is_a_warning(caplog: pytest.LogCaptureFixture, tmp_path: Path):
    with judge_server() as server:
        assert check_server(server.url, KEY, "judge-1") is None
        settings = JudgeSettings(base_url=server.url, model="judge-7", cache=str(tmp_path / "c.sqlite"))
        server.forget()
        check_judge(settings)
        check_judge(settings)
    assert "does not list the model 'judge-7'" in caplog.text and len(server.listed) == 1


def test_a_server_that_was_refused_is_asked_again_the_next_time(tmp_path: Path):
    with judge_server() as server:
        settings = JudgeSettings(base_url=server.url, model="judge-1", cache=str(tmp_path / "c.sqlite"))
        server.listing = fail(401)
        for _ in range(2):
            with pytest.raises(UserError):
                check_judge(settings)
    assert len(server.listed) == 2


def test_without_preflight_nobody_is_asked(tmp_path: Path):
    url = f"http://127.0.0.1:{unused_port()}/v1"
    check_judge(JudgeSettings(base_url=url, preflight=False, cache=str(tmp_path / "c.sqlite")))


# ------------------------------------------------------------------ the key
class Everything(logging.Handler):
    """Every record of every logger, with its arguments and traceback, as text."""

    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self.text: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.text += [self.format(record), repr(record.__dict__)]


@pytest.fixture
def everything(monkeypatch: pytest.MonkeyPatch) -> Any:
    """All logging at its most talkative."""
    import openai  # noqa: F401  its loggers must exist

    handler, root = Everything(), logging.getLogger()
    loggers = [root, *(x for x in logging.root.manager.loggerDict.values() if isinstance(x, logging.Logger))]
    before = [(x, x.level, x.disabled) for x in loggers]
    for logger in loggers:
        logger.setLevel(logging.DEBUG)
        logger.disabled = False
    root.addHandler(handler)
    yield handler
    root.removeHandler(handler)
    for logger, old, disabled in before:
        logger.setLevel(old)
        logger.disabled = disabled


def echo(call: Call) -> Say:
    """A server that sends the key back wherever it can."""
    said = call.headers["authorization"]
    back = {"X-Echo": said, "x-request-id": said, "openai-organization": said}
    ways: dict[str, Callable[[], Say]] = {
        "401": lambda: fail(401, f"bad key {said}", **back),
        "500": lambda: fail(500, f"at {said}", **back),
        "html": lambda: Say(f"<h1>{said}</h1>".encode(), 502, back),
        "400": lambda: fail(400, f"response_format? {said}", **back),
        "content": lambda: level(1, f"I saw {said}"),
        "prose": lambda: say(f"I can't grade {said}"),
        "broken": lambda: say('{"level": ' + said),
        "refusal": lambda: say(None, refusal=f"no: {said}"),
        "model": lambda: level(2, model=f"model {said}"),
        "finish": lambda: level(2, finish=said),
        "headers": lambda: Say(level(3).body, headers=back),
        "drop": lambda: Say(drop=True),
        "hang": lambda: level(1, delay=0.9),
    }
    return ways[call.response]()


def test_the_key_is_nowhere_but_in_the_request(
    everything: Everything, capfd: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("CG_JUDGE_API_KEY", KEY)
    monkeypatch.setenv("CG_JUDGE_TIMEOUT", "0.5")
    monkeypatch.setenv("CG_JUDGE_MAX_RETRIES", "1")
    monkeypatch.setenv("CG_JUDGE_CONCURRENCY", "2")
    ways = [
        "content",
        "401",
        "500",
        "html",
        "400",
        "prose",
        "broken",
        "refusal",
        "model",
        "finish",
        "headers",
        "drop",
        "hang",
    ]
    from cg_tasks.judge.settings import required_settings

    with judge_server(echo) as server:
        monkeypatch.setenv("CG_JUDGE_BASE_URL", server.url)
        settings = required_settings()
        judge = Judge(settings)
        verdicts = judge.judge([JudgeItem(way, "harm", "q", way) for way in ways])
    status = {way: v.status for way, v in zip(ways, verdicts, strict=True)}
    assert [w for w, s in status.items() if s == "ok"] == ["content", "model", "finish", "headers"]
    assert status["refusal"] == status["prose"] == "judge_refused" and status["broken"] == "parse_error"
    assert all(call.headers["authorization"] == f"Bearer {KEY}" for call in server.calls) and len(server.calls) > 13
    out, err = capfd.readouterr()
    assert "HTTP Request" in "".join(everything.text)  # the loggers did speak
    shown = {
        "logs": "\n".join(everything.text),
        "stdout": out,
        "stderr": err,
        "verdicts": "\n".join(map(str, verdicts)) + repr(verdicts),
        "provenance": json.dumps(judge.provenance()),
        "settings": repr(settings) + str(settings) + settings.model_dump_json() + repr(settings.model_dump()),
        "fingerprint": settings.fingerprint,
        "cache": b"".join(p.read_bytes() for p in tmp_path.iterdir() if p.is_file()).decode("latin-1"),
    }
    assert "***" in shown["cache"] and "I saw Bearer ***" in shown["verdicts"]
    assert [where for where, text in shown.items() if "DONOTLEAK" in text] == []


@pytest.mark.parametrize("key", ["x", "e", "1", "EMPTY", "level", "none"])
def test_a_placeholder_for_a_key_garbles_no_reply(key: str):
    said = json.dumps({"reasoning": "EMPTY but exact, none helped: x", "level": 1})
    with judge_server(lambda call: say(said)) as server:
        assert complete(server, key).text == said


def test_a_server_without_a_key_is_sent_none_of_ours(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    monkeypatch.setenv("OPENAI_ORG_ID", "org-DONOTLEAK")
    with judge_server() as server:
        complete(server, "")
    assert "DONOTLEAK" not in json.dumps(server.calls[0].headers)


@pytest.mark.parametrize("key", [f"{KEY}\nX-Injected: 1", f"{KEY}\u2026", f"{KEY}\0"])
def test_a_key_that_no_header_can_hold_is_refused_without_showing_it(key: str, everything: Everything, tmp_path: Path):
    with judge_server() as server:
        settings = JudgeSettings(base_url=server.url, model="m", cache=str(tmp_path / "c.sqlite"), api_key=key)
        for refused in (lambda: Judge(settings), lambda: check_judge(settings)):
            with pytest.raises(UserError, match="the judge's key holds a line break or") as caught:
                refused()
            assert "DONOTLEAK" not in str(caught.value)
    assert not server.calls and not server.listed and "DONOTLEAK" not in "".join(everything.text)
