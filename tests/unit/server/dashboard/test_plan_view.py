"""PlanView: what a planner wrote, read seldom, and nothing where there is none."""

from typing import Any

import msgspec
import pytest

from dynamo_router.base.clock import ManualClock
from dynamo_router.runtime.kv_stores import MemoryStore, StoreError
from dynamo_router.server.dashboard import PlanView
from dynamo_router.workers.records import DECISIONS, STATUS


async def write(store: MemoryStore, number: int, value: Any) -> None:
    data = value if isinstance(value, bytes) else msgspec.json.encode(value)
    await store.bucket(DECISIONS).put(f"dynamo/{number:012d}", data)


async def test_the_newest_first_without_scores_and_what_makes_no_sense() -> None:
    store, clock = MemoryStore(), ManualClock()
    view = PlanView(lambda: store, "dynamo", clock)
    assert await view.read() == {"status": None, "decisions": []}
    for number in range(1, 50):
        await write(store, number, {"decision": {"id": number, "scores": [1, 2]}})
    await write(store, 50, b"\xff")
    await write(store, 51, [1])
    await store.bucket(DECISIONS).put("other/000000000001", b'{"decision": {"id": 9}}')
    await store.bucket(STATUS).put("dynamo", b'{"text": "stays"}')
    assert (await view.read())["decisions"] == []  # it was read just now
    clock.advance(2.0)
    shown = await view.read()
    assert [each["decision"] for each in shown["decisions"]][:2] == [{"id": 49}, {"id": 48}]
    assert len(shown["decisions"]) == 38
    assert shown["status"] == {"text": "stays"}
    await view.close()
    await view.close()


async def test_without_a_store_there_is_no_plan() -> None:
    view = PlanView(lambda: None, "dynamo", ManualClock())
    assert await view.read() == {"status": None, "decisions": []}
    await view.close()


async def test_a_store_that_is_away_is_said_and_asked_again() -> None:
    class Away(MemoryStore):
        away = True

        def bucket(self, name: str) -> Any:
            if self.away:
                raise StoreError("no answer")
            return super().bucket(name)

    store = Away()
    view = PlanView(lambda: store, "dynamo", ManualClock())
    with pytest.raises(StoreError, match="no answer"):
        await view.read()
    store.away = False
    assert await view.read() == {"status": None, "decisions": []}
