"""A reader of a stream whose server loses, doubles and reorders what it delivers, and forgets.

The stream keeps the last messages alone, is purged behind a snapshot and made anew at times. The
reader's consumer delivers in order and counts; on the way some is lost, or comes twice. What the
reader delivers is in order and new; what it passes over was gone from the stream; left alone it has
it all.
"""

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from dynamo_router.runtime.event_planes.jetstream.stream_reader import (
    FALL_BACK_S,
    SILENCE_S,
    StreamPosition,
    StreamReader,
)


class Stream:
    """What a server keeps."""

    def __init__(self, life: int) -> None:
        self.created, self.last, self.kept = str(life), 0, list[int]()

    @property
    def first(self) -> int:
        return self.kept[0] if self.kept else self.last + 1


class Consumer:
    """One durable consumer: what it has delivered, and what of that is acknowledged."""

    def __init__(self, start: int) -> None:
        self.next, self.deliveries, self.floor = start, 0, start - 1
        self.under_way: list[tuple[int, int, int]] = []

    def deliver(self, stream: Stream, sequence: int) -> None:
        self.deliveries += 1
        pending = sum(kept > sequence for kept in stream.kept)
        self.under_way.append((sequence, self.deliveries, pending))


class StreamReaderMachine(RuleBasedStateMachine):
    @initialize()
    def start(self):
        self.lives = 0
        self.stream = Stream(0)
        self.reader = StreamReader()
        self.consumer: Consumer | None = None
        self.now = 0.0
        self.heard: list[tuple[str, int]] = []
        self.saved: StreamPosition | None = None

    @rule(count=st.integers(1, 4))
    def publish(self, count):
        for _ in range(count):
            self.stream.last += 1
            self.stream.kept.append(self.stream.last)

    @rule(keep=st.integers(0, 3))
    def expire(self, keep):
        self.stream.kept = self.stream.kept[len(self.stream.kept) - keep :] if keep else []

    @rule()
    def make_anew(self):
        self.lives += 1
        self.stream = Stream(self.lives)
        self.consumer = None
        self.reader.on_broken(self.now)

    @precondition(lambda self: not self.reader.is_open)
    @rule()
    def open(self):
        known, before = self.reader.position, self.reader.lapses
        start = self.reader.begin(
            self.stream.created, self.stream.first, self.stream.last, self.now
        )
        lost = known.created and (
            known.created != self.stream.created or self.stream.first > known.sequence + 1
        )
        assert self.reader.lapses == before + bool(lost)
        assert start <= max(self.stream.first, 1) or known.created == self.stream.created
        self.consumer = Consumer(start)

    @rule(count=st.integers(1, 3))
    def go_on(self, count):
        """As it goes when nothing goes wrong."""
        self.publish(count)
        if not self.reader.is_open:
            self.open()
        for _ in range(count):
            self.deliver()
        for _ in range(len(self.consumer.under_way) - 1):
            self.arrive()

    def deliver(self):
        for sequence in self.stream.kept:
            if sequence >= self.consumer.next:
                self.consumer.deliver(self.stream, sequence)
                self.consumer.next = sequence + 1
                break

    @precondition(lambda self: self.reader.is_open and self.consumer is not None)
    @rule()
    def deliver_again(self):
        """What was not acknowledged in time."""
        for sequence in self.stream.kept:
            if self.consumer.floor < sequence < self.consumer.next:
                self.consumer.deliver(self.stream, sequence)
        while self.consumer.under_way:
            self.arrive()

    @precondition(lambda self: self.consumer is not None and self.consumer.under_way)
    @rule(at=st.integers(0, 5))
    def lose(self, at):
        """One of them does; what comes after it shows that."""
        lost = min(at, len(self.consumer.under_way) - 1)
        sequence, *_ = self.consumer.under_way.pop(lost)
        before = len(self.heard)
        while self.consumer.under_way:
            self.arrive()
        self.reader.on_idle(self.consumer.deliveries, self.now)
        assert not self.reader.is_open
        assert all(number <= sequence for _, number in self.heard[before:])

    @precondition(lambda self: self.consumer is not None and self.consumer.under_way)
    @rule()
    def arrive(self):
        sequence, delivery, pending = self.consumer.under_way.pop(0)
        before, lapses = self.reader.read, self.reader.lapses
        if self.reader.on_message(sequence, delivery, pending, self.now):
            self.heard.append((self.reader.position.created, sequence))
            assert sequence > before
            assert (self.reader.lapses > lapses) == (sequence != before + 1)

    @precondition(lambda self: self.consumer is not None)
    @rule()
    def idle(self):
        if not self.consumer.under_way:
            self.reader.on_idle(self.consumer.deliveries, self.now)

    @rule()
    def acknowledge(self):
        due = self.reader.ack_due(self.now)
        if due is not None:
            assert due == self.reader.read
            self.reader.on_acked(due, self.now)
            assert self.reader.position.created != self.stream.created or (due <= self.stream.last)
            if self.consumer is not None:
                self.consumer.floor = max(self.consumer.floor, due)

    @rule()
    def lose_the_connection(self):
        self.reader.on_broken(self.now)

    @rule(seconds=st.sampled_from([0.05, 0.2, SILENCE_S + 1]))
    def wait(self, seconds):
        self.now += seconds
        if self.reader.is_silent(self.now):
            self.reader.on_broken(self.now)
            assert not self.reader.falls_back(self.now)
            assert self.reader.falls_back(self.now + FALL_BACK_S)

    @rule()
    def save(self):
        self.saved = StreamPosition(self.reader.position.created, self.reader.acked)

    @rule()
    def restart(self):
        """Another process goes on from what was saved."""
        self.reader = StreamReader(self.saved if self.saved and self.saved.created else None)
        self.consumer = None
        self.heard = []

    @invariant()
    def in_order_and_once(self):
        for (life, before), (other, after) in zip(self.heard, self.heard[1:], strict=False):
            assert life != other or before < after

    @invariant()
    def acknowledged_was_read(self):
        assert self.reader.acked <= self.reader.read
        if self.reader.is_open and self.reader.position.created == self.stream.created:
            assert self.reader.acked <= self.stream.last

    def teardown(self):
        if not hasattr(self, "reader"):
            return
        for _ in range(4):
            if not self.reader.is_open:
                self.open()
            self.consumer = self.consumer or Consumer(self.reader.read + 1)
            while self.consumer.next <= self.stream.last and self.stream.kept:
                before = self.consumer.next
                self.deliver()
                if self.consumer.next == before:
                    break
            while self.consumer.under_way:
                self.arrive()
            self.idle()
        assert self.reader.is_open and self.reader.caught_up
        assert self.reader.position == StreamPosition(self.stream.created, self.reader.read)
        assert not self.stream.kept or self.reader.read == self.stream.last


TestStreamReader = StreamReaderMachine.TestCase
