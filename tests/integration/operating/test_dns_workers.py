"""Workers behind a DNS name: each address one, followed as it changes."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from support.fake_engine import FakeEngine
from support.polling import closed_after, until
from support.security.certificates import Authority
from support.serving import ServedRouter

from dynamo_router.base.clock import SystemClock
from dynamo_router.base.errors import ConfigError
from dynamo_router.engines.mocker.config import EngineConfig, MockerConfig
from dynamo_router.engines.mocker.fleet import MockFleet
from dynamo_router.router.config import KvRouterConfig
from dynamo_router.router.kv_router import KvRouter
from dynamo_router.server.admin import WorkerAdmin, WorkerList
from dynamo_router.server.config import ServeConfig
from dynamo_router.transport.security import ClientTls, ServerTls, ServerTlsConfig, WorkerTlsConfig
from dynamo_router.workers.health import HealthMonitor
from dynamo_router.workers.registry import WorkerState
from dynamo_router.workers.worker_url import WorkerName

BLOCK = 16


class Dns:
    """Answers lookups with what a test says, and counts them."""

    def __init__(self, **names: list[str]) -> None:
        self.names = names
        self.asked = 0

    async def __call__(self, name: WorkerName) -> list[str]:
        self.asked += 1
        if name.host not in self.names:
            raise OSError(f"no such name: {name.host}")
        return self.names[name.host]

    async def settled(self) -> None:
        """Whatever it answers now was heard, twice over."""
        asked = self.asked
        await until(lambda: self.asked >= asked + 4)


class Rig:
    """A list of workers over two engines of one port, at 127.0.0.1 and 127.0.0.2."""

    def __init__(self, dns: Dns, tls: ClientTls | None = None) -> None:
        config = KvRouterConfig(mode="round-robin", use_kv_events=False, block_size=BLOCK)
        self.router, self.dns = KvRouter(config), dns
        clock = SystemClock()
        self.monitor = HealthMonitor(self.router.registry, clock, block_size=BLOCK, tls=tls)
        self.admin = WorkerAdmin(
            self.monitor, clock, booked=self.router.requests_of, unbooked=lambda worker_id: 0
        )
        self.list = WorkerList(self.admin, self.monitor, refresh_s=0.02, resolve=dns)

    async def close(self) -> None:
        await self.list.close()
        await self.admin.close()
        await self.monitor.close()
        self.router.close()

    @property
    def states(self) -> dict[str | None, str]:
        return {entry.address: entry.state.value for entry in self.router.registry.entries()}

    async def until_ready(self, *engines: FakeEngine) -> None:
        await until(lambda: self.states == {engine.address: "ready" for engine in engines})


@asynccontextmanager
async def rig_of(dns: Dns) -> AsyncIterator[tuple[Rig, FakeEngine, FakeEngine, str]]:
    """With the URL of the name `engines` at the engines' port."""
    async with FakeEngine() as one:
        two = FakeEngine(host="127.0.0.2")
        two.port = one.port
        async with two:
            async with closed_after(Rig(dns)) as rig:
                yield rig, one, two, f"grpc+dns://engines:{one.port}"


async def test_each_address_is_a_worker_that_comes_and_goes_with_dns() -> None:
    dns = Dns(engines=["127.0.0.1"])
    async with rig_of(dns) as (rig, one, two, url):
        await rig.list.start([f"{url}?weight=0.5"])
        assert one.address in rig.states  # at once: it was looked up before start returned
        await rig.until_ready(one)
        dns.names["engines"] = ["127.0.0.1", "127.0.0.2"]
        await rig.until_ready(one, two)
        assert {entry.weight for entry in rig.router.registry.entries()} == {0.5}
        # One that is gone finishes what it has.
        worker_id, _, _ = rig.router.best_worker([1], "r")
        (first,) = [e for e in rig.router.registry.entries() if e.worker_id == worker_id]
        gone, left = (one, two) if first.address == one.address else (two, one)
        dns.names["engines"] = [left.host]
        await until(lambda: rig.states.get(gone.address) == "draining")
        assert rig.router.best_worker([1])[0] != worker_id
        # Back in time, it goes on; gone again, it is forgotten after its last request.
        dns.names["engines"] = [one.host, two.host]
        await rig.until_ready(one, two)
        dns.names["engines"] = [left.host]
        await until(lambda: rig.states.get(gone.address) == "draining")
        rig.router.free("r")
        await rig.until_ready(left)


async def test_a_failure_of_dns_takes_no_worker_away() -> None:
    dns = Dns(engines=["127.0.0.1", "127.0.0.2"])
    async with rig_of(dns) as (rig, one, two, url):
        await rig.list.start([url])
        await rig.until_ready(one, two)
        for answer in ([], None):
            if answer is None:
                del dns.names["engines"]
            else:
                dns.names["engines"] = answer
            await dns.settled()
            assert set(rig.states.values()) == {"ready"} and len(rig.states) == 2
        dns.names["engines"] = ["127.0.0.2"]
        await rig.until_ready(two)


async def test_what_an_admin_call_decided_stays_while_dns_says_the_same() -> None:
    dns = Dns(engines=["127.0.0.1", "127.0.0.2"])
    async with rig_of(dns) as (rig, one, two, url):
        await rig.list.start([url])
        await rig.until_ready(one, two)
        await rig.admin.drain(one.address)
        await rig.admin.remove(two.address)
        await dns.settled()
        assert rig.states == {one.address: "draining"}
        # Gone from DNS and there again, they are new.
        dns.names["engines"] = ["127.0.0.3"]
        await until(lambda: one.address not in rig.states)
        dns.names["engines"] = ["127.0.0.1", "127.0.0.2"]
        await until(lambda: rig.states.get(one.address) == rig.states.get(two.address) == "ready")


async def test_names_change_with_the_list() -> None:
    dns = Dns(engines=["127.0.0.1", "127.0.0.2"], other=["127.0.0.2"])
    async with rig_of(dns) as (rig, one, two, url):
        other = url.replace("engines", "other")
        await rig.list.start([])
        rig.list.reconcile([], [url])
        await rig.until_ready(one, two)
        rig.list.reconcile([url], [f"{url}?weight=0.25", other])
        await dns.settled()
        assert {entry.weight for entry in rig.router.registry.entries()} == {0.25}
        rig.list.reconcile([f"{url}?weight=0.25", other], [other])
        await rig.until_ready(two)  # it is still there by the other name
        rig.list.reconcile([other], [one.url])
        await rig.until_ready(one)


async def test_a_name_that_is_not_there_yet_does_not_hold_the_start_up() -> None:
    dns = Dns()
    async with rig_of(dns) as (rig, one, _, url):
        await rig.list.start([url])
        assert rig.states == {}
        dns.names["engines"] = ["127.0.0.1"]
        await rig.until_ready(one)
        with pytest.raises(ConfigError, match="is there twice: give each address once"):
            await WorkerList(rig.admin, rig.monitor, refresh_s=1.0).start([url, url])


async def test_over_tls_the_certificate_is_that_of_the_name(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    cert, key = authority.issue("engine", hosts=("engines.example",), addresses=())
    mock = MockerConfig(port=0, engine=EngineConfig(block_size=BLOCK))
    tls = ServerTls(ServerTlsConfig(cert=cert, key=key))
    dns = Dns(**{"engines.example": ["127.0.0.1"], "other.example": ["127.0.0.1"]})
    async with MockFleet(mock, tls=tls) as fleet:
        port = fleet.addresses[0].rpartition(":")[2]
        for name, ready in (("engines.example", True), ("other.example", False)):
            async with closed_after(Rig(dns, ClientTls(WorkerTlsConfig(ca=authority.ca)))) as rig:
                await rig.list.start([f"grpcs+dns://{name}:{port}"])
                (entry,) = rig.router.registry.entries()
                engine = rig.monitor.find(str(entry.address))
                assert engine is not None
                await until(lambda engine=engine: engine.is_ready or engine.tracker.failed_probes)
                assert engine.is_ready is ready


async def test_a_server_of_a_name_that_the_system_resolves() -> None:
    async with FakeEngine() as engine:
        server = ServedRouter(
            ServeConfig(
                port=0,
                http_port=0,
                workers=(f"grpc+dns://localhost:{engine.port}",),
                router=KvRouterConfig(block_size=BLOCK, use_kv_events=False),
            )
        )
        try:
            await server.start()
            (entry,) = server.router.registry.entries()
            assert (entry.address, entry.state) == (engine.address, WorkerState.READY)
        finally:
            await server.close()
        assert not [t for t in asyncio.all_tasks() if t.get_name().startswith("dns-")]
