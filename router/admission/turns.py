"""Who goes first of those that wait in one lane: by priority, then tenant, then turn. Pure."""

import heapq
from collections.abc import Callable
from typing import NamedTuple

from .tenants import TenantShares
from .ticket import QueuePolicy, Ticket

LATE_EVERY = 4
"""Of so many turns one is for a request that has missed its latest start, where any has."""

Entry = tuple[float, int, Ticket]
"""Lower goes first: minus its score, its serial number, the request."""


class Head(NamedTuple):
    """The same with its tenant's standing: comparable between lanes, lower goes first."""

    priority: int  # minus the priority
    has_more: bool  # its tenant, in the engines than its share
    virtual: float  # its tenant's
    score: float
    serial: int
    ticket: Ticket

    @property
    def entry(self) -> Entry:
        return self.score, self.serial, self.ticket


class Turns:
    """The requests of one tenant, at one priority, in one lane.

    In the order `deadline`, those that can still meet their objective go before those that cannot,
    which have one turn of LATE_EVERY, so that nobody waits for ever. Entries of requests that no
    longer wait are dropped when they come to the head, or by `compact`.
    """

    def __init__(self, policy: QueuePolicy, is_waiting: Callable[[Entry], bool]) -> None:
        self._policy: QueuePolicy = policy
        self._is_waiting = is_waiting
        self._ahead: list[Entry] = []
        self._late: list[Entry] = []
        self._since_late = 0  # turns of others while somebody was late

    def add(self, serial: int, ticket: Ticket) -> None:
        heapq.heappush(self._ahead, (-ticket.score(self._policy), serial, ticket))

    def head(self, now: float) -> Entry | None:
        """Who goes first of them; None if nobody waits."""
        ahead, late = self._drop(self._ahead), self._late
        while self._policy == "deadline" and ahead and ahead[0][2].latest_start < now:
            _, serial, ticket = heapq.heappop(ahead)
            heapq.heappush(late, (-ticket.score("fcfs"), serial, ticket))
            self._drop(ahead)
        self._drop(late)
        if late and (not ahead or self._since_late >= LATE_EVERY - 1):
            return late[0]
        return ahead[0] if ahead else None

    def on_gone(self, entry: Entry) -> None:
        """The head had its turn."""
        if self._late and self._late[0][2] is entry[2]:
            self._since_late = 0
        elif self._late:
            self._since_late += 1

    def compact(self) -> int:
        """Drop all entries of requests that no longer wait; how many there are now."""
        for heap in (self._ahead, self._late):
            heap[:] = filter(self._is_waiting, heap)
            heapq.heapify(heap)
        return len(self._ahead) + len(self._late)

    def _drop(self, heap: list[Entry]) -> list[Entry]:
        while heap and not self._is_waiting(heap[0]):
            heapq.heappop(heap)
        return heap


class Level:
    """The requests of one lane at one priority: of its tenants, who has had least goes first, but
    behind all others one that has more in the engines than its share."""

    def __init__(
        self, policy: QueuePolicy, is_waiting: Callable[[Entry], bool], shares: TenantShares
    ) -> None:
        self._policy: QueuePolicy = policy
        self._is_waiting = is_waiting
        self._shares = shares
        self._turns: dict[str, Turns] = {}
        self._order: list[tuple[float, int, str]] = []  # virtual time, serial, tenant

    def add(self, serial: int, ticket: Ticket) -> None:
        tenant = ticket.tenant
        turns, virtual = self._turns.get(tenant), self._shares.begin(tenant)
        if turns is None:
            turns = self._turns[tenant] = Turns(self._policy, self._is_waiting)
            heapq.heappush(self._order, (virtual, serial, tenant))
        turns.add(serial, ticket)

    def head(self, now: float) -> tuple[bool, float, Entry] | None:
        """Who goes first of them, behind whether its tenant has more than its share and its virtual
        time; None if nobody waits."""
        order = self._order
        passed: list[tuple[float, int, str]] = []  # those who have more, out of the heap meanwhile
        found: tuple[bool, float, Entry] | None = None
        while order:
            virtual, serial, tenant = order[0]
            entry = self._turns[tenant].head(now)
            if entry is None:
                heapq.heappop(order)
                del self._turns[tenant]
            elif (current := self._shares.virtual(tenant)) > virtual:
                heapq.heapreplace(order, (current, serial, tenant))
            elif self._shares.has_more(tenant, now):
                passed.append(heapq.heappop(order))
                found = found or (True, virtual, entry)
            else:
                found = False, virtual, entry
                break
        for each in passed:
            heapq.heappush(order, each)
        return found

    def on_gone(self, entry: Entry) -> None:
        self._turns[entry[2].tenant].on_gone(entry)

    def compact(self) -> int:
        left = {tenant: turns.compact() for tenant, turns in self._turns.items()}
        self._turns = {tenant: turns for tenant, turns in self._turns.items() if left[tenant]}
        self._order = [each for each in self._order if left[each[2]]]
        heapq.heapify(self._order)
        return sum(left.values())


class Line:
    """The requests that wait in one lane."""

    def __init__(
        self, policy: QueuePolicy, is_waiting: Callable[[Entry], bool], shares: TenantShares
    ) -> None:
        self._parts = policy, is_waiting, shares
        self._levels: dict[int, Level] = {}
        self._order: list[int] = []  # minus the priorities

    def add(self, serial: int, ticket: Ticket) -> None:
        key = -ticket.urgency.priority
        level = self._levels.get(key)
        if level is None:
            level = self._levels[key] = Level(*self._parts)
            heapq.heappush(self._order, key)
        level.add(serial, ticket)

    def head(self, now: float) -> Head | None:
        """Who goes first of them; None if nobody waits. One whose tenant has more than its share
        goes before none of another priority either: it would hold those up by its own wait."""
        best = self._first(now)
        if best is not None and best.has_more and len(self._order) > 1:
            for key in sorted(self._order)[1:]:
                found = self._levels[key].head(now)
                if found is not None and not found[0]:
                    return Head(key, found[0], found[1], *found[2])
        return best

    def _first(self, now: float) -> Head | None:
        """Who goes first at the highest priority."""
        while self._order:
            key = self._order[0]
            found = self._levels[key].head(now)
            if found is not None:
                return Head(key, found[0], found[1], *found[2])
            heapq.heappop(self._order)
            del self._levels[key]
        return None

    def on_gone(self, head: Head) -> None:
        """The head had its turn."""
        self._levels[head.priority].on_gone(head.entry)

    def compact(self) -> int:
        """Drop all entries of requests that no longer wait; how many there are now."""
        left = {key: level.compact() for key, level in self._levels.items()}
        self._levels = {key: level for key, level in self._levels.items() if left[key]}
        self._order = list(self._levels)
        heapq.heapify(self._order)
        return sum(left.values())
