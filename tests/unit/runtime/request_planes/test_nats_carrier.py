"""Requests over NATS: found by subject, answered over TCP, on when NATS comes back."""

import asyncio
import json
from base64 import b64decode
from collections.abc import AsyncIterator
from typing import Any

import pytest
from support.places import VECTORS
from support.polling import until
from support.servers.jetstream import JetStreamServer

from dynamo_router.runtime import DistributedRuntime
from dynamo_router.runtime.kv_stores import MemoryStore, NatsAddress
from dynamo_router.runtime.request_planes import (
    Fault,
    NatsCarrier,
    RequestClient,
    RequestContext,
    RequestError,
    RequestServer,
)
from dynamo_router.runtime.request_planes.messages import (
    decode_request_message,
    encode_request_message,
)

pytestmark = pytest.mark.usefixtures("leaves_nothing")
SUBJECT = "dynamo_backend.generate-7f"


async def count(body: Any, context: RequestContext) -> AsyncIterator[object]:
    for number in range(body["n"]):
        yield number


@pytest.fixture
async def server(jetstream: JetStreamServer) -> AsyncIterator[RequestServer]:
    answers, carrier = RequestServer(), NatsCarrier(NatsAddress(jetstream.url))
    answers.add("7f", count)
    await carrier.serve(SUBJECT, lambda subject, payload: answers.take("7f", payload))
    await carrier.serve("refused", lambda subject, payload: "Server overloaded: full")
    yield answers
    await carrier.close()
    await answers.close()


@pytest.fixture
async def client(jetstream: JetStreamServer) -> AsyncIterator[RequestClient]:
    running = RequestClient({"nats_tcp": NatsCarrier(NatsAddress(jetstream.url))})
    await running.start()
    yield running
    await running.close()


async def ask(client: RequestClient, subject: str, body: Any) -> list[Any]:
    async with asyncio.timeout(60):
        return [part async for part in client.stream(subject, body, transport="nats_tcp")]


async def test_failures_are_told_apart(server: RequestServer, client: RequestClient) -> None:
    for subject, body, fault in (
        ("nobody.there-1", {}, Fault.UNREACHABLE),
        ("refused", {}, Fault.OVERLOADED),
        (SUBJECT, {"n": 1, "prompt": "x" * (2 << 20)}, Fault.TOO_LARGE),
    ):
        with pytest.raises(RequestError) as caught:
            await ask(client, subject, body)
        assert caught.value.fault is fault


async def test_it_goes_on_when_nats_comes_back(
    jetstream: JetStreamServer, server: RequestServer, client: RequestClient
) -> None:
    assert await ask(client, SUBJECT, {"n": 2}) == [0, 1]
    jetstream.kill()
    await jetstream.come_back()

    async def answered() -> bool:
        try:
            return await ask(client, SUBJECT, {"n": 2}) == [0, 1]
        except RequestError as error:
            assert error.fault in (Fault.UNREACHABLE, Fault.SILENT)
            return False

    await until(answered, 60.0)


async def test_a_server_that_closed_is_known_to_be_gone(
    jetstream: JetStreamServer, client: RequestClient
) -> None:
    assert await _reached(client) is Fault.UNREACHABLE
    for _ in range(30):
        carrier = NatsCarrier(NatsAddress(jetstream.url))
        await carrier.serve(SUBJECT, lambda subject, payload: "Server overloaded: full")
        assert await _reached(client) is Fault.OVERLOADED
        await carrier.close()
        assert await _reached(client) is Fault.UNREACHABLE


async def _reached(client: RequestClient) -> Fault:
    with pytest.raises(RequestError) as caught:
        await ask(client, SUBJECT, {})
    return caught.value.fault


def test_a_recorded_request_is_read_and_written() -> None:
    recorded = json.loads((VECTORS / "request_plane" / "nats_request.json").read_text())
    data = b64decode(recorded["messages"][0]["data"])
    message = decode_request_message(data)
    assert message.body == recorded["decoded"]["body"]
    home = message.call_home
    assert data == encode_request_message(
        message.id, home.address, home.subject, message.body, message.codec, {}
    )


async def test_a_runtime_may_be_called_over_nats(jetstream: JetStreamServer) -> None:
    store, address = MemoryStore(), NatsAddress(jetstream.url)
    worker = DistributedRuntime(store, nats=address, request_plane="nats")
    worker.endpoint("dynamo.backend.generate")(count)
    async with worker, DistributedRuntime(store, nats=address) as caller:
        (instance,) = await caller.instances()
        assert instance.transport == "nats_tcp"
        assert instance.address == f"dynamo_backend.generate-{worker.instance_id:x}"
        client = await caller.client("dynamo.backend.generate")
        await until(lambda: client.instances)
        assert [part async for part in client.random({"n": 3})] == [0, 1, 2]
    async with DistributedRuntime(store) as other:
        assert (await other.client("dynamo.backend.generate")).instances == {}
