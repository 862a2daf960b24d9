"""The admission queue: who waits, who goes first, and that calm returns."""

from __future__ import annotations

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from dynamo_router.router.queue import AdmissionQueue, Lane, Ticket, Urgency
from dynamo_router.runtime.errors import NoWorkersError
from dynamo_router.runtime.identity import WorkerWithDpRank

ONE, TWO = WorkerWithDpRank(1, 0), WorkerWithDpRank(2, 0)


class Room:
    """Room for so many requests, of any lane, and lanes that are shut."""

    def __init__(self, places: int = 0) -> None:
        self.places = places
        self.shut: set[Lane] = set()

    def __call__(self, lane: Lane) -> bool:
        return self.places > 0 and lane not in self.shut


def ids(queue: AdmissionQueue) -> list[str]:
    """Everybody, in the order in which they go."""
    order = []
    while (ticket := queue.next()) is not None:
        order.append(ticket.request_id)
    return order


def test_with_room_and_nobody_before_it_a_request_goes_at_once() -> None:
    queue = AdmissionQueue(Room(1))
    assert queue.offer(Ticket("a", 0.0))
    assert len(queue) == 0 and queue.queued == 0


def test_behind_others_a_request_waits_even_if_there_is_room() -> None:
    room = Room()
    queue = AdmissionQueue(room)
    assert not queue.offer(Ticket("a", 0.0))
    room.places = 1
    assert not queue.offer(Ticket("b", 1.0))
    assert ids(queue) == ["a", "b"]
    assert queue.offer(Ticket("c", 2.0))


@pytest.mark.parametrize(("policy", "order"), [("fcfs", "abc"), ("lcfs", "cba"), ("wspt", "bca")])
def test_policies(policy: str, order: str) -> None:
    room = Room()
    queue = AdmissionQueue(room, policy=policy)  # type: ignore[arg-type]
    for name, arrived, tokens in (("a", 0.0, 900), ("b", 1.0, 10), ("c", 2.0, 100)):
        queue.offer(Ticket(name, arrived, tokens))
    room.places = 1
    assert ids(queue) == list(order)


def test_priority_beats_everything_and_a_jump_beats_its_equals() -> None:
    room = Room()
    queue = AdmissionQueue(room)
    queue.offer(Ticket("first", 0.0))
    queue.offer(Ticket("jumps", 5.0, urgency=Urgency(jump=10)))
    queue.offer(Ticket("late", 6.0, urgency=Urgency(jump=-100)))
    queue.offer(Ticket("vip", 9.0, urgency=Urgency(priority=1)))
    room.places = 1
    assert ids(queue) == ["vip", "jumps", "first", "late"]


def test_a_request_for_one_worker_does_not_hold_up_the_others() -> None:
    room = Room()
    queue = AdmissionQueue(room)
    queue.offer(Ticket("pinned", 0.0, lane=ONE))
    queue.offer(Ticket("free", 1.0))
    room.places, room.shut = 1, {ONE}
    assert ids(queue) == ["free"]
    assert queue.offer(Ticket("other", 2.0, lane=TWO))
    room.shut = set()
    assert ids(queue) == ["pinned"]


def test_beyond_the_limit_requests_are_turned_away_and_calm_returns() -> None:
    room = Room()
    queue = AdmissionQueue(room, limit=2)
    queue.offer(Ticket("a", 0.0))
    queue.offer(Ticket("b", 0.0))
    with pytest.raises(NoWorkersError, match="all workers are saturated and 2 requests wait") as e:
        queue.offer(Ticket("c", 0.0))
    assert e.value.overloaded and queue.refused == 1
    room.places = 1
    assert ids(queue) == ["a", "b"]
    assert queue.offer(Ticket("c", 1.0))


def test_who_gave_up_is_skipped() -> None:
    room = Room()
    queue = AdmissionQueue(room)
    for name in "abc":
        queue.offer(Ticket(name, 0.0))
    assert queue.discard("a") and not queue.discard("a")
    room.places = 1
    assert ids(queue) == ["b", "c"]


def test_those_who_give_up_leave_no_trace_behind_one_who_stays() -> None:
    queue = AdmissionQueue(Room())
    queue.offer(Ticket("stays", 0.0))
    for i in range(10_000):
        queue.offer(Ticket(str(i), 1.0))
        queue.discard(str(i))
    assert len(queue) == 1
    assert sum(map(len, queue._lanes.values())) < 100


class Queueing(RuleBasedStateMachine):
    """Held against a list that is searched for its best."""

    def __init__(self) -> None:
        super().__init__()
        self.room = Room()
        self.queue = AdmissionQueue(self.room, policy="wspt", limit=20)
        self.waiting: list[Ticket] = []
        self.now = 0.0

    @rule(
        tokens=st.integers(0, 5),
        priority=st.integers(-1, 1),
        jump=st.sampled_from([0.0, 1.0, 3.0]),
        lane=st.sampled_from([None, ONE, TWO]),
    )
    def arrive(self, tokens: int, priority: int, jump: float, lane: Lane) -> None:
        self.now += 1
        ticket = Ticket(str(self.now), self.now, tokens, Urgency(priority, jump), lane)
        behind = any(each.lane == lane for each in self.waiting)
        if not behind and self.room(lane):
            assert self.queue.offer(ticket)
            self.room.places -= 1
        elif len(self.waiting) == 20:
            with pytest.raises(NoWorkersError):
                self.queue.offer(ticket)
        else:
            assert not self.queue.offer(ticket)
            self.waiting.append(ticket)

    @rule(places=st.integers(0, 3), shut=st.sets(st.sampled_from([None, ONE, TWO])))
    def load_changes(self, places: int, shut: set[Lane]) -> None:
        self.room.places, self.room.shut = places, shut

    @precondition(lambda self: self.waiting)
    @rule(data=st.data())
    def give_up(self, data: st.DataObject) -> None:
        ticket = data.draw(st.sampled_from(self.waiting))
        self.waiting.remove(ticket)
        assert self.queue.discard(ticket.request_id)

    @rule()
    def go(self) -> None:
        candidates = [ticket for ticket in self.waiting if self.room(ticket.lane)]
        best = max(
            candidates,
            key=lambda t: (t.urgency.priority, t.score("wspt"), -t.arrived),
            default=None,
        )
        assert self.queue.next() is best
        if best is not None:
            self.waiting.remove(best)
            self.room.places -= 1

    @invariant()
    def as_many_wait(self) -> None:
        assert len(self.queue) == len(self.waiting)


TestQueueing = Queueing.TestCase
