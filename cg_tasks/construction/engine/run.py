"""Runs a model stage: rows in, rows out, concurrently, through the replies at hand and within the budget."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from cg_tasks.construction.engine.asking import Endpoint, NoReply, Request
from cg_tasks.construction.engine.ordered import ordered
from cg_tasks.construction.engine.replies import Replies
from cg_tasks.construction.engine.stage import ModelStage
from cg_tasks.construction.folder import StageRecord, StageWriter
from cg_tasks.construction.rows import StageRow
from cg_tasks.judge.blocking import run_blocking
from cg_tasks.judge.budget import Budget
from cg_tasks.judge.caller import Caller, NotAsked
from cg_tasks.judge.client import CallFailed, ChatClient, Reply, check_server
from cg_tasks.judge.request import modes_of, server_of
from cg_tasks.judge.server_settings import ServerSettings

logger = logging.getLogger(__name__)

A = TypeVar("A")
B = TypeVar("B", bound=StageRow)
_STAGGER = 0.001  # seconds between the first calls
_HELD = 1024  # rows taken and not yet written, at most
_SHOWN = 32  # rows between two looks at what the progress bar says
_LANDING = 60.0  # seconds to wait for calls under way when a run is stopped
OVER_BUDGET = "not asked: the budget is used up"


@dataclass(frozen=True)
class Options:
    """limit: rows, from the first, for which calls may be made; None for all. retry_failed: make calls again that failed, and give
    rows that used up their attempts as many again. no_calls: read the replies at hand and ask for nothing."""

    limit: int | None = None
    retry_failed: bool = False
    no_calls: bool = False


def params_of(settings: ServerSettings, request: Request, structured: bool) -> dict[str, Any]:
    """What goes into a request beside model and messages."""
    if not structured:
        return settings.params
    schema = {"name": request.schema_name, "strict": True, "schema": request.schema}
    return {**settings.params, "response_format": {"type": "json_schema", "json_schema": schema}}


def reply_or_reason(failed: CallFailed, key: str, replies: Replies) -> Reply:
    """What a call without a message comes to: a reply where the server has decided about this text, else the reason why there is none.

    Raises:
        NoReply: ``failed``, noted with the key, where it is about this request; ``not_run`` where it says nothing about it.
    """
    if failed.refuses_text:  # its filter stopped the text: that is this attempt's reply
        return Reply(None, str(failed), "content_filter", None, None, 0.0)
    if failed.empty:
        return Reply(None, None, None, None, None, 0.0)
    reason = f"no reply: {failed.brief}"
    if failed.status is None or failed.hopeless:  # no server, or none that knows us
        raise NoReply("not_run", reason)
    replies.note_failure(key, reason, str(failed))
    raise NoReply("failed", reason)


class Line:
    """Where requests are answered: from the replies at hand, else by a server."""

    def __init__(self, replies: Replies, callers: Mapping[Endpoint, Caller], retry_failed: bool):
        self.replies, self.callers, self.retry_failed = replies, callers, retry_failed
        self.seen: Counter[str] = Counter()
        self._flying: dict[str, asyncio.Task[Reply]] = {}
        # Rows run as many at once as the generator takes calls; another server may take fewer.
        self._room = {endpoint: asyncio.Semaphore(caller.settings.concurrency) for endpoint, caller in callers.items()}

    async def reply(self, request: Request, not_now: str) -> Reply:
        """The reply to a request. not_now: why no call may be made; empty where it may.

        Raises:
            NoReply.
        """
        if (reply := self.replies.get(request.key)) is not None:
            self.seen["cached"] += 1
            return reply
        failure = self.replies.failure(request.key)
        if failure is not None and (not_now or not self.retry_failed):
            raise NoReply("failed", failure)
        if not_now:
            raise NoReply("not_run", not_now)
        # Rows that ask the same ask once. A call that was made is paid for: whoever stops waiting for it does not stop it.
        if (call := self._flying.get(request.key)) is None:
            call = self._flying[request.key] = asyncio.create_task(self._call_and_keep(request, failure))
        return await asyncio.shield(call)

    async def land(self) -> None:
        """Wait for the calls that are under way, so that their replies are kept."""
        if flying := [call for call in self._flying.values() if not call.done()]:
            logger.warning(
                "waiting for %d calls under way, whose replies are paid for (Ctrl-C again: no more)", len(flying)
            )
            _, late = await asyncio.wait(flying, timeout=_LANDING)
            for call in late:  # nobody will be there to keep its reply
                call.cancel()
            await asyncio.gather(*flying, return_exceptions=True)

    async def _call_and_keep(self, request: Request, failure: str | None) -> Reply:
        try:
            reply = await self._call(request)
            self.replies.put(request.key, reply)
            if failure is not None:
                self.replies.forget_failure(request.key)
            return reply
        finally:
            del self._flying[request.key]

    async def _call(self, request: Request) -> Reply:
        caller = self.callers[request.endpoint]
        try:
            async with self._room[request.endpoint]:
                structured, reply = await caller.ask(
                    lambda structured: request.messages if structured else request.as_text(),
                    lambda structured: params_of(caller.settings, request, structured),
                )
        except NotAsked as refused:
            if refused.status == "over_budget":
                raise NoReply("not_run", OVER_BUDGET) from None
            raise NoReply("not_run", f"not asked, because {caller.stopped_briefly}") from None
        except CallFailed as failed:
            return reply_or_reason(failed, request.key, self.replies)
        if caller.refused_schema and not structured:
            self.replies.note_text_only(server_of(caller.settings))
        return reply


class RowAsk:
    """A row's way to the line (:class:`cg_tasks.construction.engine.asking.Ask`)."""

    __slots__ = ("_line", "_not_now", "retry_failed")

    def __init__(self, line: Line, not_now: str):
        self._line, self._not_now, self.retry_failed = line, not_now, line.retry_failed and not not_now

    async def __call__(self, request: Request) -> Reply:
        return await self._line.reply(request, self._not_now)

    def has(self, request: Request) -> bool:
        return self._line.replies.has(request.key)


@asynccontextmanager
async def _callers(stage: ModelStage[Any, Any], replies: Replies) -> AsyncIterator[dict[Endpoint, Caller]]:
    async with AsyncExitStack() as stack:
        callers: dict[Endpoint, Caller] = {}
        for endpoint, s in stage.servers.items():
            client = ChatClient(s.base_url, s.api_key, timeout=s.timeout, max_retries=s.max_retries, role=s.role)
            await stack.enter_async_context(client)
            longest = max((stage.reply_tokens[k] for k, e in stage.kinds.items() if e == endpoint), default=0)
            budget = Budget(s.budget_usd, s.price_input, s.price_output, longest)
            callers[endpoint] = Caller(s, client, budget, modes_of(s, replies))
        yield callers


def check_servers(servers: Mapping[Endpoint, ServerSettings]) -> None:
    """Ask each server for its list of models, which is free.

    Raises:
        UserError: nobody listens, or the key is refused.
    """
    for settings in servers.values():
        if settings.preflight and (
            warning := check_server(settings.base_url, settings.api_key, settings.model, settings.role)
        ):
            logger.warning(warning)


class Run(Generic[A, B]):
    """One run of a stage; afterwards what it did: ``record``, ``calls``, ``spent`` (USD, None where prices are not known).

    stopped: why calls were given up, without a word of the server; said: the same with them.
    """

    def __init__(self, stage: ModelStage[A, B], options: Options):
        self.stage, self.options = stage, options
        self.calls = 0
        self.spent: float | None = None
        self.stopped = self.said = ""
        self.record = StageRecord(stage=stage.name)

    def run(self, rows_in: int, **more: Any) -> StageRecord:
        """Write the stage's rows. rows_in: how many there will be. more: fields of the record.

        Raises:
            UserError: input that is missing or stale, a server that cannot be reached.
        """
        stage = self.stage
        self.record = StageRecord(
            stage=stage.name,
            made_from=stage.made_from(),
            rows_in=rows_in,
            **more,
            prompt={"name": stage.prompt.name, "version": str(stage.prompt.version), "sha256": stage.prompt.sha256},
            model=stage.generator.model,
            base_url=stage.generator.base_url,
            judge=stage.judge_record(),
        )
        run_blocking(self._run())
        return self.record

    async def _run(self) -> None:
        with Replies(self.stage.folder.replies_file) as replies:  # here: it belongs to the thread that opens it
            await self._through(replies)

    async def _through(self, replies: Replies) -> None:
        from tqdm import tqdm

        stage, options = self.stage, self.options
        async with AsyncExitStack() as stack:
            callers = {} if options.no_calls else await stack.enter_async_context(_callers(stage, replies))
            line = Line(replies, callers, options.retry_failed)
            everything, nothing = RowAsk(line, ""), RowAsk(line, self._not_now())
            limit = 0 if options.no_calls else options.limit

            async def work(numbered: tuple[int, A]) -> B:
                number, row = numbered
                return await stage.make(row, everything if limit is None or number < limit else nothing)

            at_once = stage.generator.concurrency
            try:
                with (
                    StageWriter(stage.folder, self.record) as writer,
                    tqdm(total=self.record.rows_in, desc=stage.name, unit="row") as bar,
                ):
                    models: Counter[str] = Counter()
                    held = max(_HELD, 4 * at_once)
                    outcomes = ordered(enumerate(stage.rows()), work, at_once=at_once, held=held, stagger=_STAGGER)
                    async with aclosing(outcomes):
                        async for row in outcomes:
                            made = stage.made(row)
                            writer.write(row, max((m.attempts for m in made), default=0))
                            models.update(m.model_returned for m in made if m.model_returned)
                            if bar.n % _SHOWN == 0:
                                bar.set_postfix(self._postfix(line), refresh=False)
                            bar.update()
                    bar.set_postfix(self._postfix(line))
                    self.record.models_returned = dict(sorted(models.items()))
            finally:
                await line.land()
                self.calls = sum(caller.budget.calls for caller in callers.values())
                self.spent = _spent(callers)
                gave_up = next((c for c in callers.values() if c.stopped), None)
                self.stopped, self.said = (gave_up.stopped_briefly, gave_up.stopped) if gave_up else ("", "")

    @property
    def beyond_limit(self) -> str:
        """The reason of the rows for which no call may be made."""
        return f"not asked: beyond --limit {self.options.limit}"

    def _not_now(self) -> str:
        return "not asked: --no-calls" if self.options.no_calls else self.beyond_limit

    def _postfix(self, line: Line) -> dict[str, Any]:
        rows = self.record.rows
        spent = _spent(line.callers)
        shown = {"cached": line.seen["cached"], "failed": rows.get("failed", 0)}
        return shown if spent is None else {**shown, "spent": f"${spent:.2f}"}


def _spent(callers: Mapping[Endpoint, Caller]) -> float | None:
    if not callers or not all(caller.budget.priced for caller in callers.values()):
        return None
    return sum(caller.budget.spent for caller in callers.values())
