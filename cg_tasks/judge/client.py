"""One asynchronous client for any OpenAI-compatible chat server: one call, its reply or the reason why there is none.

Retries and back-off are the SDK's (408, 409, 429 with or without Retry-After, 5xx, lost connections, timeouts); other refusals
of the server are not retried. Whatever a server sends back, the key does not leave this module. Over plain HTTP the first attempt
goes past the SDK, for speed: see fast_lane.
"""

from __future__ import annotations

import asyncio
import difflib
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cg_tasks.errors import UserError
from cg_tasks.judge.blocking import run_blocking
from cg_tasks.judge.keys import JUDGE, Role, check_key, is_openai, keep_out_of_logs, masked
from cg_tasks.judge.text import encodable

_NO_KEY = "none"  # the SDK refuses an empty key; servers that need none ignore it
_MOST_TOKENS = 10**9  # more than any call can use; a server that says so does not count
LIST_TIMEOUT = 10.0
LONGEST_RETRY_AFTER = 120.0  # seconds the SDK waits before a retry, at most


@dataclass(frozen=True)
class Reply:
    """What the server answered.

    usage: prompt and completion tokens, None where it does not say. latency: seconds, retries included.
    """

    text: str | None
    refusal: str | None
    finish_reason: str | None
    model: str | None
    usage: dict[str, int] | None
    latency: float


class CallFailed(Exception):
    """A call without a reply. status: HTTP status or None. hopeless: every other call would fail alike (key, model, address).

    empty: the server answered, with a chat completion that holds no message.
    """

    def __init__(self, detail: str, status: int | None = None, hopeless: bool = False, empty: bool = False):
        super().__init__(detail)
        self.status, self.hopeless, self.empty = status, hopeless, empty

    @property
    def brief(self) -> str:
        """What failed, in words of ours alone: a server may quote the request in what it says."""
        asks = {401: ": is the key right?", 404: ": is the address right, up to and with /v1, and the model's name?"}
        return str(self) if self.status is None else f"HTTP {self.status}{asks.get(self.status, '')}"

    @property
    def about_this_text(self) -> bool:
        """Whether a server that is up turned down this one request: too long, say. It costs nothing and says nothing about others."""
        return (
            self.status is not None and 400 <= self.status < 500 and self.status not in (401, 403, 404, 408, 409, 429)
        )

    @property
    def refuses_schema(self) -> bool:
        """Whether the server turned down ``response_format`` rather than the request."""
        words = ("response_format", "json_schema", "structured output", "guided", "grammar")
        return self.status in (400, 404, 415, 422, 500, 501) and self._mentions(words)

    @property
    def refuses_text(self) -> bool:
        """Whether the server found the text too bad to be graded: a refusal in place of a reply."""
        words = ("content management policy", "content_filter", "content_policy", "usage policy", "flagged")
        return self.status in (400, 403) and self._mentions(words)

    def _mentions(self, words: Sequence[str]) -> bool:
        return any(word in str(self).lower() for word in words)


class ChatClient:
    """Calls one server. An asynchronous context manager; use it inside one event loop."""

    def __init__(self, base_url: str, api_key: str, *, timeout: float, max_retries: int, role: Role = JUDGE):
        from openai import AsyncOpenAI

        from cg_tasks.judge.fast_lane import ReplayingClient, lane_to

        check_key(api_key, role)
        self._key, self._role = api_key, role
        self._deadline = timeout * (max_retries + 1) + LONGEST_RETRY_AFTER * max_retries
        self._sdk = AsyncOpenAI(
            base_url=base_url,
            api_key=api_key or _NO_KEY,
            timeout=timeout,
            max_retries=max_retries,
            # A redirect would carry responses to a server that nobody named.
            http_client=ReplayingClient(follow_redirects=False),
        )
        if not is_openai(base_url):  # what the SDK takes from OPENAI_* is not for another server to see
            self._sdk.organization = self._sdk.project = None
            self._sdk._custom_headers = {}
        self._lane = lane_to(self._sdk, timeout, self._deadline)
        keep_out_of_logs(api_key)

    async def __aenter__(self) -> ChatClient:
        if self._lane:
            await self._lane.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._lane:
            await self._lane.close()
        await self._sdk.close()

    async def complete(self, model: str, messages: Sequence[Mapping[str, str]], params: Mapping[str, Any]) -> Reply:
        """One chat completion. ``params`` are sent as they are.

        Raises:
            CallFailed: no reply, after the SDK's retries.
        """
        start = time.monotonic()
        try:
            answer = await self._answer({"model": model, "messages": list(messages), **params}, start)
            return self.reply_of(answer, time.monotonic() - start)
        except Exception as error:  # servers answer in every way; whatever the SDK raises is this call's failure alone
            raise self.failure(error) from None

    async def _answer(self, body: Mapping[str, Any], start: float) -> Any:
        """The decoded answer to a request body; its text where it is not sent as JSON."""
        from cg_tasks.judge.fast_lane import HandedOver, replayed

        outcome = None
        if self._lane:
            try:
                return await self._lane.ask(body)
            except HandedOver as handed:
                outcome = handed.outcome
        with replayed(outcome):
            # Not chat.completions.create: it takes as long again to check and to model what we read ourselves, and knows
            # no parameter of another server.
            call = self._sdk.post("/chat/completions", cast_to=object, body=body)
            # The SDK's timeout is for each read: a server that sends a byte now and then would hold a call for ever.
            return await asyncio.wait_for(call, self._deadline - (time.monotonic() - start))

    async def models(self) -> list[str]:
        """The names the server lists.

        Raises:
            CallFailed: it lists none.
        """
        try:
            listed = _part(await self._sdk.get("/models", cast_to=object), "data")
            return [m["id"] for m in listed if isinstance(_part(m, "id"), str)] if isinstance(listed, list) else []
        except Exception as error:
            raise self.failure(error) from None

    @property
    def sdk(self) -> Any:
        """The SDK's client, for files and batches."""
        return self._sdk

    def clean(self, text: str) -> str:
        """Encodable text in which the key, should a server echo it, is masked."""
        return masked(encodable(text), self._key)

    def failure(self, error: Exception) -> CallFailed:
        """What an SDK's exception means."""
        import openai

        if isinstance(error, CallFailed):
            return error
        status = getattr(error, "status_code", None)
        if isinstance(error, (openai.APITimeoutError, asyncio.TimeoutError)):
            detail = "the server did not answer in time"
        elif isinstance(error, openai.APIConnectionError):
            detail = f"no connection to the server ({type(error.__cause__ or error).__name__})"
        elif status is not None:
            detail = f"HTTP {status}: {_said(getattr(error, 'body', None)) or 'without a word'}"
            if 300 <= status < 400:
                where = getattr(error, "response", None)
                detail += f" (a redirect to {where.headers.get('location') if where else '?'}: set {self._role.prefix}BASE_URL to it)"
            if status == 404:
                detail += f" ({self._sdk.base_url}: up to and with /v1? a model that the server has?)"
        else:
            detail = f"the server's answer is no chat completion ({type(error).__name__})"
        # A 404 about a schema or a route is told apart by refuses_schema; any other is a wrong address or model.
        # 403 is not among them: hosts also send it for a single text that their moderation stopped.
        return CallFailed(" ".join(self.clean(detail).split())[:500], status, hopeless=status in (401, 404))

    def reply_of(self, answer: Any, latency: float) -> Reply:
        """The reply in a chat completion (decoded JSON), the key masked.

        Raises:
            CallFailed: it holds no message.
        """
        if isinstance(answer, str):  # JSON that is sent as another type
            answer = _decoded(answer)
        message, finish = _part(answer, "choices", 0, "message"), _part(answer, "choices", 0, "finish_reason")
        if not isinstance(message, dict):
            raise CallFailed(
                "the server's answer holds no message", empty=isinstance(answer, dict) and not answer.get("error")
            )
        counts = {key: _part(answer, "usage", key) for key in ("prompt_tokens", "completion_tokens")}
        return Reply(
            text=self._text(_joined(message.get("content"))),
            refusal=self._text(message.get("refusal")),
            finish_reason=self._text(finish),
            model=self._text(_part(answer, "model")),
            usage=counts if all(type(n) is int and 0 <= n < _MOST_TOKENS for n in counts.values()) else None,
            latency=latency,
        )

    def _text(self, value: Any) -> str | None:
        return self.clean(value) if isinstance(value, str) else None


def _joined(content: Any) -> Any:
    """A message's text, also where a server sends it in parts."""
    if not isinstance(content, list):
        return content
    return "".join(text for part in content if isinstance(text := _part(part, "text"), str))


def _decoded(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _part(answer: Any, *keys: str | int) -> Any:
    """What lies at the end of a path through decoded JSON, None where there is no such thing."""
    try:
        for key in keys:
            answer = answer[key]
    except (KeyError, IndexError, TypeError):
        return None
    return answer


def _said(body: Any) -> str:
    """What the body of an error says. The SDK's own message holds that only where it is worded as OpenAI words it."""
    if isinstance(body, Mapping) and isinstance(body.get("message"), str):
        return f"{body['message']} ({body['code']})" if body.get("code") else body["message"]
    return body if isinstance(body, str) else json.dumps(body, ensure_ascii=False) if body else ""


def check_server(base_url: str, api_key: str, model: str, role: Role = JUDGE) -> str | None:
    """Ask for the server's list of models, which costs nothing; a warning where ``model`` is not on it, else None.

    A server without such a list, or one that is slow or busy, passes.

    Raises:
        UserError: nothing listens there, or the key is refused.
    """

    async def ask() -> list[str]:
        async with ChatClient(base_url, api_key, timeout=LIST_TIMEOUT, max_retries=0, role=role) as client:
            return await client.models()

    try:
        listed = run_blocking(ask())
    except CallFailed as failed:
        if failed.status in (401, 403):
            raise UserError(
                f"{role.who}'s server {base_url} refuses the key ({failed}): set {role.prefix}API_KEY "
                "(OPENAI_API_KEY is sent to OpenAI only)"
            ) from None
        if str(failed).startswith("no connection"):
            raise UserError(
                f"{role.who}'s server {base_url} cannot be reached ({failed}): start it, or correct {role.prefix}BASE_URL"
            ) from None
        if failed.status == 404:
            return f"{base_url}/models answers with HTTP 404: is {role.prefix}BASE_URL right, up to and with /v1?"
        return None
    if not listed or model in listed:
        return None
    near = difflib.get_close_matches(model, listed, n=1, cutoff=0.5)
    hint = f"did you mean {near[0]!r}?" if near else f"it has {', '.join(listed[:5])}{' …' if len(listed) > 5 else ''}"
    return f"{role.who}'s server {base_url} does not list the model {model!r}: {hint}"
