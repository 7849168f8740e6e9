"""One asynchronous client for any OpenAI-compatible chat server: one call, its reply or the reason why there is none.

Retries and back-off are the SDK's (408, 409, 429 with or without Retry-After, 5xx, lost connections, timeouts); other refusals
of the server are not retried. Whatever a server sends back, the key does not leave this module.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from cg_tasks.errors import UserError
from cg_tasks.judge.text import encodable

T = TypeVar("T")
_NO_KEY = "none"  # the SDK refuses an empty key; servers that need none ignore it


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
    """A call without a reply. status: HTTP status or None. hopeless: every other call would fail alike (key, model, address)."""

    def __init__(self, detail: str, status: int | None = None, hopeless: bool = False):
        super().__init__(detail)
        self.status, self.hopeless = status, hopeless

    @property
    def refuses_schema(self) -> bool:
        """Whether the server turned down ``response_format`` rather than the request."""
        words = ("response_format", "json_schema", "structured output", "guided", "grammar")
        return self.status in (400, 404, 415, 422, 500, 501) and any(word in str(self).lower() for word in words)


class ChatClient:
    """Calls one server. An asynchronous context manager; use it inside one event loop."""

    def __init__(self, base_url: str, api_key: str, *, timeout: float, max_retries: int):
        from openai import AsyncOpenAI

        self._key = api_key
        self._sdk = AsyncOpenAI(base_url=base_url, api_key=api_key or _NO_KEY, timeout=timeout, max_retries=max_retries)

    async def __aenter__(self) -> ChatClient:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._sdk.close()

    async def complete(self, model: str, messages: Sequence[Mapping[str, str]], params: Mapping[str, Any]) -> Reply:
        """One chat completion. ``params`` are sent as they are.

        Raises:
            CallFailed: no reply, after the SDK's retries.
        """
        start = time.monotonic()
        try:
            # As extra_body, a parameter this SDK does not know (a server's own) is passed on too.
            answer = await self._sdk.chat.completions.create(
                model=model,
                messages=[dict(m) for m in messages],  # type: ignore[misc]
                extra_body=dict(params) or None,
            )
            return self._reply(answer, time.monotonic() - start)
        except (
            Exception
        ) as error:  # an SDK meets servers of every kind; whatever it raises is this call's failure alone
            raise self.failure(error) from None

    async def models(self) -> list[str]:
        """The names the server lists.

        Raises:
            CallFailed: it lists none.
        """
        try:
            return [m.id for m in (await self._sdk.with_options(max_retries=0, timeout=10).models.list()).data]
        except Exception as error:
            raise self.failure(error) from None

    @property
    def sdk(self) -> Any:
        """The SDK's client, for files and batches."""
        return self._sdk

    def clean(self, text: str) -> str:
        """Encodable text in which the key, should a server echo it, is masked."""
        text = encodable(text)
        return text.replace(self._key, "***") if self._key else text

    def failure(self, error: Exception) -> CallFailed:
        """What an SDK's exception means."""
        import openai

        if isinstance(error, CallFailed):
            return error
        status = getattr(error, "status_code", None)
        if isinstance(error, openai.APITimeoutError):
            detail = "the server did not answer in time"
        elif isinstance(error, openai.APIConnectionError):
            detail = f"no connection to the server ({type(error.__cause__ or error).__name__})"
        elif status is not None:
            detail = f"HTTP {status}: {getattr(error, 'message', error)}"
        else:
            detail = f"the server's answer is no chat completion ({type(error).__name__})"
        # A 404 about a schema or a route is told apart by refuses_schema; any other is a wrong address or model.
        return CallFailed(" ".join(self.clean(detail).split())[:500], status, hopeless=status in (401, 403, 404))

    def _reply(self, answer: Any, latency: float) -> Reply:
        choices = getattr(answer, "choices", None)
        if not choices or getattr(choices[0], "message", None) is None:
            raise CallFailed("the server's answer holds no message")
        message, usage = choices[0].message, getattr(answer, "usage", None)
        content, refusal = message.content, getattr(message, "refusal", None)
        counts = {
            key: value
            for key in ("prompt_tokens", "completion_tokens")
            if isinstance(value := getattr(usage, key, None), int)
        }
        return Reply(
            text=self.clean(content) if isinstance(content, str) else None,
            refusal=self.clean(refusal) if isinstance(refusal, str) else None,
            finish_reason=choices[0].finish_reason,
            model=self.clean(answer.model) if isinstance(answer.model, str) else None,
            usage=counts if len(counts) == 2 else None,
            latency=latency,
        )


def run_blocking(main: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine to its end on a thread of its own, so that it also works inside a running event loop (a notebook).

    Ctrl-C cancels it. Whatever it raises is raised here.
    """
    outcome: list[Any] = []
    loop = asyncio.new_event_loop()
    task = loop.create_task(main)

    def work() -> None:
        asyncio.set_event_loop(loop)
        try:
            outcome.append((loop.run_until_complete(task), None))
        except BaseException as error:  # handed over to the caller's thread
            outcome.append((None, error))
        finally:
            loop.run_until_complete(loop.shutdown_asyncgens())
            loop.close()

    thread = threading.Thread(target=work, name="conceptguard-judge", daemon=True)
    thread.start()
    try:
        while thread.is_alive():
            thread.join(0.2)
    except KeyboardInterrupt:
        loop.call_soon_threadsafe(task.cancel)
        thread.join()
        raise
    result, error = outcome[0]
    if error is not None:
        raise error
    return result


def check_server(base_url: str, api_key: str, model: str) -> str | None:
    """Ask for the server's list of models, which costs nothing; a warning where ``model`` is not on it, else None.

    A server without such a list, or one that is slow or busy, passes.

    Raises:
        UserError: nothing listens there, or the key is refused.
    """

    async def ask() -> list[str]:
        async with ChatClient(base_url, api_key, timeout=10, max_retries=0) as client:
            return await client.models()

    try:
        listed = run_blocking(ask())
    except CallFailed as failed:
        if failed.status in (401, 403):
            raise UserError(
                f"the judge's server {base_url} refuses the key ({failed}): set CG_JUDGE_API_KEY "
                "(OPENAI_API_KEY is sent to OpenAI only)"
            ) from None
        if str(failed).startswith("no connection"):
            raise UserError(
                f"the judge's server {base_url} cannot be reached ({failed}): start it, or correct CG_JUDGE_BASE_URL; to generate now "
                "and score later, give --metadata judge=later --log_samples"
            ) from None
        return None
    return None if not listed or model in listed else f"the judge's server {base_url} does not list the model {model!r}"
