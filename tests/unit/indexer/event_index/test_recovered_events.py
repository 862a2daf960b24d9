"""A worker itself repeats what an index missed, while live events are lost, or late."""

from contextlib import closing

from hypothesis import given
from hypothesis import strategies as st
from support.true_source import Message, TrueSource

from dynamo_router.base.identity import WorkerWithDpRank
from dynamo_router.indexer.event_index import EventIndex
from dynamo_router.indexer.source import SourceState, SourceStatus
from dynamo_router.indexer.wire import RouterEvent, Stored, StoredBlock, encode_event_message

WORKER = WorkerWithDpRank(7, 0)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("flip"), st.sampled_from((1, 2)), st.booleans(), st.booleans()),
        st.tuples(st.just("answer"), st.booleans()),
        st.tuples(st.just("late"), st.integers(1, 6)),
    ),
    max_size=40,
)


class Peer:
    """A worker, its index, and the live events that are still under way."""

    def __init__(self) -> None:
        self.source, self.index = TrueSource(), EventIndex()
        self.index.await_replays()
        self.live: list[Message] = []

    def close(self) -> None:
        self.index.close()

    def deliver(self, count: int) -> None:
        for message in self.live[:count]:
            self.index.apply(message.encode(WORKER))
        del self.live[:count]

    def answer(self, first: int | None) -> bool:
        """As a worker answers: events from `first` on, or (None) all that it has cached."""
        said, publisher = self.source.said, self.source.publisher
        last = self.source.event_id
        if first is not None:
            events = [RouterEvent(WORKER, m.event_id, m.data) for m in said if m.event_id >= first]
        else:
            roots = [Stored(None, [StoredBlock(b, b)]) for b in self.source.cache if b < 10]
            children = [Stored(b // 10, [StoredBlock(b, b)]) for b in self.source.cache if b >= 10]
            events = [RouterEvent(WORKER, n, data) for n, data in enumerate([*roots, *children])]
        message = encode_event_message(events, publisher, 0, 0)
        return self.index.take_recovered(WORKER, message, whole=first is None, last_event_id=last)

    def status(self) -> SourceStatus | None:
        return next((s for s in self.index.sources() if s.worker == WORKER), None)

    def ask(self) -> None:
        """What the recovery does: ask for the missing events, or for all."""
        status = self.status()
        if status is not None and status.missing is not None and status.missing.first:
            if self.answer(status.missing.first):
                return
        if status is None or status.state is not SourceState.EXACT:
            assert self.answer(None)

    def claims(self) -> int:
        status = self.status()
        return 0 if status is None else status.blocks


@given(STEPS)
def test_the_index_ends_with_the_truth(steps: list[tuple[object, ...]]) -> None:
    with closing(Peer()) as peer:
        for step in steps:
            if step[0] == "flip":
                message = peer.source.flip(step[1], step[2])  # type: ignore[arg-type]
                if step[3]:
                    peer.live.append(message)
            elif step[0] == "answer":
                if step[1]:
                    peer.answer(None)
                else:
                    peer.ask()
            else:
                peer.deliver(step[1])  # type: ignore[arg-type]
        peer.live.append(peer.source.flip(1, False))
        peer.deliver(len(peer.live))
        peer.ask()
        status = peer.status()
        assert status is not None and status.state is SourceState.EXACT
        assert status.last_event_id == peer.source.event_id
        assert status.blocks == len(peer.source.cache)
        assert status.restarts == 0


def test_live_events_that_the_answer_had_already_are_known() -> None:
    with closing(Peer()) as peer:
        for child in (False, True, True):
            peer.live.append(peer.source.flip(1, child))
        assert peer.answer(None)
        peer.deliver(3)
        status = peer.status()
        assert status is not None and status.duplicates == 3 and status.restarts == 0
        assert status.state is SourceState.EXACT and status.last_event_id == 3
        peer.live.append(peer.source.flip(2, False))
        peer.deliver(1)
        assert peer.claims() == len(peer.source.cache)


def test_an_answer_of_somebody_else_is_refused() -> None:
    with closing(Peer()) as peer:
        peer.index.announce_publisher(WORKER, 99)
        peer.source.flip(1, False)
        assert not peer.answer(None)
        assert not peer.index.take_recovered(WORKER, b"junk", whole=True, last_event_id=1)
        assert peer.claims() == 0


def test_events_that_leave_the_gap_open_do_not_count() -> None:
    with closing(Peer()) as peer:
        peer.deliver(0)
        for child in (False, True, True, True):
            peer.live.append(peer.source.flip(1, child))
        peer.deliver(1)
        del peer.live[:2]  # lost
        peer.deliver(1)
        assert peer.claims() == 1
        assert not peer.answer(3)
        assert peer.answer(2)
        status = peer.status()
        assert status is not None and status.state is SourceState.EXACT
        assert peer.claims() == len(peer.source.cache)
