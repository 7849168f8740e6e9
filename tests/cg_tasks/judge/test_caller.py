"""Calls to one server: within the budget, with a schema until it takes none, until it has failed too often."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from construction_parts import GENERATOR, reply

from cg_tasks.judge.budget import COMPLETION_TOKENS, Budget
from cg_tasks.judge.caller import Caller, NotAsked
from cg_tasks.judge.client import CallFailed, Reply

WORDS = {True: "with a schema", False: "in words"}
NO_SCHEMA = CallFailed("HTTP 400: response_format is not supported", 400)
BROKE = CallFailed("HTTP 500: grammar could not be compiled", 500)
DOWN = CallFailed("no connection to the server")
Said = Reply | CallFailed


class Client:
    """Says one thing after the other, the last one for ever. sent: what each message said."""

    def __init__(self, *said: Said, gate: asyncio.Event | None = None):
        self.said, self.gate = list(said), gate
        self.sent: list[str] = []
        self.params: list[Mapping[str, Any]] = []

    async def complete(self, model: str, messages: Sequence[Mapping[str, str]], params: Mapping[str, Any]) -> Reply:
        assert model == "generator-1"
        self.sent.append(messages[0]["content"])
        self.params.append(params)
        said = self.said.pop(0) if len(self.said) > 1 else self.said[0]
        if self.gate:
            await self.gate.wait()
        if isinstance(said, CallFailed):
            raise said
        return said


def caller(
    *said: Said, modes: list[bool] | None = None, budget: Budget | None = None, **settings: Any
) -> tuple[Caller, Client]:
    client = Client(*said)
    made = Caller(GENERATOR.model_copy(update=settings), client, budget or Budget(), modes or [True, False])  # type: ignore[arg-type]
    return made, client


async def ask(made: Caller, structured: bool | None = None) -> tuple[bool, Reply]:
    return await made.ask(
        lambda schema: [{"role": "user", "content": WORDS[schema]}], lambda schema: {"schema": schema}, structured
    )


def asked(made: Caller, structured: bool | None = None) -> tuple[bool, Reply]:
    return asyncio.run(ask(made, structured))


def failure(made: Caller) -> Exception:
    with pytest.raises((CallFailed, NotAsked)) as caught:
        asked(made)
    return caught.value


# ------------------------------------------------------------------ with and without a schema
def test_the_first_mode_is_asked_in() -> None:
    made, client = caller(reply("x"))
    assert asked(made) == (True, reply("x"))
    assert client.sent == ["with a schema"] and client.params == [{"schema": True}]
    assert asked(made, structured=False) == (False, reply("x"))
    assert made.budget.calls == 2 and made.budget.in_flight == 0 and not made.stopped


def test_a_server_without_schemas_is_asked_in_words_from_then_on() -> None:
    made, client = caller(NO_SCHEMA, reply("x"))
    assert asked(made) == (False, reply("x")) and made.refused_schema
    assert asked(made) == (False, reply("x"))
    assert client.sent == ["with a schema", "in words", "in words"] and made.budget.calls == 3


def test_where_only_a_schema_will_do_its_refusal_is_a_failure() -> None:
    made, client = caller(NO_SCHEMA, modes=[True])
    assert failure(made) is NO_SCHEMA and client.sent == ["with a schema"] and not made.refused_schema


def test_a_request_that_broke_over_its_schema_says_nothing_of_the_next() -> None:
    made, client = caller(BROKE, reply("x"))
    assert asked(made) == (False, reply("x")) and not made.refused_schema
    assert asked(made) == (True, reply("x"))
    assert client.sent == ["with a schema", "in words", "with a schema"]


def test_a_failure_in_words_is_the_callers() -> None:
    made, _ = caller(NO_SCHEMA, CallFailed("HTTP 400: too long", 400))
    assert str(failure(made)) == "HTTP 400: too long" and made.budget.in_flight == 0


# ------------------------------------------------------------------ giving up
def test_calls_are_given_up_after_so_many_failures_in_a_row() -> None:
    made, client = caller(DOWN, DOWN, reply("x"), DOWN, give_up_after=3)
    for _ in range(2):
        assert failure(made) is DOWN
    asked(made)  # a reply: from the beginning
    for _ in range(3):
        assert failure(made) is DOWN
    assert made.stopped == "3 calls in a row failed: no connection to the server"
    refused = failure(made)
    assert isinstance(refused, NotAsked) and refused.status == "api_error"
    assert str(refused) == "not asked, because 3 calls in a row failed: no connection to the server"
    assert len(client.sent) == 6


def test_a_first_call_that_is_hopeless_is_the_last() -> None:
    wrong = CallFailed("HTTP 401: wrong key", 401, hopeless=True)
    made, client = caller(wrong)
    assert failure(made) is wrong
    assert made.stopped == "the first call failed and every other would: HTTP 401: wrong key"
    assert isinstance(failure(made), NotAsked) and len(client.sent) == 1
    later, _ = caller(reply("x"), wrong, give_up_after=2)
    asked(later)
    failure(later)
    assert later.stopped == ""  # it has answered before


@pytest.mark.parametrize(
    "about_the_text", [CallFailed("HTTP 400: too long", 400), CallFailed("HTTP 403: stopped by our usage policy", 403)]
)
def test_a_server_that_turns_down_a_text_is_up(about_the_text: CallFailed) -> None:
    made, _ = caller(DOWN, about_the_text, DOWN, about_the_text, give_up_after=2)
    for _ in range(8):
        failure(made)
    assert made.stopped == ""


def test_why_calls_stopped_is_also_told_without_the_servers_words() -> None:
    made, _ = caller(CallFailed("HTTP 500: <a text>", 500), give_up_after=1)
    failure(made)
    assert made.stopped == "1 calls in a row failed: HTTP 500: <a text>"
    assert made.stopped_briefly == "1 calls in a row failed: HTTP 500"


# ------------------------------------------------------------------ money
def priced(calls: int) -> Budget:
    """Money for so many calls of 120 completion tokens at a million USD a million."""
    return Budget(calls * float(COMPLETION_TOKENS), 0.0, 1e6)


def test_no_call_beyond_the_budget() -> None:
    made, client = caller(reply(usage=(0, COMPLETION_TOKENS)), budget=priced(2))
    asked(made)
    asked(made)
    refused = failure(made)
    assert isinstance(refused, NotAsked) and refused.status == "over_budget"
    assert str(refused) == "not asked: the budget of 240.0 USD, 240.0000 of them spent, does not allow another call"
    assert len(client.sent) == 2 and made.budget.calls == 2 and made.stopped == ""


@pytest.mark.parametrize(("usd", "calls"), [(120.0, 1), (121.0, 2)])
def test_a_call_waits_for_one_in_flight_that_may_turn_out_cheaper(usd: float, calls: int) -> None:
    """120 USD are set aside for each call, and the first one costs 1."""

    async def main() -> tuple[list[Any], Client]:
        gate = asyncio.Event()
        client = Client(reply(usage=(0, 1)), gate=gate)
        made = Caller(GENERATOR, client, Budget(usd, 0.0, 1e6), [True])  # type: ignore[arg-type]
        both = [asyncio.create_task(ask(made)) for _ in range(2)]
        await asyncio.sleep(0.03)
        assert len(client.sent) == 1
        gate.set()
        return await asyncio.gather(*both, return_exceptions=True), client

    results, client = asyncio.run(main())
    assert len(client.sent) == calls and isinstance(results[1], NotAsked) == (calls == 1)
    assert results[0] == (True, reply(usage=(0, 1)))


def test_a_failed_call_costs_nothing() -> None:
    made, _ = caller(CallFailed("HTTP 400: too long", 400), reply(usage=(0, 120)), budget=priced(1))
    failure(made)
    assert made.budget.spent == 0 and made.budget.in_flight == 0
    asked(made)
    assert made.budget.spent == 120


def test_a_call_that_is_cancelled_is_not_left_in_flight() -> None:
    async def main() -> Budget:
        client = Client(reply(), gate=asyncio.Event())
        made = Caller(GENERATOR, client, priced(9), [True])  # type: ignore[arg-type]
        task = asyncio.create_task(ask(made))
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        return made.budget

    budget = asyncio.run(main())
    assert (budget.in_flight, budget.spent, budget.calls) == (0, 0.0, 1)
