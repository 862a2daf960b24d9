"""The listener for Envoy of `serve` and `frontend`: pools, limits and drain are the others'."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from grpc import aio
from grpc_health.v1 import health_pb2, health_pb2_grpc
from support.epp.engine import MODEL, Engine
from support.epp.gateway import Gateway
from support.epp.messages import HEAD, Answered, body, request_headers, response_headers
from support.epp.picking import LISTENS, picked, served_picker, settings
from support.polling import until
from support.servers.discovered_fleet import Backend, backend, registered
from support.servers.model_serving import TINY, ModelClient, model_serving

from dynamo_router.base.errors import ConfigError
from dynamo_router.frontend.config import FrontendConfig, ServeFrontendConfig
from dynamo_router.frontend.epp.exchange import DESTINATION
from dynamo_router.frontend.epp.picker import PATH
from dynamo_router.frontend.serve import new_router
from dynamo_router.router.config import KvRouterConfig
from dynamo_router.router.disagg import DisaggConfig
from dynamo_router.server.caller_limits import CallerLimits
from dynamo_router.server.server_parts import ServerParts
from dynamo_router.workers.records import DiscoveryConfig

__all__ = ["backend"]
COMPLETIONS = "/v1/completions"
PORT = 9100
FOUND = replace(LISTENS, endpoint_port=PORT)


def completion(prompt: Any, model: str = MODEL, **more: Any) -> bytes:
    return json.dumps({"model": model, "prompt": prompt, **more}).encode()


# serve


async def test_serve_counts_what_envoy_carries_with_the_rest(tmp_path: Path) -> None:
    """One pool, whose bookings and limits hold at all listeners."""
    pytest.importorskip("envoy")
    async with Engine() as one, Engine() as other:
        config = ServeFrontendConfig(
            port=0,
            http_port=0,
            frontend=FrontendConfig(http_frontend=0),
            envoy=LISTENS,
            workers=tuple(f"openai+http://{engine.address}" for engine in (one, other)),
            router=KvRouterConfig(block_size=16, use_kv_events=False, seed=1),
            peers=CallerLimits(max_requests=1, max_share_per_caller=1.0),
        )
        parts = ServerParts(config)
        server: Any = new_router(config, parts)
        envoy = None
        try:
            await server.start()
            pool = server.pools.workers
            await until(lambda: len(pool.monitor.ready_clients()) == 2)
            _, _, openai, picker = server.listeners
            envoy = Gateway(tmp_path / "envoy", picker.address, [one.address, other.address])
            await envoy.come_back()
            going = asyncio.Event()
            one.step = other.step = going.wait
            async with aiohttp.ClientSession() as session:
                data = completion([5] * 400, stream=True)
                async with session.post(f"{envoy.url}{COMPLETIONS}", data=data) as answer:
                    router, registry = pool.router, pool.router.registry
                    booked = [router.requests_of(each.worker_id) for each in registry.entries()]
                    assert sorted(booked) == [0, 1]
                    refused = await session.post(
                        f"http://{openai.address}{COMPLETIONS}", data=completion("a")
                    )
                    assert refused.status == 429
                    going.set()
                    assert answer.status == 200 and await answer.read()
                await until(lambda: pool.dispatcher.in_flight == 0)
                (engine,) = (each for each in (one, other) if each.prompts)
                # Its blocks are known at the other listener.
                data = completion([5] * 400)
                async with session.post(f"http://{openai.address}{COMPLETIONS}", data=data):
                    assert len(engine.prompts) == 2
            async with aio.insecure_channel(picker.address) as channel:
                check = health_pb2_grpc.HealthStub(channel).Check
                asked = health_pb2.HealthCheckRequest(service="readiness")
                assert (await check(asked)).status == 1
                server.turn_away()
                assert (await check(asked)).status == 2
        finally:
            if envoy is not None:
                envoy.kill()
            await server.close()


@pytest.mark.parametrize(
    "given",
    [
        {"workers": ("grpc://10.0.0.1:80",)},
        {"workers": ("openai+http://10.0.0.1:80", "grpc://10.0.0.1:80")},
        {"discovery": DiscoveryConfig(discovery="file")},
    ],
)
def test_workers_that_envoy_cannot_call_need_a_frontend(given: Any) -> None:
    with pytest.raises(ConfigError, match="endpoint_port: is needed with ext_proc_port"):
        ServeFrontendConfig(envoy=LISTENS, **given)
    ServeFrontendConfig(envoy=FOUND, **given)
    ServeFrontendConfig(**given)


# frontend


class EnvoyCalls:
    """Of a frontend, as Envoy calls it."""

    def __init__(self, client: ModelClient, channel: Any) -> None:
        self.client, self._channel = client, channel

    async def call(self, data: bytes, path: str = COMPLETIONS) -> tuple[Any, Answered]:
        """See `picked`."""
        return await picked(self._channel, data, path)

    async def sent(self, data: bytes, path: str = COMPLETIONS) -> Answered:
        """What a request's answer is, which ends at once."""
        call, answered = await self.call(data, path)
        if answered.immediate is None:
            await call.write(response_headers(ends=True))
        await call.done_writing()
        while await call.read() is not aio.EOF:
            pass
        return answered

    @property
    def booked(self) -> int:
        pools = (pool.workers for pool in self.client.server.models.pools)
        return sum(
            pool.router.requests_of(each.worker_id)
            for pool in pools
            if pool is not None
            for each in pool.router.registry.entries()
        )


@asynccontextmanager
async def frontend_calls(backend: Backend, **config: Any) -> AsyncIterator[EnvoyCalls]:
    async with model_serving(backend, envoy=FOUND, **config) as client:
        (listener,) = client.server.others
        async with aio.insecure_channel(listener.address) as channel:
            yield EnvoyCalls(client, channel)


async def test_the_model_of_the_body_selects_the_pool(backend: Backend) -> None:
    async with (
        registered(backend, 2, model_id="a", engine=TINY) as of_a,
        registered(backend, 1, model_id="b", engine=TINY) as of_b,
        frontend_calls(backend) as envoy,
    ):
        await envoy.client.until_shares(a=2, b=1)
        for model, fleet in (("a", of_a), ("b", of_b)):
            ids = {str(worker) for worker in fleet.worker_ids}
            for number in range(4):
                answered = await envoy.sent(completion([number] * 100, model))
                assert answered.set_headers[DESTINATION] == f"127.0.0.1:{PORT}"
                assert answered.set_headers["x-dynamo-worker-instance-id"] in ids
                assert answered.set_headers["x-dynamo-routing-mode"] == "aggregated"
        unknown = (await envoy.sent(completion("x", "c"))).immediate
        assert unknown.status.code == 404 and b"model_not_found" in unknown.body
        plain = json.dumps({"model": "b", "input": "x"}).encode()
        for data in (plain, b"{}"):
            answered = await envoy.sent(data, "/v1/embeddings")
            assert answered.set_headers[DESTINATION] == f"127.0.0.1:{PORT}"
        none = json.dumps({"model": "c", "input": "x"}).encode()
        assert (await envoy.sent(none, "/v1/embeddings")).immediate.status.code == 404
        await until(lambda: envoy.booked == 0)


async def test_without_a_model_there_is_no_endpoint(backend: Backend) -> None:
    async with frontend_calls(backend) as envoy:
        assert (await envoy.sent(b"{}", "/v1/embeddings")).immediate.status.code == 503
        assert (await envoy.sent(completion("x"))).immediate.status.code == 404


@pytest.mark.parametrize("dialect", ["trtllm", "dynamo"])
async def test_frontends_of_decode_workers_are_given_the_prefill_worker(
    backend: Backend, dialect: str
) -> None:
    """Both are booked; the prefill worker until the first token."""
    more: dict[str, Any] = {"model_id": "a", "engine": TINY, "dialect": dialect}
    async with (
        registered(backend, 2, disaggregation_mode="prefill", **more) as prefill,
        registered(backend, 2, disaggregation_mode="decode", **more) as decode,
        frontend_calls(backend, disagg=DisaggConfig(disagg="always")) as envoy,
    ):
        await envoy.client.until_shares(a=4)
        call, answered = await envoy.call(completion([3] * 400, "a", stream=True))
        sent_to = answered.set_headers
        assert sent_to["x-dynamo-routing-mode"] == "disaggregated"
        assert int(sent_to["x-dynamo-prefill-instance-id"]) in prefill.worker_ids
        assert sent_to["x-dynamo-prefill-dp-rank"] == "0"
        assert int(sent_to["x-dynamo-worker-instance-id"]) in decode.worker_ids
        assert "x-prefiller-host-port" not in sent_to
        assert envoy.booked == 2
        await call.write(response_headers(headers={"content-type": "text/event-stream"}))
        assert Answered([await call.read()]).kinds["response"] == ["headers"]
        assert envoy.booked == 2, "a frontend answers before the prompt is computed"
        await call.write(body("response_body", b'data: {"choices": []}\n\n'))
        await call.read()
        await until(lambda: envoy.booked == 1)
        await call.write(body("response_body", b"data: [DONE]\n\n", ends=True))
        await call.read()
        await call.done_writing()
        await until(lambda: envoy.booked == 0)


async def test_a_picker_of_its_own_finds_the_prefill_workers_of_a_component(
    backend: Backend,
) -> None:
    more: dict[str, Any] = {"model_id": "a", "engine": TINY}
    config = settings(
        (),
        workers=(),
        discovery=backend.config,
        component="decode",
        prefill_component="prefill",
        endpoint_port=PORT,
        disagg=DisaggConfig(disagg="always"),
    )
    async with (
        registered(backend, 1, component="prefill", disaggregation_mode="prefill", **more) as first,
        registered(backend, 1, component="decode", disaggregation_mode="decode", **more) as then,
        served_picker(config, 1) as server,
    ):
        pools: Any = server.pools
        await until(lambda: pools.prefill.monitor.any_ready)
        listener: Any = server.listeners[0]
        async with aio.insecure_channel(listener.address) as channel:
            call = channel.stream_stream(PATH)()
            await call.write(request_headers(HEAD | {":path": COMPLETIONS}))
            await call.write(body("request_body", completion([3] * 400, "a"), ends=True))
            sent_to = Answered([await call.read()]).set_headers
            assert sent_to["x-dynamo-prefill-instance-id"] == str(first.worker_ids[0])
            assert sent_to["x-dynamo-worker-instance-id"] == str(then.worker_ids[0])
            call.cancel()
        await until(lambda: not (pools.workers.dispatcher.in_flight or pools.prefill.prefills))
