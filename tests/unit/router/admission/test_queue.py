"""The admission queue: who waits, who goes first, and that calm returns."""

from __future__ import annotations

import math

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from dynamo_router.base.errors import NoWorkersError
from dynamo_router.base.identity import WorkerWithDpRank
from dynamo_router.router.admission.queue import AdmissionQueue
from dynamo_router.router.admission.tenants import TenantConfig, TenantShares
from dynamo_router.router.admission.ticket import Lane, Ticket, Urgency
from dynamo_router.router.admission.turns import LATE_EVERY

ONE, TWO = WorkerWithDpRank(1, 0), WorkerWithDpRank(2, 0)


class Workers:
    """Free for so many requests, of any lane, and lanes that are shut."""

    def __init__(self, slots: int = 0) -> None:
        self.slots = slots
        self.shut: set[Lane] = set()

    def __call__(self, lane: Lane) -> float:
        return 0.0 if self.is_there(lane) else math.inf

    def is_there(self, lane: Lane) -> bool:
        return self.slots > 0 and lane not in self.shut


def offer(queue: AdmissionQueue, ticket: Ticket) -> bool:
    """A request comes: whether it goes at once."""
    if queue.is_open(ticket.lane):
        return True
    assert queue.enter(lambda: ticket) is ticket
    return False


def ids(queue: AdmissionQueue) -> list[str]:
    """Everybody, in the order in which they go."""
    order = []
    while (ticket := queue.next()) is not None:
        order.append(ticket.request_id)
    return order


def test_with_room_and_nobody_before_it_a_request_goes_at_once() -> None:
    queue = AdmissionQueue(Workers(1))
    assert offer(queue, Ticket("a", 0.0))
    assert len(queue) == 0 and queue.queued == 0


def test_behind_others_a_request_waits_even_if_there_is_room() -> None:
    workers = Workers()
    queue = AdmissionQueue(workers)
    assert not offer(queue, Ticket("a", 0.0))
    workers.slots = 1
    assert not offer(queue, Ticket("b", 1.0))
    assert ids(queue) == ["a", "b"]
    assert offer(queue, Ticket("c", 2.0))


@pytest.mark.parametrize(("policy", "order"), [("fcfs", "abc"), ("lcfs", "cba"), ("wspt", "bca")])
def test_policies(policy: str, order: str) -> None:
    workers = Workers()
    queue = AdmissionQueue(workers, policy=policy)  # type: ignore[arg-type]
    for name, arrived, tokens in (("a", 0.0, 900), ("b", 1.0, 10), ("c", 2.0, 100)):
        offer(queue, Ticket(name, arrived, tokens))
    workers.slots = 1
    assert ids(queue) == list(order)


def test_priority_beats_everything_and_a_jump_beats_its_equals() -> None:
    workers = Workers()
    queue = AdmissionQueue(workers)
    offer(queue, Ticket("first", 0.0))
    offer(queue, Ticket("jumps", 5.0, urgency=Urgency(jump=10)))
    offer(queue, Ticket("late", 6.0, urgency=Urgency(jump=-100)))
    offer(queue, Ticket("vip", 9.0, urgency=Urgency(priority=1)))
    workers.slots = 1
    assert ids(queue) == ["vip", "jumps", "first", "late"]


def test_a_request_for_one_worker_does_not_hold_up_the_others() -> None:
    workers = Workers()
    queue = AdmissionQueue(workers)
    offer(queue, Ticket("pinned", 0.0, lane=ONE))
    offer(queue, Ticket("free", 1.0))
    workers.slots, workers.shut = 1, {ONE}
    assert ids(queue) == ["free"]
    assert offer(queue, Ticket("other", 2.0, lane=TWO))
    workers.shut = set()
    assert ids(queue) == ["pinned"]


def test_beyond_the_limit_requests_are_turned_away_and_calm_returns() -> None:
    workers = Workers()
    queue = AdmissionQueue(workers, limit=2)
    offer(queue, Ticket("a", 0.0))
    offer(queue, Ticket("b", 0.0))
    with pytest.raises(NoWorkersError, match="all workers are saturated and 2 requests wait") as e:
        offer(queue, Ticket("c", 0.0))
    assert e.value.overloaded and queue.refused == 1
    workers.slots = 1
    assert ids(queue) == ["a", "b"]
    assert offer(queue, Ticket("c", 1.0))


def test_an_order_penalty_counts_as_having_come_later() -> None:
    workers = Workers()
    queue = AdmissionQueue(workers)
    offer(queue, Ticket("long", 0.0, order_penalty_s=20.0))
    offer(queue, Ticket("short", 5.0, order_penalty_s=2.0))
    offer(queue, Ticket("too late", 19.0, order_penalty_s=2.0))
    workers.slots = 1
    assert ids(queue) == ["short", "long", "too late"]


def test_it_says_when_to_ask_again() -> None:
    waits: dict[Lane, float] = {None: 0.5, ONE: 0.2, TWO: math.inf}
    queue = AdmissionQueue(waits.__getitem__)
    assert queue.ask_again_s == math.inf
    for lane, soonest in ((TWO, math.inf), (None, 0.5), (ONE, 0.2)):
        assert not offer(queue, Ticket(str(lane), 0.0, lane=lane))
        assert queue.ask_again_s == soonest
    waits[None] = waits[ONE] = 1e-9  # rounding, not a wait
    assert queue.next() is None and queue.ask_again_s == 1e-3
    waits[ONE] = 0.0
    assert queue.next() == Ticket(str(ONE), 0.0, lane=ONE)
    waits[None] = 0.0
    assert ids(queue) == ["None"] and queue.ask_again_s == math.inf


def test_who_gave_up_is_skipped() -> None:
    workers = Workers()
    queue = AdmissionQueue(workers)
    for name in "abc":
        offer(queue, Ticket(name, 0.0))
    assert queue.discard("a") and not queue.discard("a")
    workers.slots = 1
    assert ids(queue) == ["b", "c"]


def test_deadlines_go_first_and_of_those_missed_one_in_so_many_turns() -> None:
    now, workers = [0.0], Workers()
    queue = AdmissionQueue(workers, policy="deadline", now=lambda: now[0])
    for place in range(8):
        offer(queue, Ticket(f"late {place}", 0.0, order_penalty_s=-place, latest_start=1.0))
    offer(queue, Ticket("no objective", 3.0))
    for place in range(6):
        offer(queue, Ticket(f"{place}", 2.0, latest_start=10.0 - place))
    workers.slots, now[0] = 1, 2.0
    turns = ids(queue)
    assert [each for each in turns if "late" not in each] == ["no objective", *"543210"]
    assert [each for each in turns if "late" in each] == [f"late {n}" for n in range(7, -1, -1)]
    assert ["late" in each for each in turns] == [False, False, False, True] * 2 + [
        *(False,) * 1,
        *(True,) * 6,
    ]
    assert LATE_EVERY == 4


def test_those_that_can_still_meet_their_objective_go_first_in_the_usual_order_too() -> None:
    now, workers = [0.0], Workers()
    queue = AdmissionQueue(workers, now=lambda: now[0])
    offer(queue, Ticket("late", 0.0, latest_start=1.0))
    offer(queue, Ticket("none", 1.0))
    offer(queue, Ticket("short", 2.0, latest_start=9.0))
    offer(queue, Ticket("long", 1.5, order_penalty_s=5.0, latest_start=9.0))
    workers.slots, now[0] = 1, 2.0
    assert ids(queue) == ["none", "short", "long", "late"]


def test_a_request_without_an_objective_is_never_late() -> None:
    workers = Workers()
    queue = AdmissionQueue(workers, policy="deadline", now=lambda: 1e9)
    for name in "ab":
        offer(queue, Ticket(name, 0.0 if name == "a" else 1.0))
    workers.slots = 1
    assert ids(queue) == ["a", "b"]


def test_tenants_have_turns_by_what_they_had_not_by_how_many_wait() -> None:
    workers = Workers()
    shares = TenantShares(TenantConfig(tenant_key="caller", tenant_weights="c=2"))
    queue = AdmissionQueue(workers, shares=shares)
    for place in range(50):
        offer(queue, Ticket(f"a{place:02}", 0.0, tenant="a"))
    for place in range(3):
        offer(queue, Ticket(f"b{place}", 1.0, tenant="b"))
        offer(queue, Ticket(f"c{place}", 1.0, tenant="c"))
    workers.slots, went = 1, []
    while len(went) < 8 and (ticket := queue.next()) is not None:
        shares.on_given(ticket.tenant, 1000, 0.0)
        went.append(ticket.request_id)
    assert went == ["a00", "b0", "c0", "c1", "a01", "b1", "c2", "a02"]


def test_those_who_give_up_leave_no_trace_behind_one_who_stays() -> None:
    queue = AdmissionQueue(Workers())
    offer(queue, Ticket("stays", 0.0))
    for i in range(10_000):
        offer(queue, Ticket(str(i), 1.0))
        queue.discard(str(i))
    assert len(queue) == 1
    assert queue._entries < 200


def test_those_who_give_up_are_forgotten_whatever_their_tenant_priority_and_lane() -> None:
    queue = AdmissionQueue(Workers(), shares=TenantShares(TenantConfig(tenant_key="caller")))
    for i in range(5000):
        lane = WorkerWithDpRank(i, 0)
        offer(queue, Ticket(str(i), 0.0, urgency=Urgency(i), lane=lane, tenant=str(i)))
        queue.discard(str(i))
    assert len(queue) == 0 and len(queue._lanes) < 200


class Queueing(RuleBasedStateMachine):
    """Held against a list that is searched for its best."""

    def __init__(self) -> None:
        super().__init__()
        self.workers = Workers()
        self.queue = AdmissionQueue(self.workers, policy="wspt", limit=20)
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
        if not behind and self.workers.is_there(lane):
            assert offer(self.queue, ticket)
            self.workers.slots -= 1
        elif len(self.waiting) == 20:
            with pytest.raises(NoWorkersError):
                offer(self.queue, ticket)
        else:
            assert not offer(self.queue, ticket)
            self.waiting.append(ticket)

    @rule(slots=st.integers(0, 3), shut=st.sets(st.sampled_from([None, ONE, TWO])))
    def load_changes(self, slots: int, shut: set[Lane]) -> None:
        self.workers.slots, self.workers.shut = slots, shut

    @precondition(lambda self: self.waiting)
    @rule(data=st.data())
    def give_up(self, data: st.DataObject) -> None:
        ticket = data.draw(st.sampled_from(self.waiting))
        self.waiting.remove(ticket)
        assert self.queue.discard(ticket.request_id)

    @rule()
    def go(self) -> None:
        candidates = [ticket for ticket in self.waiting if self.workers.is_there(ticket.lane)]
        best = max(
            candidates,
            key=lambda t: (t.urgency.priority, t.score("wspt"), -t.arrived),
            default=None,
        )
        assert self.queue.next() is best
        if best is not None:
            self.waiting.remove(best)
            self.workers.slots -= 1

    @invariant()
    def as_many_wait(self) -> None:
        assert len(self.queue) == len(self.waiting)


TestQueueing = Queueing.TestCase


class DeadlineQueueing(RuleBasedStateMachine):
    """Laws of the order `deadline` between tenants, whoever comes, goes and gives up."""

    def __init__(self) -> None:
        super().__init__()
        self.workers = Workers()
        self.shares = TenantShares(TenantConfig(tenant_key="caller", tenant_weights="b=3"))
        self.now = 0.0
        self.queue = AdmissionQueue(
            self.workers, policy="deadline", now=lambda: self.now, shares=self.shares
        )
        self.waiting: list[Ticket] = []
        self.passed: dict[str, int] = {}  # turns of others while it was late, by request
        self.turns_since_late: dict[tuple[int, str], int] = {}

    @rule(
        tenant=st.sampled_from("abc"),
        priority=st.integers(0, 1),
        slack=st.sampled_from([-1.0, 0.5, 3.0, 20.0, math.inf]),
        tokens=st.integers(0, 3),
    )
    def arrive(self, tenant: str, priority: int, slack: float, tokens: int) -> None:
        ticket = Ticket(
            str(len(self.passed)),
            self.now,
            order_penalty_s=float(tokens),
            urgency=Urgency(priority),
            latest_start=self.now + slack,
            tenant=tenant,
        )
        self.passed[ticket.request_id] = 0
        self.queue.enter(lambda: ticket)
        self.waiting.append(ticket)

    @rule(seconds=st.sampled_from([0.1, 1.0, 5.0]))
    def wait(self, seconds: float) -> None:
        self.now += seconds

    @precondition(lambda self: self.waiting)
    @rule(data=st.data())
    def give_up(self, data: st.DataObject) -> None:
        ticket = data.draw(st.sampled_from(self.waiting))
        self.waiting.remove(ticket)
        assert self.queue.discard(ticket.request_id)

    @rule(tokens=st.integers(0, 2000))
    def go(self, tokens: int) -> None:
        self.workers.slots = 1
        gone = self.queue.next()
        assert (gone is None) == (not self.waiting)
        if gone is None:
            return
        first = max(each.urgency.priority for each in self.waiting)
        equals = [each for each in self.waiting if each.urgency.priority == first]
        least = min(self.shares.virtual(each.tenant) for each in equals)
        assert gone.urgency.priority == first
        assert self.shares.virtual(gone.tenant) == least
        own = [each for each in equals if each.tenant == gone.tenant]
        late = [each for each in own if each.latest_start < self.now]
        ahead = [each for each in own if each not in late]
        key = first, gone.tenant
        since = self.turns_since_late.get(key, 0)
        if gone in late:
            assert not ahead or since >= LATE_EVERY - 1
            assert gone.score("fcfs") == max(each.score("fcfs") for each in late)
            self.turns_since_late[key] = 0
            for each in late:
                self.passed[each.request_id] = 0
        else:
            assert gone.score("deadline") == max(each.score("deadline") for each in ahead)
            self.turns_since_late[key] = since + 1
            for each in late:
                self.passed[each.request_id] += 1
                assert self.passed[each.request_id] < LATE_EVERY
        self.waiting.remove(gone)
        self.shares.on_given(gone.tenant, tokens, self.now)

    @invariant()
    def as_many_wait(self) -> None:
        assert len(self.queue) == len(self.waiting)


TestDeadlineQueueing = DeadlineQueueing.TestCase
