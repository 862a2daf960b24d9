"""The cursor, and what it holds back, agree with their oracle whatever comes in whatever order."""

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from oracles.cursor import OracleSource

from dynamo_router.indexer.event_index.actor import EventIndex
from dynamo_router.indexer.wire.codec import encode_event_message, encode_heartbeat
from dynamo_router.indexer.wire.events import (
    Cleared,
    EventData,
    Removed,
    RouterEvent,
    Stored,
    StoredBlock,
)
from dynamo_router.runtime.identity import WorkerWithDpRank

W = WorkerWithDpRank(3, 1)
BLOCKS = (1, 2, 3)
PUBLISHERS = st.integers(1, 3)
SEQUENCES = st.integers(0, 8)
EVENT_IDS = st.integers(0, 9)
KINDS = st.sampled_from(["store", "store", "remove", "clear", "orphan"])


def event_data(kind: str, block: int) -> EventData:
    if kind == "store":
        return Stored(None, [StoredBlock(block, block)])
    if kind == "remove":
        return Removed([block])
    return Cleared() if kind == "clear" else Stored(99, [StoredBlock(50, 50)])


class CursorMachine(RuleBasedStateMachine):
    """Any events and heartbeats of any numbers: most of them could not come from one engine."""

    @initialize(max_held=st.sampled_from([0, 2, 2**16]))
    def start(self, max_held):
        self.index = EventIndex()
        self.index.await_replays(max_events=max_held)
        self.oracle = OracleSource(max_held=max_held)

    @rule(
        publisher=PUBLISHERS,
        sequence=SEQUENCES,
        event_id=EVENT_IDS,
        kind=KINDS,
        block=st.sampled_from(BLOCKS),
    )
    def take(self, publisher, sequence, event_id, kind, block):
        event = RouterEvent(W, event_id, event_data(kind, block))
        self.index.apply(encode_event_message([event], publisher, sequence, 0))
        self.oracle.take(publisher, sequence, event_id, (kind, block))

    @rule(ahead=st.integers(1, 3), kind=KINDS, block=st.sampled_from(BLOCKS))
    def take_a_likely_one(self, ahead, kind, block):
        oracle = self.oracle
        self.take(oracle.publisher, oracle.sequence + ahead - 1, oracle.last + ahead, kind, block)

    @rule(publisher=PUBLISHERS, sequence=SEQUENCES, last=EVENT_IDS)
    def beat(self, publisher, sequence, last):
        self.index.apply(encode_heartbeat(W, last, publisher, sequence, 0))
        self.oracle.beat(publisher, sequence, last)

    @rule()
    def give_up(self):
        self.index.give_up(W)
        self.oracle.give_up()

    @rule()
    def be_deaf(self):
        self.index.mark_suspect()
        self.oracle.deaf()

    @invariant()
    def same(self):
        oracle = self.oracle
        held = {b for b in BLOCKS if self.index.scores(np.array([b], np.uint64)).get(W)}
        assert held == oracle.blocks
        assert self.index.counters()["held_now"] == len(oracle.held)
        for status in self.index.sources():
            assert status.state.value == oracle.reported
            assert status.missing == oracle.missing
            assert status.last_event_id == oracle.last
            for count in ("gaps", "given_up", "restarts", "duplicates", "orphans"):
                assert getattr(status, count) == getattr(oracle, count), count

    def teardown(self):
        if hasattr(self, "index"):
            self.index.close()


TestCursorMachine = CursorMachine.TestCase
TestCursorMachine.settings = settings(max_examples=120, stateful_step_count=30, deadline=None)
