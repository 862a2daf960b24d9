"""Runtimes while their store is away: requests go on without an error, and all find back."""

import asyncio
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from support.polling import until
from support.servers.child import Child
from support.servers.etcd import EtcdServer, start_cluster
from support.servers.jetstream import JetStreamServer

from dynamo_router.base.clock import ManualClock
from dynamo_router.base.errors import NoWorkersError
from dynamo_router.runtime import DistributedRuntime
from dynamo_router.runtime.components import Client, EndpointName
from dynamo_router.runtime.kv_stores import (
    EtcdConfig,
    EtcdStore,
    KeyValueStore,
    MemoryStore,
    NatsAddress,
    NatsStore,
)
from dynamo_router.runtime.request_planes import RequestClient, RequestContext, RequestServer

pytestmark = pytest.mark.usefixtures("leaves_no_task")
THOROUGH = os.environ.get("HYPOTHESIS_PROFILE") == "thorough"
LEASE_TTL_S, PAUSE_S = (10.0, 30.0) if THOROUGH else (2.0, 4.0)
"""A pause is longer than a lease."""
NAME = "dynamo.backend.generate"
Servers = list[Any]
Outage = Callable[[Servers], Awaitable[None]]


async def restarted(servers: Servers) -> None:
    for server in servers:
        server.kill()
    for server in servers:
        server.launch()
    await until(lambda: all(server.ready() for server in servers), 60.0)


async def paused(servers: Servers) -> None:
    for server in servers:
        server.pause()
    end = time.monotonic() + PAUSE_S
    await until(lambda: time.monotonic() >= end, 2 * PAUSE_S)
    for server in servers:
        server.resume()


async def leaders_lost(servers: Servers) -> None:
    """Each member is gone once: one of them leads."""
    for server in servers:
        server.kill()
        await server.come_back()


async def compacted_while_away(servers: Servers) -> None:
    (server,) = servers
    for number in range(20):
        server.control("put", "other", str(number))
    revision = server.control("get", "other", "-w", "fields").split('"Revision" : ')[1].split()[0]
    server.kill()
    await server.come_back()
    server.control("compact", revision)


def etcd(folder: Path) -> tuple[Servers, Callable[[], KeyValueStore]]:
    server = EtcdServer(folder)
    server.start()
    return [server], lambda: EtcdStore(EtcdConfig((server.url,)))


def cluster(folder: Path) -> tuple[Servers, Callable[[], KeyValueStore]]:
    servers = start_cluster(folder)
    return [*servers], lambda: EtcdStore(EtcdConfig(tuple(server.url for server in servers)))


def nats(folder: Path) -> tuple[Servers, Callable[[], KeyValueStore]]:
    server = JetStreamServer(folder)
    server.start()
    return [server], lambda: NatsStore(NatsAddress(server.url))


@pytest.mark.parametrize(
    ("open_servers", "outage"),
    [
        (etcd, restarted),
        (etcd, paused),
        (etcd, compacted_while_away),
        (cluster, leaders_lost),
        (cluster, paused),
        (nats, restarted),
        (nats, paused),
    ],
)
async def test_requests_go_on_and_all_are_found_again(
    tmp_path: Path, open_servers: Any, outage: Outage
) -> None:
    servers, open_client = open_servers(tmp_path)
    try:
        async with AsyncExitStack() as stack:
            workers = []
            for _ in range(2):
                workers.append(DistributedRuntime(open_client(), lease_ttl_s=LEASE_TTL_S))
                workers[-1].endpoint(NAME)(answer)
                await stack.enter_async_context(workers[-1])
            caller = DistributedRuntime(open_client(), lease_ttl_s=LEASE_TTL_S)
            await stack.enter_async_context(caller)
            client = await caller.client(NAME)
            await until(lambda: len(client.instances) == 2)
            over = asyncio.Event()
            asking = asyncio.create_task(ask_all_the_while(client, over))
            await outage(servers)

            async def registered_and_seen() -> bool:
                return len(await listed(caller)) == 2 == len(client.instances)

            await until(registered_and_seen, 6 * LEASE_TTL_S + 30)
            over.set()
            await asking
            assert {instance.instance_id for instance in await listed(caller)} == {
                worker.instance_id for worker in workers
            }
    finally:
        for server in servers:
            assert isinstance(server, Child)
            server.kill()


async def answer(body: Any, context: RequestContext) -> AsyncIterator[object]:
    yield body


async def ask_all_the_while(client: Client, over: asyncio.Event) -> None:
    """Requests until it is over, and ten in any case; an error of one of them is raised."""
    count = 0
    while count < 10 or not over.is_set():
        assert [part async for part in client.round_robin(count)] == [count]
        count += 1
        await asyncio.sleep(0.01)


async def listed(runtime: DistributedRuntime) -> list[Any]:
    try:
        return await runtime.instances()
    except Exception:  # not back yet
        return []


async def test_who_lost_its_key_and_lives_is_asked_for_a_while() -> None:
    """Only while there is nobody else."""
    store, clock, plane = MemoryStore(), ManualClock(), RequestClient()
    server = RequestServer()
    await server.start()
    server.add("x", answer)
    await plane.start()
    client = Client(EndpointName.parse(NAME), plane, store, clock=clock)
    await client.start()
    bucket, key = store.bucket("v1/instances"), "dynamo/backend/generate/7"
    value = b'{"transport":{"tcp":"127.0.0.1:%d/x"},"request_plane_codec":"json"}' % server.port
    await bucket.put(key, value)
    await until(lambda: client.instances)
    await bucket.delete(key)
    await until(lambda: not client.instances)
    assert [part async for part in client.random({"a": 1})] == [{"a": 1}]
    clock.advance(20.0)
    with pytest.raises(NoWorkersError, match="no instance serves"):
        await anext(client.random({}))
    await bucket.put(key, value)
    await until(lambda: client.instances)
    await bucket.delete(key)
    await until(lambda: not client.instances)
    await server.close()
    with pytest.raises(NoWorkersError, match="no instance serves"):  # it was gone for good
        await anext(client.random({}))
    await client.close()
    await plane.close()
