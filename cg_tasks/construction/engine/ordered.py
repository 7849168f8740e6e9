"""Concurrent work on a stream of rows whose results come in the rows' order, with few of them held at a time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable
from typing import TypeVar

A = TypeVar("A")
B = TypeVar("B")


async def ordered(
    rows: Iterable[A], work: Callable[[A], Awaitable[B]], *, at_once: int, held: int, stagger: float = 0.0
) -> AsyncGenerator[B, None]:
    """``work`` on every row, ``at_once`` of them together; results in the rows' order.

    held: rows taken and not yet given back, at most: one slow row lets the others run on that far. stagger: seconds between the first
    rows, so that they do not all wait for each other's work in every round. What ``work`` raises ends everything.
    """
    source = iter(rows)
    results: dict[int, B] = {}
    taken = given = 0
    faults: list[BaseException] = []
    finished = False
    ready, room = asyncio.Event(), asyncio.Event()
    room.set()

    async def worker(delay: float) -> None:
        nonlocal taken, finished
        try:
            await asyncio.sleep(delay)
            while not finished:
                if taken - given >= held:
                    room.clear()
                    await room.wait()
                    continue
                try:
                    row = next(source)
                except StopIteration:
                    finished = True
                    break
                number, taken = taken, taken + 1
                results[number] = await work(row)
                if number == given:
                    ready.set()
        except (
            BaseException
        ) as error:  # a cancellation that ``work`` raises, too: its row would be waited for without end
            faults.append(error)
            finished = True
        finally:
            ready.set()

    workers = [asyncio.create_task(worker(number * stagger)) for number in range(at_once)]
    try:
        while True:
            while given in results:
                result = results.pop(given)
                given += 1
                room.set()
                yield result
            if faults:
                raise faults[0]
            if finished and given == taken:
                return
            ready.clear()
            if given not in results and not faults:
                await ready.wait()
    finally:
        for task in workers:
            task.cancel()
        await asyncio.gather(*workers, return_exceptions=True)
