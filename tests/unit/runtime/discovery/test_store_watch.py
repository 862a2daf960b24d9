"""Several prefixes followed as one, and what is kept in step with them."""

import asyncio

import pytest
from support.polling import until

from dynamo_router.base.errors import ConfigError
from dynamo_router.runtime.discovery import Reconciler, StoreWatch, full_key_string
from dynamo_router.runtime.kv_stores import Entry, MemoryStore, StoreError


def text(entry: Entry) -> str:
    return entry.value.decode()


async def test_a_change_of_any_prefix_is_one() -> None:
    store = MemoryStore()
    watch = StoreWatch(store)
    ones, twos = (watch.follow(name, full_key_string, text, "a/") for name in ("one", "two"))
    await store.bucket("one").put("a/b", b"1")
    await watch.start()
    assert watch.changed.is_set() and list(ones.values.values()) == ["1"]
    for name, found in (("one", ones), ("two", twos)):
        watch.changed.clear()
        await store.bucket(name).put("a/c", b"2")
        await asyncio.wait_for(watch.changed.wait(), 60)
        await until(lambda found=found: "2" in found.values.values())
    await watch.close()
    await watch.close()


class Watched:
    def __init__(self, error: StoreError | None = None, answers: bool = True) -> None:
        self.changed = asyncio.Event()
        self.error, self.answers, self.closed = error, answers, False

    async def start(self) -> None:
        if self.error is not None:
            raise self.error
        if not self.answers:
            await asyncio.Event().wait()

    async def close(self) -> None:
        self.closed = True


async def test_what_changes_is_reconciled() -> None:
    watch, times = Watched(), 0

    async def reconcile() -> None:
        nonlocal times
        times += 1

    reconciler = Reconciler("things", "memory", watch, reconcile)
    await reconciler.start()
    assert times == 1
    watch.changed.set()
    await until(lambda: times >= 2)
    await reconciler.close()
    assert watch.closed


async def test_a_store_that_refuses_us_is_told_of() -> None:
    async def reconcile() -> None:
        raise AssertionError

    reconciler = Reconciler("things", "memory", Watched(StoreError("no entry")), reconcile)
    with pytest.raises(ConfigError, match="discovery: no entry"):
        await reconciler.start()
    await reconciler.close()


async def test_a_store_that_does_not_answer_keeps_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dynamo_router.runtime.discovery.store_watch.FIRST_LISTING_S", 0.01)

    async def reconcile() -> None:
        raise AssertionError

    reconciler = Reconciler("things", "memory", Watched(answers=False), reconcile)
    await reconciler.start()
    await reconciler.close()
