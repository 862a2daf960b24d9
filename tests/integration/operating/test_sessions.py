"""Sessions that stay with their workers: over gRPC, through the frontend, with several routers."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any

import grpc
import pytest
from grpc import aio
from support.calls import messages_of
from support.fake_engine import FakeEngine, answer, fail, prompt
from support.free_port import free_port
from support.polling import until
from support.servers.openai_serving import openai_serving
from support.serving import BLOCK, Ports, serving

from dynamo_router.router.affinity import AffinityConfig
from dynamo_router.router.config import KvRouterConfig
from dynamo_router.router.proto import router_pb2
from dynamo_router.runtime.event_planes import EmbeddedNats
from dynamo_router.workers.trtllm_client import WORKER_ID_KEY
from dynamo_router.workers.trtllm_proto import SERVICE

AFFINITY = AffinityConfig(session_affinity_ttl_secs=60.0)


def config(**more: Any) -> KvRouterConfig:
    settings = {"mode": "round-robin", "affinity": AFFINITY, **more}
    return KvRouterConfig(block_size=BLOCK, use_kv_events=False, seed=1, **settings)


async def worker_of(ports: Ports, name: str, session: str | None, **more: str) -> int:
    """The worker that answers a request of a session."""
    call = ports.channel.unary_stream(f"/{SERVICE}/Generate", None, None)
    metadata = [(key.replace("_", "-"), value) for key, value in more.items()]
    if session is not None:
        metadata.append(("x-session-id", session))
    made = call(prompt(name).SerializeToString(), metadata=metadata)
    assert len(await messages_of(made)) == 3
    trailing = {key: value for key, value in await made.trailing_metadata()}
    return int(trailing[WORKER_ID_KEY])


@pytest.fixture
def engines() -> list[FakeEngine]:
    return [FakeEngine(worker_id=number) for number in (1, 2, 3)]


async def test_a_session_stays_and_the_others_go_round(engines: list[FakeEngine]) -> None:
    async with serving(*engines, router=config()) as ports:
        first = await worker_of(ports, "a", "s")
        assert {await worker_of(ports, f"b{n}", "s") for n in range(6)} == {first}
        assert {await worker_of(ports, f"c{n}", None) for n in range(6)} == {1, 2, 3}
        _, told = await ports.http("GET", "/workers")
        rows = told["workers"] if isinstance(told, dict) else told
        assert {row["worker_id"]: row["sessions"] for row in rows}[first] == 1
        metrics = await ports.metrics()
        assert metrics["dynamo_router_sessions"] == 1
        assert metrics['dynamo_router_session_requests_total{outcome="new"}'] == 1
        assert metrics['dynamo_router_session_requests_total{outcome="kept"}'] == 6
        await worker_of(ports, "d", "s", x_dynamo_session_final="true")
        await ports.shows("dynamo_router_sessions", 0)


async def test_a_worker_that_failed_or_left_loses_its_sessions(engines: list[FakeEngine]) -> None:
    async with serving(*engines, router=config()) as ports:
        first = await worker_of(ports, "a", "s")
        engines[first - 1].script = fail(grpc.StatusCode.UNAVAILABLE, "gone for a moment")
        second = await worker_of(ports, "b", "s")  # tried again elsewhere
        engines[first - 1].script = answer
        assert second != first and await worker_of(ports, "c", "s") == second
        assert await ports.server.monitor.remove(engines[second - 1].url)
        third = await worker_of(ports, "d", "s")
        assert third != second
        metrics = await ports.metrics()
        assert metrics['dynamo_router_session_requests_total{outcome="moved"}'] == 1
        assert metrics['dynamo_router_session_requests_total{outcome="new"}'] == 2


async def test_selections_and_explanations_have_sessions_too(engines: list[FakeEngine]) -> None:
    async with serving(*engines, router=config()) as ports:
        request = router_pb2.SelectWorkerRequest(token_ids=range(1, 40))
        metadata = [("x-dynamo-session-id", "s")]
        chosen = {
            (await ports.select.SelectWorker(request, metadata=metadata)).worker.worker_id
            for _ in range(4)
        }
        assert len(chosen) == 1
        explain = router_pb2.ExplainRequest(token_ids=range(1, 40))
        told = await ports.select.Explain(explain, metadata=metadata)
        assert [worker.worker_id for worker in told.cheapest] == list(chosen)
        other = next(n for n in (1, 2, 3) if n not in chosen)
        request.allowed_worker_ids.append(other)
        moved = await ports.select.SelectWorker(request, metadata=metadata)
        assert moved.worker.worker_id == other
        with pytest.raises(aio.AioRpcError) as refused:
            await ports.select.SelectWorker(request, metadata=[("x-session-id", "x" * 300)])
        assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT


async def test_the_frontend_takes_headers_and_session_control(engines: list[FakeEngine]) -> None:
    more = {"router": config()}
    async with openai_serving(*engines, **more) as served:

        async def ask(headers: Any = None, **control: Any) -> tuple[int, Any]:
            nvext: dict[str, Any] = {"extra_fields": ["worker_id"]}
            if control:
                nvext["session_control"] = control
            body = {"model": "tiny", "prompt": "hello", "max_tokens": 2, "nvext": nvext}
            status, told = await served.post("/v1/completions", body, headers=headers or {})
            if status != 200:
                return status, told
            return status, told["nvext"]["worker_id"]["decode_worker_id"]

        _, first = await ask(session_id="s", action="open", timeout=30)
        for _ in range(4):
            assert await ask(session_id="s") == (200, first)
            assert await ask({"thread-id": "s"}) == (200, first)
        assert len(served.server.router.sessions) == 1
        # Of callers without a name each address has a share of its own.
        assert set(served.server.router.sessions.table._owned) == {"127.0.0.1"}
        assert await ask(session_id="s", action="close") == (200, first)
        assert len(served.server.router.sessions) == 0
        assert (await ask(session_id="s", action="begin"))[0] == 400
        assert (await ask(session_id="s", timeout=-1))[0] == 400


@pytest.fixture
async def nats() -> AsyncIterator[EmbeddedNats]:
    async with EmbeddedNats(free_port()) as server:
        yield server


async def test_two_routers_send_a_session_to_the_same_worker(
    engines: list[FakeEngine], nats: EmbeddedNats
) -> None:
    async with AsyncExitStack() as stack:
        for engine in engines:
            await stack.enter_async_context(engine)
        shared = config(router_replica_sync=True)
        urls = tuple(engine.url for engine in engines)
        one, two = [
            await stack.enter_async_context(serving(nats=nats.url, workers=urls, router=shared))
            for _ in range(2)
        ]
        homes = {f"s{n}": await worker_of(one, f"a{n}", f"s{n}") for n in range(5)}
        await until(lambda: len(two.server.router.sessions) == 5)
        for session, worker_id in homes.items():
            assert await worker_of(two, f"b{session}", session) == worker_id
        three = await stack.enter_async_context(serving(nats=nats.url, workers=urls, router=shared))
        await until(lambda: len(three.server.router.sessions) == 5)
        for session, worker_id in homes.items():
            assert await worker_of(three, f"c{session}", session) == worker_id
