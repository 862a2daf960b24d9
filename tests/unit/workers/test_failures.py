"""The table of failures, and where gRPC's statuses come from, held against a real gRPC."""

import asyncio

import pytest
from support.adversity.fault_proxy import FaultProxy
from support.fake_engine import FakeEngine, Script, chunk, fail, hang, pb, prompt
from support.polling import closed_after, until

from dynamo_router.base.errors import StatusCode
from dynamo_router.workers.failures import (
    MAX_DETAILS,
    Blame,
    EngineCallError,
    Origin,
    Retry,
    Verdict,
    judge,
    origin_of,
    shortened,
)
from dynamo_router.workers.trtllm_client import TrtllmClient


@pytest.mark.parametrize(
    "code",
    [
        StatusCode.FAILED_PRECONDITION,
        StatusCode.UNIMPLEMENTED,
        StatusCode.PERMISSION_DENIED,
        StatusCode.INTERNAL,
    ],
)
def test_what_may_be_the_requests_or_the_workers_fault_gets_one_more_opinion(
    code: StatusCode,
) -> None:
    assert judge(Origin.ENGINE, code, started=False) == Verdict(
        Blame.EITHER, Retry.ONCE, code.name.lower()
    )


@pytest.mark.parametrize(
    ("origin", "code", "verdict"),
    [
        (Origin.ENGINE, StatusCode.UNAVAILABLE, Verdict(Blame.EITHER, Retry.YES, "unavailable")),
        (Origin.ENGINE, StatusCode.CANCELLED, Verdict(Blame.EITHER, Retry.YES, "cancelled")),
        (
            Origin.ENGINE,
            StatusCode.RESOURCE_EXHAUSTED,
            Verdict(Blame.OVERLOAD, Retry.YES, "resource_exhausted"),
        ),
        (
            Origin.ENGINE,
            StatusCode.INVALID_ARGUMENT,
            Verdict(Blame.REQUEST, Retry.ONCE, "invalid_argument"),
        ),
        (Origin.EMPTY, StatusCode.OK, Verdict(Blame.WORKER, Retry.YES, "empty")),
        (
            Origin.ANSWER_SIZE,
            StatusCode.RESOURCE_EXHAUSTED,
            Verdict(Blame.REQUEST, Retry.ONCE, "answer_too_large"),
        ),
        (
            Origin.TRANSPORT,
            StatusCode.UNAVAILABLE,
            Verdict(Blame.TRANSPORT, Retry.YES, "connection_lost"),
        ),
        (Origin.DEADLINE, StatusCode.DEADLINE_EXCEEDED, Verdict(Blame.SLOW, Retry.NO, "deadline")),
        (Origin.ROUTER, StatusCode.INTERNAL, Verdict(Blame.US, Retry.ONCE, "router_fault")),
    ],
)
def test_whose_fault_it_is(origin: Origin, code: StatusCode, verdict: Verdict) -> None:
    assert judge(origin, code, started=False) == verdict


@pytest.mark.parametrize("origin", Origin)
@pytest.mark.parametrize("code", StatusCode)
def test_nothing_that_has_started_is_tried_again(origin: Origin, code: StatusCode) -> None:
    before, after = judge(origin, code, started=False), judge(origin, code, started=True)
    assert after.retry is Retry.NO and after.cause == before.cause
    assert after.blame in (before.blame, Blame.CLIENT)


def test_a_deadline_in_mid_stream_is_the_clients_own() -> None:
    assert judge(Origin.DEADLINE, StatusCode.DEADLINE_EXCEEDED, started=True).blame is Blame.CLIENT


def test_long_texts_are_cut() -> None:
    assert shortened("x" * MAX_DETAILS) == "x" * MAX_DETAILS
    cut = shortened("x" * (MAX_DETAILS + 1))
    assert len(cut) == MAX_DETAILS and cut.endswith("x ...")


@pytest.mark.parametrize(
    "said",
    [
        "queue is full",
        "the prompt says: CLIENT: Received message larger than max (5 vs. 4)",
        "CLIENT: Received message larger than max",
    ],
)
def test_an_engines_own_words_are_not_taken_for_grpcs(said: str) -> None:
    assert origin_of(StatusCode.RESOURCE_EXHAUSTED, said, connected=True) is Origin.ENGINE


async def _large(engine: FakeEngine, request: object, context: object):  # type: ignore[no-untyped-def]
    yield pb.GenerateResponse(request_id="x" * (33 << 20))


async def _raises(engine: FakeEngine, request: object, context: object):  # type: ignore[no-untyped-def]
    raise ValueError("boom")
    yield


@pytest.mark.parametrize(
    ("script", "origin"),
    [
        (fail(StatusCode.UNAVAILABLE, "not now"), Origin.ENGINE),
        (fail(StatusCode.CANCELLED, "no more"), Origin.ENGINE),
        (fail(StatusCode.RESOURCE_EXHAUSTED, "queue is full"), Origin.ENGINE),
        (fail(StatusCode.INTERNAL, "x" * 4000), Origin.ENGINE),
        (fail(StatusCode.INTERNAL, "x" * 20_000), Origin.STATUS_SIZE),
        (_large, Origin.ANSWER_SIZE),
        (_raises, Origin.ENGINE),
    ],
)
async def test_statuses_of_a_real_engine(script: Script, origin: Origin) -> None:
    async with FakeEngine(script) as engine:
        async with closed_after(TrtllmClient(engine.address)) as client:
            assert await _origin(client) is origin


async def test_a_request_that_is_too_large_does_not_leave() -> None:
    async with FakeEngine() as engine:
        async with closed_after(TrtllmClient(engine.address)) as client:
            assert await _origin(client, bytes(33 << 20)) is Origin.REQUEST_SIZE
            assert not engine.requests


@pytest.mark.parametrize("method", ["check_health", "describe"])
async def test_a_question_ends_with_the_task_that_asks_it(method: str) -> None:
    async with FakeEngine() as engine:
        engine.deaf = asyncio.Event()
        async with closed_after(TrtllmClient(engine.address)) as client:
            asking = asyncio.create_task(getattr(client, method)(timeout=60))
            await until(lambda: engine.questions)
            asking.cancel()
            await until(lambda: not engine.questions)


@pytest.mark.parametrize("method", ["check_health", "describe"])
@pytest.mark.parametrize("turns", [0, 1, 2])
async def test_a_question_may_be_given_up_before_it_is_asked(method: str, turns: int) -> None:
    """No part of it is left that was made and never awaited."""
    async with FakeEngine() as engine:
        async with closed_after(TrtllmClient(engine.address)) as client:
            asking = asyncio.create_task(getattr(client, method)(timeout=60))
            for _ in range(turns):
                await asyncio.sleep(0)
            asking.cancel()
            await asyncio.gather(asking, return_exceptions=True)


async def test_an_engine_that_is_not_there() -> None:
    engine = await FakeEngine().start()
    await engine.stop()
    async with closed_after(TrtllmClient(engine.address)) as client:
        assert await _origin(client) is Origin.CONNECT


async def test_an_engine_that_stops_under_a_request() -> None:
    async with FakeEngine(hang) as engine:
        async with closed_after(TrtllmClient(engine.address)) as client:
            waiting = asyncio.create_task(_origin(client))
            await until(lambda: engine.requests)
            await engine.stop()
            assert await waiting is Origin.TRANSPORT


BREAKS = {
    "cut": lambda proxy: proxy.cut(),
    "too long a frame": lambda proxy: proxy.inject("down", b"\xff" * 64),
    "a frame out of place": lambda proxy: proxy.inject("down", bytes(64)),
    "what the engine cannot read": lambda proxy: proxy.inject("up", b"\xff" * 64),
}


@pytest.mark.parametrize("how", BREAKS)
@pytest.mark.parametrize("answers", [True, False])
async def test_a_connection_that_breaks_under_a_request(how: str, answers: bool) -> None:
    async def script(engine, request, context):  # type: ignore[no-untyped-def]
        if answers:
            yield chunk(request, 1)
        engine.go.set()
        await asyncio.Event().wait()
        yield

    async with FakeEngine(script) as engine:
        proxy = FaultProxy(engine.port)
        await proxy.start()
        client = TrtllmClient(proxy.address)
        try:
            waiting = asyncio.create_task(_origin(client))
            await engine.go.wait()
            BREAKS[how](proxy)
            assert await waiting is Origin.TRANSPORT
        finally:
            await client.close()
            await proxy.close()


async def _origin(client: TrtllmClient, body: bytes | None = None) -> Origin:
    call = client.generate(body or prompt("x").SerializeToString(), timeout=10)
    try:
        async for _ in call:
            pass
    except EngineCallError as error:
        return error.origin
    raise AssertionError("the call went well")
