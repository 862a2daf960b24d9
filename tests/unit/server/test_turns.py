"""Long answers in steps, and the share of the event loop that they take."""

import asyncio
from time import perf_counter

import pytest

from dynamo_router.server.loop_share import (
    TimeShare,
    answer_share,
    finish_in_turns,
    in_turns,
)


async def test_many_askers_take_turns() -> None:
    share = answer_share()
    done = []

    async def ask(name: int) -> None:
        async for item in in_turns(range(3), share):
            done.append((item, name))

    await asyncio.gather(*(ask(name) for name in range(4)))
    assert done == [(item, name) for item in range(3) for name in range(4)]


async def test_an_asker_waits_for_what_others_took() -> None:
    share = TimeShare(0.5)
    share.spent(0.02, perf_counter())
    began = perf_counter()
    assert [item async for item in in_turns((7,), share)] == [7]
    assert perf_counter() - began >= 0.039


async def test_a_result_and_an_error_come_through() -> None:
    def steps(fails: bool):  # type: ignore[no-untyped-def]
        yield
        if fails:
            raise KeyError("gone")
        return 7

    assert await finish_in_turns(steps(False), answer_share()) == 7
    with pytest.raises(KeyError, match="gone"):
        await finish_in_turns(steps(True), answer_share())
