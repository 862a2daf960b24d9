"""A stream of batches that are lost, doubled, cut off: what is applied is always a true state.

The engine numbers its changes and forgets old ones; the reader applies what its cursor says. What
is claimed was held at the moment of the last batch applied. At rest all is known, if the engine
tells the state of its cache, and it came once of three times.
"""

from random import Random

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from dynamo_router.indexer.wire import BatchHead
from dynamo_router.kv_events.stream_cursor import STATE_TRIES, StreamCursor, StreamStep

KEPT = 4  # batches an engine can send again
CHUNK = 2  # blocks in a chunk


class Batch:
    """A batch with its change (block, or minus block; 0: none), and the cache after it."""

    def __init__(self, head: BatchHead, blocks: list[int], state: frozenset[int]) -> None:
        self.head, self.blocks, self.state = head, blocks, state


def head_of(sequence: int, event_id: int = 0, **more: int) -> BatchHead:
    head = BatchHead(sequence, 0, 1, event_id, event_id, False, 0, 0, 0, False, 0)
    return head._replace(**more)


class StreamMachine(RuleBasedStateMachine):
    @initialize(snapshots=st.booleans(), first=st.sampled_from([0, 1, 1024]))
    def begin(self, snapshots: bool, first: int) -> None:
        self.snapshots = snapshots
        self.cursor = StreamCursor()
        self.claims: set[int] = set()
        self.at: frozenset[int] = frozenset()  # the cache at the last batch applied
        self.number = 0
        self.start_engine(first)
        self.subscribe()

    def start_engine(self, first: int) -> None:
        self.sequence = first - 1  # of the last batch
        self.event_id = 0
        self.cache: frozenset[int] = frozenset()
        self.log: list[Batch] = []
        self.wire: list[Batch] = []
        self.connected = False

    def subscribe(self) -> None:
        start = self.cursor.start
        self.cursor.on_subscribed()
        self.connected = True
        self.wire = []
        oldest = self.log[0].head.sequence if self.log else self.sequence + 1
        if start and oldest <= start <= self.sequence + 1:
            self.wire = [batch for batch in self.log if batch.head.sequence >= start]
        elif self.snapshots:
            held = sorted(self.cache)
            parts = [held[i : i + CHUNK] for i in range(0, max(1, len(held)), CHUNK)]
            for index, part in enumerate(parts):
                sequence = self.sequence - len(parts) + 1 + index
                head = head_of(sequence, chunk_index=index, chunk_count=len(parts))
                self.wire.append(Batch(head, part, self.cache))

    @rule(removes=st.booleans(), seed=st.integers(0, 9))
    def change(self, removes: bool, seed: int) -> None:
        if removes and self.cache:
            block = -sorted(self.cache)[seed % len(self.cache)]
            self.cache -= {-block}
        else:
            self.number += 1
            block = self.number
            self.cache |= {block}
        self.sequence += 1
        self.event_id += 1
        batch = Batch(head_of(self.sequence, self.event_id), [block], self.cache)
        self.log = [*self.log, batch][-KEPT:]
        if self.connected:
            self.wire.append(batch)

    @rule()
    @precondition(lambda self: self.shows_losses())
    def lose_in_engine(self) -> None:
        """A change that its buffer has no room for."""
        self.number += 1
        self.cache |= {self.number}
        self.event_id += 1
        self.log.clear()

    def shows_losses(self) -> bool:
        """Whether the reader knows a number of the events after which one is lost, or will get a
        snapshot that has it."""
        chunks = any(batch.head.chunk_count for batch in self.wire)
        return self.cursor.synced and bool(self.cursor._event_ids) and not chunks

    @rule(seed=st.integers(0, 99))
    @precondition(lambda self: self.wire)
    def mishandle(self, seed: int) -> None:
        """A batch is lost, doubled, or late."""
        at = Random(seed).randrange(len(self.wire))
        if seed % 3 == 0:
            del self.wire[at]
        elif seed % 3 == 1:
            self.wire.insert(at, self.wire[at])
        else:
            self.wire.append(self.wire.pop(at))

    @rule()
    def heartbeat(self) -> None:
        if self.connected:
            self.wire.append(Batch(head_of(self.sequence, load_only=True), [], self.cache))

    @rule()
    def cut(self) -> None:
        self.cursor.on_broken()
        self.subscribe()

    @rule(first=st.sampled_from([0, 1, 1024]))
    @precondition(lambda self: self.snapshots)
    def restart_engine(self, first: int) -> None:
        self.cursor.on_broken()
        self.start_engine(first)
        self.subscribe()

    @rule()
    def read(self) -> None:
        if not self.wire:
            return
        batch = self.wire.pop(0)
        step = self.cursor.take(batch.head)
        if step is StreamStep.RESUBSCRIBE:
            self.subscribe()
            return
        if step is StreamStep.IGNORE:
            return
        if step is StreamStep.CLEAR_AND_APPLY:
            self.claims.clear()
        self.at = batch.state
        for block in batch.blocks:
            (self.claims.add if block > 0 else self.claims.discard)(abs(block))

    @rule()
    def rest(self) -> None:
        """Nothing is mishandled any more: a change, a heartbeat, and all is read."""
        self.change(False, 0)
        for _ in range(20):
            self.heartbeat()
            while self.wire:
                self.read()
            if self.at == self.cache and self.cursor.synced:
                break
        assert self.claims <= self.cache
        if self.cursor.gives_snapshots:  # also not, where they were lost again and again
            assert self.claims == self.cache
        if self.cursor.complete:
            assert self.claims == self.cache

    @invariant()
    def claims_no_more_than_was_true(self) -> None:
        if hasattr(self, "claims"):
            assert self.claims <= self.at


def change(sequence: int) -> BatchHead:
    return head_of(sequence, sequence)


def test_a_state_that_was_lost_is_asked_for_again() -> None:
    cursor = StreamCursor()
    assert cursor.take(head_of(7, chunk_count=1)) is StreamStep.CLEAR_AND_APPLY
    cursor.on_broken()
    cursor.on_subscribed()
    assert cursor.take(change(9)) is StreamStep.RESUBSCRIBE
    assert cursor.start == 0 and cursor.gaps == 1
    assert cursor.take(head_of(9, chunk_count=1)) is StreamStep.CLEAR_AND_APPLY
    assert cursor.synced and cursor.complete


def test_an_engine_that_gives_no_more_states_is_heard_all_the_same() -> None:
    cursor = StreamCursor()
    cursor.take(head_of(7, chunk_count=1))
    cursor.on_broken()
    steps = [cursor.take(change(9 + tries)) for tries in range(STATE_TRIES)]
    assert steps == [StreamStep.RESUBSCRIBE] * 2 + [StreamStep.CLEAR_AND_APPLY]
    assert cursor.synced and not cursor.complete and not cursor.gives_snapshots


TestStreamCursor = StreamMachine.TestCase
TestStreamCursor.settings = settings(stateful_step_count=40, deadline=None)
