"""A second worker for a request that nobody has begun to answer: one answer, no booking left."""

import asyncio
from contextlib import suppress
from typing import Any

import grpc
import pytest
from grpc import aio
from support.fake_engine import FakeEngine, answer, chunk, complete, fail, hang, prompt, stall
from support.polling import until
from support.rig import Rig, first

from dynamo_router.server.request_limits import RequestLimits
from dynamo_router.workers.trtllm_proto import pb

Code = grpc.StatusCode
AT_ONCE = RequestLimits(hedge_after_s=0.05)
FULL = ([11], [12], [11, 12])


async def late(engine: FakeEngine, request: Any, context: Any) -> Any:
    """Say nothing before `engine.go` is set; then as usual, in other tokens."""
    await engine.go.wait()
    yield chunk(request, 21)
    yield complete(request, 21)


def tokens(messages: list[Any]) -> list[int]:
    return [token for message in messages for token in message.chunk.token_ids]


async def nothing_left(rig: Rig) -> None:
    """No booking, no call, no unit of the budget; every worker was told."""
    await rig.settled()
    await until(lambda: rig.dispatcher.budget.retrying == 0)
    for engine in rig.engines:
        await until(lambda engine=engine: len(engine.ended) == len(engine.requests))


async def begin(rig: Rig, request: Any, **more: Any) -> Any:
    """Send a request to engine 0 first, whichever is next in turn."""
    if len(rig.router.decisions) % 2 != rig.entries.index(
        next(e for e in rig.entries if e.address == rig.engines[0].address)
    ):
        rig.router.decisions.append({"worker": -1})
    call = rig.call(request, **more)
    await rig.running(rig.engines[0])
    return call


async def messages_of(call: Any) -> list[Any]:
    messages = []
    async with asyncio.timeout(60):
        while (message := await call.read()) is not aio.EOF:
            messages.append(pb.GenerateResponse.FromString(message))
    return messages


@pytest.mark.parametrize("streaming", [True, False])
async def test_the_first_to_speak_serves_and_the_other_is_told(streaming: bool) -> None:
    async with Rig(FakeEngine(hang), FakeEngine(), limits=AT_ONCE) as rig:
        slow, quick = rig.engines
        request = prompt("r")
        request.streaming = streaming
        call = await begin(rig, request)
        assert tokens(await messages_of(call)) == [11, 12]
        trailing = dict(await call.trailing_metadata())
        assert trailing["x-dynamo-worker-id"] == str(rig.worker_id(quick))
        await nothing_left(rig)
        await until(lambda: slow.aborted == ["r"])
        assert quick.aborted == [] and quick.requests[0].request_id == "r"
        assert rig.dispatcher.hedges == {"won": 1}
        assert not rig.monitor.reports.errors


async def test_the_first_worker_keeps_what_it_has_begun() -> None:
    async with Rig(FakeEngine(late), FakeEngine(late), limits=AT_ONCE) as rig:
        one, other = rig.engines
        call = await begin(rig, prompt("r"))
        await rig.running(other)
        assert len(rig.router.booked) == 2
        one.go.set()
        assert tokens(await messages_of(call)) == [21]
        await nothing_left(rig)
        await until(lambda: other.aborted == ["r"])
        assert rig.dispatcher.hedges == {"lost": 1}


async def test_both_at_once_are_one_answer() -> None:
    async with Rig(FakeEngine(late), FakeEngine(late), limits=AT_ONCE) as rig:
        for number in range(20):
            for engine in rig.engines:
                engine.go.clear()
                engine.requests.clear()
                engine.ended.clear()
            call = await begin(rig, prompt(f"r{number}"))
            await rig.running(rig.engines[1])
            for engine in rig.engines:
                engine.go.set()
            assert tokens(await messages_of(call)) == [21]
            await nothing_left(rig)
        assert rig.dispatcher.hedges.total() == 20


async def test_without_the_setting_there_is_no_second_worker() -> None:
    async with Rig(FakeEngine(late), FakeEngine(late)) as rig:
        call = await begin(rig, prompt("r"))
        (request,) = rig.dispatcher.requests
        assert request.hedge is None
        rig.engines[0].go.set()
        assert tokens(await messages_of(call)) == [21]
        assert not rig.engines[1].requests


async def test_a_pinned_request_has_no_second_worker() -> None:
    async with Rig(FakeEngine(late), FakeEngine(), limits=AT_ONCE) as rig:
        pin = (("x-dynamo-worker-instance-id", str(rig.worker_id(rig.engines[0]))),)
        call = rig.call(prompt("r"), metadata=pin)
        await rig.running(rig.engines[0])
        (request,) = rig.dispatcher.requests
        assert request.hedge is None
        rig.engines[0].go.set()
        assert tokens(await messages_of(call)) == [21]


async def test_the_retry_budget_bounds_them() -> None:
    limits = RequestLimits(hedge_after_s=0.05, retry_budget=0.0, retry_budget_least=1)
    async with Rig(FakeEngine(late), FakeEngine(late), limits=limits) as rig:
        calls = [rig.call(prompt(f"r{number}")) for number in range(4)]
        await until(lambda: rig.dispatcher.hits.counts().get("retry_budget") == 3)
        await until(lambda: sum(len(engine.requests) for engine in rig.engines) >= 5)
        for engine in rig.engines:
            engine.go.set()
        for call in calls:
            assert tokens(await messages_of(call)) == [21]
        assert sum(len(engine.requests) for engine in rig.engines) == 5
        await nothing_left(rig)


async def test_one_that_fails_leaves_the_request_to_the_first() -> None:
    async with Rig(
        FakeEngine(late), FakeEngine(fail(Code.INTERNAL, "broken")), limits=AT_ONCE
    ) as rig:
        call = await begin(rig, prompt("r"))
        await until(lambda: rig.dispatcher.hedges == {"failed": 1})
        assert list(rig.router.booked) == ["r"]
        rig.engines[0].go.set()
        assert tokens(await messages_of(call)) == [21]
        await nothing_left(rig)


@pytest.mark.parametrize("code", [Code.INTERNAL, Code.INVALID_ARGUMENT])
async def test_when_the_first_fails_the_second_goes_on(code: grpc.StatusCode) -> None:
    async def fails_late(engine: FakeEngine, request: Any, context: Any) -> Any:
        await engine.go.wait()
        await context.abort(code, "broken")
        yield

    async with Rig(FakeEngine(fails_late), FakeEngine(late), limits=AT_ONCE) as rig:
        bad, good = rig.engines
        call = await begin(rig, prompt("r"))
        await rig.running(good)
        bad.go.set()
        await until(lambda: len(rig.router.booked) == 1)
        good.go.set()
        assert tokens(await messages_of(call)) == [21]
        await nothing_left(rig)
        assert len(good.requests) == 1 and rig.dispatcher.hedges == {"won": 1}


@pytest.mark.parametrize("moment", ["before", "both", "won", "streaming"])
@pytest.mark.parametrize("how", ["leaves", "aborts", "deadline"])
async def test_a_request_that_ends_at_any_moment_leaves_nothing(how: str, moment: str) -> None:
    scripts = {"before": late, "both": late, "won": answer, "streaming": stall}
    limits = RequestLimits(hedge_after_s=60.0 if moment == "before" else 0.05)
    async with Rig(FakeEngine(late), FakeEngine(scripts[moment]), limits=limits) as rig:
        timeout = 3.0 if how == "deadline" else None
        call = await begin(rig, prompt("r"), timeout=timeout)
        if moment != "before":
            await rig.running(rig.engines[1])
        if moment == "streaming":
            await first(call)
        if how == "leaves":
            call.cancel()
        elif how == "aborts":
            await rig.dispatcher.abort("r")
            for engine in rig.engines:  # which heed no abort
                engine.go.set()
        with suppress(aio.AioRpcError, asyncio.CancelledError):
            await messages_of(call)
        await nothing_left(rig)


async def test_closing_waits_for_what_is_on_its_way() -> None:
    async with Rig(FakeEngine(hang), FakeEngine(hang), limits=AT_ONCE) as rig:
        call = await begin(rig, prompt("r"))
        await rig.running(rig.engines[1])
        call.cancel()
        await rig.settled()
    assert not [task for task in asyncio.all_tasks() if task.get_name() == "hedge"]
