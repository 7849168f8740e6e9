"""A stage's missing replies through a server's Batch API: half the price, within a day, into the same replies.

One batch answers what can be asked now; a second attempt, or the judge's question about a reply, goes into the next one.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cg_tasks.construction.engine.asking import Endpoint, NoReply, Request
from cg_tasks.construction.engine.estimate import cost, missing
from cg_tasks.construction.engine.replies import Replies
from cg_tasks.construction.engine.run import params_of, reply_or_reason
from cg_tasks.construction.engine.stage import ModelStage
from cg_tasks.errors import UserError
from cg_tasks.judge.batch import Way, batch_line, fetch, upload
from cg_tasks.judge.budget import estimated_tokens
from cg_tasks.judge.client import CallFailed, Reply
from cg_tasks.judge.request import modes_of, server_of

_DAMAGED = "bring it back, or remove it (the replies of its batches are lost then, and asked for again)"


@dataclass(frozen=True)
class Taken:
    """replies: taken now. failures: requests that came back without one, by why. waiting: batches by their status."""

    replies: int
    failures: Counter[str]
    waiting: dict[str, str]


def submit(stage: ModelStage[Any, Any], *, limit: int | None, retry_failed: bool) -> dict[Endpoint, dict[str, Any]]:
    """Upload what is missing, a job file for each server that is asked.

    Raises:
        UserError: a job that is not collected yet, nothing to ask, or a server without batches.
    """
    again = stage.command
    if there := [path for path in _jobs(stage).values() if path.exists()]:
        raise UserError(f"{there[0]}: its batches are not collected yet: {again} --collect")
    lines: dict[Endpoint, dict[str, dict[str, Any]]] = {}
    expected: Counter[Endpoint] = Counter()
    with Replies(stage.folder.replies_file) as replies:
        structured = {endpoint: modes_of(settings, replies)[0] for endpoint, settings in stage.servers.items()}
        for _, requests in missing(stage, replies, limit=limit, retry_failed=retry_failed):
            for request in requests:
                body = _body(stage, request, structured[request.endpoint])
                lines.setdefault(request.endpoint, {})[request.key] = batch_line(_custom_id(request.key), body)
                expected[request.endpoint] += estimated_tokens(request.messages)
    if not lines:
        hint = "" if retry_failed else " (calls that failed are asked again with --retry-failed)"
        raise UserError(f"nothing to ask{hint}: write the rows with {again}")
    for endpoint, asked in lines.items():
        _within_budget(stage, endpoint, len(asked), expected[endpoint])
    way = Way(
        "make room, or mend its folder's permissions",
        f"{again} --submit the rest",
        f"{again} asks without batches",
        f"{again} --collect",
    )
    return {
        endpoint: upload(stage.servers[endpoint], requests, _jobs(stage)[endpoint], way)
        for endpoint, requests in lines.items()
    }


def under_way(stage: ModelStage[Any, Any]) -> bool:
    """Whether batches of the stage are submitted and not collected: what they answer must not be asked for, and paid, twice."""
    return any(path.exists() for path in _jobs(stage).values())


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
    if others := sorted(endpoint for endpoint in jobs if endpoint not in stage.servers):
        raise UserError(
            f"{jobs[others[0]]}: a batch of the {others[0]} is under way, and the stage asks none now: set benign: {{judge: true}} in "
            "build.yaml again, or remove the file (what it has paid for is lost then)"
        )
    taken = 0
    failures: Counter[str] = Counter()
    waiting: dict[str, str] = {}
    with Replies(stage.folder.replies_file) as replies:

        def take(custom_id: str, reply: Reply | CallFailed) -> None:
            nonlocal taken
            kind, _, sha256 = custom_id.rpartition("-")
            if kind not in stage.kinds:
                failures["a line of a batch's output that is none of this stage's"] += 1
                return
            key, settings = f"{kind}/{sha256}", stage.servers[stage.kinds[kind]]
            if isinstance(reply, CallFailed):
                failed = reply
                if failed.refuses_schema and settings.structured == "auto":
                    replies.note_text_only(server_of(settings))
                    failures["the server takes no JSON schema: --submit asks without one"] += 1
                    return
                try:
                    reply = reply_or_reason(failed, key, replies)
                except NoReply as missing:
                    failures[missing.reason if failed.status is not None else "no reply"] += 1
                    return
            replies.put(key, reply)
            replies.forget_failure(key)
            taken += 1

        for endpoint, path in jobs.items():
            still, errors = fetch(stage.servers[endpoint], path, take, damaged=_DAMAGED)
            waiting.update(still)
            if any(error.startswith("batch ") for error in errors):
                failures["batches that did not complete or were not started; what was finished is taken"] += 1
            if not still:
                path.rename(_finished(path))
    return Taken(taken, failures, waiting)


def _within_budget(stage: ModelStage[Any, Any], endpoint: Endpoint, calls: int, prompt_tokens: int) -> None:
    settings = stage.servers[endpoint]
    longest = max(n for kind, n in stage.reply_tokens.items() if stage.kinds[kind] == endpoint)
    usd = cost(settings, prompt_tokens, calls * longest)
    if settings.budget_usd is not None and usd is not None and usd > settings.budget_usd:
        raise UserError(
            f"{calls:,} requests to {settings.model} may cost {usd:.4f} USD, before the discount of a batch, and the budget is "
            f"{settings.budget_usd} USD: raise it, or submit fewer with --limit"
        )


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
