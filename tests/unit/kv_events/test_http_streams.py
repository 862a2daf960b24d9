"""A stream that is drained over HTTP, as TensorRT-LLM's OpenAI server offers it."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from support.kv_events.drained_engine import DrainedEngine, stored
from support.kv_events.stream_reader import SIZE, StreamReader, block, reading_stream
from support.polling import until

from dynamo_router.base.identity import WorkerWithDpRank
from dynamo_router.kv_events.dialects import EventsRefused, TrtllmEvents
from dynamo_router.kv_events.source_choice import EventSource
from dynamo_router.workers.worker_url import WorkerUrl

W = WorkerWithDpRank(7)


class Engine(DrainedEngine):
    """Of single blocks."""

    def created(self, window: int) -> None:
        data = {"type": "created", "num_blocks_per_cache_level": [100, 0]}
        self.happen(data, window_size=window)

    def store(self, number: int, tokens: list[int] | None = None, **more: Any) -> None:
        self.happen(stored(100 + number, tokens or block(number)), **more)

    def remove(self, *numbers: int, **more: Any) -> None:
        self.happen({"type": "removed", "block_hashes": [100 + n for n in numbers]}, **more)


@asynccontextmanager
async def reading(engine: Engine, ranks: int = 1) -> AsyncIterator[StreamReader]:
    await engine.start()
    try:
        async with reading_stream(WorkerUrl("127.0.0.1:1", events=engine.url), ranks) as reader:
            yield reader
    finally:
        await engine.stop()


async def test_events_of_an_engine_that_has_just_started_are_exact() -> None:
    engine = Engine()
    engine.created(128)
    engine.store(1)
    async with reading(engine) as reader:
        await until(reader.holds(1))
        assert reader.stream.is_complete and reader.subscribers.source_of(7) is EventSource.HTTP
        engine.store(2)
        engine.remove(1)
        await until(reader.holds(2))
        assert reader.up == [True] and reader.counts.gaps == 0


async def test_events_that_somebody_else_drained_show_as_a_hole() -> None:
    engine = Engine()
    engine.store(1)
    async with reading(engine) as reader:
        await until(reader.holds(1))
        engine.remove(1, lost=True)
        engine.store(2)
        await until(reader.holds(2))
        assert not reader.stream.is_complete and reader.counts.gaps == 1


async def test_a_late_reader_does_not_claim_to_know_all() -> None:
    engine = Engine()
    engine.store(1, lost=True)
    engine.store(2)
    async with reading(engine) as reader:
        await until(reader.holds(2))
        assert not reader.stream.is_complete


async def test_an_engine_that_is_started_anew_is_forgotten() -> None:
    engine = Engine()
    for number in range(5):
        engine.store(number)
    async with reading(engine) as reader:
        await until(reader.holds(0, 1, 2, 3, 4))
        engine.next.clear()
        engine.store(7)
        await until(reader.holds(7))
        assert reader.stream.is_complete
        engine.store(8)
        await until(reader.holds(7, 8))


async def test_ranks_have_numbers_of_their_own() -> None:
    engine = Engine()
    engine.store(1)
    engine.store(2, rank=1)
    engine.store(3)
    async with reading(engine, ranks=2) as reader:
        await until(reader.holds(1, 3))
        await until(reader.holds(2, rank=1))


async def test_the_largest_window_and_whole_blocks_count() -> None:
    engine = Engine()
    engine.created(128)
    engine.created(4096)
    engine.store(1, window_size=4096)
    engine.store(2, window_size=128)
    engine.store(3, tokens=[1, 2], window_size=4096)
    engine.store(4, window_size=4096)
    engine.remove(4, window_size=128)
    async with reading(engine) as reader:
        await until(reader.holds(1, 4))


async def test_a_block_that_moves_to_host_memory_is_not_claimed_any_more() -> None:
    engine = Engine()
    engine.store(1)
    engine.store(2)
    async with reading(engine) as reader:
        await until(reader.holds(1, 2))
        level = {"type": "event_diff", "old_value": 0, "new_value": 1}
        engine.happen({"type": "updated", "block_hash": 101, "cache_level": level})
        engine.happen({"type": "updated", "block_hash": 102, "cache_level": None, "priority": 3})
        engine.happen({"type": "something new"})
        await until(reader.holds(2))


@pytest.mark.parametrize(
    "body",
    [b'[{"event_id": 1}]', b'[{"event_id": 1, "x": ' + b"[" * 100_000 + b"]" * 100_000 + b"}]"],
    ids=["incomplete", "too deep"],
)
async def test_an_answer_that_cannot_be_read_is_a_loss(body: bytes) -> None:
    engine = Engine()
    engine.store(1)
    async with reading(engine) as reader:
        await until(reader.holds(1))
        engine.body = body
        await until(lambda: reader.up[-1] is False)
        engine.body = None
        engine.store(2)
        await until(reader.holds(2))
        assert not reader.stream.is_complete


async def test_an_answer_that_breaks_off_is_a_loss_at_once() -> None:
    engine = Engine()
    engine.store(1)
    async with reading(engine) as reader:
        await until(reader.holds(1))
        engine.answers_lost = 1
        engine.remove(1)
        await until(reader.holds())  # nothing more is told
        await until(lambda: reader.stream.is_synced)
        assert not reader.stream.is_complete


async def test_an_old_answer_that_comes_again_is_not_believed() -> None:
    engine = Engine()
    for number in range(1, 4):
        engine.store(number)
    async with reading(engine) as reader:
        await until(reader.holds(1, 2, 3))
        engine.remove(2)
        await until(reader.holds(1, 3))
        engine.waiting = [{"event_id": 1, "data": stored(102, block(2))}]
        await until(reader.holds())
        assert not reader.stream.is_complete
        engine.store(4)
        await until(reader.holds(4))


async def test_a_server_without_the_route_is_refused_and_a_broken_one_tried_again() -> None:
    engine = Engine()
    engine.status = 503
    async with reading(engine) as reader:
        await until(lambda: engine.asked > 2)
        assert "503" in reader.stream.error and not reader.refused
        engine.status = 404
        await until(lambda: bool(reader.refused))
        assert reader.refused == ["it has no /kv_cache_events: 404"]


def test_salts_adapters_and_strange_hashes() -> None:
    events = TrtllmEvents(SIZE)
    tell = [
        {"event_id": 0, "data": stored(2**64 - 1, block(1), cache_salt="x", mm_keys=[["a", 0]])}
    ]
    ((_, numbers, (event,)),) = events.translate(tell)
    assert numbers == [0] and event["cache_salt"] == "x" and len(event["extra_keys"][0]) == 1
    assert events.back_to(tell) == 0
    with pytest.raises(EventsRefused, match="hash_algo"):
        events.translate([{"event_id": 1, "data": stored("ab" * 32, block(1))}])


@pytest.mark.parametrize("sizes", [(SIZE - 1, SIZE), (SIZE, SIZE + 1)])
async def test_blocks_of_another_size_are_refused_by_name(sizes: tuple[int, int]) -> None:
    engine = Engine()
    blocks = [stored(100 + n, block(n)[:1] * size)["blocks"][0] for n, size in enumerate(sizes)]
    engine.happen({"type": "stored", "parent_hash": None, "blocks": blocks})
    wrong = next(size for size in sizes if size != SIZE)
    async with reading(engine) as reader:
        await until(lambda: bool(reader.refused))
        assert reader.refused == [f"blocks of {wrong} tokens, the router's have {SIZE}"]


async def test_ends_of_prompts_alone_are_no_other_block_size() -> None:
    engine = Engine()
    for number in range(1, 20):
        engine.store(number, tokens=[1, 2])
    engine.store(0)
    async with reading(engine) as reader:
        await until(reader.holds(0))
        assert not reader.refused
