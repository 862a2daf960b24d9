"""Etcd killed, restarted, paused, compacted, emptied: watches and calls lose nothing and go on."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path

import pytest
import structlog
from support.free_port import free_port
from support.polling import DEADLINE_S, until
from support.servers.etcd import EtcdServer, start_cluster

from dynamo_router.base.backoff import Backoff
from dynamo_router.runtime.kv_stores import (
    Bucket,
    Deleted,
    Entry,
    EtcdConfig,
    EtcdStore,
    LeaseLostError,
    Listing,
    StoreError,
    Watch,
)

pytestmark = pytest.mark.usefixtures("leaves_no_task")


@pytest.fixture
async def store(etcd: EtcdServer) -> AsyncIterator[EtcdStore]:
    client = EtcdStore(EtcdConfig((etcd.url,)))
    yield client
    await client.close()


@pytest.fixture
def bucket(store: EtcdStore) -> Bucket:
    return store.bucket("v1/faults")


async def soon(watch: Watch) -> Entry | Deleted | Listing:
    async with asyncio.timeout(2 * DEADLINE_S):
        return await anext(watch)


async def test_a_watch_goes_on_after_a_restart_without_a_gap(
    etcd: EtcdServer, bucket: Bucket
) -> None:
    await bucket.put("a", b"1")
    async with aclosing(bucket.watch()) as watch:
        await soon(watch)
        waiting = asyncio.create_task(soon(watch))
        with structlog.testing.capture_logs() as logs, pytest.MonkeyPatch.context() as patch:
            waits: list[float] = []
            patch.setattr(Backoff, "next", lambda self: waits.append(0.02) or 0.02)
            etcd.kill()
            await until(lambda: len(waits) > 3)
            await etcd.come_back()
            for key in ("b", "c", "d"):
                await bucket.put(key, b"2")
            await until(lambda: any("again" in each["event"] for each in logs))
        logged = [each["event"] for each in logs if each["event"].startswith("a watch")]
        lost = "a watch lost etcd and goes on when it is back"
        assert logged == [lost, "a watch has etcd again"]  # not one for each attempt
        changes = [await waiting, await soon(watch), await soon(watch)]
        assert [change.key for change in changes if isinstance(change, Entry)] == ["b", "c", "d"]


async def test_what_is_written_while_etcd_is_away_waits_for_it(
    etcd: EtcdServer, bucket: Bucket
) -> None:
    etcd.kill()
    writing = asyncio.create_task(bucket.put("a", b"1"))
    await etcd.come_back()
    revision = await writing
    assert await bucket.get("a") == Entry("a", b"1", revision)


async def test_without_etcd_a_call_says_so_in_time(etcd: EtcdServer) -> None:
    etcd.kill()
    store = EtcdStore(EtcdConfig((etcd.url,), timeout_s=0.3))
    with pytest.raises(StoreError, match=f"etcd at {etcd.url}") as caught:
        await store.bucket("v1/x").get("a")
    assert caught.value.transient
    await store.close()


async def test_history_that_was_compacted_is_listed_instead(
    etcd: EtcdServer, bucket: Bucket
) -> None:
    """The watch is slow: etcd forgets what it has not sent yet, while the watch is away."""
    await bucket.put("a", b"1")
    async with aclosing(bucket.watch()) as watch:
        listing = await soon(watch)
        assert isinstance(listing, Listing)
        # The stream is opened with the next step, from a revision that is gone by then.
        await bucket.put("b", b"1")
        await bucket.delete("a")
        last = await bucket.put("b", b"2")
        etcd.control("compact", str(last))
        with structlog.testing.capture_logs() as logs:
            again = await soon(watch)
        assert again == Listing((Entry("b", b"2", last),), last)
        assert any("listed again" in entry["event"] for entry in logs)
        await bucket.put("c", b"3")
        change = await soon(watch)
        assert isinstance(change, Entry) and change.key == "c"


async def test_a_cluster_that_lost_its_data_is_listed_again(
    etcd: EtcdServer, bucket: Bucket
) -> None:
    for number in range(5):
        await bucket.put("a", b"%d" % number)
    async with aclosing(bucket.watch()) as watch:
        await soon(watch)
        waiting = asyncio.create_task(soon(watch))
        etcd.kill()
        etcd.lose_data()
        await etcd.come_back()
        await bucket.put("b", b"new")
        change = await waiting
        # A watch from the revision it had would hear nothing until etcd has caught up with that.
        assert isinstance(change, Listing)
        assert "a" not in {entry.key for entry in change.entries}


async def test_so_is_one_whose_revisions_have_passed_ours(etcd: EtcdServer, bucket: Bucket) -> None:
    await bucket.put("a", b"1")
    async with aclosing(bucket.watch()) as watch:
        await soon(watch)
        await bucket.put("a", b"2")
        await soon(watch)
        etcd.kill()
        etcd.lose_data()
        await etcd.come_back()
        for number in range(9):  # before the watch looks again
            await bucket.put(f"b{number}", b"new")
        change = await soon(watch)
        assert isinstance(change, Listing)
        assert {entry.key for entry in change.entries} == {f"b{number}" for number in range(9)}


async def test_a_paused_etcd_is_noticed_and_its_leases_are_lost(
    etcd: EtcdServer, store: EtcdStore, bucket: Bucket
) -> None:
    lease = await store.grant(4.0)
    await bucket.put("a", b"1", lease=lease)
    async with aclosing(bucket.watch()) as watch:
        await soon(watch)
        waiting = asyncio.create_task(soon(watch))
        etcd.pause()
        with pytest.raises(StoreError) as caught:
            await store.renew(lease)
        assert caught.value.transient
        etcd.resume()
        change = await waiting
        assert isinstance(change, Deleted) and change.key == "a"
        with pytest.raises(LeaseLostError):
            await store.renew(lease)


async def test_another_member_is_asked_when_one_is_gone(tmp_path: Path) -> None:
    servers = start_cluster(tmp_path)
    store = EtcdStore(EtcdConfig(tuple(server.url for server in servers), timeout_s=20.0))
    try:
        bucket = store.bucket("v1/cluster")
        lease = await store.grant(30.0)
        await bucket.put("a", b"1", lease=lease)
        async with aclosing(bucket.watch()) as watch:
            await soon(watch)
            waiting = asyncio.create_task(soon(watch))
            # One of them is the leader; each is gone once, whoever it is.
            for number, server in enumerate(servers):
                server.kill()
                async with asyncio.timeout(2 * DEADLINE_S):
                    while True:
                        try:
                            await bucket.put("b", b"%d" % number)
                            assert 0 < await store.renew(lease) <= 30.0
                            break
                        except StoreError as error:
                            assert error.transient
                change = await waiting
                while not (isinstance(change, Entry) and change.value == b"%d" % number):
                    change = await soon(watch)
                await server.come_back()
                waiting = asyncio.create_task(soon(watch))
            waiting.cancel()
            await asyncio.wait([waiting])
        assert await bucket.get("a") is not None
    finally:
        await store.close()
        for server in servers:
            server.kill()


async def test_keys_that_are_no_text_are_passed_over(etcd: EtcdServer, bucket: Bucket) -> None:
    async with aclosing(bucket.watch()) as watch:
        await soon(watch)
        etcd.control("put", "v1/faults/\udcff", "x")
        revision = await bucket.put("a", b"1")
        assert await soon(watch) == Entry("a", b"1", revision)
        assert (await bucket.entries()).entries == (Entry("a", b"1", revision),)


async def test_more_keys_than_a_page_are_of_one_revision(bucket: Bucket) -> None:
    for begin in range(0, 1100, 100):  # all at once take longer than etcd is given for one
        await asyncio.gather(*(bucket.put(f"{begin + n:04}", b"") for n in range(100)))
    keys = [entry.key for entry in (await bucket.entries()).entries]
    assert keys == [f"{number:04}" for number in range(1100)]


async def test_a_value_larger_than_etcd_takes_is_refused_for_good(bucket: Bucket) -> None:
    with pytest.raises(StoreError, match="larger than max") as caught:
        await bucket.put("a", b"x" * (3 << 20))
    assert not caught.value.transient


async def test_a_closed_store_says_so(etcd: EtcdServer) -> None:
    store = EtcdStore(EtcdConfig((etcd.url,)))
    watch = store.bucket("v1/x").watch()
    await soon(watch)
    waiting = asyncio.create_task(soon(watch))
    await asyncio.sleep(0)
    await store.close()
    with pytest.raises(StoreError, match="closed"):
        await waiting
    with pytest.raises(StoreError, match="closed"):
        await store.bucket("v1/x").get("a")


async def test_who_is_cancelled_as_its_store_is_closed_is_cancelled(etcd: EtcdServer) -> None:
    store = EtcdStore(EtcdConfig((etcd.url,)))
    bucket = store.bucket("v1/x")
    watch = bucket.watch()
    await soon(watch)
    waiting = asyncio.ensure_future(soon(watch))
    await bucket.put("a", b"1")
    await waiting  # so it reads of its call, and does not open one
    waiting = asyncio.ensure_future(soon(watch))
    await asyncio.sleep(0)
    closing = asyncio.create_task(store.close())  # begins before the other hears of its end
    waiting.cancel()
    await asyncio.wait([waiting])
    assert waiting.cancelled()
    await closing


async def test_an_address_where_nobody_is() -> None:
    url = f"http://127.0.0.1:{free_port()}"
    store = EtcdStore(EtcdConfig((url,), timeout_s=0.2))
    with pytest.raises(StoreError, match=f"etcd at {url}: "):
        await store.grant()
    await store.close()
