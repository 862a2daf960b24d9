"""Dynamo's keys: what is written when, and a follower of ours that reads them."""

from collections.abc import Mapping

import pytest

from dynamo_router.base.clock import ManualClock
from dynamo_router.planner.connectors import ConnectorError, VirtualFollower, VirtualKeys
from dynamo_router.runtime.kv_stores import MemoryStore

BUCKET = "v1/dynamo/planner"


class Engines:
    """Come and go with the turn after the one in which they were asked for."""

    names_victims = True

    def __init__(self) -> None:
        self.there: dict[str, list[int]] = {"prefill": [], "decode": []}
        self.left: list[int] = []
        self._next = 0

    async def start(self) -> None: ...

    async def close(self) -> None: ...

    async def asked(self) -> Mapping[str, int]:
        return {role: len(ids) for role, ids in self.there.items()}

    def ids(self, role: str) -> list[int]:
        return self.there[role]

    async def apply(
        self, wanted: Mapping[str, int], leaving: Mapping[str, tuple[int, ...]]
    ) -> None:
        for role, count in wanted.items():
            gone = leaving.get(role, ())
            self.left += gone
            self.there[role] = [each for each in self.there[role] if each not in gone]
            while len(self.there[role]) < count:
                self._next += 1
                self.there[role].append(self._next)


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


async def written(store: MemoryStore) -> dict[str, str]:
    return {e.key: e.value.decode() for e in (await store.bucket(BUCKET).entries()).entries}


async def test_numbers_are_written_and_then_the_decision(store: MemoryStore) -> None:
    keys = VirtualKeys(store, "dynamo", "decode", ManualClock())
    assert await keys.asked() is None
    await keys.apply({"prefill": 2, "decode": 3}, {})
    assert await written(store) == {
        "num_prefill_workers": "2", "num_decode_workers": "3", "decision_id": "0",
    }  # fmt: skip
    entries = {e.key: e.revision for e in (await store.bucket(BUCKET).entries()).entries}
    assert max(entries, key=lambda key: entries[key]) == "decision_id"
    assert await keys.asked() == {"prefill": 2, "decode": 3}


async def test_what_stands_there_already_is_not_written_again(store: MemoryStore) -> None:
    keys = VirtualKeys(store, "dynamo", "decode", ManualClock())
    await keys.apply({"prefill": 2, "decode": 3}, {})
    revision = store.revision
    await keys.apply({"prefill": 2, "decode": 3}, {})
    assert store.revision == revision


async def test_a_decision_waits_for_the_one_before_for_half_an_hour(store: MemoryStore) -> None:
    clock = ManualClock()
    keys = VirtualKeys(store, "dynamo", "decode", clock)
    await keys.apply({"prefill": 1, "decode": 1}, {})
    await keys.apply({"prefill": 1, "decode": 2}, {})
    assert (await written(store))["num_decode_workers"] == "1"
    clock.advance(1800.0)
    await keys.apply({"prefill": 1, "decode": 2}, {})
    assert await written(store) == {
        "num_prefill_workers": "1", "num_decode_workers": "2", "decision_id": "1",
    }  # fmt: skip


async def test_a_planner_that_starts_again_counts_on(store: MemoryStore) -> None:
    """Where it counted from 0 again, every decision would look done."""
    for key, value in (("decision_id", "41"), ("scaled_decision_id", "43")):
        await store.bucket(BUCKET).put(key, value.encode())
    keys = VirtualKeys(store, "dynamo", "decode", ManualClock())
    await keys.apply({"prefill": 1, "decode": 2}, {})
    assert (await written(store))["decision_id"] == "44"


@pytest.mark.parametrize("value", [b"two", b"-1", b"", b"9" * 16, b"\xff"])
async def test_a_value_that_is_no_number_is_refused(store: MemoryStore, value: bytes) -> None:
    await store.bucket(BUCKET).put("num_decode_workers", value)
    keys = VirtualKeys(store, "dynamo", "decode", ManualClock())
    with pytest.raises(ConnectorError, match="v1/dynamo/planner/num_decode_workers is .* number"):
        await keys.apply({"prefill": 1, "decode": 2}, {})


async def test_a_follower_does_what_the_keys_say_and_notes_it(store: MemoryStore) -> None:
    engines = Engines()
    follower = VirtualFollower(store, "dynamo", engines, "decode")
    await follower.look()
    assert engines.there == {"prefill": [], "decode": []}
    keys = VirtualKeys(store, "dynamo", "decode", ManualClock())
    await keys.apply({"prefill": 1, "decode": 2}, {})
    await follower.look()
    assert await engines.asked() == {"prefill": 1, "decode": 2}
    assert (await written(store))["scaled_decision_id"] == "0"
    await keys.apply({"prefill": 1, "decode": 1}, {})
    await follower.look()
    assert engines.left == [3]  # the newest
    assert (await written(store))["scaled_decision_id"] == "1"


async def test_a_decision_is_not_done_before_its_engines_are_there(store: MemoryStore) -> None:
    engines = Engines()
    engines.ids = lambda role: []  # type: ignore[method-assign]
    follower = VirtualFollower(store, "dynamo", engines, "decode")
    await VirtualKeys(store, "dynamo", "decode", ManualClock()).apply({"decode": 2}, {})
    await follower.look()
    assert "scaled_decision_id" not in await written(store)


async def test_aggregated_engines_are_decode_ones_to_dynamo(store: MemoryStore) -> None:
    keys = VirtualKeys(store, "dynamo", "aggregated", ManualClock())
    await keys.apply({"aggregated": 4}, {})
    assert (await written(store))["num_decode_workers"] == "4"
    assert await keys.asked() == {"aggregated": 4}
