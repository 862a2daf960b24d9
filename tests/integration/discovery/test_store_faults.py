"""The store and the event plane killed, emptied, paused and compacted: requests go on, and all is
as it was soon after."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from support.polling import until
from support.servers.discovered_fleet import (
    Backend,
    backend_of,
    completed,
    finding,
    registered,
    until_ready,
)
from support.servers.etcd import EtcdServer
from support.serving import Doors

from dynamo_router.workers.mocker.fleet import MockFleet

WORKERS = 4
TTL_S = 2.0


@pytest.fixture(params=["etcd", "nats"])
def backend(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Backend]:
    with backend_of(request.param, tmp_path) as found:
        for name, value in found.environ.items():
            monkeypatch.setenv(name, value)
        yield found


class Load:
    """Requests one after the other; the first that fails ends it."""

    def __init__(self, doors: Doors, name: str) -> None:
        self._doors, self._name = doors, name
        self.done = 0
        self.task = asyncio.create_task(self._run())

    async def more(self, count: int = 10) -> None:
        """Return once so many further requests were answered."""
        wanted = self.done + count
        await until(lambda: self.task.done() or self.done >= wanted)
        if self.task.done():
            await self.task

    async def _run(self) -> None:
        while True:
            await completed(self._doors, f"{self._name} {self.done}", 40 + self.done % 3)
            self.done += 1


@asynccontextmanager
async def loaded(backend: Backend, dialect: str) -> AsyncIterator[tuple[Doors, MockFleet, Load]]:
    async with (
        finding(backend) as doors,
        registered(backend, WORKERS, dialect=dialect, lease_ttl_s=TTL_S) as fleet,
    ):
        await until_ready(doors, WORKERS)
        load = Load(doors, backend.kind)
        try:
            await load.more()
            yield doors, fleet, load
            await until(lambda: complete(fleet), 10 * TTL_S)
            await until_ready(doors, WORKERS, 10 * TTL_S)
            await load.more()
        finally:
            load.task.cancel()
            await asyncio.wait([load.task])


def complete(fleet: MockFleet) -> bool:
    """Whether the store has all that the engines wrote, as far as they know."""
    registrations = [engine.registration for engine in fleet.engines]
    return all(known is not None and known.complete for known in registrations)


@pytest.mark.parametrize("dialect", ["trtllm", "dynamo"])
async def test_requests_go_on_while_the_store_is_away(backend: Backend, dialect: str) -> None:
    assert backend.server is not None
    async with loaded(backend, dialect) as (_, fleet, load):
        backend.server.kill()
        await load.more()
        await until(lambda: not complete(fleet), 10 * TTL_S)
        await load.more()
        await backend.server.come_back()


async def test_requests_go_on_while_the_store_is_paused(backend: Backend) -> None:
    assert backend.server is not None
    async with loaded(backend, "trtllm") as (_, fleet, load):
        backend.server.pause()
        try:
            await until(lambda: not complete(fleet), 10 * TTL_S)
            await load.more(30)
        finally:
            backend.server.resume()


async def test_requests_go_on_when_the_store_forgot_everybody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with backend_of("etcd", tmp_path) as backend:
        monkeypatch.setenv("ETCD_ENDPOINTS", backend.environ["ETCD_ENDPOINTS"])
        etcd = backend.server
        assert isinstance(etcd, EtcdServer)
        async with loaded(backend, "trtllm") as (_, fleet, load):
            etcd.kill()
            etcd.lose_data()
            await etcd.come_back()
            await load.more(30)


async def test_a_compaction_under_the_watch_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with backend_of("etcd", tmp_path) as backend:
        monkeypatch.setenv("ETCD_ENDPOINTS", backend.environ["ETCD_ENDPOINTS"])
        etcd = backend.server
        assert isinstance(etcd, EtcdServer)
        async with loaded(backend, "trtllm") as (doors, _, load):
            for number in range(3):
                await asyncio.to_thread(etcd.control, "put", "elsewhere", str(number))
            await asyncio.to_thread(etcd.control, "compact", "4")
            async with registered(backend, 1):
                await until_ready(doors, WORKERS + 1)
                await load.more()
