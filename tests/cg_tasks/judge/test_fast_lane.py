"""Past the SDK, a call comes to what it comes to through it: for every answer, and in what the server sees."""

from __future__ import annotations

import asyncio
import gc
import gzip
import json
import logging
import socketserver
import ssl
import threading
import time
import warnings
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from judge_server import Call, JudgeServer, Say, fail, judge_server, level, running, say, without_a_judge
from servers import chat_answer

from cg_tasks.judge import fast_lane
from cg_tasks.judge.blocking import run_blocking
from cg_tasks.judge.client import CallFailed, ChatClient, Reply
from cg_tasks.judge.rubrics import JudgeItem, load_rubrics, messages_of

KEY = "sk-DONOTLEAK-5f1c9a7e"
GOOD = json.dumps(chat_answer("LEVEL: 1")).encode()


@pytest.fixture(autouse=True)
def no_judge(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    without_a_judge(monkeypatch, tmp_path)
    # Nothing here is encrypted, and a client takes longer to load certificates than to call.
    monkeypatch.setattr(ssl, "create_default_context", lambda *_, **__: ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT))


async def ask(client: ChatClient, response: str = "r", **params: Any) -> Reply:
    item = JudgeItem("", "harm", "q", response)
    return await client.complete("judge-1", messages_of(load_rubrics()["harm"], item, structured=False), params)


def outcome(
    url: str, key: str = KEY, *, lane: bool = True, timeout: float = 5, max_retries: int = 0, **params: Any
) -> Any:
    """What one call comes to, without its latency."""

    async def call() -> Any:
        with pytest.MonkeyPatch.context() as patch:
            if not lane:
                patch.setattr(fast_lane, "lane_to", lambda *_: None)
            client = ChatClient(url, key, timeout=timeout, max_retries=max_retries)
        async with client:
            try:
                return replace(await ask(client, **params), latency=0.0)
            except CallFailed as failed:
                told = (failed.hopeless, failed.about_this_text, failed.refuses_schema, failed.refuses_text)
                return str(failed), failed.status, told

    return run_blocking(call())


def by_lane(call: Call) -> bool:
    """Whether a request came past the SDK, which says in its headers who it is."""
    return "x-stainless-lang" not in call.headers


# ------------------------------------------------------------------ the same outcome
ZIPPED = gzip.compress(GOOD)
TEXT = {"Content-Type": "text/plain"}
ANSWERS: dict[str, Say] = {
    "verdict": level(2),
    "no usage": say("LEVEL: 1", usage=None),
    "refusal": say(None, refusal="no"),
    "surrogates": say("a\ud800 LEVEL: 1", model="m\udfff"),
    "key in the text": say(f"the key is {KEY}"),
    "blank lines": Say(b"\n\n\n" + GOOD),
    "byte order mark": Say(b"\xef\xbb\xbf" + GOOD),
    "utf-16": Say(GOOD.decode().encode("utf-16")),
    "NaN": Say(GOOD[:-1] + b', "x": NaN}'),
    "empty": Say(b""),
    "half": Say(GOOD[:20]),
    "no utf-8": Say(b'{"a": "\xff\xfe"}'),
    "null": Say(None),
    "list": Say([1]),
    "string": Say("hello"),
    "no message": Say({"choices": []}),
    "deep": Say(b"[" * 100_000),
    "huge": say("LEVEL: 1 " + "x" * 3_000_000),
    "html": Say(b"<html>Welcome</html>", headers={"Content-Type": "text/html"}),
    "JSON as text": Say(GOOD, headers=TEXT),
    "JSON as latin-1 text": Say(GOOD.replace(b"LEVEL", b"\xe9"), headers={"Content-Type": "text/plain; charset=latin-1"}),
    "text that is none": Say(b"\xff", headers=TEXT),
    "other JSON type": Say(GOOD, headers={"Content-Type": "application/problem+json; charset=utf-8"}),
    "upper-case type": Say(GOOD, headers={"Content-Type": "APPLICATION/JSON"}),
    "no type": Say(GOOD, headers={"Content-Type": ""}),
    "gzip": Say(ZIPPED, headers={"Content-Encoding": "gzip"}),
    "deflate": Say(zlib.compress(GOOD), headers={"Content-Encoding": "deflate"}),
    "twice compressed": Say(gzip.compress(ZIPPED), headers={"Content-Encoding": "gzip, gzip"}),
    "identity": Say(GOOD, headers={"Content-Encoding": "identity"}),
    "unknown encoding": Say(GOOD, headers={"Content-Encoding": "rot13"}),
    "broken gzip": Say(b"not gzip", headers={"Content-Encoding": "gzip"}),
    "half a gzip": Say(ZIPPED[:40], headers={"Content-Encoding": "gzip"}),
    "error in gzip": Say(gzip.compress(b'{"error": "no json_schema"}'), 400, {"Content-Encoding": "gzip"}),
    "201": replace(level(2), status=201),
    "204": Say(b"", 204),
    "206": replace(level(2), status=206),
    "299": replace(level(2), status=299),
    "301": Say(b"", 301, {"Location": f"http://other.example/v1?{KEY}"}),
    "304": Say(b"", 304),
    "307 to nowhere": Say(b"moved", 307),
    "400": fail(400, "bad\nrequest"),
    "400 without a word": Say(b"", 400),
    "400 null": Say(None, 400),
    "400 text": Say(b" Unsupported: structured output ", 400, TEXT),
    "400 latin-1": Say(b"\xe9t\xe9", 400, {"Content-Type": "text/plain; charset=latin-1"}),
    "400 broken text": Say(b"\xff\xfe", 400),
    "400 list": Say([{"msg": "response_format"}], 400),
    "400 detail": Say({"detail": [{"msg": "response_format"}]}, 400),
    "400 filtered": Say({"error": {"message": "Bad.", "code": "content_filter"}}, 400),
    "401": fail(401, f"bad key {KEY}"),
    "403 flagged": fail(403, "flagged"),
    "404": fail(404),
    "413": fail(413, "too long"),
    "422": fail(422),
    "429": fail(429),
    "429, too long to wait": fail(429, retry_after="999"),
    "400, try again": fail(400, x_should_retry="true"),
    "500, do not": fail(500, x_should_retry="false"),
    "500 grammar": fail(500, "failed to compile the grammar"),
    "502 html": Say(b"<h1>Bad Gateway</h1>", 502, {"Content-Type": "text/html"}),
    "600": fail(600),
    "drop": Say(drop=True),
    "no answer": Say(delay=0.8),
    "too short": Say(b"{}", headers={"Content-Length": "100"}),
    "long header": Say(GOOD, headers={"X-Long": "x" * 30_000}),
    "cookie": Say(GOOD, headers={"Set-Cookie": "a=b; Domain=.example; Max-Age=x"}),
    "odd header": Say(GOOD, headers={"X-\xe9": "\xe9\xff"}),
}  # fmt: skip


@pytest.mark.parametrize("name", ANSWERS)
def test_an_answer_comes_to_the_same_past_the_sdk_and_through_it(name: str):
    with judge_server(lambda call: ANSWERS[name]) as server:
        found = [outcome(server.url, lane=lane, timeout=0.4) for lane in (True, False)]
        assert found[0] == found[1]
        assert [by_lane(call) for call in server.calls] == [True, False]
    assert "DONOTLEAK" not in str(found)


OK = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"
CHUNKS = b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in (GOOD[:9], GOOD[9:]))
RAW: dict[str, bytes] = {
    "chunked": OK + b"Transfer-Encoding: chunked\r\n\r\n" + CHUNKS + b"0\r\n\r\n",
    "chunked with a trailer": OK + b"Transfer-Encoding: chunked\r\n\r\n" + CHUNKS + b"0\r\nX-Sum: 1\r\n\r\n",
    "chunked, cut off": OK + b"Transfer-Encoding: chunked\r\n\r\n" + CHUNKS,
    "bad chunk": OK + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n" + GOOD,
    "until the end": OK + b"\r\n" + GOOD,
    "HTTP/1.0": b"HTTP/1.0 200 OK\r\nContent-Type: application/json\r\n\r\n" + GOOD,
    "cut off": OK + b"Content-Length: 500\r\n\r\n" + GOOD,
    "no reason": b"HTTP/1.1 200\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(GOOD) + GOOD,
    "continue first": b"HTTP/1.1 100 Continue\r\n\r\n" + OK + b"Content-Length: %d\r\n\r\n" % len(GOOD) + GOOD,
    "two types": OK + b"Content-Type: text/html\r\nContent-Length: %d\r\n\r\n" % len(GOOD) + GOOD,
    "no type": b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(GOOD) + GOOD,
    "hung up": b"",
    "half a head": OK,
    "no HTTP": b"SSH-2.0-OpenSSH_9.6\r\n\r\n",
    "bad length": OK + b"Content-Length: many\r\n\r\n" + GOOD,
    "two lengths": OK + b"Content-Length: 3\r\nContent-Length: 4\r\n\r\n{}",
}


@contextmanager
def raw_server(said: bytes, *, close: bool = True) -> Iterator[tuple[str, list[int]]]:
    """Sends the same bytes after every request, and hangs up. Yields its URL and the number of requests on each connection."""
    connections: list[int] = []

    class Handler(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            connections.append(0)
            here = len(connections) - 1
            while True:
                head = {
                    line.split(b":")[0].lower(): line for line in iter(self.rfile.readline, b"\r\n") if line.strip()
                }
                if not head:
                    return
                self.rfile.read(int(head[b"content-length"].split(b":")[1]))
                connections[here] += 1
                self.wfile.write(said)
                if close:
                    return

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, args=(0.005,), daemon=True).start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}/v1", connections
        finally:
            server.shutdown()


@pytest.mark.parametrize("name", RAW)
def test_bytes_come_to_the_same_past_the_sdk_and_through_it(name: str):
    with raw_server(RAW[name]) as (url, connections):
        found = [outcome(url, lane=lane, timeout=1) for lane in (True, False)]
    assert found[0] == found[1]
    assert connections == [1, 1]


@pytest.mark.parametrize("host", ["127.0.0.1:1", "nobody.invalid", "a..b", "x" * 70, "127.0.0.1:99999"])
def test_nobody_there_is_the_same(host: str):
    found = [outcome(f"http://{host}/v1", lane=lane) for lane in (True, False)]
    assert found[0] == found[1] and found[0][1] is None


# ------------------------------------------------------------------ the same request
class Recorder(JudgeServer):
    """Also keeps each body as it was sent, and the path."""

    def __init__(self, script: Callable[[Call], Say] = lambda call: level(1)):
        super().__init__(script)
        self.bodies: list[bytes] = []
        self.paths: list[str] = []

    def post(self, path: str, headers: dict[str, str], body: bytes) -> Say:
        self.bodies.append(body)
        self.paths.append(path)
        return self.answer(json.loads(body), headers)


@pytest.mark.parametrize("base", ["", "/", "/deep/a%20b/\xe9"])
@pytest.mark.parametrize("key", [KEY, ""])
def test_the_server_is_sent_the_same(key: str, base: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    (tmp_path / ".netrc").write_text("machine 127.0.0.1 login me password DONOTLEAK\n")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("NETRC", str(tmp_path / ".netrc"))
    with running(Recorder()) as server:
        for lane in (True, False):
            outcome(server.url + base, key, lane=lane, temperature=0.1, top=[1, None, {"\xe9": "\u2028\U0001f600"}])
    lane, sdk = server.calls
    assert by_lane(lane) and not by_lane(sdk)
    assert server.bodies[0] == server.bodies[1] and server.paths[0] == server.paths[1]
    for name in ("host", "authorization", "accept", "content-type", "user-agent", "content-length"):
        assert lane.headers[name] == sdk.headers[name]
    assert lane.headers["authorization"] == f"Bearer {key or 'none'}"
    assert set(lane.headers) <= set(sdk.headers)


def test_what_no_request_can_hold_is_not_sent_and_said_the_same():
    with running(Recorder()) as server:
        for bad in ("\ud800", float("nan"), {1, 2}):
            found = [outcome(server.url, lane=lane, extra=bad) for lane in (True, False)]
            assert found[0] == found[1] and "no chat completion" in found[0][0]
    assert not server.bodies


def test_a_request_of_megabytes_is_the_sdks():
    with judge_server(lambda call: say("LEVEL: 1")) as server, warnings.catch_warnings():
        warnings.simplefilter("error")
        assert outcome(server.url, extra="x" * 2**20).text == "LEVEL: 1"
    assert [by_lane(call) for call in server.calls] == [False]


# ------------------------------------------------------------------ tried again
PASSING: dict[str, Say] = {
    "408": fail(408, retry_after_ms="20"),
    "409": fail(409, retry_after_ms="20"),
    "429": fail(429, retry_after_ms="20"),
    "500": fail(500, retry_after_ms="20"),
    "529": Say(b"", 529, {"Retry-After-Ms": "20"}),
    "400, try again": fail(400, x_should_retry="true", retry_after_ms="20"),
    "broken gzip": Say(b"not gzip", headers={"Content-Encoding": "gzip"}),
    "drop": Say(drop=True),
    "hang": Say(delay=0.5),
}
LASTING: dict[str, Say] = {
    "400": fail(400),
    "401": fail(401),
    "404": fail(404),
    "redirect": Say(b"", 307, {"Location": "/v2"}),
    "500, do not": fail(500, x_should_retry="false"),
    "429, too long to wait": fail(429, retry_after="121"),
    "half": Say(b"{"),
}


@pytest.mark.parametrize("max_retries", [0, 1])
@pytest.mark.parametrize("name", [*PASSING, *LASTING])
def test_the_first_attempt_counts(name: str, max_retries: int):
    with judge_server(lambda call: {**PASSING, **LASTING}[name]) as server:
        assert isinstance(outcome(server.url, max_retries=max_retries, timeout=0.2), tuple)
    tries = max_retries + 1 if name in PASSING else 1
    assert [by_lane(call) for call in server.calls] == [True, False][:tries]


@pytest.mark.parametrize("name", ["500", "drop"])
def test_no_attempt_is_made_more_often_than_asked_for(name: str):
    with judge_server(lambda call: PASSING[name]) as server:
        outcome(server.url, max_retries=2)
    assert [by_lane(call) for call in server.calls] == [True, False, False]


def test_what_passes_is_tried_again_by_the_sdk():
    with judge_server(lambda call: say("LEVEL: 1") if call.nth == 2 else fail(503, retry_after_ms="30")) as server:
        assert outcome(server.url, max_retries=2).text == "LEVEL: 1"
    assert len(server.calls) == 3


@pytest.mark.parametrize(
    ("first", "least", "most"),
    [
        (fail(429, retry_after_ms="40"), 0.04, 0.33),
        (fail(429, retry_after="0.7"), 0.7, 1.3),
        (
            fail(429, retry_after="0"),
            0.37,
            1.1,
        ),  # no time to wait for: the SDK's own, half a second less up to a quarter
        (fail(500), 0.37, 1.1),
        (Say(drop=True), 0.37, 1.1),
    ],
    ids=["ms", "seconds", "zero", "unsaid", "drop"],
)
def test_before_the_second_attempt_there_is_the_sdks_wait(first: Say, least: float, most: float):
    arrived: list[float] = []

    def script(call: Call) -> Say:
        arrived.append(time.monotonic())
        return level(1) if call.nth else first

    with judge_server(script) as server:
        outcome(server.url, max_retries=1)
    assert len(arrived) == 2 and least <= arrived[1] - arrived[0] <= most


def test_each_of_many_calls_at_once_is_given_its_own_outcome():
    async def all_at_once(url: str) -> list[Any]:
        async with ChatClient(url, KEY, timeout=5, max_retries=1) as client:
            return await asyncio.gather(*(ask(client, str(i)) for i in range(30)), return_exceptions=True)

    def script(call: Call) -> Say:
        number = int(call.response)
        kind = number % 3
        if kind == 0:
            return say(f"LEVEL: {number}", delay=0.05)
        return (
            fail(400, f"no {number}.")
            if kind == 1 or call.nth
            else fail(500, f"not yet {number}.", retry_after_ms="10")
        )

    with judge_server(script) as server:
        found = run_blocking(all_at_once(server.url))
    assert len(server.calls) == 40
    for i, reply in enumerate(found):
        assert reply.text == f"LEVEL: {i}" if i % 3 == 0 else str(reply) == f"HTTP 400: no {i}."


# ------------------------------------------------------------------ time
def test_a_server_that_drips_is_not_waited_for_longer_than_the_deadline(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("cg_tasks.judge.client.LONGEST_RETRY_AFTER", 0.1)
    with judge_server(lambda call: Say(GOOD, drip=0.05)) as server:
        for max_retries, limit in ((0, 0.4), (1, 0.9)):
            start = time.monotonic()
            failed = outcome(server.url, timeout=0.4, max_retries=max_retries)
            assert failed[0] == "the server did not answer in time" and limit <= time.monotonic() - start < limit + 0.7
    assert len(server.calls) == 2


def test_the_deadline_is_over_all_attempts(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("cg_tasks.judge.client.LONGEST_RETRY_AFTER", 0.0)
    with judge_server(lambda call: fail(429, retry_after="5", delay=0.1)) as server:
        start = time.monotonic()
        failed = outcome(server.url, timeout=0.3, max_retries=1)
        assert failed[0] == "the server did not answer in time" and 0.6 <= time.monotonic() - start < 1.3
    assert len(server.calls) == 1


# ------------------------------------------------------------------ connections
def test_connections_are_kept_and_one_that_the_server_closed_is_no_failure():
    async def calls(url: str) -> list[str | None]:
        async with ChatClient(url, KEY, timeout=5, max_retries=0) as client:
            found = []
            for _ in range(4):
                found.append((await ask(client)).text)
                await asyncio.sleep(0.05)
            return found

    answer = OK + b"Content-Length: %d\r\n\r\n" % len(GOOD) + GOOD
    for close, connected in ((False, [4]), (True, [1, 1, 1, 1])):
        with raw_server(answer, close=close) as (url, connections):
            assert run_blocking(calls(url)) == ["LEVEL: 1"] * 4
        assert connections == connected


def test_nothing_is_left_open(caplog: pytest.LogCaptureFixture):
    async def calls(url: str, busy: bool) -> None:
        async with ChatClient(url, KEY, timeout=5, max_retries=0) as client:
            await ask(client)
            if busy:
                task = asyncio.ensure_future(ask(client, "slow"))
                await asyncio.sleep(0.1)
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)

    with judge_server(lambda call: level(1, delay=1.0 if call.response == "slow" else 0)) as server:
        gc.collect()
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            run_blocking(calls(server.url, False))
            run_blocking(calls(server.url, True))
            ChatClient(server.url, KEY, timeout=5, max_retries=0)  # never entered
            gc.collect()
    assert [str(w.message) for w in warned if "127.0.0.1" in str(w.message) or "nclosed" in str(w.message)] == []
    assert "nclosed" not in caplog.text and len(server.calls) == 3 and all(map(by_lane, server.calls))


def test_a_client_that_nobody_entered_asks_through_the_sdk():
    async def call(url: str) -> Reply:
        client = ChatClient(url, KEY, timeout=5, max_retries=0)
        try:
            return await ask(client)
        finally:
            await client.sdk.close()

    with judge_server() as server:
        assert run_blocking(call(server.url)).text
    assert not by_lane(server.calls[0])


# ------------------------------------------------------------------ where nothing goes past the SDK
PROXY = "http://127.0.0.1:9"


@pytest.mark.parametrize(
    ("url", "variables", "lane"),
    [
        ("http://judge.example/v1", {}, True),
        ("http://[::1]:8000/v1", {}, True),
        ("https://judge.example/v1", {}, False),
        ("http://me:secret@judge.example/v1", {}, False),
        ("http://judge.example/v1?x=1", {}, False),
        ("http://judge.example/v1", {"HTTP_PROXY": PROXY}, False),
        ("http://judge.example/v1", {"http_proxy": PROXY}, False),
        ("http://judge.example/v1", {"all_proxy": PROXY}, False),
        ("http://judge.example/v1", {"ALL_PROXY": "socks5://127.0.0.1:9"}, False),
        ("http://judge.example/v1", {"HTTPS_PROXY": PROXY}, True),
        ("http://judge.example/v1", {"HTTP_PROXY": PROXY, "NO_PROXY": "other.example"}, False),
        ("http://judge.example/v1", {"HTTP_PROXY": PROXY, "NO_PROXY": "badjudge.example, xample"}, False),
        ("http://judge.example/v1", {"HTTP_PROXY": PROXY, "NO_PROXY": ",, "}, False),
        ("http://judge.example/v1", {"HTTP_PROXY": PROXY, "NO_PROXY": "other.example, Judge.Example"}, True),
        ("http://a.judge.example/v1", {"HTTP_PROXY": PROXY, "NO_PROXY": ".judge.example"}, True),
        ("http://judge.example/v1", {"HTTP_PROXY": PROXY, "no_proxy": "*"}, True),
        ("http://localhost:8000/v1", {"HTTP_PROXY": PROXY, "NO_PROXY": "localhost,127.0.0.1"}, True),
        ("http://127.0.0.1:8000/v1", {"HTTP_PROXY": PROXY, "NO_PROXY": "localhost,127.0.0.1"}, True),
        ("http://10.0.0.7:8000/v1", {"HTTP_PROXY": PROXY, "NO_PROXY": "10.0.0.0/8"}, False),
    ],
)
def test_only_plain_http_without_a_proxy_goes_past_the_sdk(
    url: str, variables: dict[str, str], lane: bool, monkeypatch: pytest.MonkeyPatch
):
    if variables.get("ALL_PROXY"):
        pytest.importorskip("socksio")  # without it the SDK refuses such a proxy
    monkeypatch.delenv("REQUEST_METHOD", raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    client = ChatClient(url, KEY, timeout=1, max_retries=0)
    assert (client._lane is not None) == lane


def test_a_proxy_is_used(monkeypatch: pytest.MonkeyPatch):
    with running(Recorder()) as proxy:
        monkeypatch.setenv("HTTP_PROXY", proxy.url.removesuffix("/v1"))
        assert outcome("http://judge.invalid/v1").finish_reason == "stop"
    assert proxy.paths == ["http://judge.invalid/v1/chat/completions"] and not by_lane(proxy.calls[0])


# ------------------------------------------------------------------ the key
@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_a_redirect_is_not_followed(status: int):
    with judge_server() as other, judge_server(lambda call: Say(b"", status, {"Location": f"{other.url}/x"})) as server:
        said, found, _ = outcome(server.url, max_retries=2)
    assert found == status and f"a redirect to {other.url}/x: set CG_JUDGE_BASE_URL to it" in said
    assert len(server.calls) == 1 and not other.calls and not other.listed


def test_cookies_are_not_kept():
    async def calls(url: str) -> None:
        async with ChatClient(url, KEY, timeout=5, max_retries=0) as client:
            for _ in range(2):
                await ask(client)

    with judge_server(lambda call: replace(level(1), headers={"Set-Cookie": "a=b; Path=/"})) as server:
        run_blocking(calls(server.url.replace("127.0.0.1", "localhost")))
    assert len(server.calls) == 2 and all(map(by_lane, server.calls))
    assert not any("cookie" in call.headers for call in server.calls)


def test_the_key_is_in_no_log(caplog: pytest.LogCaptureFixture):
    back = {"Set-Cookie": f"{KEY}[]=b; expires={KEY}", "X-Echo": KEY, "Location": KEY}
    loggers = [x for x in logging.root.manager.loggerDict.values() if isinstance(x, logging.Logger)]
    before = [(x, x.level, x.disabled) for x in loggers]
    caplog.set_level(logging.DEBUG)
    for logger in loggers:
        logger.setLevel(logging.DEBUG)
        logger.disabled = False
    try:
        for status in (200, 301, 400, 500):
            with judge_server(lambda call, status=status: replace(level(1), status=status, headers=back)) as server:
                outcome(server.url, max_retries=1)
        for name in ("aiohttp.client", "aiohttp.internal"):  # whatever a version of it says
            logging.getLogger(name).warning("spoken: %s", f"cookie {KEY}")
    finally:
        for logger, old, disabled in before:
            logger.setLevel(old)
            logger.disabled = disabled
    assert caplog.text.count("spoken: cookie ***") == 2
    assert "DONOTLEAK" not in caplog.text + "".join(repr(record.__dict__) for record in caplog.records)
