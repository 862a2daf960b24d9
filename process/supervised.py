"""Background loops that an exception does not end: it is logged, counted, and the loop goes on; and
who was cancelled: libraries swallow cancellations, and pass on those of what they wait for.
"""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from structlog import get_logger

from ..base.backoff import Backoff
from .loop_turns import end_in_turn

log = get_logger(__name__)

CANCEL_AGAIN_S = 0.5
T = TypeVar("T")

failures: Counter[str] = Counter()
"""Exceptions that ended a turn of a loop, by the kind of loop, which is its name up to a hyphen;
of this process. A kind is counted from its first loop on."""


def supervise(name: str, loop: Callable[[], Awaitable[object]]) -> "asyncio.Task[None]":
    """A task that runs `loop`, and runs it again, with back-off, after each exception. Among these
    is a CancelledError where a library cancelled a future of its own, and not the task.

    It ends when `loop` returns or the task is cancelled. What follows a hyphen in its name
    distinguishes it from others of its kind.
    """
    failures[kind_of(name)] += 0
    return asyncio.create_task(_run(name, loop), name=name)


def kind_of(name: str) -> str:
    """What a loop's failures are counted by."""
    return name.partition("-")[0]


async def stopped(task: "asyncio.Task[Any] | None") -> None:
    """Cancel such a task and wait until it has ended. Nothing for None.

    Cancelled again if it goes on: a library may have swallowed it, as asyncio.wait_for of
    Python 3.11 does if it comes together with the result.
    """
    while task is not None and not task.done():
        task.cancel()
        await asyncio.wait([task], timeout=CANCEL_AGAIN_S)


async def all_done(
    works: Iterable[Coroutine[Any, Any, T]],
    turn: Callable[[], Awaitable[None]] | None = None,
) -> list[T]:
    """What each of them returns, all done at the same time. The first error ends the others, a few
    in each turn of the loop, and is raised once they have ended. `turn` is awaited before each of
    them begins.

    Unlike with asyncio.TaskGroup of Python 3.11, a caller that is cancelled as one of them fails is
    cancelled, and one that is not does not go on counting as cancelled.
    """
    tasks: list[asyncio.Task[T]] = []
    failed: list[asyncio.Task[T]] = []

    def on_end(task: asyncio.Task[T]) -> None:
        if not task.cancelled() and task.exception() is not None:
            failed.append(task)

    try:
        for work in works:
            if turn is not None:
                try:
                    await turn()
                except BaseException:
                    work.close()
                    raise
            if failed:
                work.close()
                break
            tasks.append(asyncio.create_task(work))
            tasks[-1].add_done_callback(on_end)
        if tasks and not failed:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
    finally:
        for task in tasks:
            if not task.done():
                end_in_turn(task.cancel)
        if tasks:
            await asyncio.wait(tasks)
    for task in failed:
        task.result()  # raises
    return [task.result() for task in tasks]


def is_cancelled() -> bool:
    """Whether the running task is to end: else a CancelledError is that of what it waited for."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


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
            with cancelled_for_sure():
                await loop()
            return
        except (Exception, asyncio.CancelledError):
            if is_cancelled():
                raise
            failures[kind_of(name)] += 1
            log.exception("a background loop failed and goes on", loop=name)
        await asyncio.sleep(backoff.next())
