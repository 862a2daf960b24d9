"""OffLoop: turns by caller, bounds, cancelled work, and threads that end."""

import asyncio
import gc
import threading
import weakref
from collections.abc import AsyncIterator, Callable
from functools import partial

import pytest
from support.polling import until

from dynamo_router.base.account import set_account
from dynamo_router.base.errors import CapacityError
from dynamo_router.base.limit_hits import LimitHits
from dynamo_router.process.off_loop import SHORT_S, OffLoop, OffLoopBounds

LONG_S = 10 * SHORT_S


@pytest.fixture
async def off_loop() -> AsyncIterator[OffLoop]:
    made = OffLoop()
    yield made
    made.close()


class Held:
    """A computation that goes on until `go`."""

    def __init__(self) -> None:
        self.begun, self.go = threading.Event(), threading.Event()

    def __call__(self) -> str:
        self.begun.set()
        assert self.go.wait(30)
        return "held"


def asked(
    off_loop: OffLoop, caller: str, work: Callable[[], str], *, size: int = 0, seconds: float = 0.0
) -> "asyncio.Task[str]":
    """A computation that this caller waits for."""

    async def run() -> str:
        set_account(caller)
        return await off_loop.run(work, size=size, seconds=seconds)

    return asyncio.create_task(run())


async def begun(held: Held) -> None:
    assert await asyncio.to_thread(held.begun.wait, 30)


async def test_results_and_errors_come_back(off_loop: OffLoop) -> None:
    assert await off_loop.run(lambda: 7) == 7
    with pytest.raises(ZeroDivisionError):
        await off_loop.run(lambda: 1 // 0)
    assert (off_loop.runs, off_loop.waiting) == (2, 0)


@pytest.mark.parametrize("seconds", [0.0, LONG_S])
async def test_callers_take_turns(off_loop: OffLoop, seconds: float) -> None:
    held, order = Held(), list[str]()
    first = asked(off_loop, "many", held, seconds=seconds)
    await begun(held)
    tasks = [
        asked(off_loop, who, partial(order.append, name), seconds=seconds)  # type: ignore[arg-type]
        for who, name in (("many", "a"), ("many", "b"), ("many", "c"), ("one", "x"))
    ]
    await asyncio.sleep(0)
    held.go.set()
    await asyncio.gather(first, *tasks)
    assert order == ["x", "a", "b", "c"]


async def test_a_long_computation_keeps_no_short_one_waiting(off_loop: OffLoop) -> None:
    held = Held()
    long = asked(off_loop, "a", held, seconds=LONG_S)
    await begun(held)
    assert await asked(off_loop, "b", lambda: "short") == "short"
    held.go.set()
    assert await long == "held"


async def test_what_is_cancelled_while_it_waits_is_not_begun(off_loop: OffLoop) -> None:
    held, ran = Held(), list[str]()
    first = asked(off_loop, "a", held)
    await begun(held)
    waiting = asked(off_loop, "a", partial(ran.append, "x"), size=1000)  # type: ignore[arg-type]
    await asyncio.sleep(0)
    assert (off_loop.waiting, off_loop.waiting_bytes) == (2, 1000)
    waiting.cancel()
    await asyncio.wait([waiting])
    assert waiting.cancelled()
    assert (off_loop.waiting, off_loop.waiting_bytes, off_loop.dropped) == (1, 0, 1)
    held.go.set()
    await first
    await off_loop.run(lambda: None)
    assert not ran


async def test_what_is_cancelled_while_it_runs_is_held_until_it_ends(off_loop: OffLoop) -> None:
    held = Held()
    running = asked(off_loop, "a", held, size=1000)
    await begun(held)
    running.cancel()
    await asyncio.wait([running])
    assert running.cancelled()
    assert (off_loop.waiting, off_loop.waiting_bytes, off_loop.dropped) == (1, 1000, 0)
    held.go.set()
    await until(lambda: (off_loop.waiting, off_loop.waiting_bytes) == (0, 0))


async def test_what_is_cancelled_or_fails_is_not_kept(off_loop: OffLoop) -> None:
    class Text:
        def fail(self) -> str:
            raise ValueError("no text")

    held = Held()
    first = asked(off_loop, "a", held)
    await begun(held)
    text, bad = Text(), Text()
    kept = [weakref.ref(text), weakref.ref(bad)]
    waiting = asked(off_loop, "a", text.fail)
    await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.wait([waiting])
    failing = asked(off_loop, "a", bad.fail)
    held.go.set()
    await asyncio.wait([first, failing])
    assert isinstance(failing.exception(), ValueError)
    del text, bad, waiting, failing
    gc.collect()
    assert [each() for each in kept] == [None, None]


async def test_what_waits_is_bounded_of_each_caller_and_of_all() -> None:
    hits = LimitHits()
    off_loop = OffLoop(OffLoopBounds(computations=4, bytes=1000, share=0.5), hits)
    held = Held()
    tasks = [asked(off_loop, "a", held, size=500)]
    await begun(held)
    for caller, size, limit in (
        ("a", 1, "max_computation_bytes_per_caller"),
        ("b", 501, "max_computation_bytes_per_caller"),
    ):
        with pytest.raises(CapacityError, match="no capacity for the request: max_comp"):
            await asked(off_loop, caller, lambda: "", size=size)
        assert hits[limit]
    tasks.append(asked(off_loop, "b", lambda: "", size=500))
    await asyncio.sleep(0)
    with pytest.raises(CapacityError, match="all callers together may have 1000"):
        await asked(off_loop, "c", lambda: "", size=1)
    tasks.append(asked(off_loop, "a", lambda: ""))
    await asyncio.sleep(0)
    with pytest.raises(CapacityError, match="max_computations: one caller may have 2"):
        await asked(off_loop, "a", lambda: "")
    held.go.set()
    await asyncio.gather(*tasks)
    assert (off_loop.waiting, off_loop.waiting_bytes) == (0, 0)
    assert await asked(off_loop, "a", lambda: "room", size=500) == "room"
    off_loop.close()


async def test_closed_it_cancels_what_waits() -> None:
    off_loop, held = OffLoop(), Held()
    first = asked(off_loop, "a", held)
    await begun(held)
    waiting = asked(off_loop, "a", lambda: "")
    await asyncio.sleep(0)
    held.go.set()
    await asyncio.to_thread(off_loop.close)
    assert await first == "held"
    await asyncio.wait([waiting])
    assert waiting.cancelled() or waiting.result() == ""
    off_loop.close()
    assert not [each for each in threading.enumerate() if each.name.startswith("off-loop")]
