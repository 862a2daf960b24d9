"""Background loops that an exception does not end: it is logged, counted, and the loop goes on."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable

from structlog import get_logger

from .backoff import Backoff

log = get_logger(__name__)

failures: Counter[str] = Counter()
"""Exceptions that ended a turn of a loop, by the loop's name; of this process."""


def supervise(name: str, loop: Callable[[], Awaitable[object]]) -> "asyncio.Task[None]":
    """A task that runs `loop`, and runs it again, with back-off, after each exception.

    It ends when `loop` returns or the task is cancelled.
    """
    return asyncio.create_task(_run(name, loop), name=name)


async def stopped(task: "asyncio.Task[None] | None") -> None:
    """Cancel such a task and wait until it has ended. Nothing for None."""
    if task is not None:
        task.cancel()
        await asyncio.wait([task])


async def _run(name: str, loop: Callable[[], Awaitable[object]]) -> None:
    backoff = Backoff(first=0.1, cap=5.0)
    while True:
        try:
            await loop()
            return
        except Exception:
            failures[name] += 1
            log.exception("a background loop failed and goes on", loop=name)
        await asyncio.sleep(backoff.next())
