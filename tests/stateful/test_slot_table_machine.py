"""The slot table agrees with the oracle after any sequence of calls, other routers' included."""

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from oracles.slots import OracleSlots

from dynamo_router.slots.table import PEER_MARK, SlotTable

WORKERS = 6
REQUEST_IDS = st.integers(0, 11).map("r{}".format)
PEER_IDS = st.integers(0, 5).map((PEER_MARK + "{}").format)
ANY_ID = st.one_of(REQUEST_IDS, PEER_IDS)
# A hash's place is the top bits of its product with this number, so those that its inverse makes
# are all in one place or the one before it, at the ends of the table.
CROWD = [
    place * pow(0x9E3779B97F4A7C15, -1, 2**64) % 2**64 for place in (1, 2, 3, 2**64 - 2, 2**64 - 1)
]
# Few hashes, so that requests share blocks.
HASHES = st.sampled_from([0, 1, 2**40, 2**64 - 1, *CROWD])
# Free lists with repeats beside prefixes of one chain: the second is what prompts look like.
SEQUENCES = st.one_of(
    st.none(),
    st.lists(HASHES, max_size=8),
    st.integers(0, 20).map(lambda n: [1000 + i for i in range(n)]),
    # So long that the blocks of the last request are let go together, also while a table grows.
    st.sampled_from([512, 2100, 3000]).map(lambda n: [1000 + i for i in range(n)]),
)
ISLS = st.integers(0, 200)
OVERLAPS = st.integers(0, 30)
SECONDS = st.floats(0, 8, allow_nan=False).map(lambda s: round(s, 3))


def as_array(hashes):
    return None if hashes is None else np.array(hashes, dtype=np.uint64)


class SlotTableMachine(RuleBasedStateMachine):
    @initialize(block_size=st.integers(1, 16), max_entries=st.sampled_from([12, 80, 2**24]))
    def start(self, block_size, max_entries):
        self.now = 0.0
        self.table = SlotTable(block_size, expiry_s=10.0, max_entries=max_entries)
        self.oracle = OracleSlots(block_size, 10.0, max_entries)
        for number in (0, 2):
            self.add_worker(number)

    @rule(number=st.integers(0, WORKERS - 1))
    def toggle_worker(self, number):
        if number in self.oracle.workers:
            dropped = self.table.remove_worker(number)
            gone = self.oracle.remove_worker(number)
            assert set(dropped) == {name for name in gone if not name.startswith(PEER_MARK)}
            assert len(dropped) == len(set(dropped))
        else:
            self.add_worker(number)

    def add_worker(self, number):
        self.table.add_worker(number)
        self.oracle.workers.add(number)

    @precondition(lambda self: self.oracle.workers)
    @rule(
        request_id=REQUEST_IDS,
        hashes=SEQUENCES,
        isl=ISLS,
        overlap=OVERLAPS,
        expected=st.one_of(st.none(), st.integers(1, 60)),
        track=st.booleans(),
        data=st.data(),
    )
    def add_request(self, request_id, hashes, isl, overlap, expected, track, data):
        worker = data.draw(st.sampled_from(sorted(self.oracle.workers)))
        booked = self.table.add_request(
            request_id,
            worker,
            as_array(hashes),
            isl=isl,
            overlap_blocks=overlap,
            now=self.now,
            expected_output_tokens=expected,
            track_prefill=track,
        )
        prefill = max(0, isl - overlap * self.oracle.block_size) if track else 0
        assert booked == self.oracle.add_request(
            request_id, worker, hashes, isl, prefill, self.now, expected
        )

    @precondition(lambda self: self.oracle.workers)
    @rule(
        request_id=PEER_IDS,
        hashes=SEQUENCES,
        isl=ISLS,
        prefill=st.integers(0, 200),
        expected=st.one_of(st.just(0), st.integers(1, 60)),
        data=st.data(),
    )
    def add_peer_request(self, request_id, hashes, isl, prefill, expected, data):
        worker = data.draw(st.sampled_from(sorted(self.oracle.workers)))
        packed = None if hashes is None else as_array(hashes).tobytes()
        booked = self.table.add_peer_request(
            request_id, worker, packed, isl, prefill, expected, self.now
        )
        assert booked == self.oracle.add_request(
            request_id, worker, hashes, isl, prefill, self.now, expected
        )

    @rule(request_id=ANY_ID)
    def free(self, request_id):
        assert self.table.free(request_id) == self.oracle.free(request_id)

    @rule(request_id=ANY_ID)
    def mark_prefill_completed(self, request_id):
        completed = self.table.mark_prefill_completed(request_id)
        assert completed == self.oracle.mark_prefill_completed(request_id)

    @rule(request_id=REQUEST_IDS, generated=st.integers(0, 80))
    def add_output_tokens(self, request_id, generated):
        grown = self.table.add_output_tokens(request_id, generated)
        assert grown == self.oracle.add_output_tokens(request_id, generated)

    @rule(request_id=REQUEST_IDS, seconds=SECONDS)
    def touch(self, request_id, seconds):
        self.now += seconds
        assert self.table.touch(request_id, self.now) == self.oracle.touch(request_id, self.now)

    @rule(seconds=st.one_of(SECONDS, st.just(-5.0)))  # a clock that goes back does no harm
    def expire(self, seconds):
        self.now += seconds
        assert self.table.expire(self.now) == self.oracle.expire(self.now)

    @rule(hashes=SEQUENCES, isl=ISLS, data=st.data())
    def project(self, hashes, isl, data):
        overlaps = data.draw(st.lists(OVERLAPS, min_size=WORKERS, max_size=WORKERS))
        overlaps = overlaps[: self.table.capacity]
        blocks, tokens = self.table.potential(
            as_array(hashes), isl, np.array(overlaps, dtype=np.uint32)
        )
        for number in self.oracle.workers:
            expected = self.oracle.potential(number, hashes, isl, overlaps[number])
            assert (blocks[number], tokens[number]) == expected

    @invariant()
    def loads_agree(self):
        oracle, table = self.oracle, self.table
        loads = zip(
            table.active_blocks(),
            table.active_prefill_tokens(),
            table.active_requests(),
            table.own_requests(),
            strict=True,
        )
        for number, load in enumerate(loads):
            assert load == (
                oracle.active_blocks(number),
                oracle.active_prefill_tokens(number),
                oracle.active_requests(number),
                oracle.own_requests(number, PEER_MARK),
            )
        for request_id, request in oracle.requests.items():
            assert table.worker_of(request_id) == request.worker
        assert table.total_requests == len(oracle.requests)
        assert (table.duplicates, table.refused) == (oracle.duplicates, oracle.refused)

    @invariant()
    def sums_are_right(self):
        self.table.check_integrity()


TestSlotTable = SlotTableMachine.TestCase
TestSlotTable.settings = settings(max_examples=80, stateful_step_count=40, deadline=None)
