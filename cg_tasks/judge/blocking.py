"""Asynchronous work from synchronous code."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


def run_blocking(main: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine to its end on a thread of its own, so that it also works inside a running event loop (a notebook).

    Ctrl-C cancels it. Whatever it raises is raised here.
    """
    outcome: list[Any] = []
    done = threading.Event()  # Thread.join, once interrupted, takes a running thread for an ended one (Python < 3.13)
    loop = asyncio.new_event_loop()
    task = loop.create_task(main)

    def work() -> None:
        asyncio.set_event_loop(loop)
        try:
            outcome.append((loop.run_until_complete(task), None))
        except BaseException as error:  # handed over to the caller's thread
            outcome.append((None, error))
        finally:
            try:
                loop.run_until_complete(loop.shutdown_asyncgens())
                loop.close()
            finally:
                done.set()

    threading.Thread(target=work, name="conceptguard-judge", daemon=True).start()
    try:
        while not done.wait(0.2):
            pass
    except KeyboardInterrupt:
        if not done.is_set():
            loop.call_soon_threadsafe(task.cancel)
            done.wait()
        raise
    result, error = outcome[0]
    if error is not None:
        raise error
    return result
