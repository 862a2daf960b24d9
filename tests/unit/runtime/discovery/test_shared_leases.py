"""Two processes with one lease, and values of strangers under our prefixes, on every store."""

import pytest
from support.polling import DEADLINE_S, until

from dynamo_router.base import unreadable
from dynamo_router.runtime.components import Instance, decode_instance
from dynamo_router.runtime.discovery import PrefixWatcher, Registrations, full_key_string
from dynamo_router.runtime.kv_stores import Bucket, KeyValueStore

pytestmark = pytest.mark.usefixtures("leaves_no_task")
HELD_S = 4.0  # longer than a busy machine holds a renewal up
GOOD = b'{"transport":{"tcp":"127.0.0.1:1/x"}}'
STRANGE = {
    "no/json/here/1": b"\xff\xfe",
    "a/list/is/2": b"[]",
    "no/transport/there/3": b"{}",
    "another/id/says/4": b'{"transport":{"tcp":"x"},"instance_id":5}',
    "an/id/of/xyz": GOOD,
    "too/large/id/ffffffffffffffffff": GOOD,
    "short/7": GOOD,
    "a/b/c/d/e/8": GOOD,
    "%2F/100%/é/9": b"",
    "名/前/空/a": b"null",
}


async def holds(bucket: Bucket, key: str, value: bytes) -> None:
    async def there() -> bool:
        found = await bucket.get(key)
        return found is not None and found.value == value

    await until(there, 2 * DEADLINE_S)


async def test_who_shares_a_lease_gets_its_key_back_when_the_other_goes(
    store: KeyValueStore, other: KeyValueStore, name: str
) -> None:
    """Two workers with one id: the last to write is seen, and leaving takes nobody else along."""
    first, second = Registrations(store, HELD_S), Registrations(other, HELD_S)
    await first.start(5.0)
    await first.register(name, "k", b"first")
    second.keep_alive.lease = first.lease
    await second.start(5.0)
    await second.register(name, "k", b"second")
    await holds(other.bucket(name), "k", b"second")
    await first.close()  # it gives the lease back
    await holds(other.bucket(name), "k", b"second")
    assert second.lease == first.lease
    await second.close()


async def test_who_is_left_of_two_with_one_key_is_seen_again(
    store: KeyValueStore, other: KeyValueStore, name: str
) -> None:
    """Two workers with one id, each with a lease: the later one leaves, and takes the key along."""
    first, second = Registrations(store, HELD_S), Registrations(other, HELD_S)
    await first.start(5.0)
    await second.start(5.0)
    for number in range(3):
        await first.register(name, f"own{number}", b"first")
    await first.register(name, "k", b"first")
    await second.register(name, "k", b"second")
    await holds(store.bucket(name), "k", b"second")
    await second.close()
    await holds(store.bucket(name), "k", b"first")
    assert first.keep_alive.grants == 1
    await first.close()


async def test_strangers_below_our_prefix_hide_nobody(
    store: KeyValueStore, other: KeyValueStore, name: str
) -> None:
    unreadable.counts.clear()
    for key, value in STRANGE.items():
        await other.bucket(name).put(key, value)
    watcher = PrefixWatcher[str, Instance](store.bucket(name), full_key_string, decode_instance)
    await watcher.start()
    assert watcher.values == {}
    await other.bucket(name).put("dynamo/backend/generate/7f", GOOD)
    for key in STRANGE:
        await other.bucket(name).put(key, b"{")
    await other.bucket(name).put("dynamo/backend/generate/80", GOOD)
    await until(lambda: len(watcher.values) >= 2)
    assert {value.instance_id for value in watcher.values.values()} == {0x7F, 0x80}
    assert unreadable.counts["store"] >= len(STRANGE)
    await watcher.close()
