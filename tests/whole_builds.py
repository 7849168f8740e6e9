"""Whole builds through the command line, on the scripted server: what was said, what was asked, and what stands in the folder."""

from __future__ import annotations

import atexit
import contextlib
import io
import json
import logging
import multiprocessing
import os
import re
import shlex
import shutil
import sqlite3
import ssl
import sys
import tempfile
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import pytest
import yaml
from construction_builds import filled_sheets, judge_at, make_build, no_keys, resolved
from generator_script import source_rows
from generator_server import GeneratorServer
from judge_server import Say, running
from support import ROOT
from templates_once import read_each_template_once

from cg_tasks import cli
from cg_tasks.cli import main

KEY, JUDGE_KEY = "sk-generator-0123456789", "sk-judge-0123456789"
DONE = ("new", "tag", "aggregate", "benign", "queries")
"""Up to which stage a build has come. Nobody has reviewed its rows, and two annotators its merge map."""
TEXTS = ("prompt", "response", "why", "harmful_prompt", "harmful_response", "benign_prompt", "benign_response",
         "harmful_query", "benign_query")  # fmt: skip
_PARTS = {
    "tag": ("why",),
    "aggregate": ("concept", "tagged_concept"),
    "benign": ("benign_prompt", "benign_response", "concepts", "themes", "made"),
    "queries": ("harmful_query", "benign_query", "made_harmful", "made_benign"),
}
_WITH_TEXTS = re.compile(r"stages/\w+\.jsonl|review/[\w-]+/[\w-]+(\.csv|\.html|\.label-studio\.json)|replies\.sqlite.*")
_WINDOW = 5  # words


# ------------------------------------------------------------------ one command
@dataclass(frozen=True)
class Said:
    """What one command printed and logged, and how it ended."""

    code: int
    out: str
    err: str
    logged: str = field(repr=False)

    @property
    def everything(self) -> str:
        return f"{self.out}\n{self.err}\n{self.logged}"


class _Records(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


def conceptguard(*words: str | Path) -> Said:
    """One command in this process, with all that it prints, and all that is logged from INFO on."""
    out, err, records = io.StringIO(), io.StringIO(), _Records()
    root = logging.getLogger()
    level = root.level
    root.addHandler(records)
    root.setLevel(logging.INFO)
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            try:
                code = main([str(word) for word in words])
            except SystemExit as ended:  # argparse
                code = int(ended.code or 0)
    finally:
        root.removeHandler(records)
        root.setLevel(level)
    return Said(code, out.getvalue(), err.getvalue(), "\n".join(records.lines))


# ------------------------------------------------------------------ one build
@dataclass
class Build:
    """A build folder at work. said: all that its commands printed, where they were not asked to show texts."""

    path: Path
    server: GeneratorServer
    said: list[Said] = field(default_factory=list)

    def words(self, command: str) -> list[str]:
        """``tag --limit 3``: the folder goes behind the command's own words."""
        words = shlex.split(command)
        place = 2 if words[0] == "review" else 1
        return ["build", *words[:place], str(self.path), *words[place:]]

    def __call__(self, command: str, *, code: int | None = 0) -> Said:
        """Run it. code: the one to expect, None for any."""
        said = conceptguard(*self.words(command))
        if "--show" not in command:
            self.said.append(said)
        assert code in (None, said.code), f"{command}: {said.code}\n{said.out}\n{said.err}"
        return said

    def asking(self, command: str, *, code: int | None = 0) -> dict[str, int]:
        """The calls that one command makes, by the server's names of the stages."""
        before = self.server.counts
        self(command, code=code)
        return dict(self.server.counts - before)

    def refused(self, command: str) -> str:
        """What a command says, in one line, that asks for nothing and changes nothing."""
        before, files = self.server.counts, tree(self.path)
        said = self(command, code=1)
        assert said.out == "" and said.err.startswith("conceptguard: error: ") and said.err.count("\n") == 1, said
        assert self.server.counts == before and tree(self.path) == files
        return said.err.removeprefix("conceptguard: error: ").rstrip("\n")

    # what stands in it
    def rows(self, stage: str) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.bytes(stage).decode().splitlines()]

    def row(self, stage: str, number: int) -> dict[str, Any]:
        """The row of the source's row ``number``, from 0."""
        prompt = source_rows()[number]["prompt"]
        column = "prompt" if stage in ("tag", "aggregate") else "harmful_prompt"
        return next(row for row in self.rows(stage) if row[column] == prompt)

    def counts(self, stage: str) -> dict[str, int]:
        """Rows by status."""
        return dict(Counter(row["status"] for row in self.rows(stage)))

    def bytes(self, stage: str) -> bytes:
        return (self.path / "stages" / f"{stage}.jsonl").read_bytes()

    def record(self, stage: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.path / "stages" / f"{stage}.json").read_text(encoding="utf-8"))
        return found

    def status(self) -> dict[str, dict[str, Any]]:
        return {row["stage"]: row for row in json.loads(self("status --json").out)}

    def replies(self) -> Counter[str]:
        """Replies that are stored, by kind."""
        with contextlib.closing(sqlite3.connect(self.path / "replies.sqlite")) as db:
            return Counter(key.partition("/")[0] for (key,) in db.execute("SELECT key FROM replies"))

    def set(self, **sections: Any) -> None:
        """Edit build.yaml, section by section."""
        path = self.path / "build.yaml"
        values = yaml.safe_load(path.read_text(encoding="utf-8"))
        for name, value in sections.items():
            both = isinstance(value, Mapping) and isinstance(values.get(name), Mapping)
            values[name] = {**values[name], **value} if both else value
        path.write_text(yaml.safe_dump(values, sort_keys=False, allow_unicode=True), encoding="utf-8")

    # people
    def review(
        self,
        stage: str,
        *,
        labels: Mapping[str, str] | None = None,
        disagree: Collection[str] = (),
        resolution: str = "accept",
        again: bool = False,
    ) -> Path:
        """A whole round: sheets out, filled in, read back, and disagreements talked over. Returns its folder."""
        before = len(list((self.path / "review").glob(f"{stage}*/sheet.json")))
        at = self.path / "review" / (f"{stage}-{before + 1}" if before else stage)
        self(f"review export {stage}{' --again' if again else ''}")
        sheets = " ".join(shlex.quote(str(p)) for p in filled_sheets(at, disagree=disagree, labels=labels))
        self(f"review import {stage} {sheets}", code=1 if disagree else 0)
        if disagree:
            resolved(at, resolution)
            self(f"review import {stage} {sheets}")
        return at


# ------------------------------------------------------------------ where builds are made
_TOLD: dict[str, Any] = {
    "faults": [],
    "hook": None,
    "latency": 0.0,
    "takes_schema": True,
    "ends_batches": False,
    "listing": GeneratorServer().listing,
    "calls": [],
    "_seen": Counter(),
}


class _Watched(GeneratorServer):
    """Keeps what its own script raised: the caller only sees a connection that breaks."""

    def __init__(self) -> None:
        super().__init__()
        self.broken: list[Exception] = []

    def post(self, path: str, headers: dict[str, str], body: bytes) -> Say:
        try:
            return super().post(path, headers, body)
        except Exception as error:
            self.broken.append(error)
            raise


@dataclass
class World:
    """One server, and builds on it that have come so far. folder: of one test."""

    server: GeneratorServer
    folder: Path
    made: Path

    def build(self, done: str, **sections: Any) -> Build:
        """A build of the test's own that has come through the stage ``done``; then build.yaml is edited, and nobody has called yet."""
        source = self._made(done)
        self.server.forget()
        number = len(list(self.folder.glob("build*")))
        build = Build(self.folder / (f"build{number}" if number else "build"), self.server)
        shutil.copytree(source.path, build.path)
        if sections:
            build.set(**sections)
        return build

    def unbroken(self, stage: str) -> bytes:
        """The rows of a stage in a build that nothing happened to."""
        return self._made(stage).bytes(stage)

    def _made(self, done: str) -> Build:
        """The shared build that has come so far; made when it is first asked for, whatever the test has told the server."""
        build = Build(self.made / done, self.server)
        if not build.path.exists():
            kept = {name: getattr(self.server, name) for name in _TOLD}
            for name, value in _TOLD.items():
                setattr(self.server, name, value)
            self.server.calls, self.server._seen = [], Counter()
            self._make(done)
            for name, value in kept.items():
                setattr(self.server, name, value)
        return build

    def _make(self, done: str) -> None:
        at = self.made / done
        if done == "new":
            generator = {"timeout": 60, "preflight": False}  # however busy the machine is
            make_build(self.made / "making", self.server.url, generator=generator)
            (self.made / "making" / "build").rename(at)
            return
        before = self._made(DONE[DONE.index(done) - 1])
        making = Build(self.made / f"{done}.making", self.server)
        shutil.rmtree(making.path, ignore_errors=True)
        shutil.copytree(before.path, making.path)
        if done == "aggregate":
            making("aggregate --propose")
            making.review("aggregate")
        making(done)
        making.path.rename(at)


@lru_cache(maxsize=1)
def _shared() -> tuple[_Watched, Path]:
    """A server and a folder of finished builds for all tests of this process: its address is part of what a reply is known by."""
    stack = contextlib.ExitStack()
    atexit.register(stack.close)
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
    return stack.enter_context(running(_Watched())), folder


_parser_once = lru_cache(maxsize=1)(cli._parser)


@contextmanager
def world_for(monkeypatch: pytest.MonkeyPatch, folder: Path) -> Iterator[World]:
    """The shared server as new, the generator and the judge on it, keys in the environment."""
    server, made = _shared()
    for name, value in _TOLD.items():
        setattr(server, name, value)
    server.files, server.batches, server.sent, server.takes, server.has_batches = {}, {}, [], None, True
    server.forget()
    no_keys(monkeypatch, folder)
    judge_at(monkeypatch, server.url)
    monkeypatch.setenv("CG_JUDGE_TIMEOUT", "60")
    monkeypatch.setenv("CG_JUDGE_PREFLIGHT", "false")
    read_each_template_once(monkeypatch)
    monkeypatch.setattr(cli, "_parser", _parser_once)  # made for every command, it takes a tenth of their time
    monkeypatch.setattr(ssl.SSLContext, "load_verify_locations", lambda *_, **__: None)  # slow, and nothing here is TLS
    monkeypatch.setenv("CG_BUILD_API_KEY", KEY)
    monkeypatch.setenv("CG_JUDGE_API_KEY", JUDGE_KEY)
    yield World(server, folder, made)
    assert not server.broken, f"the test's own script failed: {server.broken.pop()!r}"


# ------------------------------------------------------------------ commands as processes of their own
def process_of(build: Build, command: str, patch: str = "") -> BaseProcess:
    """A command as a process, which has begun; ``output`` reads what it says. patch: code that it runs before.

    Forked from a process that has imported everything and done nothing.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["whole_builds", "warm_builds"])
    here, environment = os.environ.get("PYTHONPATH"), dict(os.environ)
    os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), str(ROOT / "tests")])
    try:
        process = context.Process(
            target=_command, args=(build.words(command), environment, str(Path.cwd()), patch, str(_output(build)))
        )
        process.start()
    finally:
        os.environ.pop("PYTHONPATH")
        if here is not None:
            os.environ["PYTHONPATH"] = here
    return process


def output(build: Build) -> str:
    """What the last process on a build has said."""
    return _output(build).read_text(encoding="utf-8")


def _output(build: Build) -> Path:
    return build.path.with_name(f"{build.path.name}.said.txt")


def _command(words: list[str], environment: dict[str, str], folder: str, patch: str, said: str) -> None:
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    with open(said, "w", encoding="utf-8") as sys.stdout:
        sys.stderr = sys.stdout
        exec(patch, {})
        code = main(words)
        sys.stdout.flush()
    os._exit(code)


# ------------------------------------------------------------------ what must always hold
def tree(folder: Path) -> dict[str, bytes]:
    """Every file but the lock and SQLite's, by its path in the folder."""
    return {
        p.relative_to(folder).as_posix(): p.read_bytes()
        for p in sorted(folder.rglob("*"))
        if p.is_file() and p.name != ".lock" and not p.name.startswith("replies.sqlite")
    }


def check_rows(build: Build) -> None:
    """Nothing is missing without a reason: an ok row has all its parts and no reason, any other has a reason."""
    for stage, parts in _PARTS.items():
        if not (build.path / "stages" / f"{stage}.jsonl").exists():
            continue
        rows = build.rows(stage)
        assert rows and len({row["pair_id"] for row in rows}) == len(rows)
        for row in rows:
            if row["status"] != "ok":
                assert row["reason"].strip(), row["pair_id"]
                continue
            assert not row["reason"] and all(row[part] for part in parts), row["pair_id"]
            if stage == "tag":
                assert (row["concept"] is not None) == row["dual_use"]
        record = build.record(stage)
        assert record["rows"] == build.counts(stage) and sum(record["rows"].values()) == record["rows_in"]


def check_secrets(build: Build, *folders: Path) -> None:
    """No text on any output or in any record; no key in any file or output."""
    windows = _windows_of_texts(build)
    said = "\n".join(s.everything for s in build.said)
    assert (found := shared_windows(said, windows)) is None, found
    for name, content in tree(build.path).items():
        if not _WITH_TEXTS.fullmatch(name):
            assert (found := shared_windows(content.decode(), windows)) is None, f"{name}: {found}"
    for folder in folders:
        for name in ("README.md", *(f"build/{p.name}" for p in (folder / "build").iterdir())):
            assert (found := shared_windows((folder / name).read_text(), windows)) is None, f"{name}: {found}"
    for key in (KEY, JUDGE_KEY):
        assert key not in said
        for path in (p for at in (build.path, *folders) for p in at.rglob("*") if p.is_file()):
            assert key.encode() not in path.read_bytes(), path


def _windows_of_texts(build: Build) -> set[tuple[str, ...]]:
    texts = [text for row in source_rows() for text in row.values()]
    for path in (build.path / "stages").glob("*.jsonl"):
        texts += [row[name] for row in build.rows(path.stem) for name in TEXTS if row.get(name)]
    return windows_of(texts)


def windows_of(texts: Iterable[str]) -> set[tuple[str, ...]]:
    return {window for text in texts for window in _windows(text)}


def shared_windows(text: str, windows: Collection[tuple[str, ...]]) -> str | None:
    """The first five words in a row that stand in both; None where there are none."""
    return next((" ".join(window) for window in _windows(text) if window in windows), None)


def _windows(text: str) -> Iterator[tuple[str, ...]]:
    words = re.findall(r"\w+", text.casefold())
    return zip(*(words[start:] for start in range(_WINDOW)), strict=False)
