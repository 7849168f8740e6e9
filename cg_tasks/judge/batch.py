"""Verdicts through a server's Batch API: half the price, within a day, into the same cache that a run reads.

``submit`` uploads the requests that are not in the cache and writes a job file; ``collect`` fetches what is finished. Afterwards
``conceptguard judge rescore`` finds the verdicts in the cache and asks only for those that failed.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from cg_tasks.errors import UserError
from cg_tasks.judge.blocking import run_blocking
from cg_tasks.judge.cache import ReplyCache
from cg_tasks.judge.client import CallFailed, ChatClient, Reply
from cg_tasks.judge.estimate import request_keys, request_messages
from cg_tasks.judge.judging import Judge
from cg_tasks.judge.reading import read_reply
from cg_tasks.judge.request import request_params
from cg_tasks.judge.rubrics import JudgeItem
from cg_tasks.judge.server_settings import ServerSettings
from cg_tasks.judge.settings import JudgeSettings
from cg_tasks.whole_files import replace_file

# OpenAI's limits of one file are 50,000 requests and 200 MB.
MAX_REQUESTS, MAX_BYTES = 50_000, 190_000_000
_FINISHED = ("completed", "expired", "cancelled", "failed")
_STARTING = "starting"  # in a job file: the uploaded file whose batch is being started


@dataclass(frozen=True)
class Collected:
    """What a job's batches came to: verdicts by status, batches that are not finished, requests that came back with an error."""

    statuses: Counter[str]
    waiting: dict[str, str]
    errors: list[str]


@dataclass(frozen=True)
class Way:
    """Ways out, as the command at hand words them."""

    other_file: str
    submit_rest: str
    without_batches: str
    collect: str


JUDGE_WAY = Way(
    "name another file with --job",
    "submit the rest with another --job",
    "conceptguard judge rescore asks a server without batches",
    "conceptguard judge batch collect",
)


def batch_line(custom_id: str, body: Mapping[str, Any]) -> dict[str, Any]:
    """One request of a batch file."""
    return {"custom_id": custom_id, "method": "POST", "url": "/v1/chat/completions", "body": body}


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
                lines[keys[0]] = batch_line(f"{item.rubric}-{keys[0]}", body)
    return lines


def submit(judge: Judge, items: Sequence[JudgeItem], job: Path) -> dict[str, Any]:
    """Upload and start the batches; the job file is written around each, so that no started batch is lost.

    Raises:
        UserError: nothing to ask, the job file exists, or the server takes no batches.
    """
    if job.exists():
        raise UserError(f"{job} exists: collect it first, or name another file with --job")
    lines = requests_of(judge, items)
    if not lines:
        raise UserError("nothing to ask: every verdict is in the cache; score with conceptguard judge rescore")
    return upload(judge.settings, lines, job, JUDGE_WAY)


def upload(settings: ServerSettings, lines: Mapping[str, Mapping[str, Any]], job: Path, way: Way) -> dict[str, Any]:
    """Upload requests (lines of a batch file by key) and start their batches; the job file is written around each.

    Raises:
        UserError: the job file cannot be written, the server takes no batches, or does not say whether it took one.
    """
    try:
        job.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"{job}: cannot be written ({error.strerror}): {way.other_file}") from None
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
                except Exception as error:
                    raise _not_taken(settings, number, client.failure(error), record, job, way) from None
                record[_STARTING] = file.id  # first: were this process killed now, the batch would still be found
                _write(job, record)
                try:
                    batch = await client.sdk.batches.create(
                        input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h"
                    )
                except Exception as error:
                    raise _not_started(settings, number, client.failure(error), record, job, way) from None
                del record[_STARTING]
                record["batches"].append(batch.id)
                _write(job, record)

    run_blocking(run())
    return record


def collect(settings: JudgeSettings, job: Path) -> Collected:
    """Put the replies of a job's finished batches into the cache. Can be run again until nothing waits.

    Raises:
        UserError: the job file cannot be read, or was made with another judge; the server does not answer.
    """
    statuses: Counter[str] = Counter()
    with ReplyCache(settings.cache) as cache:

        def take(custom_id: str, reply: Reply | CallFailed) -> None:
            if isinstance(reply, CallFailed):
                statuses["api_error"] += 1
                return
            rubric, _, key = custom_id.partition("-")
            verdict = read_reply(rubric, reply.text, refusal=reply.refusal, finish_reason=reply.finish_reason)
            statuses[verdict.status] += 1
            if verdict.status == "ok":
                cache.put(key, reply)

        waiting, errors = fetch(settings, job, take)
    return Collected(statuses, waiting, errors)


def fetch(
    settings: ServerSettings,
    job: Path,
    take: Callable[[str, Reply | CallFailed], None],
    *,
    damaged: str = "name the one that judge batch submit wrote",
) -> tuple[dict[str, str], list[str]]:
    """Hand each line of a job's finished batches to ``take``: its custom id (empty where it cannot be read), and its reply or failure.

    damaged: the way out where the job file cannot be read. Returns the batches that are not finished, by their status, and what came
    back as an error.

    Raises:
        UserError: the job file cannot be read, or was made with another model or server; the server does not answer.
    """
    record = _read(job, damaged)
    for name in ("model", "base_url"):
        if record.get(name) != getattr(settings, name):
            raise UserError(
                f"{job}: was submitted with {name} {record.get(name)!r}, and {getattr(settings, name)!r} is set now: "
                f"set {settings.role.prefix}{name.upper()} as it was"
            )
    waiting: dict[str, str] = {}
    errors: list[str] = []
    if file_id := record.pop(_STARTING, None):
        if started := run_blocking(_started_with(settings, file_id, job)):
            record["batches"].append(started)
        else:
            errors.append(f"batch of {file_id} was not started: its requests are still to be asked")
        _write(job, record)
    # One at a time, and taken on the caller's thread: a cache belongs to the thread that opened it.
    for batch_id in record["batches"]:
        status, why, lines = run_blocking(_fetch_one(settings, batch_id))
        if status not in _FINISHED:
            waiting[batch_id] = status
        errors += why
        for custom_id, reply in lines:
            if isinstance(reply, CallFailed):
                errors.append(str(reply))
            take(custom_id, reply)
    return waiting, errors


_Line = tuple[str, Reply | CallFailed]


async def _fetch_one(settings: ServerSettings, batch_id: str) -> tuple[str, list[str], list[_Line]]:
    """A batch's status, what is wrong with it, and its lines."""
    why: list[str] = []
    lines: list[_Line] = []
    async with _client(settings) as client:
        try:
            batch = await client.sdk.batches.retrieve(batch_id)
            if batch.status not in _FINISHED:
                return batch.status, why, lines
            if batch.status != "completed":
                said = client.clean(str(batch.errors or "what it had finished is taken"))[:300]
                why.append(f"batch {batch_id} {batch.status}: {said}")
            for file_id in filter(None, (batch.output_file_id, batch.error_file_id)):
                content = await client.sdk.files.content(file_id)
                lines += [_reply_in(client, text) for text in content.text.split("\n") if text.strip()]
        except Exception as error:
            raise UserError(f"{settings.base_url}: batch {batch_id}: {client.failure(error)}") from None
        return batch.status, why, lines


async def _started_with(settings: ServerSettings, file_id: str, job: Path) -> str | None:
    """The batch of an uploaded file, None where the server has none."""
    async with _client(settings) as client:
        try:
            async for batch in client.sdk.batches.list(limit=100):
                if batch.input_file_id == file_id:
                    return str(batch.id)
        except Exception as error:
            raise UserError(
                f"{settings.base_url}: whether the batch of {file_id} was started: {client.failure(error)}; try again later, or see "
                f"for yourself: put the batch's id among the batches of {job}, if there is one, and take '{_STARTING}' out"
            ) from None
    return None


def _reply_in(client: ChatClient, text: str) -> tuple[str, Reply | CallFailed]:
    """The custom id and the reply in a line of a batch's output."""
    custom_id = ""
    try:
        line = json.loads(text)
        custom_id = str(line["custom_id"])
        response = line.get("response") or {}
        if line.get("error") or response.get("status_code", 200) != 200:
            raise _failure(line.get("error") or response.get("body"), response.get("status_code"))
        return custom_id, client.reply_of(response["body"], 0.0)
    except CallFailed as failed:
        return custom_id, CallFailed(client.clean(str(failed))[:300], failed.status, empty=failed.empty)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        return custom_id, CallFailed(f"a line of the batch's output cannot be read ({type(error).__name__})")


def _not_taken(
    settings: ServerSettings, number: int, failed: CallFailed, record: Mapping[str, Any], job: Path, way: Way
) -> UserError:
    way_out = (
        f"those before it are in {job}: collect them, then {way.submit_rest}"
        if record["batches"]
        else way.without_batches
    )
    return UserError(f"{settings.base_url}: batch {number} was not taken: {failed}; {way_out}")


def _not_started(
    settings: ServerSettings, number: int, failed: CallFailed, record: dict[str, Any], job: Path, way: Way
) -> UserError:
    """A batch that the server turned down leaves no trace in the job file; of one that it may have started, the file is kept there."""
    refused = failed.status is not None and 300 <= failed.status < 500 and failed.status not in (408, 409)
    if not refused:
        return UserError(
            f"{settings.base_url}: whether batch {number} was started is not known: {failed}; {job} says what was uploaded: "
            f"{way.collect} finds out"
        )
    del record[_STARTING]
    if record["batches"]:
        _write(job, record)
    else:
        job.unlink(missing_ok=True)
    return _not_taken(settings, number, failed, record, job, way)


def _failure(said: Any, status: Any) -> CallFailed:
    known = status if type(status) is int else None
    return CallFailed(str(said), known, hopeless=known in (401, 404))


def _client(settings: ServerSettings, max_retries: int | None = None) -> ChatClient:
    retries = settings.max_retries if max_retries is None else max_retries
    return ChatClient(
        settings.base_url, settings.api_key, timeout=settings.timeout, max_retries=retries, role=settings.role
    )


def _parts(lines: Mapping[str, Mapping[str, Any]]) -> list[bytes]:
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
        replace_file(job, json.dumps(record, indent=2))
    except UserError as error:
        raise UserError(f"{error}; the batches started so far: {record['batches']}") from None


def _read(job: Path, damaged: str) -> dict[str, Any]:
    try:
        record = json.loads(job.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UserError(f"{job}: cannot be read as a job file ({error}): {damaged}") from None
    if not isinstance(record, dict) or not isinstance(record.get("batches"), list):
        raise UserError(f"{job}: holds no batches as a job file does: {damaged}")
    return record
