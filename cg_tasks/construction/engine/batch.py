"""A stage's missing replies through a server's Batch API: half the price, within a day, into the same replies.

One batch answers what can be asked now; a second attempt, or the judge's question about a reply, goes into the next one.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cg_tasks.construction.engine.asking import Endpoint, Request
from cg_tasks.construction.engine.estimate import missing
from cg_tasks.construction.engine.replies import Replies
from cg_tasks.construction.engine.run import params_of
from cg_tasks.construction.engine.stage import ModelStage
from cg_tasks.errors import UserError
from cg_tasks.judge.batch import Way, batch_line, fetch, upload
from cg_tasks.judge.client import CallFailed, Reply
from cg_tasks.judge.request import modes_of


@dataclass(frozen=True)
class Taken:
    """replies: taken now. failed: requests that came back without one. waiting: batches by their status. errors: what was said."""

    replies: int
    failed: int
    waiting: dict[str, str]
    errors: list[str]


def submit(stage: ModelStage[Any, Any], *, limit: int | None, retry_failed: bool) -> dict[Endpoint, dict[str, Any]]:
    """Upload what is missing, a job file for each server that is asked.

    Raises:
        UserError: a job that is not collected yet, nothing to ask, or a server without batches.
    """
    again = f"conceptguard build {stage.name} {stage.folder.path}"
    if there := [path for path in _jobs(stage).values() if path.exists()]:
        raise UserError(f"{there[0]}: its batches are not collected yet: {again} --collect")
    lines: dict[Endpoint, dict[str, dict[str, Any]]] = {}
    with Replies(stage.folder.replies_file) as replies:
        structured = {endpoint: modes_of(settings, replies)[0] for endpoint, settings in stage.servers.items()}
        for _, requests in missing(stage, replies, limit=limit, retry_failed=retry_failed):
            for request in requests:
                body = _body(stage, request, structured[request.endpoint])
                lines.setdefault(request.endpoint, {})[request.key] = batch_line(_custom_id(request.key), body)
    if not lines:
        raise UserError(f"nothing to ask: every reply is at hand; write the rows with {again}")
    way = Way(
        "make room, or mend its folder's permissions", f"{again} --submit the rest", f"{again} asks without batches"
    )
    return {
        endpoint: upload(stage.servers[endpoint], requests, _jobs(stage)[endpoint], way)
        for endpoint, requests in lines.items()
    }


def collect(stage: ModelStage[Any, Any]) -> Taken:
    """Take what has finished; a job whose batches all have is done with. Can be run again until nothing waits.

    Raises:
        UserError: nothing was submitted, or the server does not answer.
    """
    jobs = {endpoint: path for endpoint, path in _jobs(stage).items() if path.exists()}
    if not jobs:
        raise UserError(
            f"{stage.folder.path}: no batch of the stage '{stage.name}' is under way: submit one with --submit"
        )
    counts: Counter[str] = Counter()
    waiting: dict[str, str] = {}
    errors: list[str] = []
    with Replies(stage.folder.replies_file) as replies:

        def take(custom_id: str, reply: Reply | CallFailed) -> None:
            kind, _, key = custom_id.rpartition("-")
            known = kind in stage.kinds
            counts["replies" if known and isinstance(reply, Reply) else "failed"] += 1
            if not known:
                return
            if isinstance(reply, CallFailed):
                replies.note_failure(f"{kind}/{key}", f"no reply: batch: {reply}")
            else:
                replies.put(f"{kind}/{key}", reply)
                replies.forget_failure(f"{kind}/{key}")

        for endpoint, path in jobs.items():
            still, said = fetch(stage.servers[endpoint], path, take)
            waiting.update(still)
            errors += said
            if not still:
                path.rename(_finished(path))
    return Taken(counts["replies"], counts["failed"], waiting, errors)


def _body(stage: ModelStage[Any, Any], request: Request, structured: bool) -> dict[str, Any]:
    settings = stage.servers[request.endpoint]
    messages = request.messages if structured else request.as_text()
    return {"model": settings.model, "messages": messages, **params_of(settings, request, structured)}


def _custom_id(key: str) -> str:
    return key.replace("/", "-")


def _jobs(stage: ModelStage[Any, Any]) -> dict[Endpoint, Path]:
    return {
        endpoint: stage.folder.batch_file(stage.name if endpoint == "generator" else f"{stage.name}-{endpoint}")
        for endpoint in stage.kinds.values()
    }


def _finished(path: Path) -> Path:
    """A name for a job that is done with: what was paid for can be looked up."""
    number = 1
    while (name := path.with_name(f"{path.stem}.{number}.done.json")).exists():
        number += 1
    return name
