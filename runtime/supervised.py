"""Background loops that an exception does not end: it is logged, counted, and the loop goes on."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager

from structlog import get_logger

from .backoff import Backoff

log = get_logger(__name__)

CANCEL_AGAIN_S = 0.5

failures: Counter[str] = Counter()
"""Exceptions that ended a turn of a loop, by the loop's name; of this process."""


def supervise(name: str, loop: Callable[[], Awaitable[object]]) -> "asyncio.Task[None]":
    """A task that runs `loop`, and runs it again, with back-off, after each exception.

    It ends when `loop` returns or the task is cancelled.
    """
    return asyncio.create_task(_run(name, loop), name=name)


async def stopped(task: "asyncio.Task[None] | None") -> None:
    """Cancel such a task and wait until it has ended. Nothing for None.

    Cancelled again if it goes on: a library may have swallowed it, as asyncio.wait_for of
    Python 3.11 does if it comes together with the result.
    """
    while task is not None and not task.done():
        task.cancel()
        await asyncio.wait([task], timeout=CANCEL_AGAIN_S)


@contextmanager
def cancelled_for_sure() -> Iterator[None]:
    """Around a library's call: raises the CancelledError that it swallowed, as asyncio.wait_for of
    Python 3.11 does. One that came before, which the caller is cleaning up after, stays its own.
    """
    task = asyncio.current_task()
    assert task is not None, "only a task can be cancelled"
    before = task.cancelling()
    try:
        yield
    finally:
        if task.cancelling() > before:
            raise asyncio.CancelledError


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
