"""Registrations stay in the store while their process lives, whatever becomes of the store."""

import asyncio
from collections.abc import AsyncIterator

import pytest
import structlog
from support.polling import until
from support.servers.etcd import EtcdServer

from dynamo_router.base.clock import SystemClock
from dynamo_router.runtime.discovery import Registrations
from dynamo_router.runtime.kv_stores import (
    EtcdConfig,
    EtcdStore,
    KeyValueStore,
    LeaseLostError,
    MemoryStore,
    StoreError,
)

pytestmark = pytest.mark.usefixtures("leaves_no_task")
BUCKET = "v1/instances"


@pytest.fixture
async def seen(etcd: EtcdServer) -> AsyncIterator[EtcdStore]:
    """Another client, to look with."""
    client = EtcdStore(EtcdConfig((etcd.url,)))
    yield client
    await client.close()


async def has(store: KeyValueStore, *keys: str) -> None:
    async def there() -> bool:
        try:
            entries = (await store.bucket(BUCKET).entries()).entries
        except StoreError:
            return False
        return [entry.key for entry in entries] == list(keys)

    await until(there, 60.0)


async def test_keys_are_there_until_they_are_taken_away(
    store: KeyValueStore, other: KeyValueStore, name: str
) -> None:
    registrations = Registrations(store, 6.0)  # longer than a busy machine holds a renewal up
    await registrations.start(5.0)
    await registrations.register(name, "a", b"1")
    await registrations.register(name, "b", b"2")
    first = registrations.keep_alive.ends
    await until(lambda: (registrations.keep_alive.ends or 0) > (first or 0) + 1.0)  # renewed
    assert registrations.complete and registrations.keep_alive.grants == 1
    await registrations.unregister(name, "b")
    found = (await other.bucket(name).entries()).entries
    assert [(entry.key, entry.value, entry.lease) for entry in found][0][:2] == ("a", b"1")
    await registrations.close()
    assert (await other.bucket(name).entries()).entries == ()
    await registrations.close()


async def test_etcd_may_be_away_for_longer_than_the_lease(
    etcd: EtcdServer, seen: EtcdStore
) -> None:
    store = EtcdStore(EtcdConfig((etcd.url,), timeout_s=0.5))
    registrations = Registrations(store, 1.0)
    losses: list[int] = []
    await registrations.start(5.0)
    lease = registrations.lease
    registrations.on_lost.append(lambda: losses.append(1))
    await registrations.register(BUCKET, "a", b"1")
    etcd.kill()
    await until(lambda: not registrations.complete)
    with pytest.raises(StoreError):
        await registrations.register(BUCKET, "b", b"2")
    etcd.lose_data()  # as if it had been away for long
    await etcd.come_back()
    await has(seen, "a", "b")
    await until(lambda: registrations.complete)
    assert losses and registrations.lease == lease, "what has the lease's name keeps it"
    await registrations.close()
    await has(seen)
    await store.close()


async def test_a_restart_of_etcd_loses_no_lease(etcd: EtcdServer, seen: EtcdStore) -> None:
    store = EtcdStore(EtcdConfig((etcd.url,), timeout_s=0.5))
    registrations = Registrations(store, 12.0)  # longer than etcd is away
    await registrations.start(5.0)
    await registrations.register(BUCKET, "a", b"1")
    before = registrations.keep_alive.ends or 0
    etcd.kill()
    await etcd.come_back()
    await until(lambda: (registrations.keep_alive.ends or 0) > before)
    assert registrations.keep_alive.grants == 1
    await has(seen, "a")
    await registrations.close()
    await store.close()


async def test_a_lease_that_somebody_ended_is_taken_again(
    etcd: EtcdServer, seen: EtcdStore
) -> None:
    store = EtcdStore(EtcdConfig((etcd.url,)))
    registrations = Registrations(store, 1.0)
    await registrations.start(5.0)
    for number in range(40):
        await registrations.register(BUCKET, f"{number:02}", b"")
    await seen.revoke(registrations.lease)
    await until(lambda: registrations.keep_alive.grants >= 2 and registrations.complete)
    await has(seen, *(f"{number:02}" for number in range(40)))
    await registrations.close()
    await store.close()


async def test_without_a_store_the_start_fails_in_time() -> None:
    store = EtcdStore(EtcdConfig(("http://127.0.0.1:1",), timeout_s=0.1))
    registrations = Registrations(store)
    with pytest.raises(StoreError, match="etcd at http://127.0.0.1:1"):
        await registrations.start(0.2)
    with pytest.raises(RuntimeError):
        _ = registrations.lease
    await registrations.close()
    await store.close()


class CountingClock(SystemClock):
    calls = 0

    def now(self) -> float:
        self.calls += 1
        return super().now()


class LosingStore(MemoryStore):
    """Grants one lease, says that it is lost, and then nothing any more."""

    asked = 0

    async def grant(self, ttl_s: float = 10.0, lease: int | None = None) -> int:
        self.asked += 1
        if self.asked > 1:
            raise StoreError("away")
        return await super().grant(ttl_s)

    async def renew(self, lease: int) -> float:
        raise LeaseLostError("gone")


class FlickeringStore(MemoryStore):
    """Is away for three renewals, there for one, away for two, and then there."""

    def __init__(self) -> None:
        super().__init__()
        self.renewals = 0

    async def renew(self, lease: int) -> float:
        self.renewals += 1
        if self.renewals in (1, 2, 3, 5, 6):
            raise StoreError("away")
        return 0.1


async def test_the_log_speaks_once_when_the_store_goes_and_once_when_it_is_back() -> None:
    store = FlickeringStore()
    registrations = Registrations(store, 0.1)
    await registrations.start()
    with structlog.testing.capture_logs() as logs:
        await until(lambda: store.renewals >= 8)
        await registrations.close()
    told = [(entry["log_level"], entry.get("failures")) for entry in logs]
    assert told == [("warning", None), ("info", 3), ("warning", None), ("info", 2)]


async def test_waiting_for_the_store_is_no_work() -> None:
    clock, store = CountingClock(), LosingStore()
    registrations = Registrations(store, 0.2, clock=clock)
    await registrations.start()
    await registrations.register(BUCKET, "a", b"1")
    await until(lambda: store.asked >= 5)
    assert clock.calls < 200
    await registrations.close()


async def test_what_was_taken_away_while_it_was_written_does_not_stay() -> None:
    store = MemoryStore()
    registrations = Registrations(store)
    await registrations.start()
    bucket = store.bucket(BUCKET)
    writing = asyncio.create_task(registrations.register(BUCKET, "a", b""))
    await registrations.unregister(BUCKET, "a")
    await writing
    await registrations.unregister(BUCKET, "a")
    assert (await bucket.entries()).entries == ()
    await registrations.close()


async def test_where_one_key_is_gone_all_are_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    store = MemoryStore()
    registrations, bucket = Registrations(store, 3.0), store.bucket(BUCKET)
    renewals: list[int] = []
    renew = store.renew

    async def counted(lease: int) -> float:
        renewals.append(lease)
        return await renew(lease)

    monkeypatch.setattr(store, "renew", counted)
    await registrations.start()
    keys = [f"{number:03}" for number in range(200)]
    for key in keys:
        await registrations.register(BUCKET, key, b"1")
    for key in keys:
        await bucket.delete(key)
    renewals.clear()
    await has(store, *keys)
    assert len(renewals) <= 3
    await registrations.close()
