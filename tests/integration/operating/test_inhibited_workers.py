"""A worker that is left alone for a while, after failures, and requests that have nobody else."""

from collections.abc import AsyncIterator
from typing import Any

import grpc
from grpc import aio
from support.fake_engine import FakeEngine, prompt
from support.serving import Ports, serving

from dynamo_router.base.errors import StatusCode
from dynamo_router.workers.failures import Origin, judge
from dynamo_router.workers.registry import WorkerState
from dynamo_router.workers.trtllm_proto import pb

FULL = judge(Origin.ENGINE, StatusCode.RESOURCE_EXHAUSTED, started=False)
FAILURES = 10
"""Enough of them for the longest time that a worker is left alone after one, some seconds."""


async def empty(engine: FakeEngine, request: Any, context: Any) -> AsyncIterator[Any]:
    """End with OK and say nothing."""
    return
    yield


def inhibit(ports: Ports, worker_id: int) -> None:
    """Have the router believe that a worker was full just now, again and again."""
    for _ in range(FAILURES):
        ports.server.monitor.reports.failed(worker_id, FULL, 0.0)
    entry = ports.server.router.registry.entry(worker_id)
    assert entry is not None and entry.state is WorkerState.READY
    assert entry.inhibited_until > ports.server.router.clock.now()


async def test_a_request_that_fails_elsewhere_goes_to_the_worker_that_was_left_alone() -> None:
    inhibited, failing = FakeEngine(worker_id=1), FakeEngine(empty, worker_id=2)
    async with serving(inhibited, failing) as ports:
        inhibit(ports, 1)
        assert len(await ports.answers(prompt("r"))) == 3
        assert [len(engine.requests) for engine in (failing, inhibited)] == [1, 1]


async def test_a_request_that_another_worker_can_take_leaves_it_alone() -> None:
    inhibited, failing = FakeEngine(worker_id=1), FakeEngine(empty, worker_id=2)
    well = FakeEngine(worker_id=3)
    async with serving(inhibited, failing, well) as ports:
        inhibit(ports, 1)
        for number in range(4):
            assert len(await ports.answers(prompt(f"r{number}"))) == 3
        assert failing.requests and not inhibited.requests


async def test_nobody_is_asked_twice_for_want_of_others() -> None:
    engines = [FakeEngine(empty, worker_id=1), FakeEngine(empty, worker_id=2)]
    async with serving(*engines) as ports:
        inhibit(ports, 1)
        try:
            raise AssertionError(f"it was answered: {await ports.answers(prompt('r'))}")
        except aio.AioRpcError as error:
            assert error.code() is grpc.StatusCode.UNAVAILABLE
        assert [len(engine.requests) for engine in engines] == [1, 1]


async def test_a_request_that_failed_nowhere_leaves_it_alone_though_others_are_too_small() -> None:
    inhibited, small = FakeEngine(worker_id=1), FakeEngine(worker_id=2)
    small.model = pb.GetModelInfoResponse(model_id="fake", vocab_size=1000, max_input_len=1)
    async with serving(inhibited, small) as ports:
        inhibit(ports, 1)
        try:
            raise AssertionError(f"it was answered: {await ports.answers(prompt('r'))}")
        except aio.AioRpcError as error:
            assert error.code() is grpc.StatusCode.UNAVAILABLE
        assert not (inhibited.requests or small.requests)
