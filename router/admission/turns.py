"""Who goes first of those that wait in one lane: by priority, then tenant, then turn. Pure."""

import heapq
from collections.abc import Callable
from itertools import islice
from typing import Generic, NamedTuple, TypeVar

from .tenants import TenantShares
from .ticket import QueuePolicy, Ticket

LATE_EVERY = 4
"""One in this many turns is for a request that has missed its latest start, where any has."""

LOOKED_AT = 16
"""This many of those that had more than their share are looked at again each time, in turn."""

Entry = tuple[float, int, Ticket]
"""Lower goes first: minus its score, its serial number, the request."""

Standing = tuple[float, int, str]
"""Of a tenant: its virtual time, the serial number with which it came, its name."""

Key = TypeVar("Key", int, Standing)
Found = TypeVar("Found")


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

    Those that can still meet their objective go before those that cannot, which have one turn of
    LATE_EVERY, so that none waits for ever. Entries of requests that no
    longer wait are dropped when they come to the head, or by `compact`.
    """

    def __init__(self, policy: QueuePolicy, is_waiting: Callable[[Entry], bool]) -> None:
        self._policy: QueuePolicy = policy
        self._is_waiting = is_waiting
        self._ahead: list[Entry] = []
        self._late: list[Entry] = []
        self._since_late = 0  # turns of others while a request was late

    def add(self, serial: int, ticket: Ticket) -> None:
        heapq.heappush(self._ahead, (-ticket.score(self._policy), serial, ticket))

    def head(self, now: float) -> Entry | None:
        """Who goes first of them; None if none waits."""
        ahead, late = self._drop(self._ahead), self._late
        while ahead and ahead[0][2].latest_start < now:
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


class Ranking(Generic[Key, Found]):
    """Keys, the lowest of which goes first; behind all others those whose tenants have more.

    `ask(key, now)` says what stands there: its key of now, whether its tenant has more in the
    engines than its share, and what is found; None if nothing, and the key is forgotten. Of many
    that had more, one that has no more since is found some questions later: so a question takes no
    longer the more names, or priorities, a tenant gives its requests.
    """

    def __init__(self, ask: Callable[[Key, float], tuple[Key, bool, Found] | None]) -> None:
        self._ask: Callable[[Key, float], tuple[Key, bool, Found] | None] = ask
        self._keys: list[Key] = []  # a heap
        self._aside: dict[Key, None] = {}  # that had more, by when they were last asked about

    def add(self, key: Key) -> None:
        """A new one, or one that has something new."""
        if key in self._aside:
            del self._aside[key]
        heapq.heappush(self._keys, key)

    def is_aside(self, key: Key) -> bool:
        """Whether it had more when it was asked about."""
        return key in self._aside

    def first(self, now: float) -> tuple[Key, bool, Found] | None:
        """What `ask` says of the one that goes first; None if nothing is anywhere."""
        for key in list(islice(self._aside, LOOKED_AT)):
            self.add(key)
        while self._keys:
            key = self._keys[0]
            asked: tuple[Key, bool, Found] | None = self._ask(key, now)
            if asked is None:
                heapq.heappop(self._keys)
            elif asked[0] != key:
                heapq.heapreplace(self._keys, asked[0])
            elif asked[1]:
                self._aside[heapq.heappop(self._keys)] = None
            else:
                return asked
        while self._aside:
            key = min(self._aside)
            asked = self._ask(key, now)
            if asked is not None and asked[0] == key:
                return asked
            del self._aside[key]
            if asked is not None:
                self._aside[asked[0]] = None
        return None

    def keep(self, is_left: Callable[[Key], bool]) -> None:
        """Forget all others."""
        self._keys[:] = filter(is_left, self._keys)
        heapq.heapify(self._keys)
        self._aside = dict.fromkeys(filter(is_left, self._aside))


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
        self._ranking = Ranking(self._ask)

    def add(self, serial: int, ticket: Ticket) -> None:
        tenant = ticket.tenant
        turns, virtual = self._turns.get(tenant), self._shares.begin(tenant)
        if turns is None:
            turns = self._turns[tenant] = Turns(self._policy, self._is_waiting)
            self._ranking.add((virtual, serial, tenant))
        turns.add(serial, ticket)

    def head(self, now: float) -> tuple[bool, float, Entry] | None:
        """Who goes first of them, behind whether its tenant has more than its share and its virtual
        time; None if none waits."""
        found = self._ranking.first(now)
        return None if found is None else (found[1], found[0][0], found[2])

    def _ask(self, key: Standing, now: float) -> tuple[Standing, bool, Entry] | None:
        virtual, serial, tenant = key
        entry = self._turns[tenant].head(now)
        if entry is None:
            del self._turns[tenant]
            return None
        current = max(virtual, self._shares.virtual(tenant))
        return (current, serial, tenant), self._shares.has_more(tenant, now), entry

    def on_gone(self, entry: Entry) -> None:
        self._turns[entry[2].tenant].on_gone(entry)

    def compact(self) -> int:
        left = {tenant: turns.compact() for tenant, turns in self._turns.items()}
        self._turns = {tenant: turns for tenant, turns in self._turns.items() if left[tenant]}
        self._ranking.keep(lambda key: key[2] in self._turns)
        return sum(left.values())


class Line:
    """The requests that wait in one lane."""

    def __init__(
        self, policy: QueuePolicy, is_waiting: Callable[[Entry], bool], shares: TenantShares
    ) -> None:
        self._parts = policy, is_waiting, shares
        self._levels: dict[int, Level] = {}
        self._ranking = Ranking(self._ask)  # of minus the priorities

    def add(self, serial: int, ticket: Ticket) -> None:
        key = -ticket.urgency.priority
        level = self._levels.get(key)
        if level is None:
            level = self._levels[key] = Level(*self._parts)
            self._ranking.add(key)
        elif self._ranking.is_aside(key):
            self._ranking.add(key)
        level.add(serial, ticket)

    def head(self, now: float) -> Head | None:
        """Who goes first of them; None if none waits. One whose tenant has more than its share
        goes before none of another priority either: it would hold those up by its own wait."""
        found = self._ranking.first(now)
        return None if found is None else found[2]

    def _ask(self, key: int, now: float) -> tuple[int, bool, Head] | None:
        found = self._levels[key].head(now)
        if found is None:
            del self._levels[key]
            return None
        return key, found[0], Head(key, found[0], found[1], *found[2])

    def on_gone(self, head: Head) -> None:
        """The head had its turn."""
        self._levels[head.priority].on_gone(head.entry)

    def compact(self) -> int:
        """Drop all entries of requests that no longer wait; how many there are now."""
        left = {key: level.compact() for key, level in self._levels.items()}
        self._levels = {key: level for key, level in self._levels.items() if left[key]}
        self._ranking.keep(self._levels.__contains__)
        return sum(left.values())
