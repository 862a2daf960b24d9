"""What every key-value store does, on the real servers."""

import asyncio
from contextlib import aclosing

import pytest
from support.polling import DEADLINE_S, until

from dynamo_router.runtime.kv_stores import (
    Bucket,
    Change,
    Deleted,
    Entry,
    KeyValueStore,
    LeaseLostError,
    Listing,
    Watch,
)

pytestmark = pytest.mark.usefixtures("leaves_no_task")
KEYS = [
    "a",
    "dynamo/backend/generate/7f",
    "%2F/100%",
    "ü/日本",
    "a.b*c>d e",
    "../..",
    "-_=",
    "k" * 80,
]


async def soon(watch: Watch) -> Change:
    async with asyncio.timeout(DEADLINE_S):
        return await anext(watch)


async def gone(bucket: Bucket, key: str) -> None:
    async def is_gone() -> bool:
        return await bucket.get(key) is None

    await until(is_gone)


@pytest.mark.parametrize("key", KEYS)
@pytest.mark.parametrize("value", [b"", b'{"a":1}', bytes(range(256)), b"x" * 100_000])
async def test_what_is_put_is_got(bucket: Bucket, key: str, value: bytes) -> None:
    revision = await bucket.put(key, value)
    assert await bucket.get(key) == Entry(key, value, revision)
    assert [entry.key for entry in (await bucket.entries()).entries] == [key]


async def test_revisions_grow(bucket: Bucket) -> None:
    first = await bucket.put("a", b"1")
    second = await bucket.put("b", b"1")
    third = await bucket.put("a", b"1")
    assert first < second < third
    assert (await bucket.entries()).revision >= third


async def test_a_key_that_is_not_there(bucket: Bucket) -> None:
    assert await bucket.get("a") is None
    assert await bucket.delete("a") is False
    assert await bucket.replace("a", b"", 1) is None
    assert (await bucket.entries()).entries == ()


@pytest.mark.parametrize("key", ["", "a\0b", "\udc80"])
async def test_a_text_that_is_no_key(store: KeyValueStore, bucket: Bucket, key: str) -> None:
    with pytest.raises(ValueError, match="a key is"):
        await bucket.put(key, b"")
    with pytest.raises(ValueError, match="a bucket is"):
        store.bucket(key)


async def test_a_key_is_created_once(store: KeyValueStore, other: KeyValueStore, name: str) -> None:
    revisions = await asyncio.gather(
        *(client.bucket(name).create("a", b"%d" % n) for n in range(8) for client in (store, other))
    )
    assert len([revision for revision in revisions if revision is not None]) == 1


async def test_a_key_that_was_deleted_can_be_created_again(bucket: Bucket) -> None:
    first = await bucket.create("a", b"1")
    assert await bucket.delete("a") is True
    second = await bucket.create("a", b"2")
    assert first is not None and second is not None and second > first
    found = await bucket.get("a")
    assert found is not None and found.value == b"2"


async def test_a_key_is_replaced_only_as_it_was_seen(
    store: KeyValueStore, other: KeyValueStore, name: str
) -> None:
    bucket, theirs = store.bucket(name), other.bucket(name)
    seen = await bucket.put("a", b"1")
    assert await theirs.replace("a", b"2", seen) is not None
    assert await bucket.replace("a", b"3", seen) is None
    assert await bucket.delete("a", seen) is False
    found = await bucket.get("a")
    assert found is not None and found.value == b"2"
    assert await bucket.delete("a", found.revision) is True


async def test_counting_together_loses_no_step(
    store: KeyValueStore, other: KeyValueStore, name: str
) -> None:
    async def add_ten(client: KeyValueStore) -> None:
        bucket = client.bucket(name)
        for _ in range(10):
            while True:
                found = await bucket.get("n")
                assert found is not None
                value = b"%d" % (int(found.value) + 1)
                if await bucket.replace("n", value, found.revision) is not None:
                    break

    await store.bucket(name).put("n", b"0")
    await asyncio.gather(add_ten(store), add_ten(other), add_ten(store))
    found = await store.bucket(name).get("n")
    assert found is not None and found.value == b"30"


async def test_a_prefix_is_a_prefix_of_the_key(bucket: Bucket) -> None:
    for key in ("default/a", "default-foo/a", "default/b", "other"):
        await bucket.put(key, b"")
    listing = await bucket.entries("default/")
    assert [entry.key for entry in listing.entries] == ["default/a", "default/b"]


async def test_buckets_do_not_see_each_other(store: KeyValueStore, name: str) -> None:
    await store.bucket(name).put("a", b"1")
    await store.bucket(f"{name}-a").put("b", b"2")
    await store.bucket(f"{name}_a").put("c", b"3")
    assert await store.bucket(f"{name}_a").get("a") is None
    listing = await store.bucket(f"{name}_a").entries()
    assert [entry.key for entry in listing.entries] == ["c"]


async def test_a_watch_tells_what_is_there_and_what_becomes_of_it(
    store: KeyValueStore, other: KeyValueStore, name: str
) -> None:
    bucket, theirs = store.bucket(name), other.bucket(name)
    await theirs.put("a/1", b"1")
    await theirs.put("b/1", b"1")
    async with aclosing(bucket.watch("a/")) as watch:
        listing = await soon(watch)
        assert isinstance(listing, Listing)
        assert [(entry.key, entry.value) for entry in listing.entries] == [("a/1", b"1")]
        second = await theirs.put("a/2", b"2")
        assert second > listing.revision
        assert await soon(watch) == Entry("a/2", b"2", second)
        await theirs.put("b/2", b"2")
        await theirs.delete("a/1")
        change = await soon(watch)
        assert isinstance(change, Deleted) and change.key == "a/1"
        assert change.revision > second


async def test_many_changes_reach_a_watch_in_their_order(
    store: KeyValueStore, other: KeyValueStore, name: str
) -> None:
    theirs = other.bucket(name)
    async with aclosing(store.bucket(name).watch()) as watch:
        await soon(watch)
        for number in range(60):
            await theirs.put(f"{number:03}", b"%d" % number)
        last = -1
        seen: dict[str, bytes] = {}
        while len(seen) < 60:
            change = await soon(watch)
            assert isinstance(change, Entry) and change.revision > last
            last = change.revision
            seen[change.key] = change.value
        assert list(seen) == [f"{number:03}" for number in range(60)]


async def test_a_slow_reader_still_ends_with_what_is_true(
    store: KeyValueStore, other: KeyValueStore, name: str
) -> None:
    theirs = other.bucket(name)
    async with aclosing(store.bucket(name).watch()) as watch:
        await soon(watch)
        for number in range(50):
            await theirs.put("a", b"%d" % number)
        await theirs.put("end", b"")
        values = []
        while True:
            change = await soon(watch)
            assert isinstance(change, Entry)
            if change.key == "end":
                break
            values.append(int(change.value))
        assert values == sorted(values) and values[-1] == 49


async def test_a_lease_that_is_renewed_holds_its_keys(
    store: KeyValueStore, other: KeyValueStore, name: str
) -> None:
    bucket = store.bucket(name)
    lease = await store.grant(30.0)
    await bucket.put("a", b"1", lease=lease)
    found = await bucket.get("a")
    assert found is not None and found.lease == lease
    for _ in range(3):
        assert 0 < await store.renew(lease) <= 30.0
    assert await other.bucket(name).get("a") is not None
    await store.revoke(lease)
    assert await other.bucket(name).get("a") is None


async def test_a_lease_ends_with_all_its_keys(
    store: KeyValueStore, other: KeyValueStore, name: str
) -> None:
    bucket, theirs = store.bucket(name), other.bucket(name)
    lease = await store.grant(4.0)  # longer than a busy machine takes to write and list
    await bucket.put("a", b"1", lease=lease)
    await bucket.put("b", b"1", lease=lease)
    await bucket.put("c", b"1")
    async with aclosing(theirs.watch()) as watch:
        listing = await soon(watch)
        assert isinstance(listing, Listing) and len(listing.entries) == 3
        ended = set()
        while len(ended) < 2:
            change = await soon(watch)
            assert isinstance(change, Deleted), change
            ended.add(change.key)
        assert ended == {"a", "b"}
    await gone(bucket, "a")
    assert await bucket.get("c") is not None
    with pytest.raises(LeaseLostError):
        await store.renew(lease)
    with pytest.raises(LeaseLostError):
        await bucket.put("a", b"2", lease=lease)
    assert await theirs.create("a", b"3") is not None


async def test_a_key_that_is_written_without_its_lease_outlives_it(
    store: KeyValueStore, name: str
) -> None:
    bucket = store.bucket(name)
    lease = await store.grant(30.0)
    await bucket.put("a", b"1", lease=lease)
    await bucket.put("a", b"2")
    await store.revoke(lease)
    found = await bucket.get("a")
    assert found is not None and found.value == b"2" and found.lease is None


async def test_a_lease_may_hold_keys_of_several_buckets(store: KeyValueStore, name: str) -> None:
    lease = await store.grant(30.0)
    await store.bucket(f"{name}/x").put("a", b"1", lease=lease)
    await store.bucket(f"{name}/y").put("a", b"1", lease=lease)
    await store.renew(lease)
    await store.revoke(lease)
    assert await store.bucket(f"{name}/x").get("a") is None
    assert await store.bucket(f"{name}/y").get("a") is None
    await store.revoke(lease)


async def test_a_revoked_lease_is_seen_by_a_watch(
    store: KeyValueStore, other: KeyValueStore, name: str
) -> None:
    lease = await store.grant(30.0)
    await store.bucket(name).put("a", b"1", lease=lease)
    async with aclosing(other.bucket(name).watch()) as watch:
        await soon(watch)
        await store.revoke(lease)
        change = await soon(watch)
        assert isinstance(change, Deleted) and change.key == "a"
