"""A scripted OpenAI-compatible server that plays every model of ``conceptguard build`` well, and fails as told.

It knows the stage by the names of the delimiters in the user message, reads what stands between them, and answers by a table and by
hashes, so that two servers say the same. Also a process of its own, whose log outlives the clients that a test kills:

    python tests/generator_server.py [--port 0] [--latency 0.05] [--log FILE] [--fault benign:german:0:heron]
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import generator_script as script
import judge_server
from batch_server import BatchServer
from generator_script import ANYWHERE, Asked, Fault, benign_of, faulty, good, source_rows
from judge_server import Say, fail, running

Hook = Callable[[Asked], "Say | None"]


class GeneratorServer(BatchServer):
    """Plays the generator and the judge.

    faults: the first that fits is what happens. hook: asked before all else; None for the script's own reply. latency: seconds a reply
    takes. hang: seconds of one that hangs. takes_schema: else a request with a schema gets HTTP 400. ends_batches: a batch is done
    when it is first looked at. log: a file for ``stage<tab>digest<tab>nth`` of every request, as it arrives.

    calls: Asked, in order of arrival. counts: by stage. most: in flight at once.
    """

    calls: list[Asked]  # type: ignore[assignment]

    def __init__(
        self,
        faults: Sequence[Fault] = (),
        *,
        hook: Hook | None = None,
        latency: float = 0.0,
        hang: float = 30.0,
        takes_schema: bool = True,
        ends_batches: bool = False,
        log: Path | None = None,
    ):
        super().__init__(lambda call: self.reply(Asked(call.payload, call.headers, call.nth)))
        self.faults, self.hook, self.latency, self.hang = list(faults), hook, latency, hang
        self.takes_schema, self.ends_batches, self.log = takes_schema, ends_batches, log
        models = [{"id": name, "object": "model", "created": 1, "owned_by": "t"} for name in ("generator-1", "judge-1")]
        self.listing = Say({"object": "list", "data": models})
        rows = list(enumerate(source_rows()))
        self._prompts = {row["prompt"]: i for i, row in rows}
        self._responses = {row["rejected"]: i for i, row in rows}
        self._benign = {benign_of(row["prompt"], row["rejected"])["response"]: i for i, row in rows}
        self._queries: dict[str, str] = {}

    # -------------------------------------------------------------- what was asked
    @property
    def counts(self) -> Counter[str]:
        """Calls by stage."""
        with self._lock:
            return Counter(call.stage for call in self.calls)

    def asked(self, stage: str) -> Counter[str]:
        """Calls of a stage by the digest of their data: all 1 where nothing was asked twice."""
        with self._lock:
            return Counter(call.digest for call in self.calls if call.stage == stage)

    def attempts(self, stage: str, row: int) -> int:
        """Calls of a stage about one row of source.jsonl."""
        with self._lock:
            calls = list(self.calls)
        return sum(call.stage == stage and self.row_of(call) == row for call in calls)

    def row_of(self, asked: Asked) -> int | None:
        """The row of source.jsonl that is asked about."""
        if "PROMPT" in asked.data:
            return self._prompts.get(asked.data["PROMPT"])
        response = asked.data.get("RESPONSE", "")
        return self._responses.get(response, self._benign.get(response))

    # -------------------------------------------------------------- the wire
    def answer(self, payload: dict[str, Any], headers: dict[str, str]) -> Say:
        asked = self._counted(payload, headers, flying=True)
        try:
            said = self.reply(asked)
            time.sleep(self.latency + said.delay)
            return said
        finally:
            with self._lock:
                self.in_flight -= 1
                self.finished += 1

    def _counted(self, payload: dict[str, Any], headers: dict[str, str], *, flying: bool) -> Asked:
        asked = Asked(payload, headers, 0)
        digest = asked.digest  # outside the lock
        refused = asked.structured and not self.takes_schema  # the client asks again at once: no attempt
        with self._lock:
            asked = Asked(payload, headers, self._seen[digest])
            self._seen[digest] += not refused
            self.calls.append(asked)
            if flying:
                self.in_flight += 1
                self.most = max(self.most, self.in_flight)
            if self.log:
                with self.log.open("a", encoding="utf-8") as stream:
                    stream.write(f"{asked.stage}\t{digest}\t{asked.nth}\n")
        return asked

    def get(self, path: str, headers: dict[str, str]) -> Say:
        name = path.removeprefix("/v1/batches/")
        if self.ends_batches and name in self.batches and self.batches[name]["status"] == "validating":
            self.end(name)
        return super().get(path, headers)

    def replies(self, batch: str) -> list[dict[str, Any]]:
        return [
            {"id": f"r{n}", "custom_id": line["custom_id"], "error": None, "response": _batched(said)}
            for n, line in enumerate(self.requests(batch))
            for said in [self.reply(self._counted(line["body"], {}, flying=False))]
        ]

    # -------------------------------------------------------------- the script
    def reply(self, asked: Asked) -> Say:
        if self.hook and (said := self.hook(asked)):
            return said
        if not self.takes_schema and (said := judge_server.schema_refused(asked)):
            return said
        row = self.row_of(asked)
        kind = next((fault.kind for fault in self.faults if fault.fits(asked, row)), "")
        if kind in _CALLS:
            return _CALLS[kind](self)
        found = good(asked) if kind in ANYWHERE or not kind else faulty(asked, kind, self._prompt_of)
        if asked.stage == "benign":
            with self._lock:
                self._queries[found["response"]] = found["query"]
                if row is not None:
                    self._benign[found["response"]] = row
        return script.said(asked, found, kind)

    def _prompt_of(self, response: str) -> str:
        """What a response answered, as far as this server knows."""
        if response in self._responses:
            return source_rows()[self._responses[response]]["prompt"]
        if response not in self._queries and response in self._benign:  # said by another server
            row = source_rows()[self._benign[response]]
            return str(benign_of(row["prompt"], row["rejected"])["query"])
        return self._queries[response]


_CALLS: dict[str, Callable[[GeneratorServer], Say]] = {
    "http_400": lambda server: fail(400, "made to fail"),
    "http_429": lambda server: fail(429, "slow down", retry_after="0"),
    "http_500": lambda server: fail(500),
    "hang": lambda server: Say(delay=server.hang),
    "drop": lambda server: Say(drop=True),
}


def _batched(said: Say) -> dict[str, Any]:
    """A reply in a batch's output file, where nobody hangs up."""
    if said.drop or not said.body:
        said = fail(500)
    return {"status_code": said.status, "request_id": "q", "body": said.body}


@contextmanager
def generator_server(faults: Sequence[Fault] = (), **settings: Any) -> Iterator[GeneratorServer]:
    """Serve a :class:`GeneratorServer` on 127.0.0.1."""
    with running(GeneratorServer(faults, **settings)) as state:
        yield state


# ------------------------------------------------------------------ a process of its own
@dataclass(frozen=True)
class ServerProcess:
    """url: as base_url. log: every call, also of clients that were killed."""

    url: str
    log: Path
    process: subprocess.Popen[str]

    def logged(self) -> list[tuple[str, str, int]]:
        """Stage, digest of the data, and how often the same was asked before."""
        lines = self.log.read_text(encoding="utf-8").splitlines() if self.log.exists() else []
        return [(stage, digest, int(nth)) for stage, digest, nth in (line.split("\t") for line in lines)]


@contextmanager
def generator_process(log: Path, *arguments: str) -> Iterator[ServerProcess]:
    """This file as a process, which ends with the block, or with whoever started it."""
    command = [sys.executable, __file__, "--log", str(log), "--until-eof", *arguments]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        url = process.stdout.readline().strip()
        assert url, "the server did not start"
        yield ServerProcess(url, log, process)
    finally:
        process.kill()
        process.communicate()


@contextmanager
def _on_port(port: int) -> Iterator[None]:
    """``running`` takes any free port; let it take this one."""
    usual = judge_server._Server

    class Fixed(usual):  # type: ignore[misc, valid-type]
        def __init__(self, address: tuple[str, int], handler: Any):
            super().__init__((address[0], port), handler)

    judge_server._Server = Fixed  # type: ignore[misc]
    try:
        yield
    finally:
        judge_server._Server = usual  # type: ignore[misc]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--port", type=int, default=0, help="0 for any free one (default)")
    parser.add_argument("--latency", type=float, default=0.0, help="seconds a reply takes (default: 0)")
    parser.add_argument("--hang", type=float, default=30.0, help="seconds of a reply that hangs (default: 30)")
    parser.add_argument("--log", type=Path, help="file to append each call's stage, hash and number to")
    parser.add_argument(
        "--fault", action="append", default=[], metavar="STAGE:KIND[:NTH[:WORDS]]", help="NTH from 0, or *"
    )
    parser.add_argument("--no-schema", action="store_true", help="refuse requests with a JSON schema")
    parser.add_argument("--until-eof", action="store_true", help="end when standard input does")
    args = parser.parse_args()
    state = GeneratorServer(
        [Fault.parsed(text) for text in args.fault],
        latency=args.latency,
        hang=args.hang,
        takes_schema=not args.no_schema,
        ends_batches=True,
        log=args.log,
    )
    with _on_port(args.port), running(state):
        print(state.url, flush=True)
        if args.until_eof:
            sys.stdin.read()
        else:
            threading.Event().wait()


if __name__ == "__main__":
    main()
