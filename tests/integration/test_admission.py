"""Requests that wait in front of the dispatcher, over real gRPC: order, cancellation, overload."""

import asyncio
import math
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest
from support.calls import too_late
from support.fake_engine import FakeEngine, answer, prompt, stall
from support.polling import until
from support.rig import Rig, first
from support.serving import BLOCK, serving

from dynamo_router.base.clock import ManualClock
from dynamo_router.router.admission import Admission
from dynamo_router.router.admission.limits import AdmissionConfig
from dynamo_router.router.admission.queue import AdmissionQueue
from dynamo_router.router.admission.tenants import TenantConfig
from dynamo_router.router.admission.ticket import Lane
from dynamo_router.router.config import KvRouterConfig
from dynamo_router.workers.trtllm_proto import pb

Code = grpc.StatusCode


class LimitedAdmission:
    """An admission for `most` requests on the engines."""

    def __init__(self, most: int, limit: int = 100) -> None:
        self.most = most
        self.rig: Rig | None = None
        self.clock = ManualClock(1.0)
        self.queue = AdmissionQueue(self.seconds_until_free, limit=limit, now=self.clock.now)
        self.admission = Admission(self.queue)

    def seconds_until_free(self, lane: Lane) -> float:
        assert self.rig is not None
        return 0.0 if len(self.rig.router.booked) < self.most else math.inf


async def waiting(limited: LimitedAdmission, count: int) -> None:
    await until(lambda: len(limited.queue) == count)


async def test_requests_go_one_after_the_other_as_room_appears() -> None:
    limited = LimitedAdmission(1)
    async with Rig(FakeEngine(stall), admission=limited.admission) as rig:
        limited.rig, (engine,) = rig, rig.engines
        running = rig.call(prompt("first"))
        await rig.running(engine)
        urgent = (("x-dynamo-priority", "1"),)
        calls = []
        for i, metadata in enumerate([(), urgent, (("x-dynamo-priority-jump", "60"),)]):
            calls.append(asyncio.create_task(rig.answers(prompt(f"r{i}"), metadata=metadata)))
            await waiting(limited, i + 1)
        engine.go.set()
        assert len([m async for m in running]) == 2
        await asyncio.gather(*calls)
        assert [r.request_id for r in engine.requests] == ["first", "r1", "r2", "r0"]
        await rig.settled()
        assert len(limited.queue) == 0 and limited.queue.queued == 3


async def test_who_hangs_up_while_waiting_leaves_nothing_behind() -> None:
    limited = LimitedAdmission(1)
    async with Rig(FakeEngine(stall), admission=limited.admission) as rig:
        limited.rig, (engine,) = rig, rig.engines
        running = rig.call(prompt("first"))
        await first(running)
        gone, stays = rig.call(prompt("gone")), rig.call(prompt("stays"))
        await waiting(limited, 2)
        gone.cancel()
        await waiting(limited, 1)
        engine.go.set()
        assert await first(stays) is not None
        assert [r.request_id for r in engine.requests] == ["first", "stays"]
        await rig.settled()


async def test_a_deadline_ends_the_waiting() -> None:
    limited = LimitedAdmission(0)
    async with Rig(FakeEngine(), admission=limited.admission) as rig:
        limited.rig = rig
        code, _ = await too_late(
            lambda seconds: rig.refusal(prompt(), timeout=seconds), lambda: limited.queue.queued
        )
        assert code is Code.DEADLINE_EXCEEDED
        await waiting(limited, 0)
        await rig.settled()


async def test_an_abort_ends_the_waiting() -> None:
    limited = LimitedAdmission(0)
    async with Rig(FakeEngine(), admission=limited.admission) as rig:
        limited.rig = rig
        refused = asyncio.create_task(rig.refusal(prompt("w")))
        await waiting(limited, 1)
        answer = await rig.unary("Abort", pb.AbortRequest(request_id="w"), pb.AbortResponse)
        assert answer.success
        assert await refused == (Code.CANCELLED, "request w was aborted")
        assert not rig.engines[0].requests and len(limited.queue) == 0
        await rig.settled()


async def test_an_abort_between_its_turn_and_its_departure_ends_a_request() -> None:
    limited = LimitedAdmission(0)
    async with Rig(FakeEngine(), admission=limited.admission) as rig:
        limited.rig = rig
        refused = asyncio.create_task(rig.refusal(prompt("w")))
        await waiting(limited, 1)
        limited.most = 1
        limited.admission.poll()  # it is its turn, but its task has not run yet
        assert await rig.dispatcher.abort("w") == (True, "not started yet")
        assert await refused == (Code.CANCELLED, "request w was aborted")
        assert not rig.engines[0].requests
        assert len(await rig.answers(prompt("next"))) == 3
        await rig.settled()


async def test_too_many_are_turned_away_at_once() -> None:
    limited = LimitedAdmission(0, limit=1)
    async with Rig(FakeEngine(), admission=limited.admission) as rig:
        limited.rig = rig
        early = asyncio.create_task(rig.answers(prompt("early")))
        await waiting(limited, 1)
        limited.clock.advance(4.5)  # one waits, and none has gone in that time
        with pytest.raises(grpc.aio.AioRpcError, match="all workers are saturated") as refused:
            await rig.answers(prompt("late"))
        assert refused.value.code() is Code.RESOURCE_EXHAUSTED
        assert ("retry-after", "5") in tuple(refused.value.trailing_metadata() or ())
        limited.most = 1
        limited.admission.poll()
        assert len(await early) == 3
        assert len(await rig.answers(prompt("later"))) == 3
        await rig.settled()


@pytest.mark.parametrize(
    ("key", "value", "text"),
    [
        ("x-dynamo-priority", "high", "x-dynamo-priority is no number: 'high'"),
        ("x-dynamo-priority-jump", "x", "x-dynamo-priority-jump is no number: 'x'"),
        ("x-dynamo-priority-jump", "inf", "x-dynamo-priority-jump is not finite: 'inf'"),
        ("x-dynamo-slo-ttft-ms", "soon", "x-dynamo-slo-ttft-ms is no number: 'soon'"),
        (
            "x-dynamo-slo-itl-ms",
            "0",
            "x-dynamo-slo-itl-ms must be above 0 and at most 86400000 milliseconds, not '0'",
        ),
    ],
)
async def test_bad_priorities_and_objectives_are_refused(key: str, value: str, text: str) -> None:
    async with Rig(FakeEngine()) as rig:
        assert await rig.refusal(prompt(), metadata=((key, value),)) == (
            Code.INVALID_ARGUMENT,
            text,
        )


async def test_where_a_free_worker_is_foreseen_a_timer_lets_the_request_go() -> None:
    loop = asyncio.get_running_loop()
    opens = math.inf

    def seconds_until_free(lane: Lane) -> float:
        return max(0.0, opens - loop.time())

    admission = Admission(AdmissionQueue(seconds_until_free))
    async with Rig(FakeEngine(), admission=admission) as rig:
        unforeseen = asyncio.create_task(rig.answers(prompt("unforeseen")))
        await until(lambda: len(admission.queue) == 1)
        assert admission.timer is None
        opens = loop.time() + 0.05
        foreseen = asyncio.create_task(rig.answers(prompt("foreseen")))
        assert len(await foreseen) == len(await unforeseen) == 3  # nobody polls
        assert loop.time() >= opens
        await rig.settled()
    assert admission.timer is None


async def late(engine: FakeEngine, request: Any, context: Any) -> AsyncIterator[Any]:
    """Everything, once `engine.go` is set: until then its prompt counts as queued there."""
    await engine.go.wait()
    async for response in answer(engine, request, context):
        yield response


async def test_a_server_queues_under_overload_and_returns_to_normal() -> None:
    engine = FakeEngine(late)
    admission = AdmissionConfig(queue_threshold=0.0, queue_limit=2)
    config = KvRouterConfig(block_size=BLOCK, use_kv_events=False, admission=admission)
    async with serving(engine, router=config) as ports:
        calls = [asyncio.create_task(ports.answers(prompt(f"r{i}", 32))) for i in range(3)]
        assert ports.server.pool.decider.queue is not None
        queue = ports.server.pool.decider.queue
        await until(lambda: len(queue) == 2 and len(engine.requests) == 1)
        assert (await ports.metrics())["dynamo_router_queue_pending_requests"] == 2
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await ports.answers(prompt("late", 32))
        assert refused.value.code() is Code.RESOURCE_EXHAUSTED
        engine.go.set()
        await asyncio.gather(*calls)
        metrics = await ports.metrics()
        assert metrics["dynamo_router_queue_pending_requests"] == 0
        assert metrics["dynamo_router_queue_refused_total"] == 1
        assert len(await ports.answers(prompt("after", 32))) == 3


async def test_by_default_requests_wait_in_the_router_for_a_cache_that_takes_them() -> None:
    engine = FakeEngine(late)
    engine.model.max_input_len = 1000
    engine.model.supported_features.append("total_kv_blocks=20")
    async with serving(engine) as ports:
        big = 20 * BLOCK
        calls = [asyncio.create_task(ports.answers(prompt(f"r{i}", big))) for i in range(3)]
        assert ports.server.pool.decider.queue is not None
        queue = ports.server.pool.decider.queue
        await until(lambda: len(queue) == 2 and len(engine.requests) == 1)
        assert (await ports.metrics())["dynamo_router_queue_pending_requests"] == 2
        engine.go.set()
        assert [len(answers) for answers in await asyncio.gather(*calls)] == [3, 3, 3]
        assert len(queue) == 0
    async with serving(
        FakeEngine(), router=KvRouterConfig(admission=AdmissionConfig(hold=False))
    ) as ports:
        assert ports.server.pool.decider.queue is None


async def test_busy_thresholds_are_read_and_changed_over_http() -> None:
    async with serving(FakeEngine()) as ports:
        status, thresholds = await ports.http("GET", "/busy_threshold")
        assert status == 200 and thresholds["active_prefill_tokens_threshold"] is None
        status, thresholds = await ports.http(
            "POST", "/busy_threshold", json={"active_prefill_tokens_threshold": 9}
        )
        assert (status, thresholds["active_prefill_tokens_threshold"]) == (200, 9)
        status, answer = await ports.http(
            "POST", "/busy_threshold", json={"active_decode_blocks_threshold": 3}
        )
        assert status == 400 and "active_decode_blocks_threshold" in answer["error"]
        for key in ("active_prefill_tokens_threshold", "active_decode_blocks_threshold"):
            huge = f'{{"{key}": {"9" * 400}}}'
            status, answer = await ports.http(
                "POST", "/busy_threshold", data=huge, headers={"Content-Type": "application/json"}
            )
            assert status == 400 and key in answer["error"], answer
        status, answer = await ports.http("POST", "/busy_threshold", json={"queue_limit": 3})
        assert status == 400 and "bad body" in answer["error"]


async def test_a_tenant_that_floods_does_not_stand_before_another_one() -> None:
    engine = FakeEngine(late)
    tenants = TenantConfig(tenant_key="x-team", tenant_weights="flood=0.5")
    admission = AdmissionConfig(queue_threshold=0.0, tenants=tenants)
    config = KvRouterConfig(block_size=BLOCK, use_kv_events=False, admission=admission)
    async with serving(engine, router=config) as ports:
        assert ports.server.pool.decider.queue is not None
        queue, calls = ports.server.pool.decider.queue, []
        for place, team in enumerate(["flood"] * 4 + ["small"]):
            call = ports.answers(prompt(f"{team} {place}", 32), metadata=(("x-team", team),))
            calls.append(asyncio.create_task(call))
            await until(lambda: len(queue) + len(engine.requests) == len(calls))
        engine.go.set()
        await asyncio.gather(*calls)
        went = [request.request_id for request in engine.requests]
        assert went == ["flood 0", "small 4", "flood 1", "flood 2", "flood 3"]
        page = await ports.metrics()
        assert page["dynamo_router_tenants"] == page["dynamo_router_tenants_recent"] == 2
        assert page["dynamo_router_tenants_over_share"] == 1
        assert page["dynamo_router_tenant_largest_share"] == pytest.approx(0.8, abs=0.01)
