"""AdmissionQueue: requests that wait here because every worker they may go to is saturated. Pure.

Driven by Admission in real time and by the simulation in virtual time: requests enter,
and they ask for the next one whenever load fell, a request was booked, or `ask_again_s` is over. A
request that may only go to one worker waits in a lane of its own, so that it does not hold up those
that can go elsewhere.
"""

import heapq
import itertools
import math
from collections import Counter
from collections.abc import Callable

from ...base.errors import NoWorkersError
from .tenants import TenantConfig, TenantShares
from .throughput import Throughput
from .ticket import Lane, QueuePolicy, Ticket
from .turns import Entry, Head, Line

SHORTEST_WAIT_S = 1e-3  # what remains of a wait is mostly rounding in the end


def no_wait(lane: Lane) -> float:
    """No request waits for the sake of other tenants."""
    return 0.0


class AdmissionQueue:
    """Orders what waits.

    `seconds_until_free(lane)` says in how many seconds a request of that lane should go: 0 is now,
    inf is not before load falls; `wait_times()` gives that for any lane, as of now, where many are
    asked for. `now()` is the clock of the tickets, which the policy `deadline` looks at; `shares`
    say who has had least, where requests are of several tenants, and who has more in the engines
    than its share: those go behind others of their priority, and not before `over_share_wait_s`,
    too, is over. At most `limit` requests wait, the last of them of tenants of which no more wait
    than of others. Ids are unique among them.
    """

    def __init__(
        self,
        seconds_until_free: Callable[[Lane], float],
        *,
        policy: QueuePolicy = "fcfs",
        limit: int = 10_000,
        wait_times: Callable[[], Callable[[Lane], float]] | None = None,
        now: Callable[[], float] | None = None,
        shares: TenantShares | None = None,
        over_share_wait_s: Callable[[Lane], float] = no_wait,
    ) -> None:
        self._seconds_until_free = seconds_until_free
        self._wait_times = wait_times or (lambda: seconds_until_free)
        self._now = now or (lambda: -math.inf)
        self._shares = TenantShares(TenantConfig()) if shares is None else shares
        self._over_share_wait_s = over_share_wait_s
        self.policy: QueuePolicy = policy
        self.limit = limit
        self._waiting: dict[str, Ticket] = {}
        self._by_tenant: Counter[str] = Counter()  # of them
        self._lanes: dict[Lane, Line] = {}
        self._doomed: list[tuple[float, int, Ticket]] = []  # a heap, by when they are refused
        self._throughput = Throughput()
        self._entries = 0  # in all lanes, those of requests that gave up among them
        self._serial = itertools.count()
        self.queued = 0
        """requests that had to wait, ever"""
        self.refused = 0
        """requests turned away because too many waited, ever"""
        self.deferred = 0
        """requests that found capacity, but were left waiting for others' sake, ever"""
        self.ask_again_s = math.inf
        """seconds after which `next` should be asked again even if load has not fallen"""

    def __len__(self) -> int:
        return len(self._waiting)

    def is_open(self, lane: Lane, tenant: str = "") -> bool:
        """Whether a tenant's request of that lane goes at once; else it must `enter`."""
        shares = self._shares
        has_more = bool(tenant or shares.enabled) and shares.on_asked(tenant, self._now())
        if lane in self._lanes and self._head(lane, self._now(), all_tenants=has_more):
            return False
        wait = self._seconds_until_free(lane)
        if has_more and wait <= 0 and (wait := self._over_share_wait_s(lane)) > 0:
            self.deferred += 1
        if wait <= 0:
            return True
        self._await(wait)
        return False

    def enter(self, make_ticket: Callable[[], Ticket], tenant: str = "") -> Ticket:
        """A tenant's request waits, even if a worker is free, and `next` will name it. Its ticket
        is made here.

        Raises NoWorkersError (overloaded), and asks for none, if as many as may wait do.
        """
        waiting, of_tenant = len(self._waiting), self._by_tenant[tenant]
        tenants = len(self._by_tenant)
        if waiting >= self._shares.most_waiting(self.limit, waiting, of_tenant, tenants):
            self.refused += 1
            raise NoWorkersError(
                f"all workers are saturated and {waiting} requests wait",
                overloaded=True,
                retry_after_s=self.foreseen_wait_s(),
            )
        ticket = make_ticket()
        if not waiting:
            self._throughput.on_first(self._now())
        self._waiting[ticket.request_id] = ticket
        self._by_tenant[ticket.tenant] = of_tenant + 1
        line = self._lanes.get(ticket.lane)
        if line is None:
            line = self._lanes[ticket.lane] = Line(self.policy, self._is_waiting, self._shares)
        serial = next(self._serial)
        line.add(serial, ticket)
        if ticket.refused_from < math.inf:
            heapq.heappush(self._doomed, (ticket.refused_from, serial, ticket))
        self._entries += 1
        self.queued += 1
        return ticket

    def next(self) -> Ticket | None:
        """Take out a request that is too late not to be refused, else the most urgent one for which
        a worker is free; None if there is none.

        Book it, or give it up, before asking again: the answer depends on the load.
        """
        self.ask_again_s = math.inf
        if not self._waiting:
            return None
        seconds, now = self._wait_times(), self._now()
        if self._doomed and (doomed := self._next_doomed(now)) is not None:
            return doomed
        best: Head | None = None
        for lane in list(self._lanes):
            head = self._head(lane, now)
            if head is None or (best is not None and best < head):
                continue
            wait = seconds(lane)
            if head.has_more and wait <= 0:
                wait = self._over_share_wait_s(lane)
            self._await(wait)
            if wait <= 0:
                best = head
        if best is None:
            return None
        ticket = best.ticket
        self._lanes[ticket.lane].on_gone(best)
        self.discard(ticket.request_id)
        return ticket

    def foreseen_wait_s(self) -> float:
        """Seconds until all that wait now have gone, at the rate at which others went."""
        return self._throughput.seconds(len(self._waiting), self._now())

    def discard(self, request_id: str) -> bool:
        """It waits no more, whatever the reason; False if it did not."""
        ticket = self._waiting.pop(request_id, None)
        if ticket is None:
            return False
        self._by_tenant[ticket.tenant] -= 1
        if not self._by_tenant[ticket.tenant]:
            del self._by_tenant[ticket.tenant]
        self._throughput.on_gone(self._now())
        # Its entry stays until it comes to the head, or until such entries are the most.
        if self._entries > 2 * len(self._waiting) + 64:
            left = {lane: line.compact() for lane, line in self._lanes.items()}
            self._lanes = {lane: line for lane, line in self._lanes.items() if left[lane]}
            self._entries = sum(left.values())
            self._doomed = [each for each in self._doomed if self._is_waiting(each)]
            heapq.heapify(self._doomed)
        return True

    def _next_doomed(self, now: float) -> Ticket | None:
        """Take out a request that is too late not to be refused; None if there is none."""
        doomed = self._doomed
        while doomed and not self._is_waiting(doomed[0]):
            heapq.heappop(doomed)
        if not doomed:
            return None
        since, _, ticket = doomed[0]
        if since >= now:
            self._await(since - now + SHORTEST_WAIT_S)
            return None
        heapq.heappop(doomed)
        self.discard(ticket.request_id)
        return ticket

    def _await(self, seconds: float) -> None:
        if seconds > 0:
            self.ask_again_s = min(self.ask_again_s, max(seconds, SHORTEST_WAIT_S))

    def _head(self, lane: Lane, now: float, *, all_tenants: bool = True) -> Head | None:
        """Who goes first there; `all_tenants`: one that has more than its share, if no other."""
        head = self._lanes[lane].head(now)
        if head is None:
            del self._lanes[lane]
        elif head.has_more and not all_tenants:
            return None
        return head

    def _is_waiting(self, entry: Entry) -> bool:
        return self._waiting.get(entry[2].request_id) is entry[2]
