"""Verdicts through a server's Batch API: half the price, within a day, into the same cache that a run reads.

``submit`` uploads the requests that are not in the cache and writes a job file; ``collect`` fetches what is finished. Afterwards
``conceptguard judge rescore`` finds the verdicts in the cache and asks only for those that failed.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from cg_tasks.errors import UserError
from cg_tasks.judge.blocking import run_blocking
from cg_tasks.judge.cache import ReplyCache
from cg_tasks.judge.client import CallFailed, ChatClient
from cg_tasks.judge.estimate import request_keys, request_messages
from cg_tasks.judge.judging import Judge
from cg_tasks.judge.reading import read_reply
from cg_tasks.judge.request import request_params
from cg_tasks.judge.rubrics import JudgeItem
from cg_tasks.judge.settings import JudgeSettings

# OpenAI's limits of one file are 50,000 requests and 200 MB.
MAX_REQUESTS, MAX_BYTES = 50_000, 190_000_000
_FINISHED = ("completed", "expired", "cancelled", "failed")


@dataclass(frozen=True)
class Collected:
    """What a job's batches came to: verdicts by status, batches that are not finished, requests that came back with an error."""

    statuses: Counter[str]
    waiting: dict[str, str]
    errors: list[str]


def requests_of(judge: Judge, items: Sequence[JudgeItem]) -> dict[str, dict[str, Any]]:
    """Batch lines by cache key, of the items that are neither empty nor in the cache."""
    settings = judge.settings
    lines: dict[str, dict[str, Any]] = {}
    with ReplyCache(settings.cache) as cache:
        for item in items:
            if not item.response.strip():
                continue
            modes = request_messages(judge, item, cache)
            structured, messages = next(iter(modes.items()))
            for vote in range(settings.votes):
                keys = request_keys(judge, item.rubric, modes, vote)
                if keys[0] in lines or any(cache.get(key) is not None for key in keys):
                    continue
                body = {"model": settings.model, "messages": messages, **request_params(settings, structured)}
                # The rubric's name goes with the key, so that a reply can be read without its prompt.
                lines[keys[0]] = {
                    "custom_id": f"{item.rubric}-{keys[0]}",
                    "method": "POST",
                    "url": "/v1/chat/completions",
                    "body": body,
                }
    return lines


def submit(judge: Judge, items: Sequence[JudgeItem], job: Path) -> dict[str, Any]:
    """Upload and start the batches; the job file is written after each, so that no started batch is lost.

    Raises:
        UserError: nothing to ask, the job file exists, or the server takes no batches.
    """
    if job.exists():
        raise UserError(f"{job} exists: collect it first, or name another file with --job")
    lines = requests_of(judge, items)
    if not lines:
        raise UserError("nothing to ask: every verdict is in the cache; score with conceptguard judge rescore")
    try:
        job.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"{job}: cannot be written ({error.strerror}): name another file with --job") from None
    settings = judge.settings
    record: dict[str, Any] = {
        "created": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "model": settings.model,
        "base_url": settings.base_url,
        "requests": len(lines),
        "batches": [],
    }

    async def run() -> None:
        # Not tried again: a server may have made the batch whose answer was lost, and a second one is paid as well.
        async with _client(settings, max_retries=0) as client:
            for number, part in enumerate(_parts(lines), 1):
                try:
                    file = await client.sdk.files.create(file=(f"conceptguard-{number}.jsonl", part), purpose="batch")
                    batch = await client.sdk.batches.create(
                        input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h"
                    )
                except Exception as error:
                    way_out = (
                        f"those before it are in {job}: collect them, then submit the rest with another --job"
                        if record["batches"]
                        else "conceptguard judge rescore asks a server without batches"
                    )
                    raise UserError(
                        f"{settings.base_url}: batch {number} was not taken: {client.failure(error)}; {way_out}"
                    ) from None
                record["batches"].append(batch.id)
                _write(job, record)

    run_blocking(run())
    return record


def collect(settings: JudgeSettings, job: Path) -> Collected:
    """Put the replies of a job's finished batches into the cache. Can be run again until nothing waits.

    Raises:
        UserError: the job file cannot be read, or was made with another judge; the server does not answer.
    """
    record = _read(job)
    for name in ("model", "base_url"):
        if record.get(name) != getattr(settings, name):
            raise UserError(
                f"{job}: was submitted with {name} {record.get(name)!r}, and {getattr(settings, name)!r} is set now: "
                f"set CG_JUDGE_{name.upper()} as it was"
            )
    statuses: Counter[str] = Counter()
    waiting: dict[str, str] = {}
    errors: list[str] = []

    async def run() -> None:
        async with _client(settings) as client:
            with ReplyCache(settings.cache) as cache:
                for batch_id in record["batches"]:
                    try:
                        batch = await client.sdk.batches.retrieve(batch_id)
                        if batch.status not in _FINISHED:
                            waiting[batch_id] = batch.status
                            continue
                        if batch.status != "completed":
                            why = client.clean(str(batch.errors or "what it had finished is taken"))[:300]
                            errors.append(f"batch {batch_id} {batch.status}: {why}")
                        for file_id in filter(None, (batch.output_file_id, batch.error_file_id)):
                            content = await client.sdk.files.content(file_id)
                            _take(client, cache, content.text, statuses, errors)
                    except Exception as error:
                        raise UserError(f"{settings.base_url}: batch {batch_id}: {client.failure(error)}") from None

    run_blocking(run())
    return Collected(statuses, waiting, errors)


def _take(client: ChatClient, cache: ReplyCache, content: str, statuses: Counter[str], errors: list[str]) -> None:
    for text in filter(str.strip, content.split("\n")):
        try:
            line = json.loads(text)
            rubric, _, key = line["custom_id"].partition("-")
            response = line.get("response") or {}
            if line.get("error") or response.get("status_code", 200) != 200:
                raise CallFailed(str(line.get("error") or response.get("body")))
            reply = client.reply_of(response["body"], 0.0)
        except CallFailed as failed:
            statuses["api_error"] += 1
            errors.append(client.clean(str(failed))[:300])
            continue
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            statuses["api_error"] += 1
            errors.append(f"a line of the batch's output cannot be read ({type(error).__name__})")
            continue
        verdict = read_reply(rubric, reply.text, refusal=reply.refusal, finish_reason=reply.finish_reason)
        statuses[verdict.status] += 1
        if verdict.status == "ok":
            cache.put(key, reply)


def _client(settings: JudgeSettings, max_retries: int | None = None) -> ChatClient:
    retries = settings.max_retries if max_retries is None else max_retries
    return ChatClient(settings.base_url, settings.api_key, timeout=settings.timeout, max_retries=retries)


def _parts(lines: dict[str, dict[str, Any]]) -> list[bytes]:
    """JSONL files within the limits of one batch."""
    parts: list[list[bytes]] = [[]]
    size = 0
    for line in lines.values():
        encoded = json.dumps(line, ensure_ascii=False).encode() + b"\n"
        if parts[-1] and (len(parts[-1]) >= MAX_REQUESTS or size + len(encoded) > MAX_BYTES):
            parts.append([])
            size = 0
        parts[-1].append(encoded)
        size += len(encoded)
    return [b"".join(part) for part in parts]


def _write(job: Path, record: dict[str, Any]) -> None:
    try:
        job.write_text(json.dumps(record, indent=2), encoding="utf-8")
    except OSError as error:
        raise UserError(
            f"{job}: cannot be written ({error.strerror}); the batches started so far: {record['batches']}"
        ) from None


def _read(job: Path) -> dict[str, Any]:
    try:
        record = json.loads(job.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UserError(
            f"{job}: cannot be read as a job file ({error}): name the one that judge batch submit wrote"
        ) from None
    if not isinstance(record, dict) or not isinstance(record.get("batches"), list):
        raise UserError(f"{job}: not a job file of judge batch submit")
    return record
