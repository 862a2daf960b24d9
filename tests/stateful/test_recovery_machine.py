"""One worker and one router over a network that drops, doubles, reorders and delays messages.

Outbox, replay log, recovery, cursor and tree are the real ones; the clock is the test's. At every
moment what the index claims of the worker is part of what the worker held just after the event
that the index stands at, and all of it unless the source is rebuilding. Once messages pass again
the index is the worker's truth within a bounded time.
"""

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from dynamo_router.base.identity import WorkerWithDpRank
from dynamo_router.engines.event_stream import MIN_ANNOUNCE_INTERVAL_S
from dynamo_router.engines.outbox import Outbox, StoredRun
from dynamo_router.engines.replay_log import ReplayLog
from dynamo_router.indexer.event_index._status import list_sources
from dynamo_router.indexer.event_index.actor import EventIndex
from dynamo_router.indexer.source import SourceState
from dynamo_router.indexer.wire.codec import EventWriter, decode_event_message, encode_heartbeat
from dynamo_router.indexer.wire.events import Cleared, Removed, Stored
from dynamo_router.kv_events.recovery import REPLAY_TICK_S, TICK_S, EventRecovery
from dynamo_router.kv_events.resync import GAP_TIMEOUT_S, LIVELY_WAIT_S
from dynamo_router.kv_events.resync_wire import ResyncRequest, decode_request, encode_request

W = WorkerWithDpRank(5, 2)
ROOTS = (1, 2, 3)  # block 10 * r hangs below block r
# A request may wait that long, then an announcement; one gap after another may open on the way.
HEALED_WITHIN_S = LIVELY_WAIT_S + MIN_ANNOUNCE_INTERVAL_S + GAP_TIMEOUT_S + 4 * TICK_S


class Worker:
    """An engine's cache and the pure half of its publisher."""

    def __init__(self) -> None:
        self.publisher, self.sequence = 0, 0
        self.truths: dict[tuple[int, int], list[set[int]]] = {}
        self.restart(new_publisher=True)

    def restart(self, *, new_publisher: bool) -> None:
        if new_publisher:
            self.publisher, self.sequence = self.publisher + 1, 0
        self.cache: set[int] = set()
        self.told: set[int] = set()  # the cache that follows from all events sent
        self.outbox = Outbox(W, max_events=2)
        self.log = ReplayLog(next_event_id=1, max_events=6, max_bytes=10**6)
        self.announce_wanted = False
        self.last_announcement = -np.inf
        self.truths.setdefault((self.publisher, 0), []).append(set())

    def flip(self, root: int, child: bool) -> None:
        """Cache a block or drop it, with what must come or go along."""
        block = 10 * root if child else root
        if block not in self.cache:
            chain = [b for b in ([root, block] if child else [root]) if b not in self.cache]
            parent = root if chain[0] != root else None
            self.outbox.put_stored(StoredRun(parent, chain, chain))
            self.cache.update(chain)
        else:
            gone = [b for b in (10 * root, root) if b in self.cache and (b == block or not child)]
            self.outbox.put_removed(gone)
            self.cache.difference_update(gone)

    def clear(self) -> None:
        self.outbox.put_cleared()
        self.cache.clear()

    def write(self, now: float) -> bytes | None:
        """The next message, if there is anything to send."""
        due = now >= self.last_announcement + MIN_ANNOUNCE_INTERVAL_S
        if self.announce_wanted and due and not self.outbox.announcing:
            self.announce_wanted, self.last_announcement = False, now
            self.outbox.announce(
                StoredRun(b // 10 if b >= 10 else None, [b], [b]) for b in sorted(self.cache)
            )
        first = self.outbox.next_event_id
        writer = EventWriter()
        events = self.outbox.write_message(writer)
        if not events:
            return None
        message = writer.message(self.publisher, self.sequence, 0)
        self.sequence += 1
        clear_id = self.outbox.clear_id if self.outbox.clear_id >= first else None
        self.log.append(first, first + events - 1, message, clear_id)
        for event in decode_event_message(message):
            match event.data:
                case Stored(blocks=blocks):
                    self.told = self.told | {block.block_hash for block in blocks}
                case Removed(block_hashes=hashes):
                    self.told = self.told - set(hashes)
                case Cleared():
                    self.told = set()
            self.truths.setdefault((self.publisher, event.event_id), []).append(self.told)
        return message

    def beat(self) -> bytes:
        last = self.outbox.next_event_id - 1
        return encode_heartbeat(W, last, self.publisher, max(0, self.sequence - 1), 0)

    def answer(self, request: ResyncRequest, now: float) -> list[bytes]:
        if request.from_event_id is None or request.publisher_id != self.publisher:
            self.announce_wanted = True
            return []
        self.log.want(request.from_event_id, request.until_event_id)
        messages = self.log.take(now)
        if messages is None:
            self.announce_wanted = True
            return []
        return [*messages, self.beat()]


class RecoveryMachine(RuleBasedStateMachine):
    @initialize(max_held=st.sampled_from([3, 2**16]))
    def start(self, max_held):
        self.index = EventIndex()
        self.index.await_replays(max_events=max_held)
        self.worker = Worker()
        self.recovery = EventRecovery(self.index)
        self.now = 0.0
        self.next_upkeep = 0.0
        self.under_way: list[bytes] = []
        self.requests: list[bytes] = []
        self.gap_since: tuple[int, float] | None = None

    # The worker

    @rule(root=st.sampled_from(ROOTS), child=st.booleans())
    def flip(self, root, child):
        self.worker.flip(root, child)

    @rule()
    def clear(self):
        self.worker.clear()

    @rule()
    def send(self):
        message = self.worker.write(self.now)
        if message is not None:
            self.under_way.append(message)

    @rule()
    def beat(self):
        self.under_way.append(self.worker.beat())

    @rule()
    def restart(self):
        self.worker.restart(new_publisher=True)

    @rule(root=st.sampled_from(ROOTS))
    def restart_behind_its_publisher(self, root):
        """The ids begin again in envelopes that go on; the first messages may get lost."""
        self.worker.restart(new_publisher=False)
        self.worker.flip(root, False)
        message = self.worker.write(self.now)
        assert message is not None
        self.under_way.append(message)

    @precondition(lambda self: self.requests)
    @rule(lost=st.booleans())
    def answer(self, lost):
        request = decode_request(self.requests.pop(0))
        if not lost:
            self.under_way += self.worker.answer(request, self.now)

    # The network

    @precondition(lambda self: self.under_way)
    @rule(data=st.data(), again=st.booleans())
    def deliver(self, data, again):
        place = data.draw(st.integers(0, len(self.under_way) - 1))
        message = self.under_way[place] if again else self.under_way.pop(place)
        self.index.apply(message)

    @precondition(lambda self: self.under_way)
    @rule()
    def deliver_the_oldest(self):
        self.index.apply(self.under_way.pop(0))

    @precondition(lambda self: self.under_way)
    @rule(data=st.data())
    def lose(self, data):
        self.under_way.pop(data.draw(st.integers(0, len(self.under_way) - 1)))

    # The router

    @rule()
    def be_deaf(self):
        self.index.mark_suspect()

    @rule(ticks=st.integers(1, 30))
    def tick(self, ticks):
        for _ in range(ticks):
            self.now += REPLAY_TICK_S
            if self.now >= self.next_upkeep:
                self.next_upkeep = self.now + TICK_S
                upkeep = self.recovery.keep_up(self.index.sources(), [W], self.now)
                self.requests += map(encode_request, upkeep.ask)
            if self.recovery.gap_noticed or self.recovery.waiting:
                self.requests += map(encode_request, self.recovery.fill_gaps(self.now).ask)
            self.no_gap_stays_as_it_is()

    def no_gap_stays_as_it_is(self):
        missing = [s.missing for s in self.index.recovering() if s.missing and s.missing.last]
        if not missing:
            self.gap_since = None
            return
        head = hash(missing[0][:2])
        if self.gap_since is None or self.gap_since[0] != head:
            self.gap_since = head, self.now
        assert self.now - self.gap_since[1] <= GAP_TIMEOUT_S + 2 * REPLAY_TICK_S

    # What must hold

    def claims(self) -> set[int]:
        found = set()
        for root in ROOTS:
            depth = self.index.scores(np.array([root, 10 * root], np.uint64)).get(W, 0)
            found |= {root, 10 * root} if depth == 2 else {root} if depth else set()
        return found

    @invariant()
    def claims_are_a_truth(self):
        claims = self.claims()
        for source in self.index.sources():
            if source.state is SourceState.SILENT:
                assert not claims
                continue
            (cursor,) = [row[1] for row in list_sources(self.index.native, False)]
            truths = self.worker.truths.get((cursor["publisher_id"], source.last_event_id), [set()])
            if cursor["state"] == 1:  # exact, or recovering
                assert claims in truths
            else:
                assert any(claims <= truth for truth in truths)

    def teardown(self):
        if not hasattr(self, "index"):
            return
        try:
            self.heal()
        finally:
            self.index.close()

    def heal(self):
        """From here on nothing is lost."""
        end = self.now + HEALED_WITHIN_S
        while True:
            while (message := self.worker.write(self.now)) is not None:
                self.under_way.append(message)
            self.under_way.append(self.worker.beat())
            while self.under_way:
                self.index.apply(self.under_way.pop(0))
            while self.requests:
                self.under_way += self.worker.answer(decode_request(self.requests.pop(0)), self.now)
            (source,) = self.index.sources()
            if not (self.under_way or self.worker.announce_wanted):
                if source.state is SourceState.EXACT:
                    break
            assert self.now < end, f"not healed: {source}"
            self.tick(1)
        assert self.claims() == self.worker.cache
        assert source.blocks == len(self.worker.cache)
        assert self.index.counters()["held_now"] == 0


TestRecoveryMachine = RecoveryMachine.TestCase
TestRecoveryMachine.settings = settings(max_examples=80, stateful_step_count=40, deadline=None)
