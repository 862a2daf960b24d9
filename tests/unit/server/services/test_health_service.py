"""grpc.health.v1: what clients ask and watch, and clients that do not read what they watch."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import pytest
from grpc import aio
from grpc_health.v1 import health_pb2, health_pb2_grpc
from support.servers import http2_frames as raw
from support.servers.http2_client import RawClient, head_of, listening, raw_client

from dynamo_router.server.services.standard_services import HealthService
from dynamo_router.transport.grpc_methods import served_plainly
from dynamo_router.transport.http2 import ServerLimits

SERVING, NOT_SERVING, SERVICE_UNKNOWN = 1, 2, 3
WATCH = "/grpc.health.v1.Health/Watch"


@asynccontextmanager
async def served() -> AsyncIterator[tuple[HealthService, int]]:
    """No answer may wait for its client beside another one: else it is hard to have one wait."""
    service = HealthService()
    methods = {path: served_plainly(method) for path, method in service.methods.items()}
    async with listening(methods, ServerLimits(send_buffer_bytes=0)) as (_, port):
        yield service, port


def asked(service: str) -> health_pb2.HealthCheckRequest:
    return health_pb2.HealthCheckRequest(service=service)


async def test_states_are_answered_and_watched() -> None:
    async with served() as (service, port):
        async with aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            stub: Any = health_pb2_grpc.HealthStub(channel)  # its methods are made as it is
            assert (await stub.Check(asked(""))).status == SERVING
            with pytest.raises(aio.AioRpcError) as caught:
                await stub.Check(asked("a.B"))
            assert caught.value.code() is grpc.StatusCode.NOT_FOUND
            watching = stub.Watch(asked("a.B"))
            assert (await watching.read()).status == SERVICE_UNKNOWN
            for serving, state in ((True, SERVING), (False, NOT_SERVING), (True, SERVING)):
                service.set("a.B", serving=serving)
                service.set("a.B", serving=serving)  # which is no news
                assert (await watching.read()).status == state
            service.shut_down()
            service.set("a.B", serving=True)
            assert (await watching.read()).status == NOT_SERVING
            assert (await stub.Check(asked("a.B"))).status == NOT_SERVING
            watching.cancel()


async def test_a_client_that_does_not_read_what_it_watches_holds_up_no_other() -> None:
    """Its window has room for nothing; neither for whoever sets a state, nor for the drain."""
    async with served() as (service, port), raw_client(port) as silent:
        silent.greet((raw.INITIAL_WINDOW_SIZE, 0))
        body = raw.message(asked("a.B").SerializeToString())
        silent.send(raw.headers(1, head_of(WATCH)), raw.data(1, body, end=True))
        await silent.until(raw.HEADERS, stream=1)
        async with aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            stub: Any = health_pb2_grpc.HealthStub(channel)  # its methods are made as it is
            watching = stub.Watch(asked("a.B"))
            assert (await watching.read()).status == SERVICE_UNKNOWN
            service.set("a.B", serving=True)
            assert (await watching.read()).status == SERVING
            assert (await stub.Check(asked("a.B"))).status == SERVING
            watching.cancel()
        service.shut_down()
        # What is the newest when it reads is all that it gets.
        silent.send(raw.window_update(1, 1 << 16))
        await until_state(silent, NOT_SERVING)


async def until_state(client: RawClient, state: int) -> None:
    response = health_pb2.HealthCheckResponse()
    response.status = state  # type: ignore[assignment]
    wanted = raw.message(response.SerializeToString())
    async with asyncio.timeout(60):
        while wanted not in client.got:
            await client.read()
