"""A finalizer may change the slot table while one of its calls makes Python objects."""

import gc
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
import pytest

from dynamo_router.slots.table import SlotTable

CALLS = ["potential", "active_blocks", "active_prefill_tokens", "active_requests"]
MOST_OBJECTS = 8  # that a call allocates before it reads the table for the last time

# The loads of 200 001 workers do not fit where those of one did: a write out of bounds crashes.
GROWS_DURING_CALL = f"""
import gc, sys
import numpy as np
from dynamo_router.slots.table import SlotTable

class AddsWorker:
    def __init__(self, slots):
        self.slots, self.itself = slots, self
    def __del__(self):
        self.slots.add_worker(200_000)
        self.slots.add_request(
            "late", 200_000, np.arange(1, 3, dtype=np.uint64), isl=8, overlap_blocks=0, now=0.0
        )

name = sys.argv[1]
for allocated in range({MOST_OBJECTS}):
    slots = SlotTable(4)
    slots.add_worker(0)
    given = (np.arange(3, dtype=np.uint64), 12, None) * (name == "potential")
    call = getattr(slots._book, name)
    gc.collect()
    gc.disable()
    AddsWorker(slots)
    gc.set_threshold(gc.get_count()[0] + allocated)
    gc.enable()
    found = call(*given)
    gc.disable()
    for array in found if isinstance(found, tuple) else (found,):
        assert len(array) in (1, 200_001), len(array)
        assert array[0] in (0, 3, 12), array
    gc.collect()
    assert slots.capacity == 200_001
slots.check_integrity()
"""


@pytest.mark.parametrize("name", CALLS)
def test_a_worker_that_is_added_while_loads_are_read_is_not_written_out_of_bounds(
    name: str,
) -> None:
    ran = subprocess.run(
        [sys.executable, "-c", GROWS_DURING_CALL, name], capture_output=True, text=True, timeout=120
    )
    assert ran.returncode == 0, ran.stderr


class Runs:
    """Garbage that calls a function when it is collected."""

    def __init__(self, function: Callable[[], object]) -> None:
        self.function, self.itself = function, self

    def __del__(self) -> None:
        self.function()


@contextmanager
def collection_after(allocations: int) -> Iterator[None]:
    """The collector runs once so many objects were allocated that it tracks."""
    before = gc.get_threshold()
    gc.set_threshold(gc.get_count()[0] + allocations)
    gc.enable()
    try:
        yield
    finally:
        gc.disable()
        gc.set_threshold(*before)


@pytest.mark.parametrize("allocations", range(MOST_OBJECTS))
def test_requests_that_end_while_the_table_gives_memory_back_leave_it_whole(
    allocations: int,
) -> None:
    slots = SlotTable(4)
    slots.add_worker(0)
    for number in range(200):
        slots.add_request(
            f"r{number}",
            0,
            np.arange(number, number + 3, dtype=np.uint64),
            isl=12,
            overlap_blocks=0,
            now=0.0,
        )
    for number in range(10, 178):  # the next one leaves less than an eighth of the records in use
        slots.free(f"r{number}")

    def change() -> None:
        for number in (0, 1, 195):
            slots.free(f"r{number}")
        slots.add_request("late", 0, None, isl=4, overlap_blocks=0, now=0.0)

    was_enabled = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        Runs(change)
        with collection_after(allocations):
            slots.free("r178")
        gc.collect()
    finally:
        if was_enabled:
            gc.enable()
    slots.check_integrity()
    alive = {f"r{number}" for number in (*range(2, 10), *range(179, 195), *range(196, 200))}
    assert slots.total_requests == len(alive) + 1
    assert all(slots.worker_of(each) == 0 for each in (*alive, "late"))
    for each in alive:
        assert slots.free(each)
    slots.check_integrity()
