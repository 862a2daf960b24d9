"""The store and the event plane killed, emptied, paused and compacted: requests go on, and all is
as it was soon after."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

import pytest
from support.polling import until
from support.servers.discovered_fleet import (
    Backend,
    all_registered,
    complete_one,
    finding,
    on_stores,
    registered,
    until_ready,
)
from support.servers.etcd import EtcdServer
from support.servers.request_load import RequestLoad, request_load
from support.serving import Ports

from dynamo_router.engines.mocker.fleet import MockFleet

WORKERS = 4
TTL_S = 4.0


@asynccontextmanager
async def loaded(
    backend: Backend, dialect: str
) -> AsyncIterator[tuple[Ports, MockFleet, RequestLoad]]:
    async with (
        finding(backend) as ports,
        registered(backend, WORKERS, dialect=dialect, lease_ttl_s=TTL_S) as fleet,
    ):
        await until_ready(ports, WORKERS)
        async with request_load(partial(complete_one, ports, backend.kind)) as load:
            yield ports, fleet, load
            await until(lambda: all_registered(fleet), 10 * TTL_S)
            await until_ready(ports, WORKERS, 10 * TTL_S)


@on_stores("etcd", "nats")
@pytest.mark.parametrize("dialect", ["trtllm", "dynamo"])
async def test_requests_go_on_while_the_store_is_away(backend: Backend, dialect: str) -> None:
    assert backend.server is not None
    async with loaded(backend, dialect) as (_, fleet, load):
        backend.server.kill()
        await load.more()
        await until(lambda: not all_registered(fleet), 10 * TTL_S)
        await load.more()
        await backend.server.come_back()


@on_stores("etcd", "nats")
async def test_requests_go_on_while_the_store_is_paused(backend: Backend) -> None:
    assert backend.server is not None
    async with loaded(backend, "trtllm") as (_, fleet, load):
        backend.server.pause()
        try:
            await until(lambda: not all_registered(fleet), 10 * TTL_S)
            await load.more(30)
        finally:
            backend.server.resume()


@on_stores("etcd")
async def test_requests_go_on_when_the_store_forgot_everybody(backend: Backend) -> None:
    etcd = backend.server
    assert isinstance(etcd, EtcdServer)
    async with loaded(backend, "trtllm") as (_, fleet, load):
        etcd.kill()
        etcd.lose_data()
        await etcd.come_back()
        await load.more(30)


@on_stores("etcd")
async def test_a_compaction_under_the_watch_changes_nothing(backend: Backend) -> None:
    etcd = backend.server
    assert isinstance(etcd, EtcdServer)
    async with loaded(backend, "trtllm") as (ports, _, load):
        for number in range(3):
            await asyncio.to_thread(etcd.control, "put", "elsewhere", str(number))
        await asyncio.to_thread(etcd.control, "compact", "4")
        async with registered(backend, 1):
            await until_ready(ports, WORKERS + 1)
            await load.more()
