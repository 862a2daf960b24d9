"""Clients and engines that take too long, each bounded by a setting and counted."""

import asyncio
from typing import Any

import grpc
import pytest
from grpc import aio
from structlog.testing import capture_logs
from support.calls import too_late
from support.fake_engine import FakeEngine, chunk, hang, prompt, stall
from support.polling import until
from support.rig import Rig, first
from support.serving import serving

from dynamo_router.base.clock import SystemClock
from dynamo_router.base.errors import ConfigError, StatusCode
from dynamo_router.router.admission import AdmissionConfig
from dynamo_router.router.config import KvRouterConfig
from dynamo_router.server.dispatch.observers import NoObserver, OtherCall
from dynamo_router.server.dispatch.request import Request
from dynamo_router.server.request_limits import RequestLimits
from dynamo_router.workers.registry import WorkerState


class Ends(NoObserver):
    """Keeps how requests ended."""

    def __init__(self) -> None:
        self.codes: list[StatusCode] = []

    def on_end(
        self, request: Request | None, code: StatusCode, other: OtherCall | None = None
    ) -> None:
        self.codes.append(code)


async def flood(engine: FakeEngine, request: Any, context: Any) -> Any:
    while True:
        yield chunk(request, *range(30_000))


async def test_a_client_that_leaves_while_it_is_written_to_is_cancelled_and_no_error() -> None:
    ends = Ends()
    async with Rig(FakeEngine(flood), observer=ends) as rig:
        with capture_logs() as logs:
            for number in range(8):
                call = rig.call(prompt(f"r{number}"))
                await first(call)
                (request,) = rig.dispatcher.requests
                attempt = request.attempt
                assert attempt is not None
                await until(lambda sent=attempt: sent.silent_since is None)  # its window is full
                call.cancel()
                await rig.settled()
        assert ends.codes == [StatusCode.CANCELLED] * 8
        assert not [entry for entry in logs if entry["event"] == "request failed"]


async def test_a_client_that_reads_nothing_is_ended() -> None:
    ends = Ends()
    limits = RequestLimits(write_timeout_s=0.3)
    async with Rig(FakeEngine(flood), observer=ends, limits=limits) as rig:
        (engine,) = rig.engines
        call = rig.call(prompt("reader"))
        await first(call)
        await until(lambda: engine.aborted == ["reader"])
        await rig.settled()
        assert ends.codes == [StatusCode.DEADLINE_EXCEEDED]
        assert rig.dispatcher.hits.counts() == {"write_timeout_s": 1}
        with pytest.raises(aio.AioRpcError) as caught:
            while await call.read() is not aio.EOF:
                pass
            await call
        assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        assert "did not read" in (caught.value.details() or "")


async def test_a_worker_that_does_not_begin_in_time_is_replaced() -> None:
    limits = RequestLimits(attempt_timeout_s=3.0)
    async with Rig(FakeEngine(hang), FakeEngine(), limits=limits) as rig:
        for number in range(2):  # one of them meets it first
            assert len(await rig.answers(prompt(f"r{number}"))) == 3
        assert set(rig.dispatcher.hits.counts()) == {"attempt_timeout_s"}


@pytest.mark.parametrize("script", [hang, stall, flood])
async def test_the_whole_time_is_bounded(script: Any) -> None:
    ends = Ends()
    limits = RequestLimits(total_timeout_s=1.5)
    async with Rig(FakeEngine(script), observer=ends, limits=limits) as rig:
        (engine,) = rig.engines
        call = rig.call(prompt("long"))
        await until(lambda: ends.codes)
        assert ends.codes == [StatusCode.DEADLINE_EXCEEDED]
        assert rig.dispatcher.hits.counts() == {"total_timeout_s": 1}
        await until(lambda: engine.aborted == ["long"])
        await rig.settled()
        call.cancel()


@pytest.mark.parametrize("script", [hang, stall, flood])
async def test_a_clients_deadline_is_counted_as_one(script: Any) -> None:
    ends = Ends()
    async with Rig(FakeEngine(script), observer=ends) as rig:
        (engine,) = rig.engines
        code = await too_late(
            lambda seconds: rig.call(prompt("late"), timeout=seconds).code(),
            lambda: engine.requests,
        )
        assert code is grpc.StatusCode.DEADLINE_EXCEEDED
        await until(lambda: ends.codes)
        await rig.settled()
        assert set(ends.codes) == {StatusCode.DEADLINE_EXCEEDED}
        # The router ends it there, or the engine itself, which was told of the deadline.
        await until(lambda: engine.ended == ["late"])


QUEUE = KvRouterConfig(
    block_size=16, use_kv_events=False, seed=1, admission=AdmissionConfig(queue_threshold=0)
)


async def test_a_request_does_not_wait_for_ever() -> None:
    limits = RequestLimits(queue_timeout_s=0.3)
    async with serving(FakeEngine(hang), router=QUEUE, limits=limits) as ports:
        call = ports.channel.unary_stream("/trtllm.TrtllmService/Generate", None, None)
        first_one = call(prompt("r1", tokens=64).SerializeToString())
        await until(lambda: ports.server.dispatcher.in_flight == 1)
        with pytest.raises(aio.AioRpcError) as caught:
            await ports.answers(prompt("r2", tokens=64))
        assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert "has waited for" in (caught.value.details() or "")
        samples = await ports.metrics()
        assert samples['dynamo_router_limits_hit_total{limit="queue_timeout_s"}'] == 1
        first_one.cancel()


async def test_whole_answers_do_not_hold_the_queue_up() -> None:
    engines = [FakeEngine(hang), FakeEngine(hang)]
    async with serving(*engines, router=QUEUE) as ports:
        call = ports.channel.unary_stream("/trtllm.TrtllmService/Generate", None, None)
        calls = []
        for number in range(20):
            request = prompt(f"r{number}", tokens=64)
            request.streaming = False
            calls.append(call(request.SerializeToString()))
        await until(lambda: sum(len(engine.requests) for engine in engines) == 20)
        for each in calls:
            each.cancel()
        await until(lambda: not ports.server.dispatcher.in_flight)


def test_limits_that_are_none_are_named() -> None:
    with pytest.raises(ConfigError, match="write_timeout_s"):
        RequestLimits(write_timeout_s=0)
    with pytest.raises(ConfigError, match="retry_budget"):
        RequestLimits(retry_budget=float("nan"))


async def test_aborts_still_end_what_waits() -> None:
    async with serving(FakeEngine(hang), router=QUEUE) as ports:
        call = ports.channel.unary_stream("/trtllm.TrtllmService/Generate", None, None)
        first_one = call(prompt("r1", tokens=64).SerializeToString())
        await until(lambda: ports.server.dispatcher.in_flight == 1)
        second = call(prompt("r2", tokens=64).SerializeToString())
        await until(lambda: ports.server.dispatcher.in_flight == 2)
        await ports.server.dispatcher.abort("r2")
        assert await asyncio.wait_for(second.code(), 60) is grpc.StatusCode.CANCELLED
        first_one.cancel()


class StalledClock(SystemClock):
    """Its process stood still for so long."""

    stalled_s = 0.0

    def now(self) -> float:
        return super().now() + self.stalled_s


async def looked(rig: Rig, monkeypatch: pytest.MonkeyPatch, times: int) -> None:
    """Wait until requests in flight were looked at so often."""
    watch, looks = rig.dispatcher._watch, 0
    look = watch._look

    def count(now: float) -> None:
        nonlocal looks
        looks += 1
        look(now)

    monkeypatch.setattr(watch, "_look", count)
    await until(lambda: looks >= times)


@pytest.mark.parametrize("script", [hang, stall], ids=["not begun", "in mid-stream"])
@pytest.mark.parametrize("limit", ["attempt_timeout_s", "total_timeout_s", "silence_s"])
async def test_a_stall_of_the_router_ends_no_request(
    limit: str, script: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = StalledClock()
    bounds = {} if limit == "silence_s" else {limit: 5.0}
    silence_s = 5.0 if limit == "silence_s" else None
    engine = FakeEngine(script)
    async with Rig(engine, limits=RequestLimits(**bounds), silence_s=silence_s, clock=clock) as rig:
        call = rig.call(prompt("r1"))
        await until(lambda: engine.requests)
        if script is stall:
            await call.read()
        clock.stalled_s += 60.0
        await looked(rig, monkeypatch, 3)
        assert not engine.aborted and not any(rig.dispatcher.hits.counts().values())
        call.cancel()
        await rig.settled()


async def test_a_stall_of_the_router_makes_no_worker_stuck_or_slow(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = StalledClock()
    held, quick = FakeEngine(hang), FakeEngine()
    limits = RequestLimits(stuck_timeout_s=5.0)
    async with Rig(held, quick, limits=limits, clock=clock) as rig:
        pinned = (("x-dynamo-worker-instance-id", str(rig.worker_id(held))),)
        calls = [rig.call(prompt(f"r{n}"), metadata=pinned, timeout=3.0) for n in range(6)]
        await until(lambda: len(held.requests) == 6)
        other = (("x-dynamo-worker-instance-id", str(rig.worker_id(quick))),)
        await rig.answers(prompt("other"), metadata=other)
        clock.stalled_s += 60.0
        for call in calls:  # their deadlines pass, as the router sees it while it has not looked
            with pytest.raises(aio.AioRpcError):
                await call.read()
        await looked(rig, monkeypatch, 3)
        assert {entry.state for entry in rig.entries} == {WorkerState.READY}
