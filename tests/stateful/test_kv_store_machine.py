"""Every key-value store agrees with a dictionary after any sequence of calls, and so do watches."""

import asyncio
import os
from collections.abc import Awaitable
from typing import TypeVar

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    precondition,
    rule,
    run_state_machine_as_test,
)
from oracles.kv_store import OracleStore
from support.machines import TIMES
from support.polling import DEADLINE_S
from support.servers.stores import KINDS, OpenStore, fresh_bucket, store_of

from dynamo_router.runtime.kv_stores import Deleted, LeaseLostError, Listing, Watch

EXAMPLES = 15 * TIMES[os.environ.get("HYPOTHESIS_PROFILE", "")]
KEYS = st.sampled_from(["a", "a/b", "a/b%2Fc", "b", "ä"])
VALUES = st.binary(max_size=3)
CLIENTS = st.integers(0, 1)
PREFIXES = st.sampled_from(["", "a", "a/"])
T = TypeVar("T")


class StoreMachine(RuleBasedStateMachine):
    open_store: OpenStore

    def __init__(self):
        super().__init__()
        self.runner = asyncio.Runner()
        self.leases = []
        self.watches = []

    def run(self, awaitable: Awaitable[T]) -> T:
        async def bounded():
            async with asyncio.timeout(DEADLINE_S):
                return await awaitable

        return self.runner.run(bounded())

    @initialize()
    def start(self):
        async def open_two():
            return [self.open_store(), self.open_store()]

        name = fresh_bucket()
        self.stores = self.run(open_two())
        self.buckets = [store.bucket(name) for store in self.stores]
        self.oracle = OracleStore()
        self.last_revision = 0

    def a_lease(self, data, client):
        """One of the client's leases, also of those that have ended, or none."""
        return data.draw(st.sampled_from([None, *(id for c, id in self.leases if c == client)]))

    @rule(client=CLIENTS)
    def grant(self, client):
        lease = self.run(self.stores[client].grant(60.0))
        self.leases.append((client, lease))
        self.oracle.leases.add(lease)

    @precondition(lambda self: self.leases)
    @rule(data=st.data())
    def renew_or_revoke(self, data):
        client, lease = data.draw(st.sampled_from(self.leases))
        if data.draw(st.booleans()):
            self.run(self.stores[client].revoke(lease))
            self.oracle.revoke(lease)
        elif lease in self.oracle.leases:
            assert 0 < self.run(self.stores[client].renew(lease)) <= 60.0
        else:
            with pytest.raises(LeaseLostError):
                self.run(self.stores[client].renew(lease))

    @rule(client=CLIENTS, key=KEYS, value=VALUES, data=st.data())
    def put(self, client, key, value, data):
        lease = self.a_lease(data, client)
        if lease is not None and lease not in self.oracle.leases:
            with pytest.raises(LeaseLostError):
                self.run(self.buckets[client].put(key, value, lease=lease))
            return
        self.grew(self.run(self.buckets[client].put(key, value, lease=lease)))
        self.oracle.put(key, value, lease)

    @rule(client=CLIENTS, key=KEYS, value=VALUES)
    def create(self, client, key, value):
        revision = self.run(self.buckets[client].create(key, value))
        assert (revision is not None) == self.oracle.create(key, value, None)
        self.grew(revision)

    @rule(client=CLIENTS, key=KEYS, value=VALUES, stale=st.booleans())
    def replace(self, client, key, value, stale):
        found = self.run(self.buckets[client].get(key))
        revision = found.revision if found is not None and not stale else self.last_revision + 1
        written = self.run(self.buckets[client].replace(key, value, revision))
        assert (written is not None) == (found is not None and not stale)
        if written is not None:
            self.oracle.put(key, value, None)
        self.grew(written)

    @rule(client=CLIENTS, key=KEYS)
    def delete(self, client, key):
        assert self.run(self.buckets[client].delete(key)) == self.oracle.delete(key)

    @rule(client=CLIENTS, key=KEYS)
    def get(self, client, key):
        found = self.run(self.buckets[client].get(key))
        assert (found and found.value) == self.oracle.keys.get(key, (None, None))[0]

    @rule(client=CLIENTS, prefix=PREFIXES)
    def list(self, client, prefix):
        listing = self.run(self.buckets[client].entries(prefix))
        found = [(entry.key, entry.value) for entry in listing.entries]
        assert found == self.oracle.entries(prefix)

    @precondition(lambda self: len(self.watches) < 3)
    @rule(client=CLIENTS, prefix=PREFIXES)
    def watch(self, client, prefix):
        watch = self.buckets[client].watch(prefix)
        listing = self.run(anext(watch))
        assert isinstance(listing, Listing)
        assert [(entry.key, entry.value) for entry in listing.entries] == self.oracle.entries(
            prefix
        )
        seen = dict(self.oracle.entries(prefix))
        self.watches.append((watch, prefix, seen))

    @precondition(lambda self: self.watches)
    @rule(data=st.data())
    def catch_up(self, data):
        watch, prefix, seen = data.draw(st.sampled_from(self.watches))
        self.run(take_until(watch, seen, dict(self.oracle.entries(prefix))))

    def grew(self, revision):
        if revision is not None:
            assert revision > self.last_revision
            self.last_revision = revision

    def teardown(self):
        async def close():
            for watch, prefix, seen in self.watches:
                await take_until(watch, seen, dict(self.oracle.entries(prefix)))
                await watch.aclose()
            for store in getattr(self, "stores", ()):
                await store.close()

        self.run(close())
        self.runner.close()


async def take_until(watch: Watch, seen: dict[str, bytes], wanted: dict[str, bytes]) -> None:
    """Apply the watch's changes until they make up `wanted`; else the caller's time is over."""
    while seen != wanted:
        change = await anext(watch)
        if isinstance(change, Listing):
            seen.clear()
            seen.update((entry.key, entry.value) for entry in change.entries)
        elif isinstance(change, Deleted):
            seen.pop(change.key, None)
        else:
            seen[change.key] = change.value


@pytest.mark.parametrize("kind", KINDS)
def test_the_store_agrees_with_a_dictionary(kind: str) -> None:
    with store_of(kind) as opener:
        machine = type(f"{kind}_machine", (StoreMachine,), {"open_store": staticmethod(opener)})
        run_state_machine_as_test(
            machine, settings=settings(max_examples=EXAMPLES, stateful_step_count=30)
        )
