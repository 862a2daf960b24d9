"""Laws of the event cursor, held against what a publisher really said.

Messages are lost, doubled, reordered and late; the engine restarts; router-side calls come whenever
they like. Whatever happens, what the index claims of the source is the source's truth just after
the event that the cursor stands at, or a part of it where the cursor says that it may be.
"""

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from support.true_source import ROOTS, Message, TrueSource

from dynamo_router.base.identity import WorkerWithDpRank
from dynamo_router.indexer.event_index._status import list_sources
from dynamo_router.indexer.event_index.actor import EventIndex
from dynamo_router.indexer.source import SourceState, SourceStatus
from dynamo_router.indexer.wire.events import Cleared

W = WorkerWithDpRank(3, 1)
A_ROOT = st.sampled_from(ROOTS)
BELIEVED_WHOLE = (SourceState.EXACT, SourceState.RECOVERING)


class CursorMachine(RuleBasedStateMachine):
    @initialize(max_held=st.sampled_from([0, 2, 2**16]), in_place=st.booleans())
    def start(self, max_held: int, in_place: bool) -> None:
        self.index = EventIndex()
        self.index.await_replays(max_events=max_held)
        self.max_held, self.in_place = max_held, in_place
        self.source = TrueSource()
        self.under_way: list[Message] = []
        self.events = 0  # heard, ever
        self.cleared = False  # an event says that some before it do not matter
        self.begin(None)

    def begin(self, message: Message | None) -> None:
        """A numbering is believed from here on, of which nothing is known yet."""
        self.life = message.life if message else 0
        self.publisher = message.publisher if message else 0
        self.heard: set[int] = set()  # its events
        self.known = 0  # the highest id it is known to have used
        self.sequence = 0  # of the latest envelope
        self.deaf = False

    # The source

    @rule(root=A_ROOT, child=st.booleans())
    def flip(self, root: int, child: bool) -> None:
        self.under_way.append(self.source.flip(root, child))

    @rule()
    def clear(self) -> None:
        self.under_way.append(self.source.clear())

    @rule()
    def announce(self) -> None:
        self.under_way += self.source.announce()

    @rule()
    def beat(self) -> None:
        self.under_way.append(self.source.beat())

    @rule(root=A_ROOT)
    def restart(self, root: int) -> None:
        """In place the ids begin again in envelopes that go on: only their sequences can tell."""
        self.source.restart(in_place=self.in_place)
        self.under_way.append(self.source.flip(root, False))

    # The network

    @precondition(lambda self: self.under_way)
    @rule(data=st.data(), again=st.booleans())
    def deliver(self, data: st.DataObject, again: bool) -> None:
        index = data.draw(st.integers(0, len(self.under_way) - 1))
        self.hear(self.under_way[index] if again else self.under_way.pop(index))

    @rule(words=st.lists(st.tuples(A_ROOT, st.booleans(), st.sampled_from("ddddlw")), max_size=8))
    def talk(self, words: list[tuple[int, bool, str]]) -> None:
        """What networks mostly do: deliver at once and in order. Some get lost or wait."""
        for root, child, fate in words:
            message = self.source.flip(root, child)
            if fate == "d":
                self.hear(message)
                self.check()
            elif fate == "w":
                self.under_way.append(message)

    @precondition(lambda self: self.under_way)
    @rule(count=st.integers(1, 4))
    def deliver_in_order(self, count: int) -> None:
        for message in self.under_way[:count]:
            self.hear(message)
        del self.under_way[:count]

    @precondition(lambda self: self.under_way)
    @rule(data=st.data())
    def lose(self, data: st.DataObject) -> None:
        self.under_way.pop(data.draw(st.integers(0, len(self.under_way) - 1)))

    # The router

    @rule()
    def give_up(self) -> None:
        before = self.status()
        self.index.give_up(W)
        after = self.status()
        if before is not None and after is not None:
            was_recovering = before.state is SourceState.RECOVERING
            assert after.given_up - before.given_up == was_recovering
            assert (after.state is SourceState.REBUILDING) or not was_recovering
            self.deaf = self.deaf and not was_recovering

    @rule()
    def be_deaf(self) -> None:
        before = self.status()
        self.index.mark_suspect()
        self.deaf = self.deaf or (before is not None and before.state in BELIEVED_WHOLE)

    @rule()
    def degrade(self) -> None:
        before = self.status()
        self.index.mark_degraded(W)
        after = self.status()
        if before is not None and after is not None and before.state in BELIEVED_WHOLE:
            assert after.state is before.state

    # What each message may do

    def hear(self, message: Message) -> None:
        before, claims, held = self.status(), self.claims(), self.held()
        self.index.apply(message.encode(W))
        after = self.status()
        assert after is not None
        self.events += message.data is not None
        self.cleared = self.cleared or message.data == Cleared()
        if before is None or after.restarts > before.restarts:
            assert message.life > self.life or message.publisher != self.publisher
            self.begin(message)
        elif message.publisher != self.publisher or message.life < self.life:
            # Said by a publisher that is over, or by the engine before it restarted.
            assert (self.claims(), after.last_event_id) == (claims, before.last_event_id)
            assert self.held() == held
            return
        if self.known == 0:
            # A heartbeat with id 0 may also come from an engine that said nothing yet.
            self.life = message.life
        assert message.life == self.life
        if before is None or after.restarts > before.restarts:
            pass
        elif message.data is not None and self.is_old(before, message):
            assert after.duplicates == before.duplicates + 1
            assert (self.claims(), after.last_event_id) == (claims, before.last_event_id)
        elif before is not None and self.in_turn(before, message, after):
            # Applied in order, none left out, each once.
            ids = range(before.last_event_id + 1, after.last_event_id + 1)
            assert after.applied - before.applied == len(ids)
            assert self.heard | {message.event_id} >= set(ids)
        if message.data is None:
            self.deaf = self.deaf and message.sequence < self.sequence
        else:
            passed = before is not None and after.duplicates > before.duplicates
            self.deaf = self.deaf and passed
            self.heard.add(message.event_id)
        self.known = max(self.known, message.event_id)
        self.sequence = max(self.sequence, message.sequence)

    def is_old(self, before: SourceStatus, message: Message) -> bool:
        """Whether it is applied, or waits, or came when what it says was past mattering."""
        return message.event_id <= before.last_event_id or message.event_id in self.heard

    def in_turn(self, before: SourceStatus, message: Message, after: SourceStatus) -> bool:
        """Whether nothing may be skipped: no gap is given up, and no clear makes up for one."""
        return (
            before.state in BELIEVED_WHOLE
            and after.given_up == before.given_up
            and after.state is not SourceState.REBUILDING
            and message.data != Cleared()
        )

    # What always holds

    def check(self) -> None:
        self.claims_are_the_truth_after_the_last_event()
        self.exact_means_that_nothing_is_missing()
        self.what_waits_is_what_was_heard_behind_the_gap()
        self.every_event_is_accounted_for_once()

    @invariant()
    def claims_are_the_truth_after_the_last_event(self) -> None:
        status = self.status()
        if status is None:
            assert not self.claims()
            return
        truths = self.source.after[self.believed(), status.last_event_id]
        if status.state in BELIEVED_WHOLE:
            assert self.claims() in truths
        else:
            assert any(self.claims() <= truth for truth in truths)
        assert status.blocks == len(self.claims())

    @invariant()
    def exact_means_that_nothing_is_missing(self) -> None:
        status = self.status()
        if status is None:
            return
        assert status.last_event_id <= self.known
        behind = self.known > status.last_event_id
        if status.state is SourceState.RECOVERING:
            assert behind or self.deaf
        else:
            assert not behind
            assert not (self.deaf and status.state is SourceState.EXACT)

    @invariant()
    def what_waits_is_what_was_heard_behind_the_gap(self) -> None:
        status = self.status()
        waiting = {i for i in self.heard if status and i > status.last_event_id}
        assert self.held() == len(waiting) <= self.max_held
        if status is None or status.missing is None:
            assert not waiting
            return
        missing = status.missing
        assert missing.publisher_id == self.believed()
        assert missing.first == (0 if self.cursor()["fresh"] else status.last_event_id + 1)
        if missing.last is None:
            assert self.known == status.last_event_id
        else:
            assert not waiting & set(range(missing.first, missing.last + 1))
            assert missing.last == min(waiting, default=self.known + 1) - 1

    @invariant()
    def every_event_is_accounted_for_once(self) -> None:
        status = self.status()
        if status is None:
            return
        accounted = status.applied + status.duplicates + self.held()
        assert accounted <= self.events
        if not (status.restarts or status.given_up or status.state is SourceState.REBUILDING):
            assert self.cleared or accounted == self.events

    def teardown(self) -> None:
        if not hasattr(self, "index"):
            return
        try:
            self.what_the_source_says_in_full_makes_it_exact()
        finally:
            self.index.close()

    def what_the_source_says_in_full_makes_it_exact(self) -> None:
        """Sent again in order; or announced, where something was given up."""
        for message in [self.source.beat(), *self.source.said, self.source.beat()]:
            self.hear(message)
        status = self.status()
        assert status is not None
        if status.missing is not None:
            # Before an event 1 in a later envelope than the first there may have been an event 0.
            assert self.in_place and status.missing.first == 0
            self.give_up()
        status = self.status()
        assert status is not None
        if status.state is not SourceState.EXACT:
            for message in self.source.announce():
                self.hear(message)
        status = self.status()
        assert status is not None and status.state is SourceState.EXACT
        assert self.claims() == self.source.cache
        assert self.held() == 0

    # What can be seen

    def status(self) -> SourceStatus | None:
        """None before anything was heard of the source."""
        (status,) = self.index.sources() or (None,)
        return status

    def cursor(self) -> dict[str, int]:
        ((_, cursor, *_),) = list_sources(self.index._actor, False)
        return cursor

    def believed(self) -> int:
        return self.cursor()["publisher_id"]

    def held(self) -> int:
        return self.index.counters()["held_now"]

    def claims(self) -> frozenset[int]:
        found: set[int] = set()
        for root in ROOTS:
            depth = self.index.scores(np.array([root, 10 * root], np.uint64)).get(W, 0)
            found |= set([root, 10 * root][:depth])
        return frozenset(found)


TestCursorMachine = CursorMachine.TestCase
TestCursorMachine.settings = settings(max_examples=120, stateful_step_count=40, deadline=None)
