"""Tables of booked blocks grow and shrink a little at a time, and are right meanwhile."""

import random

import numpy as np
import pytest

from dynamo_router.slots.table import SlotTable

BLOCKS = 64  # of a request


def book(table: SlotTable, request: int, worker: int = 0, first: int | None = None) -> None:
    start = request * BLOCKS if first is None else first
    hashes = np.arange(start, start + BLOCKS, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    table.add_request(
        f"r{request}", worker, hashes, isl=BLOCKS * table.block_size, overlap_blocks=0, now=0.0
    )


def test_a_table_that_grows_is_moved_with_the_bookings_that_follow() -> None:
    table = SlotTable(16)
    table.add_worker(0)
    sizes = []
    for request in range(2000):
        book(table, request)
        sizes.append(table.memory_bytes())
    fell = [n for n in range(1, 2000) if sizes[n] < sizes[n - 1]]
    grew = [n for n in range(1, 2000) if sizes[n] > 1.5 * sizes[n - 1] and sizes[n] > 1 << 20]
    assert grew, "it never grew"
    for n in grew:  # the table before goes some bookings later, and before the next growth
        gone = min(m for m in fell if m > n)
        assert 4 <= gone - n < n
    assert table.active_blocks()[0] == 2000 * BLOCKS


def test_what_is_booked_and_freed_while_it_moves_is_counted_right() -> None:
    chance = random.Random(1)
    table = SlotTable(16)
    held: dict[int, tuple[int, int]] = {}  # request -> worker, first block
    for worker in range(3):
        table.add_worker(worker)
    for turn in range(3000):
        grows = turn % 1000 < 600
        if chance.random() < (0.9 if grows else 0.1) or not held:
            worker, first = chance.randrange(3), chance.randrange(40_000)
            book(table, turn, worker, first)
            held[turn] = worker, first
        else:
            request = chance.choice(list(held))
            del held[request]
            table.free(f"r{request}")
        if turn % 50 == 0:
            table.check_integrity()
    for worker in range(3):
        blocks: set[int] = set()
        for at, first in held.values():
            if at == worker:
                blocks.update(range(first, first + BLOCKS))
        assert table.active_blocks()[worker] == len(blocks)
    for request in held:
        table.free(f"r{request}")
    table.check_integrity()
    assert not table.active_blocks().any()


@pytest.mark.parametrize("moving", [False, True])
def test_the_last_request_leaves_an_empty_table(moving: bool) -> None:
    """It is emptied at once, also where some of it is in the table before."""
    table = SlotTable(16)
    table.add_worker(0)
    table.add_worker(1)
    hashes = np.arange(10_000, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    for _ in range(3):
        for request, worker, count in (("a", 0, 6000), ("b", 1, 10_000), ("c", 1, 10_000)):
            table.add_request(
                request, worker, hashes[:count], isl=160_000, overlap_blocks=0, now=0.0,
                expected_output_tokens=100,
            )  # fmt: skip
            if moving and request == "a":
                continue
            for generated in range(1, 40):
                table.add_output_tokens(request, generated)
        for request in "abc":
            table.free(request)
            table.check_integrity()
        assert not table.active_blocks().any() and not table.active_requests().any()
        potential, _ = table.potential(hashes, 160_000, np.zeros(2, np.uint32))
        assert potential.tolist() == [10_000, 10_000]


def test_a_table_keeps_its_size_from_one_long_prompt_to_the_next() -> None:
    table = SlotTable(16)
    table.add_worker(0)
    hashes = np.arange(10_000, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    sizes = set()
    for turn in range(200):
        table.add_request("long", 0, hashes, isl=160_000, overlap_blocks=0, now=0.0)
        table.free("long")
        for each in range(20):  # and some short ones
            book(table, each)
            table.free(f"r{each}")
        if turn > 2:
            sizes.add(table.memory_bytes())
    assert len(sizes) == 1
    table.check_integrity()
