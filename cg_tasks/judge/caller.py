"""Calls to one server, within a budget, until it has failed too often; with a JSON schema until it takes none."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Any, Literal

from cg_tasks.judge.budget import Budget, estimated_tokens
from cg_tasks.judge.client import CallFailed, ChatClient, Reply
from cg_tasks.judge.rubrics import Messages
from cg_tasks.judge.server_settings import ServerSettings

logger = logging.getLogger(__name__)

MessagesOf = Callable[[bool], Messages]
ParamsOf = Callable[[bool], Mapping[str, Any]]


class NotAsked(Exception):
    """No call was made: there is no money left for it, or the server was given up."""

    def __init__(self, detail: str, status: Literal["api_error", "over_budget"]):
        super().__init__(detail)
        self.status = status


class Caller:
    """What one run asks one server.

    modes: whether a JSON schema may go with a request, the first tried first. stopped: why no more calls are made, empty while they
    are; stopped_briefly: the same without a server's words. refused_schema: whether the server turned a schema down.
    """

    def __init__(self, settings: ServerSettings, client: ChatClient, budget: Budget, modes: list[bool]):
        self.settings, self.client, self.budget, self.modes = settings, client, budget, modes
        self.structured = modes[0]
        self.stopped = self.stopped_briefly = ""
        self.refused_schema = False
        self._exhausted = False
        self._answered = self._failed_in_a_row = 0

    async def ask(
        self, messages_of: MessagesOf, params_of: ParamsOf, structured: bool | None = None
    ) -> tuple[bool, Reply]:
        """One reply, and whether a JSON schema went with its request; both are made for the mode that is asked in.

        Raises:
            CallFailed: there was none. NotAsked.
        """
        structured = self.structured if structured is None else structured
        messages = messages_of(structured)
        tokens = estimated_tokens(messages)
        if self.stopped:
            raise NotAsked(f"not asked, because {self.stopped}", "api_error")
        reserved = await self._reserve(tokens)
        if reserved is None:
            self._exhausted = True
            raise NotAsked(f"not asked: {self.budget} does not allow another call", "over_budget")
        reply = None
        try:
            reply = await self.client.complete(self.settings.model, messages, params_of(structured))
        except CallFailed as failed:
            if not (structured and False in self.modes and failed.refuses_schema):
                self._failed(failed)
                raise
            broke = failed.status == 500
        finally:
            usage = reply.usage if reply else None
            self.budget.settle(reserved, usage, prompt_tokens=tokens, answered=reply is not None)
        if reply is None:
            if broke:  # over this schema and this text, perhaps; the next request may still carry one
                return await self.ask(messages_of, params_of, structured=False)
            if self.structured:
                logger.warning(
                    "%s's server takes no JSON schema: its replies are read as text from now on", self.settings.role.who
                )
                self.structured = False
            # Remembered once a text came: some servers repeat a whole request when something else in it is wrong.
            self.refused_schema = True
            return await self.ask(messages_of, params_of, structured=False)
        self._answered += 1
        self._failed_in_a_row = 0
        return structured, reply

    async def _reserve(self, tokens: int) -> float | None:
        """Money for a call; None where there is none left, and no call in flight that may turn out cheaper than feared."""
        while not self._exhausted:
            if (reserved := self.budget.reserve(tokens)) is not None:
                return reserved
            if not self.budget.in_flight:
                return None
            await asyncio.sleep(0.02)
        return None

    def _failed(self, failed: CallFailed) -> None:
        if failed.refuses_text or failed.about_this_text:  # a server that is up
            self._failed_in_a_row = 0
            return
        self._failed_in_a_row += 1
        if self.stopped:
            return
        if failed.hopeless and not self._answered:
            self._stop("the first call failed and every other would", failed)
        elif self._failed_in_a_row >= self.settings.give_up_after:
            self._stop(f"{self._failed_in_a_row} calls in a row failed", failed)

    def _stop(self, why: str, failed: CallFailed) -> None:
        self.stopped, self.stopped_briefly = f"{why}: {failed}", f"{why}: {failed.brief}"
