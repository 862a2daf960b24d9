"""The steps of a decision on a warm and busy fleet: look-up, loads, a booking and its release."""

from contextlib import closing

import numpy as np
import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from dynamo_router.base.identity import WorkerWithDpRank
from dynamo_router.bench.workbench.decision import BACKGROUND, PROMPTS, Workload
from dynamo_router.indexer.event_index import EventIndex
from dynamo_router.indexer.hashing import block_hashes, sequence_hashes
from dynamo_router.slots.table import SlotTable

fleets = pytest.mark.parametrize("workers", [64, 1024])


@pytest.fixture
def workload(workers: int) -> Workload:
    return Workload(tokens=2048, workers=workers, block_size=64)


@pytest.fixture
def slots(workload: Workload) -> SlotTable:
    table = SlotTable(workload.block_size)
    for worker in range(workload.workers):
        table.add_worker(worker)
    for number in range(BACKGROUND * workload.workers):
        prompt = workload.prompts[number % PROMPTS]
        hashes = sequence_hashes(block_hashes(prompt, workload.block_size))
        book(table, f"background-{number}", number % workload.workers, hashes)
    return table


def book(slots: SlotTable, request_id: str, worker: int, hashes: np.ndarray) -> None:
    slots.add_request(request_id, worker, hashes, isl=2048, overlap_blocks=0, now=0.0)


@fleets
def test_match(benchmark: BenchmarkFixture, workload: Workload) -> None:
    with closing(EventIndex()) as index:
        for worker in range(workload.workers):
            index.bind(WorkerWithDpRank(worker, 0), worker)
        for worker, event in workload.events:
            index.apply_cache_event(worker, event)
        hashes = block_hashes(workload.prompts[0], workload.block_size)
        overlaps = np.zeros(workload.workers, np.uint32)
        benchmark(index.match, hashes, overlaps)
        assert overlaps.max() == len(hashes) // 2  # the half that its family shares


@fleets
def test_loads(benchmark: BenchmarkFixture, workload: Workload, slots: SlotTable) -> None:
    hashes = sequence_hashes(block_hashes(workload.prompts[0], workload.block_size))
    overlaps = np.zeros(workload.workers, np.uint32)
    blocks, _tokens = benchmark(slots.potential, hashes, 2048, overlaps)
    assert len(blocks) == workload.workers


@fleets
def test_booking_and_release(
    benchmark: BenchmarkFixture, workload: Workload, slots: SlotTable
) -> None:
    hashes = sequence_hashes(block_hashes(workload.prompts[0], workload.block_size))

    def book_and_free() -> None:
        book(slots, "request", 0, hashes)
        slots.free("request")

    benchmark(book_and_free)
    assert slots.total_requests == BACKGROUND * workload.workers
