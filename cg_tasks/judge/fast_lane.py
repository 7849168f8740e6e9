"""The first attempt of a call to a server of one's own, past the SDK.

Through the SDK and its HTTP library one call costs 2.4 to 3.0 ms of CPU: a client with 64 calls in flight, on two cores that it
shares with the server, gets a quarter to a third of what a server that answers in 50 ms could give. Straight over aiohttp a call
costs under 0.5 ms, and the client gets nine tenths.

Only an answer that leaves nothing to decide is read here: status 200, JSON, not compressed. Everything else that may come of the
request is replayed to the SDK as the outcome of its own first attempt, so that retries, waits, limits and errors are the SDK's,
and the server sees not one request more. TLS and proxies are the SDK's from the start.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any
from urllib.parse import urlsplit
from urllib.request import getproxies

import aiohttp
from openai import AsyncOpenAI, DefaultAsyncHttpxClient

Outcome = Callable[[Any], Any]  # of a request of the SDK: its response, or the exception that is raised

_HEADERS = ("Authorization", "Accept", "Content-Type", "User-Agent")
_LARGEST_BODY = 2**20  # bytes; aiohttp warns above, and the time they take is not spent in the SDK
_LARGEST_HEADERS = 100 * 1024  # bytes; the SDK's HTTP library takes as much, aiohttp by default less
_KEEP_ALIVE = (
    4.0  # seconds; less than the 5 s after which uvicorn and Node hang up, so that no request meets that moment
)
_to_replay: ContextVar[list[Outcome] | None] = ContextVar("_to_replay", default=None)


class HandedOver(Exception):
    """The SDK has to say what comes of a call. outcome: of its first attempt; None where there was none."""

    def __init__(self, outcome: Outcome | None):
        super().__init__()
        self.outcome = outcome


class ReplayingClient(DefaultAsyncHttpxClient):
    """The SDK's HTTP client. Inside :func:`replayed`, the first request is not sent: its outcome is there already."""

    async def send(self, request: Any, **options: Any) -> Any:
        waiting = _to_replay.get()
        return waiting.pop()(request) if waiting else await super().send(request, **options)


@contextmanager
def replayed(outcome: Outcome | None) -> Iterator[None]:
    """Give ``outcome``, if there is one, to the first request of the SDK's within."""
    token = _to_replay.set([outcome] if outcome else None)
    try:
        yield
    finally:
        _to_replay.reset(token)


def lane_to(sdk: AsyncOpenAI, timeout: float, deadline: float) -> FastLane | None:
    """The fast lane to an SDK's server; None over TLS, where a proxy applies, and to an address that the SDK reads better."""
    url = str(sdk.base_url)
    parts = urlsplit(url)
    plain = parts.scheme == "http" and parts.hostname and not (parts.username or parts.query or parts.fragment)
    return FastLane(sdk, timeout, deadline) if plain and not _proxied(str(parts.hostname)) else None


def _proxied(host: str) -> bool:
    """Whether the SDK may use a proxy to ``host``. It knows more forms of no_proxy; those are left to it."""
    proxies = getproxies()
    direct = [name.strip().lower() for name in proxies.get("no", "").split(",") if name.strip()]
    named = any(name in ("*", host) or host.endswith("." + name.lstrip(".")) for name in direct)
    return bool(proxies.get("http") or proxies.get("all")) and not named


class FastLane:
    """Connections to one server. Nothing is sent before :meth:`open`, which needs a running event loop, or after :meth:`close`."""

    def __init__(self, sdk: AsyncOpenAI, timeout: float, deadline: float):
        self._url = f"{sdk.base_url}chat/completions"
        given: Mapping[str, Any] = {**sdk.default_headers, **sdk.auth_headers}
        self._headers = {name: given[name] for name in _HEADERS if isinstance(given.get(name), str)}
        self._headers["Accept-Encoding"] = "gzip, deflate"  # what the SDK's HTTP library can always read
        self._timeout = aiohttp.ClientTimeout(total=deadline, connect=timeout, sock_read=timeout)
        self._session: aiohttp.ClientSession | None = None

    async def open(self) -> None:
        """Make ready; no connection is made yet."""
        # As many connections as there are calls; names are looked up as the SDK does it, whatever else is installed.
        connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=_KEEP_ALIVE, resolver=aiohttp.ThreadedResolver())
        self._session = aiohttp.ClientSession(
            connector=connector,
            headers=self._headers,
            timeout=self._timeout,
            cookie_jar=aiohttp.DummyCookieJar(),
            trust_env=False,
            auto_decompress=False,
            max_line_size=_LARGEST_HEADERS,
            max_field_size=_LARGEST_HEADERS,
        )

    async def close(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            await session.close()
            await asyncio.sleep(0)  # a transport is closed by the loop, which may end before its next turn

    async def ask(self, payload: Mapping[str, Any]) -> Any:
        """The decoded JSON of a clean answer.

        Raises:
            HandedOver: the answer is not clean, or there is none.
        """
        if self._session is None:
            raise HandedOver(None)
        try:  # byte for byte what the SDK sends
            body = json.dumps(payload, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode()
        except (TypeError, ValueError, RecursionError):
            raise HandedOver(None) from None
        if len(body) > _LARGEST_BODY:
            raise HandedOver(None)
        await asyncio.sleep(0)  # so that the loop hears of a connection that the server closed behind the last answer
        try:
            async with self._session.post(self._url, data=body, allow_redirects=False) as answer:
                said = await answer.read()
        except (aiohttp.InvalidURL, UnicodeError):  # an address that nothing can be sent to
            raise HandedOver(None) from None
        except (aiohttp.ClientError, asyncio.TimeoutError, OSError) as error:
            raise HandedOver(_lost(error)) from None
        if answer.status == 200 and "Content-Encoding" not in answer.headers:
            kind = answer.headers.get("Content-Type", "")
            if kind.partition(";")[0].endswith("json"):
                try:
                    return json.loads(said)
                except (ValueError, RecursionError):
                    pass
        raise HandedOver(_answered(answer.status, answer.raw_headers, said))


def _http_of(request: Any) -> Any:
    """The HTTP library of a request of the SDK's: httpx, or its successor."""
    return sys.modules[type(request).__module__.partition(".")[0]]


def _answered(status: int, headers: tuple[tuple[bytes, bytes], ...], body: bytes) -> Outcome:
    # Reading a compressed body may fail, with the error that the library itself would raise.
    return lambda request: _http_of(request).Response(status, headers=list(headers), content=body, request=request)


def _lost(error: Exception) -> Outcome:
    """What the SDK's HTTP library would have raised."""
    if isinstance(error, asyncio.TimeoutError):
        name = "ConnectTimeout" if isinstance(error, aiohttp.ConnectionTimeoutError) else "ReadTimeout"
    elif isinstance(error, aiohttp.ClientConnectorError):
        name = "ConnectError"
    elif isinstance(error, OSError):
        name = "ReadError"
    else:
        name = "RemoteProtocolError"

    def outcome(request: Any) -> Any:
        raise getattr(_http_of(request), name)(type(error).__name__, request=request)

    return outcome
