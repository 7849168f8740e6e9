"""Work side by side, results in order."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from typing import Any

import pytest

from cg_tasks.construction.engine.ordered import ordered


class Counted:
    """Rows, how many of them were taken and given back, and how many are worked on."""

    def __init__(self, n: int):
        self.n = n
        self.taken = self.given = self.working = self.most_held = self.most_working = 0

    def rows(self) -> Iterator[int]:
        for row in range(self.n):
            self.taken += 1
            self.most_held = max(self.most_held, self.taken - self.given)
            yield row

    async def work(self, row: int, delay: float = 0.0) -> int:
        self.working += 1
        self.most_working = max(self.most_working, self.working)
        try:
            await asyncio.sleep(delay)
            return row * row
        finally:
            self.working -= 1


async def collected(results: Any) -> list[Any]:
    return [result async for result in results]


def run(main: Any, seconds: float = 10.0) -> Any:
    """A hang fails."""
    return asyncio.run(asyncio.wait_for(main, seconds))


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(("at_once", "held"), [(1, 1), (4, 2), (8, 8), (8, 50)])
def test_order_and_limits_under_random_delays(seed: int, at_once: int, held: int) -> None:
    rng, counted = random.Random(seed), Counted(40)
    delays = [rng.choice((0.0, 0.0, 0.001, 0.004)) for _ in range(40)]

    async def main() -> list[int]:
        found = []
        async for result in ordered(
            counted.rows(), lambda row: counted.work(row, delays[row]), at_once=at_once, held=held
        ):
            found.append(result)
            counted.given += 1
        return found

    assert run(main()) == [row * row for row in range(40)]
    assert counted.most_working <= at_once
    assert counted.most_held <= held + 1  # the one that the consumer has in hand


def test_one_slow_row_lets_the_others_run_on_as_far_as_may_be_held() -> None:
    counted, gate = Counted(30), asyncio.Event()

    async def work(row: int) -> int:
        if row == 0:
            await gate.wait()
        return row

    async def main() -> list[int]:
        task = asyncio.create_task(collected(ordered(counted.rows(), work, at_once=3, held=10)))
        for _ in range(100):
            await asyncio.sleep(0)
        assert counted.taken == 10
        gate.set()
        return await task

    assert run(main()) == list(range(30))


@pytest.mark.parametrize("rows", [0, 1, 2])
def test_fewer_rows_than_workers(rows: int) -> None:
    counted = Counted(rows)
    assert run(collected(ordered(counted.rows(), counted.work, at_once=8, held=8))) == [i * i for i in range(rows)]


def test_stagger_delays_the_first_rows_only() -> None:
    started: list[tuple[int, float]] = []

    async def work(row: int) -> int:
        started.append((row, asyncio.get_running_loop().time()))
        await asyncio.sleep(0.1)
        return row

    assert run(collected(ordered(range(3), work, at_once=3, held=3, stagger=0.02))) == [0, 1, 2]
    times = [at for _, at in sorted(started)]
    assert all(later - earlier >= 0.015 for earlier, later in zip(times, times[1:], strict=False))


def test_an_error_of_the_work_ends_everything_after_what_came_before() -> None:
    async def work(row: int) -> int:
        if row == 3:
            await asyncio.sleep(0.01)
            raise KeyError("three")
        return row

    async def main() -> list[int]:
        found = []
        with pytest.raises(KeyError, match="three"):
            async for result in ordered(range(10**9), work, at_once=2, held=100):
                found.append(result)
        return found

    assert run(main()) == [0, 1, 2]


def test_an_error_of_the_rows_ends_everything() -> None:
    def rows() -> Iterator[int]:
        yield from range(2)
        raise ValueError("the file ends here")

    counted = Counted(0)
    with pytest.raises(ValueError, match="ends here"):
        run(collected(ordered(rows(), counted.work, at_once=4, held=4)))


def test_work_that_is_cancelled_from_inside_does_not_hang() -> None:
    async def work(row: int) -> int:
        if row == 1:
            raise asyncio.CancelledError
        return row

    with pytest.raises(asyncio.CancelledError):
        run(collected(ordered(range(100), work, at_once=2, held=4)), 2.0)


def test_closing_cancels_what_is_under_way() -> None:
    cancelled: list[int] = []

    async def work(row: int) -> int:
        try:
            await asyncio.sleep(0 if row == 0 else 60)
        except asyncio.CancelledError:
            cancelled.append(row)
            raise
        return row

    async def main() -> None:
        results = ordered(range(100), work, at_once=3, held=10)
        assert await results.__anext__() == 0
        await asyncio.sleep(0.01)
        await results.aclose()  # type: ignore[attr-defined]
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(main())  # without wait_for, which makes a task of its own
    assert sorted(cancelled) == [1, 2, 3]
