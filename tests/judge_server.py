"""A scripted OpenAI-compatible chat server for tests: it sees each call with its parts, and answers, fails or hangs as told."""

from __future__ import annotations

import json
import re
import socket
import struct
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, TypeVar

from servers import chat_answer

_NONCE = re.compile(r"carry the code ([0-9a-f]{16})")


@dataclass(frozen=True)
class Call:
    """One request. headers: names in lower case. nth: how often the same response was asked about before, from 0."""

    payload: dict[str, Any]
    headers: dict[str, str]
    nth: int

    @property
    def system(self) -> str:
        return str(self.payload["messages"][0]["content"])

    @property
    def user(self) -> str:
        return str(self.payload["messages"][1]["content"])

    @property
    def rubric(self) -> str:
        return "harm" if "enables harm" in self.system else "help"

    @property
    def nonce(self) -> str:
        """The code that the system message announces."""
        found = _NONCE.search(self.system)
        assert found, "the system message announces no delimiters"
        return found.group(1)

    @property
    def query(self) -> str:
        return self._between("QUERY")

    @property
    def response(self) -> str:
        return self._between("RESPONSE")

    @property
    def outside(self) -> str:
        """Everything that is sent, without what stands between the delimiters."""
        cut = self.user
        for name in ("QUERY", "RESPONSE"):
            start, end = self._delimiters(name)
            cut = cut[: cut.index(start) + len(start)] + cut[cut.index(end) :]
        return f"{self.system}\n{cut}"

    @property
    def structured(self) -> bool:
        return "response_format" in self.payload

    @property
    def retry(self) -> bool:
        return "could not be read" in self.outside

    def _delimiters(self, name: str) -> tuple[str, str]:
        return f"[{name} {self.nonce}]\n", f"\n[END OF {name} {self.nonce}]"

    def _between(self, name: str) -> str:
        start, end = self._delimiters(name)
        assert self.user.count(start) == self.user.count(end) == 1, f"the delimiters of {name} are not unambiguous"
        return self.user.partition(start)[2].partition(end)[0]


@dataclass(frozen=True)
class Say:
    """What the server does. body: a JSON value, or bytes as they are. delay: seconds before it. drop: hang up without a word.

    drip: seconds between two bytes of the body.
    """

    body: Any = b""
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    delay: float = 0.0
    drop: bool = False
    drip: float = 0.0


def say(
    content: str | None,
    *,
    finish: str = "stop",
    usage: tuple[int, int] | None = (100, 20),
    model: Any = "judge-1",
    delay: float = 0.0,
    **message: Any,
) -> Say:
    """A chat completion. usage: prompt and completion tokens."""
    body = {
        "id": "chat-1",
        "object": "chat.completion",
        "created": 1,
        "model": model,
        **chat_answer(content, **message),
    }
    body["choices"][0]["finish_reason"] = finish
    if usage:
        body["usage"] = {"prompt_tokens": usage[0], "completion_tokens": usage[1], "total_tokens": sum(usage)}
    return Say(body, delay=delay)


def level(value: Any, reasoning: str = "As seen in the response.", **more: Any) -> Say:
    """A verdict as the schema wants it."""
    return say(json.dumps({"reasoning": reasoning, "level": value}), **more)


def fail(status: int, message: str = "made to fail", *, delay: float = 0.0, **headers: str) -> Say:
    """An error as OpenAI words it. headers: with _ for -."""
    body = {"error": {"message": message, "type": "test", "code": None}}
    return Say(body, status, {k.replace("_", "-"): v for k, v in headers.items()}, delay)


def schema_refused(call: Call) -> Say | None:
    """What a server without structured output says to a request for it; None to any other."""
    return fail(400, "'response_format' of type 'json_schema' is not supported") if call.structured else None


Script = Callable[[Call], Say]
S = TypeVar("S", bound="JudgeServer")


class JudgeServer:
    """url: to give as base_url. calls: in order of arrival. most: calls in flight at once. listing: answer to GET /v1/models."""

    def __init__(self, script: Script):
        self.script = script
        self.url = ""
        self.calls: list[Call] = []
        self.listing = Say(
            {"object": "list", "data": [{"id": "judge-1", "object": "model", "created": 1, "owned_by": "t"}]}
        )
        self.listed: list[dict[str, str]] = []
        self.most = self.in_flight = 0
        self.finished = 0
        self._lock = threading.Lock()
        self._seen: Counter[str] = Counter()

    def answer(self, payload: dict[str, Any], headers: dict[str, str]) -> Say:
        with self._lock:
            call = Call(payload, headers, 0)
            key = json.dumps([call.rubric, call.query, call.response])
            call = Call(payload, headers, self._seen[key])
            self._seen[key] += 1
            self.calls.append(call)
            self.in_flight += 1
            self.most = max(self.most, self.in_flight)
        try:
            said = self.script(call)
            time.sleep(said.delay)
            return said
        finally:
            with self._lock:
                self.in_flight -= 1
                self.finished += 1

    def get(self, path: str, headers: dict[str, str]) -> Say:
        self.listed.append(headers)
        time.sleep(self.listing.delay)
        return self.listing

    def post(self, path: str, headers: dict[str, str], body: bytes) -> Say:
        assert path == "/v1/chat/completions", path
        return self.answer(json.loads(body), headers)

    def forget(self) -> None:
        """As if nobody had called yet."""
        with self._lock:
            self.calls, self.most, self.finished, self._seen = [], 0, 0, Counter()
            self.listed = []


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 256

    def __init__(self, *args: Any):
        super().__init__(*args)
        self.faults: list[BaseException | None] = []

    def handle_error(self, request: Any, client_address: Any) -> None:
        if not isinstance(fault := sys.exc_info()[1], OSError):  # a client that gave up waiting is part of the test
            self.faults.append(fault)


@contextmanager
def judge_server(script: Script | int = 2) -> Iterator[JudgeServer]:
    """Serve ``script`` on 127.0.0.1 as ``/v1/chat/completions`` and ``/v1/models``; an integer is every call's level."""
    with running(JudgeServer(as_script(script))) as state:
        yield state


def as_script(script: Script | int) -> Script:
    return (lambda call: level(script)) if isinstance(script, int) else script


@contextmanager
def running(state: S) -> Iterator[S]:
    """Serve what ``state`` answers to each path."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def do_GET(self) -> None:
            self.send(state.get(self.path, self.lower_headers()))

        def do_POST(self) -> None:
            length = int(self.headers["Content-Length"])
            body = self.rfile.read(length)
            if len(body) < length:  # the caller was killed while it spoke
                self.close_connection = True
                return
            self.send(state.post(self.path, self.lower_headers(), body))

        def lower_headers(self) -> dict[str, str]:
            return {name.lower(): value for name, value in self.headers.items()}

        def send(self, said: Say) -> None:
            if said.drop:
                # A reset, as when a load balancer dies.
                self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                self.connection.close()
                self.close_connection = True
                return
            # As ASCII, a lone surrogate is an escape, which is how real servers send one.
            sent = said.body if isinstance(said.body, bytes) else json.dumps(said.body).encode("ascii")
            given = {"Content-Type": "application/json", "Content-Length": str(len(sent)), **said.headers}
            lines = [f"HTTP/1.1 {said.status} Scripted", *(f"{name}: {value}" for name, value in given.items())]
            head = "\r\n".join([*lines, "", ""]).encode("latin-1")
            if not said.drip:
                self.wfile.write(head + sent)
                return
            self.wfile.write(head)
            for byte in sent:
                self.wfile.write(bytes([byte]))
                time.sleep(said.drip)

        def log_message(self, *args: Any) -> None:
            pass

    server = _Server(("127.0.0.1", 0), Handler)
    state.url = f"http://127.0.0.1:{server.server_port}/v1"
    threading.Thread(target=server.serve_forever, args=(0.005,), daemon=True).start()
    try:
        yield state
    finally:
        server.shutdown()
        server.server_close()
    if server.faults:  # a script that fails must fail its test, whatever the judge made of it
        raise AssertionError("the test's own script failed") from server.faults[0]


def unused_port() -> int:
    """A port on which nobody listens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def without_a_judge(monkeypatch: Any, folder: Any) -> None:
    """No judge from the developer's environment or working directory, a cache of the test's own, nothing remembered."""
    import os

    from cg_tasks.judge import judging, preflight

    for name in [n for n in os.environ if n.startswith("CG_JUDGE_") or n in ("OPENAI_API_KEY", "WORLD_SIZE")]:
        monkeypatch.delenv(name)
    for name in [n for n in os.environ if n.lower().endswith("_proxy") or n.startswith("OPENAI_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("CG_JUDGE_CACHE", str(folder / "judge.sqlite"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder / "home"))
    monkeypatch.chdir(folder)
    monkeypatch.setattr(judging, "_judges", {})
    monkeypatch.setattr(preflight, "_checked", set())


def separation_summary(found: Any) -> dict[str, Any]:
    """What must be the same on one process and on several, as JSON: NaN as a word, samples by document."""
    names = ("ctxt_sep", "harm_score", "help_score", "coverage")
    task = "conceptguard_ctxtsep"
    provenance = found["configs"][task]["metadata"]["provenance"]
    use = {name: provenance["judge"][name] for name in ("calls", "prompt_tokens", "models_returned")}
    results = {name: str(value) for name, value in found["results"][task].items()}
    rows = {str(s["doc_id"]): [str(float(s[name])) for name in names] for s in found["samples"][task]}
    separations = {concept: {k: str(v) for k, v in s.items()} for concept, s in provenance["separations"].items()}
    return {
        "results": results,
        "rows": rows,
        "verdicts": provenance["verdicts"],
        "use": use,
        "separations": separations,
    }
