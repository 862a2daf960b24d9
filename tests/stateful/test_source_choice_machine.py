"""A worker whose sources come and go: one is believed, the best that is there in the end."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from dynamo_router.kv_events.source_choice import (
    ANNOUNCED_WAIT_S,
    AWAY_S,
    GONE_S,
    HOLD_S,
    LONGEST_HOLD_S,
    UNDECIDED_S,
    EventSource,
    SourceChoice,
)

SOURCES = (EventSource.NATS, EventSource.GRPC)
TICK_S = 0.25
SETTLED_S = LONGEST_HOLD_S + GONE_S + ANNOUNCED_WAIT_S + UNDECIDED_S


def choice_of(*allowed: EventSource, now: float = 0.0, announced: bool) -> SourceChoice:
    plane, stream = (source if source in allowed else None for source in SOURCES)
    return SourceChoice(plane, stream, now, announced=announced)


class ChoiceMachine(RuleBasedStateMachine):
    @initialize(
        allowed=st.sets(st.sampled_from(SOURCES), min_size=1),
        announced=st.booleans(),
        implemented=st.booleans(),
    )
    def begin(self, allowed: set[EventSource], announced: bool, implemented: bool) -> None:
        self.now = 100.0
        self.allowed, self.implemented = allowed, implemented
        self.choice = choice_of(*allowed, now=self.now, announced=announced)
        self.connected, self.speaks, self.reachable = True, False, True
        self.open = False
        self.left_at = {source: float("-inf") for source in EventSource}
        self.current: EventSource | None = None
        self.seen_up = {EventSource.NATS: False, EventSource.GRPC: False}

    @rule(connected=st.booleans(), speaks=st.booleans())
    def plane(self, connected: bool, speaks: bool) -> None:
        self.connected, self.speaks = connected, speaks

    @rule(reachable=st.booleans())
    def engine(self, reachable: bool) -> None:
        self.reachable = reachable

    @rule()
    def recover(self) -> None:
        self.choice.on_well(self.now)

    @rule(ticks=st.integers(1, 30))
    def wait(self, ticks: int) -> None:
        for _ in range(ticks):
            self.now += TICK_S
            heard = self.connected and self.speaks
            self.seen_up[EventSource.NATS] |= heard
            self.choice.on_plane(self.now, connected=self.connected, published=heard, beats=True)
            self.follow()

    def follow(self) -> None:
        """What a stream's reader does: try while it is wanted, and report."""
        works = self.reachable and self.implemented
        if self.open and not (works and self.choice.wants_stream):
            self.open = False
            self.choice.on_stream(False, self.now)
        elif not self.open and self.choice.wants_stream:
            self.open = works
            self.seen_up[EventSource.GRPC] |= works
            lasting = self.reachable and not works
            self.choice.on_stream(works, self.now, lasting=lasting)
        self.note_switch()

    def note_switch(self) -> None:
        if self.choice.current is self.current:
            return
        if self.current is not None:
            self.left_at[self.current] = self.now
        self.current = self.choice.current

    @rule()
    def settle(self) -> None:
        """With nothing changing any more, the best source that is there is believed."""
        self.wait(int(SETTLED_S / TICK_S))
        before = self.choice.switches
        self.wait(int(SETTLED_S / TICK_S))
        assert self.choice.switches == before, "it goes to and fro"
        nats = EventSource.NATS in self.allowed and self.connected and self.speaks
        grpc = EventSource.GRPC in self.allowed and self.reachable and self.implemented
        if nats:
            assert self.choice.current is EventSource.NATS
            assert not self.choice.wants_stream
        elif grpc:
            assert self.choice.current is EventSource.GRPC and self.open
        else:
            # What the plane told stays believed while nobody tells better.
            assert self.choice.current in (EventSource.PREDICTED, EventSource.NATS)

    @invariant()
    def only_what_may_be_and_was_there_is_believed(self) -> None:
        if not hasattr(self, "choice"):
            return
        current = self.choice.current
        if current in (EventSource.NATS, EventSource.GRPC):
            assert current in self.allowed and self.seen_up[current]
        if EventSource.GRPC not in self.allowed:
            assert not self.choice.wants_stream


TestSourceChoice = ChoiceMachine.TestCase
TestSourceChoice.settings = settings(stateful_step_count=25, deadline=None)


def test_a_better_source_must_last_before_it_takes_over() -> None:
    choice = choice_of(*SOURCES, announced=False)
    choice.on_plane(1.0, connected=True, published=False, beats=False)
    assert choice.wants_stream and choice.current is None
    choice.on_stream(True, 1.1)
    assert choice.current is EventSource.GRPC
    choice.on_plane(2.0, connected=True, published=True, beats=False)
    assert choice.current is EventSource.GRPC
    choice.on_plane(2.0 + HOLD_S, connected=True, published=True, beats=False)
    assert choice.current is EventSource.NATS and not choice.wants_stream
    choice.on_stream(False, 5.0)
    choice.on_plane(10.0, connected=False, published=False, beats=False)
    choice.look(9.9 + AWAY_S)
    assert not choice.wants_stream
    choice.look(10.0 + AWAY_S)
    assert choice.wants_stream and choice.current is EventSource.NATS
    choice.on_stream(True, 10.2 + AWAY_S)
    assert choice.current is EventSource.GRPC


def test_a_stream_that_cannot_be_read_is_not_tried_again() -> None:
    choice = choice_of(EventSource.GRPC, announced=False)
    assert choice.wants_stream
    choice.on_stream(True, 0.1)
    choice.refuse("blocks of 32 tokens, the router's have 64", 0.2)
    assert choice.current is EventSource.PREDICTED and not choice.wants_stream


def test_a_broken_stream_is_believed_for_a_while() -> None:
    choice = choice_of(EventSource.GRPC, announced=False)
    choice.on_stream(True, 0.1)
    choice.on_stream(False, 1.0)
    choice.look(0.9 + GONE_S)
    assert choice.current is EventSource.GRPC
    choice.look(1.0 + GONE_S)
    assert choice.current is EventSource.PREDICTED and choice.wants_stream
    choice.on_stream(True, 2.0 + GONE_S)
    assert choice.current is EventSource.PREDICTED, "it has to prove itself"
    choice.look(2.0 + GONE_S + 2 * HOLD_S)
    assert choice.current is EventSource.GRPC
