"""A message of KV events: written, decoded, applied, and translated from vLLM's."""

from itertools import count

import numpy as np
from pytest_benchmark.fixture import BenchmarkFixture

from dynamo_router.base.identity import WorkerWithDpRank
from dynamo_router.bench.workbench.stream_source import StreamLoad, payloads
from dynamo_router.indexer.event_index import EventIndex
from dynamo_router.indexer.wire import EngineEvents, EventWriter, decode_event_message

BLOCKS = 128
HASHES = np.random.default_rng(7).integers(1, 2**63, (2, BLOCKS), np.uint64)


def message(event_id: int = 1) -> bytes:
    """That a worker stores a run of blocks."""
    writer = EventWriter()
    writer.stored(0, 0, event_id, None, *HASHES)
    return writer.message(1, event_id, 0, "kv-events")


def test_writing_a_message(benchmark: BenchmarkFixture) -> None:
    assert len(benchmark(message)) > 16 * BLOCKS


def test_decoding_a_message(benchmark: BenchmarkFixture) -> None:
    (event,) = benchmark(decode_event_message, message())
    assert event.worker == WorkerWithDpRank(0)


def test_applying_a_message_and_its_removal(benchmark: BenchmarkFixture) -> None:
    index = EventIndex()
    writer, numbers = EventWriter(), count(1)

    def messages() -> tuple[tuple[bytes, bytes], dict[str, object]]:
        """A run that is stored, and the same removed, under ids that were not used before."""
        number = next(numbers)
        writer.stored(0, 0, 2 * number - 1, None, *HASHES)
        stored = writer.message(1, 2 * number - 2, 0, "kv-events")
        writer.removed(0, 0, 2 * number, HASHES[0])
        return (stored, writer.message(1, 2 * number - 1, 0, "kv-events")), {}

    def apply(stored: bytes, removed: bytes) -> None:
        index.apply(stored)
        index.apply(removed)

    try:
        benchmark.pedantic(apply, setup=messages, rounds=2000, warmup_rounds=100)
        counters = index.tier_counters()["device"]
        assert counters["stored"] == counters["removed"] > 0 and not counters["unknown"]
    finally:
        index.close()


def test_decoding_a_message_of_vllm(benchmark: BenchmarkFixture) -> None:
    """128 blocks of 16 tokens stored, as many removed."""
    load = StreamLoad(
        way="zmq", engines=1, messages=1, block_size=16, run_blocks=BLOCKS, blocks_per_s=0.0, seed=1
    )
    payload = payloads(load, 0)[0]
    assert benchmark(EngineEvents(16).read, payload, 1) is not None
