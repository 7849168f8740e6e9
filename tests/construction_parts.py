"""Parts of a build made by hand: replies, requests, who answers them, source files, and a stage's rows with their record."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import yaml

from cg_tasks.construction.benign import BenignRow
from cg_tasks.construction.chain import made_from
from cg_tasks.construction.engine.asking import NoReply, Request
from cg_tasks.construction.folder import BuildFolder, StageRecord, StageWriter
from cg_tasks.construction.grouping.aggregate import AggregateRow
from cg_tasks.construction.rows import Made, StageRow
from cg_tasks.construction.settings import GeneratorSettings
from cg_tasks.construction.tag import TagRow
from cg_tasks.judge.client import Reply
from cg_tasks.judge.settings import JudgeSettings

GENERATOR = GeneratorSettings(model="generator-1", base_url="http://localhost:9/v1", concurrency=4, max_retries=0)
JUDGE = JudgeSettings(model="judge-1", base_url="http://localhost:9/v1", max_retries=0)


def reply(
    text: str | None = "{}",
    *,
    usage: tuple[int, int] | None = (100, 20),
    model: str | None = "generator-1",
    finish: str = "stop",
    refusal: str | None = None,
) -> Reply:
    """usage: prompt and completion tokens."""
    used = {"prompt_tokens": usage[0], "completion_tokens": usage[1]} if usage else None
    return Reply(text, refusal, finish, model, used, 0.1)


def tag_reply(concept: str | None = "lamp lore", **more: Any) -> Reply:
    """A good reply of ``tag``; None for a prompt that is not dual-use."""
    said = {"reason": "People do this.", "dual_use": concept is not None, "concept": concept or ""}
    return reply(json.dumps(said), **more)


def request(key: str = "tag/1", text: str = "x", endpoint: Any = "generator") -> Request:
    """A request with one message; as text it says so."""
    messages = [{"role": "user", "content": text}]
    return Request(endpoint, key, messages, "tag", {"type": "object"}, lambda: [{"role": "user", "content": "as text"}])


class Answers:
    """An ``Ask`` that answers from a script and keeps what was asked.

    replies: key -> reply, at hand. calls: what a request without one gets, by its key; raises what is an exception.
    """

    def __init__(
        self,
        replies: Mapping[str, Reply] | None = None,
        calls: Callable[[Request], Reply | Exception] | None = None,
        retry_failed: bool = False,
    ):
        self.replies, self.calls, self.retry_failed = dict(replies or {}), calls, retry_failed
        self.asked: list[Request] = []

    async def __call__(self, request: Request) -> Reply:
        if request.key in self.replies:
            return self.replies[request.key]
        self.asked.append(request)
        assert len(self.asked) < 100, "it asks without end"
        said = self.calls(request) if self.calls else NoReply("not_run", "nobody answers")
        if isinstance(said, Exception):
            raise said
        self.replies[request.key] = said
        return said

    def has(self, request: Request) -> bool:
        return request.key in self.replies


def write_jsonl(path: Path, rows: Iterable[Any]) -> Path:
    """One JSON value a line."""
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
    return path


def lamps(n: int) -> list[dict[str, str]]:
    """Source rows of one sentence."""
    return [{"prompt": f"How is lamp {i} put out?", "response": f"With the cap {i}."} for i in range(n)]


def small_build(path: Path, rows: Iterable[Any] = (), **settings: Any) -> BuildFolder:
    """A build folder over ``rows`` (by default three lamps), with nothing run, and no generator in its file."""
    path.mkdir(parents=True, exist_ok=True)
    write_jsonl(path / "source.jsonl", list(rows) or lamps(3))
    (path / "build.yaml").write_text(yaml.safe_dump({"source": "source.jsonl", **settings}), encoding="utf-8")
    return BuildFolder(path)


def made(request_sha256: str = "r", attempts: int = 1, **more: Any) -> Made:
    return Made(attempts=attempts, request_sha256=request_sha256, parse_sha256="p", **more)


def tag_row(i: int | str, concept: str | None = "lamp lore", **more: Any) -> TagRow:
    """A tagged row; None for one that is not dual-use."""
    usual = {"dual_use": concept is not None, "concept": concept, "why": "because", "made": made(f"t{i}")}
    return TagRow(
        **{"pair_id": f"p{i}", "status": "ok", "prompt": f"prompt {i}", "response": f"response {i}", **usual, **more}
    )


def aggregate_row(i: int | str, concept: str = "lamp lore") -> AggregateRow:
    return AggregateRow(
        pair_id=f"p{i}",
        status="ok",
        prompt=f"prompt {i}",
        response=f"response {i}",
        tagged_concept=concept,
        concept=concept,
    )


def benign_row(i: int | str, request_sha256: str | None = None, **more: Any) -> BenignRow:
    return BenignRow(
        **{
            "pair_id": f"p{i}",
            "status": "ok",
            "concept": "lamp lore",
            "harmful_prompt": f"prompt {i}",
            "harmful_response": f"response {i}",
            "benign_prompt": f"benign prompt {i}",
            "benign_response": f"benign response {i}",
            "made": made(request_sha256 or f"b{i}"),
            **more,
        }
    )


def write_stage(folder: BuildFolder, stage: str, rows: Iterable[StageRow], **record: Any) -> StageRecord:
    """A finished stage that follows from what is there now."""
    given = {"made_from": made_from(folder, stage), **record}
    written = StageRecord(stage=stage, **given)
    with StageWriter(folder, written) as writer:
        for row in rows:
            writer.write(row, 1)
    return written
