"""What a stage still has to ask for: the requests that are missing, and their tokens and money. Nothing is called."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from cg_tasks.construction.engine.asking import NoReply, Request
from cg_tasks.construction.engine.replies import Replies
from cg_tasks.construction.engine.stage import ModelStage
from cg_tasks.judge.budget import estimated_tokens
from cg_tasks.judge.client import Reply
from cg_tasks.judge.server_settings import ServerSettings


@dataclass(frozen=True)
class Planned:
    """Calls of one kind that are to be made, and their tokens. usd: None without prices."""

    kind: str
    model: str
    calls: int
    prompt_tokens: int
    completion_tokens: int
    usd: float | None


class _Lookahead:
    """An :class:`cg_tasks.construction.engine.asking.Ask` that answers from the replies at hand and writes down what is missing."""

    def __init__(self, replies: Replies, retry_failed: bool):
        self._replies, self.retry_failed = replies, retry_failed
        self.missing: list[Request] = []

    async def __call__(self, request: Request) -> Reply:
        if (reply := self._replies.get(request.key)) is not None:
            return reply
        if not self.retry_failed and (failure := self._replies.failure(request.key)) is not None:
            raise NoReply("failed", failure)
        self.missing.append(request)
        raise NoReply("not_run", "waits for a call")

    def has(self, request: Request) -> bool:
        return self._replies.has(request.key)


def missing(
    stage: ModelStage[Any, Any], replies: Replies, *, limit: int | None, retry_failed: bool
) -> Iterator[tuple[Any, list[Request]]]:
    """Each row, and the requests that must be answered before it can go on; none where it needs no call now."""
    loop = asyncio.new_event_loop()
    try:
        for number, row in enumerate(stage.rows()):
            if limit is not None and number >= limit:
                return
            ask = _Lookahead(replies, retry_failed)
            loop.run_until_complete(stage.make(row, ask))
            yield row, ask.missing
    finally:
        loop.close()


def plan(
    stage: ModelStage[Any, Any], replies: Replies, *, limit: int | None = None, retry_failed: bool = False
) -> tuple[list[Planned], Request | None]:
    """Calls by kind, second attempts not counted, and the first request to look at.

    A reply's tokens are the mean of those at hand, else the stage's own guess.
    """
    calls: Counter[str] = Counter()
    prompt_tokens: Counter[str] = Counter()
    first: Request | None = None
    for row, requests in missing(stage, replies, limit=limit, retry_failed=retry_failed):
        first = first or next(iter(requests), None)
        for request in requests:
            kind = request.key.partition("/")[0]
            calls[kind] += 1
            prompt_tokens[kind] += estimated_tokens(request.messages)
        for kind, tokens in stage.unseen(row, requests).items():
            calls[kind] += 1
            prompt_tokens[kind] += tokens
    use = replies.use(stage.kinds)
    found = []
    for kind, endpoint in stage.kinds.items():
        known = use[kind]
        each = known.completion_tokens / known.counted if known.completion_tokens else stage.reply_tokens[kind]
        completion = round(calls[kind] * each)
        settings = stage.servers.get(endpoint)
        found.append(
            Planned(
                kind,
                settings.model if settings else "no model",
                calls[kind],
                prompt_tokens[kind],
                completion,
                cost(settings, prompt_tokens[kind], completion),
            )
        )
    return found, first


def cost(settings: ServerSettings | None, prompt_tokens: int, completion_tokens: int) -> float | None:
    """USD; None where the prices are not known."""
    if settings is None or settings.price_input is None or settings.price_output is None:
        return None
    return (prompt_tokens * settings.price_input + completion_tokens * settings.price_output) / 1e6
