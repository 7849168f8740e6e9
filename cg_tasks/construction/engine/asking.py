"""What a stage asks a model, and the attempts until a reply passes the stage's checks.

A stage never knows how its requests are answered: by a server, from the replies at hand alone, or not now but by a batch. The
attempts of a row are a walk over numbered requests, each with a key of its own, so that walking again asks for nothing twice.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, Literal, Protocol, TypeVar

from cg_tasks.construction.rows import Fault, FaultCode, Faulty, Made
from cg_tasks.judge.client import Reply
from cg_tasks.judge.rubrics import Messages
from cg_tasks.provenance import sha256_of

T = TypeVar("T")
Endpoint = Literal["generator", "judge"]


@dataclass(frozen=True)
class Request:
    """One call. key: of its reply, ``<kind>/<sha256>``. schema: JSON schema of the reply, sent where the server takes one.

    as_text: makes the messages for a server that takes none.
    """

    endpoint: Endpoint
    key: str
    messages: Messages
    schema_name: str
    schema: Mapping[str, Any] = field(repr=False)
    as_text: Callable[[], Messages] = field(repr=False)

    @property
    def sha256(self) -> str:
        return self.key.partition("/")[2]


class NoReply(Exception):
    """A request without a reply. status: ``failed`` (the call failed, kept with the row until ``--retry-failed``) or ``not_run``."""

    def __init__(self, status: Literal["failed", "not_run"], reason: str):
        super().__init__(reason)
        self.status, self.reason = status, reason


class Ask(Protocol):
    """Answers requests. ``retry_failed``: rows that have used up their attempts get as many again."""

    retry_failed: bool

    async def __call__(self, request: Request) -> Reply:
        """Raises NoReply."""

    def has(self, request: Request) -> bool:
        """Whether the reply is at hand."""


class NotMade(Exception):
    """No attempt passed. status and reason: of the row. made: where there was a reply."""

    def __init__(self, status: Literal["failed", "not_run"], reason: str, made: Made | None):
        super().__init__(reason)
        self.status, self.reason, self.made = status, reason, made


@dataclass(frozen=True)
class Attempted(Generic[T]):
    """What the reply that passed holds, and how it came to be."""

    value: T
    made: Made


async def attempt(
    ask: Ask,
    request_of: Callable[[int, FaultCode | None], Request],
    read: Callable[[Reply], Awaitable[T]],
    *,
    most: int,
    parser: str,
    rejected: frozenset[str] = frozenset(),
) -> Attempted[T]:
    """Ask until a reply passes, ``most`` times at the most.

    request_of: number of the attempt from 1, code of the last one's fault -> request. read: raises Faulty. parser: hash of the code
    and settings that read. rejected: request hashes whose replies people have turned down.

    A reply that people have turned down allows as many attempts again. Attempts beyond the limit whose replies are at hand (from an
    earlier ``--retry-failed``) are read too.

    Raises:
        NotMade: none passed, or a reply is missing.
    """
    faults: list[Fault] = []
    made: Made | None = None
    limit, granted = most, False
    turned_down: set[str | None] = set()
    number = 0
    while True:
        number += 1
        request = request_of(number, faults[-1].code if faults else None)
        if number > limit and not ask.has(request):
            if granted or not ask.retry_failed:
                tried = ", ".join(dict.fromkeys(f.code for f in faults))
                raise NotMade("failed", f"{faults[-1]} (attempt {number - 1}; so far: {tried})", made)
            limit, granted = number - 1 + most, True
        try:
            reply = await ask(request)
        except NoReply as missing:
            raise NotMade(missing.status, missing.reason, made) from None
        made = Made(
            attempts=number,
            request_sha256=request.sha256,
            parse_sha256=sha256_of([parser, reply.text, reply.refusal, reply.finish_reason]),
            model_returned=reply.model,
            faults=tuple(map(str, faults)),
        )
        try:
            if request.sha256 in rejected:
                turned_down.add(reply.text)
                raise Faulty("rejected", "by review")
            if reply.text in turned_down:
                raise Faulty("rejected", "by review, and written again to the letter")
            return Attempted(await read(reply), made)
        except Faulty as faulty:
            faults.append(faulty.fault)
            if request.sha256 in rejected:  # it is written again, as the first time
                limit = max(limit, number + most)
        except NoReply as missing:  # of the judge, who reads as well
            raise NotMade(missing.status, missing.reason, made) from None
