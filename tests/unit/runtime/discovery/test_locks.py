"""Read and write locks: never two who must not, gone with their holder, nobody waits for ever."""

import asyncio
from random import Random

import pytest
from support.polling import until

from dynamo_router.runtime.discovery import ReadWriteLock
from dynamo_router.runtime.kv_stores import KeyValueStore

pytestmark = pytest.mark.usefixtures("leaves_no_task")


async def test_one_writer_or_several_readers(
    store: KeyValueStore, other: KeyValueStore, name: str
) -> None:
    prefix = name.removeprefix("v1/")
    ours, theirs = ReadWriteLock(store, prefix, "ours"), ReadWriteLock(other, prefix, "theirs")
    mine, its = await store.grant(30.0), await other.grant(30.0)
    writing = await ours.try_write(mine)
    assert writing is not None
    assert await theirs.try_write(its) is None
    assert await theirs.try_read(its) is None
    assert await writing.still_held()
    assert [entry.key for entry in (await store.bucket(name).entries()).entries] == ["writer"]
    await writing.release()
    assert not await writing.still_held()
    first, second = await ours.try_read(mine), await theirs.try_read(its)
    assert first is not None and second is not None
    keys = [entry.key for entry in (await store.bucket(name).entries()).entries]
    assert keys == ["readers/ours", "readers/theirs"]
    assert await ours.try_write(mine) is None
    await first.release()
    await second.release()
    assert (again := await theirs.try_write(its)) is not None
    await again.release()
    assert (await store.bucket(name).entries()).entries == ()


async def test_who_crashed_holds_nothing(
    store: KeyValueStore, other: KeyValueStore, name: str
) -> None:
    prefix = name.removeprefix("v1/")
    dead, alive = await store.grant(4.0), await other.grant(60.0)
    held = await ReadWriteLock(store, prefix).try_write(dead)
    assert held is not None
    mine = await ReadWriteLock(other, prefix).write(alive, 40.0)
    assert await mine.still_held() and not await held.still_held()
    await held.release()
    assert await mine.still_held(), "a lock that was lost is not released a second time"
    await mine.release()


async def test_a_writer_that_waits_keeps_new_readers_out(
    store: KeyValueStore, other: KeyValueStore, name: str
) -> None:
    prefix = name.removeprefix("v1/")
    ours, theirs = ReadWriteLock(store, prefix), ReadWriteLock(other, prefix)
    mine, its = await store.grant(30.0), await other.grant(30.0)
    reading = await ours.try_read(mine)
    assert reading is not None
    writing = asyncio.create_task(theirs.write(its, 15.0))

    async def refused() -> bool:
        found = await ReadWriteLock(store, prefix).try_read(mine)
        if found is not None:
            await found.release()
        return found is None

    await until(refused, 60.0)
    assert not writing.done()
    await reading.release()
    await (await writing).release()
    await (await ours.read(mine, 15.0)).release()


async def test_who_waits_in_vain_leaves_nothing_behind(store: KeyValueStore, name: str) -> None:
    prefix = name.removeprefix("v1/")
    ours, theirs = ReadWriteLock(store, prefix), ReadWriteLock(store, prefix)
    lease = await store.grant(30.0)
    held = await ours.try_read(lease)
    assert held is not None
    with pytest.raises(TimeoutError):
        await theirs.write(lease, 0.1)
    assert len((await store.bucket(name).entries()).entries) == 1
    await held.release()
    held = await ours.try_write(lease)
    assert held is not None
    with pytest.raises(TimeoutError):
        await theirs.read(lease, 0.1)
    assert len((await store.bucket(name).entries()).entries) == 1
    await held.release()


async def test_many_at_once_never_meet(
    store: KeyValueStore, other: KeyValueStore, name: str
) -> None:
    prefix = name.removeprefix("v1/")
    inside: set[str] = set()
    turns = 0

    async def work(number: int, client: KeyValueStore) -> None:
        nonlocal turns
        rng = Random(number)
        lock = ReadWriteLock(client, prefix, f"w{number}", rng=rng)
        lease = await client.grant(30.0)
        for _ in range(3):
            writer = rng.random() < 0.4
            held = await (lock.write(lease, 60.0) if writer else lock.read(lease, 60.0))
            me = f"{'writer' if writer else 'reader'} {number}"
            assert not any(someone.startswith("writer") for someone in inside), (me, inside)
            assert not (writer and inside), (me, inside)
            inside.add(me)
            await asyncio.sleep(0)
            turns += 1
            inside.discard(me)
            await held.release()

    await asyncio.gather(*(work(number, (store, other)[number % 2]) for number in range(5)))
    assert turns == 15
