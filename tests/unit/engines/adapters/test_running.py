"""Requests of an engine that may be gone: whoever waits for it is woken up, and nobody else."""

import asyncio
from collections.abc import AsyncGenerator

import pytest
from support.polling import until

from dynamo_router.base.errors import InvalidRequestError, NoWorkersError
from dynamo_router.engines.adapters.running import RunningAnswer, RunningRequests
from dynamo_router.engines.serving import AnswerPart, EngineUnavailableError


class Silent:
    """An engine that gives one token to each request and is never heard of again."""

    def __init__(self, most: int = 8) -> None:
        self.running = RunningRequests(most)
        self.closed: list[str] = []

    def answer(self, request_id: str) -> RunningAnswer:
        return RunningAnswer(self.running, request_id, self._parts(request_id))

    async def _parts(self, request_id: str) -> AsyncGenerator[AnswerPart, None]:
        try:
            yield AnswerPart([1])
            await asyncio.Event().wait()
        finally:
            self.closed.append(request_id)


async def test_who_waits_for_an_engine_that_is_gone_is_told() -> None:
    engine = Silent()
    waits, between = engine.answer("a"), engine.answer("b")
    assert (await anext(waits)).tokens == [1] and (await anext(between)).tokens == [1]
    reading = asyncio.ensure_future(anext(waits))
    lost = asyncio.ensure_future(engine.running.lost())
    await asyncio.sleep(0)
    engine.running.fail("it broke")
    engine.running.fail("and again")
    with pytest.raises(EngineUnavailableError, match="it broke"):
        await reading
    with pytest.raises(EngineUnavailableError, match="it broke"):
        await anext(between)
    with pytest.raises(EngineUnavailableError, match="it broke"):
        await anext(engine.answer("c"))
    assert await lost == "it broke"
    for answer in (waits, between):
        await answer.aclose()
    assert sorted(engine.closed) == ["a", "b"] and len(engine.running) == 0


async def test_a_reader_that_is_cancelled_is_cancelled() -> None:
    engine = Silent()
    answer = engine.answer("a")
    await anext(answer)
    reading = asyncio.ensure_future(anext(answer))
    await asyncio.sleep(0)
    reading.cancel()
    engine.running.fail("it broke at the same time")
    with pytest.raises(asyncio.CancelledError):
        await reading
    await answer.aclose()
    await until(lambda: engine.closed == ["a"])


async def test_ids_and_their_number_are_bounded() -> None:
    engine = Silent(most=2)
    first, second = engine.answer("a"), engine.answer("b")
    await anext(first)
    with pytest.raises(InvalidRequestError, match="'a' is in use"):
        await anext(engine.answer("a"))
    await anext(second)
    with pytest.raises(NoWorkersError, match="the engine has 2 requests"):
        await anext(engine.answer("c"))
    await first.aclose()
    await anext(third := engine.answer("c"))
    for answer in (second, third):
        await answer.aclose()
    assert len(engine.running) == 0
