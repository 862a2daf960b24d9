"""Loops that go on after an exception, and say so."""

import asyncio
import contextlib
from collections import Counter

import pytest

from dynamo_router.base.limit_hits import LimitHits
from dynamo_router.process import supervised
from dynamo_router.process.loop_turns import END_S, MOST_S
from dynamo_router.process.supervised import (
    all_done,
    cancelled_for_sure,
    failures,
    stopped,
    supervise,
)


@pytest.mark.parametrize("failure", [OSError("disk"), asyncio.CancelledError()])
async def test_a_loop_goes_on_after_an_exception(
    monkeypatch: pytest.MonkeyPatch, failure: BaseException
) -> None:
    class Hasty(supervised.Backoff):
        def next(self) -> float:
            return 0.0

    monkeypatch.setattr(supervised, "Backoff", Hasty)
    turns = 0

    async def loop() -> None:
        nonlocal turns
        turns += 1
        if turns < 4:
            raise failure  # a CancelledError: of a future that somebody else cancelled

    before = failures["x"]
    await asyncio.wait_for(supervise("x", loop), 60)
    assert turns == 4 and failures["x"] - before == 3


async def test_it_ends_when_it_is_told() -> None:
    started = asyncio.Event()

    async def loop() -> None:
        started.set()
        await asyncio.Event().wait()

    task = supervise("y", loop)
    await started.wait()
    await stopped(task)
    assert task.cancelled()
    await stopped(None)


async def test_it_ends_also_where_the_cancellation_became_an_error() -> None:
    started = asyncio.Event()

    async def loop() -> None:
        started.set()
        try:
            await asyncio.Event().wait()
        finally:
            raise OSError("disk")

    before = failures["w"]
    task = supervise("w", loop)
    await started.wait()
    task.cancel()
    await asyncio.wait([task])
    assert task.cancelled() and failures["w"] == before


def test_limits_are_counted_by_name() -> None:
    hits = LimitHits()
    hits.hit("queue_timeout_s")
    hits.hit("queue_timeout_s", 2)
    assert hits.counts() == {"queue_timeout_s": 3} and hits["other"] == 0


async def test_a_cancellation_that_a_library_swallowed_is_said_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(supervised, "CANCEL_AGAIN_S", 0.01)
    swallowed = 0

    async def loop() -> None:
        nonlocal swallowed
        while True:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                if swallowed == 2:
                    raise
                swallowed += 1

    task = supervise("z", loop)
    await asyncio.sleep(0)
    await stopped(task)
    assert task.cancelled() and swallowed == 2


@pytest.mark.parametrize("failure", [None, OSError("gone")])
async def test_after_a_call_that_swallowed_it_a_cancellation_is_raised(
    failure: OSError | None,
) -> None:
    async def work() -> None:
        with contextlib.suppress(OSError), cancelled_for_sure():
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.Event().wait()
            if failure is not None:
                raise failure

    task = asyncio.create_task(work())
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait([task])
    assert task.cancelled()


async def test_who_was_cancelled_may_still_clean_up() -> None:
    cleaned = False

    async def work() -> None:
        nonlocal cleaned
        try:
            await asyncio.Event().wait()
        finally:
            with cancelled_for_sure():
                await asyncio.sleep(0)
            cleaned = True

    task = asyncio.create_task(work())
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait([task])
    assert task.cancelled() and cleaned
    with cancelled_for_sure():
        pass  # nobody cancelled this one


async def test_all_are_done_or_one_error_ends_them() -> None:
    ended = []

    async def work(number: int) -> int:
        try:
            if number < 0:
                await asyncio.sleep(0)
                raise OSError(number)
            if number > 9:
                await asyncio.Event().wait()
            return number
        finally:
            ended.append(number)

    assert await all_done(map(work, [2, 1, 3])) == [2, 1, 3] and await all_done([]) == []
    with pytest.raises(OSError, match="-1"):
        await all_done(map(work, [10, -1, 11]))
    assert ended[3:] == [-1, 10, 11]
    task = asyncio.current_task()
    assert task is not None and not task.cancelling()


async def test_who_is_cancelled_as_one_of_all_fails_is_cancelled() -> None:
    failing = asyncio.get_running_loop().create_future()

    async def work() -> None:
        await failing

    task = asyncio.create_task(all_done([work(), asyncio.sleep(3600)]))
    for _ in range(3):
        await asyncio.sleep(0)
    failing.set_exception(OSError("gone"))
    task.cancel()
    await asyncio.wait([task])
    assert task.cancelled()


async def test_each_begins_in_a_turn_and_none_after_an_error() -> None:
    begun: list[int] = []
    turns = asyncio.Semaphore(2)

    async def work(number: int) -> int:
        begun.append(number)
        if number < 0:
            raise OSError(number)
        return number

    async def turn() -> None:
        await turns.acquire()

    task = asyncio.create_task(all_done(map(work, [1, 2, 3]), turn))
    while len(begun) < 2:
        await asyncio.sleep(0)
    turns.release()
    assert await task == [1, 2, 3]

    del begun[:]
    turns.release()
    task = asyncio.create_task(all_done(map(work, [-1, 2, 3]), turn))
    while not begun:
        await asyncio.sleep(0)
    turns.release()
    with pytest.raises(OSError, match="-1"):
        await task
    assert begun == [-1]


async def test_one_that_is_cancelled_before_its_turn_begins_nothing_more() -> None:
    ended: list[bool] = []

    async def work() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(True)

    turns = asyncio.Semaphore(1)

    async def turn() -> None:
        await turns.acquire()

    task = asyncio.create_task(all_done((work() for _ in range(3)), turn))
    for _ in range(3):
        await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait([task])
    assert task.cancelled() and ended == [True]


async def test_those_that_are_cancelled_end_a_few_in_a_turn() -> None:
    turn, ended = 0, Counter[int]()

    async def work() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended[turn] += 1

    task = asyncio.create_task(all_done(work() for _ in range(100)))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    task.cancel()
    while not task.done():
        turn += 1
        await asyncio.sleep(0)
    assert task.cancelled() and ended.total() == 100
    assert max(ended.values()) <= MOST_S / END_S + 1
