"""AdmissionQueue: requests that wait here because every worker they may go to is saturated. Pure.

Driven by the dispatcher in real time and by the simulation in virtual time: requests enter,
and they ask for the next one whenever load fell, a request was booked, or `ask_again_s` is over. A
request that may only go to one worker waits in a lane of its own, so that it does not hold up those
that can go elsewhere.
"""

import heapq
import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass

from ...runtime.errors import NoWorkersError
from ...runtime.identity import WorkerWithDpRank
from .limits import QueuePolicy

Lane = WorkerWithDpRank | None
"""The only worker a request may go to; None: any."""

SHORTEST_WAIT_S = 1e-3  # what remains of a wait is mostly rounding in the end
_Entry = tuple[int, float, int, "Ticket"]


@dataclass(frozen=True, slots=True)
class Urgency:
    """What a request asks for itself.

    A higher `priority` always goes first. Within one, `jump` is by how many seconds earlier the
    request counts as having come or, in wspt, how many times more it weighs; negative counts as 0.
    """

    priority: int = 0
    jump: float = 0.0


NORMAL = Urgency()


@dataclass(frozen=True, slots=True)
class Ticket:
    """A request that wants to go."""

    request_id: str
    arrived: float  # seconds of one clock
    uncached_tokens: int = 1  # prompt tokens that even the best worker would have to compute
    urgency: Urgency = NORMAL
    lane: Lane = None
    order_penalty_s: float = 0.0  # seconds that it counts as having come later, in fcfs

    def score(self, policy: QueuePolicy) -> float:
        """Higher goes first: jump - arrival, jump + arrival, (1 + jump) / tokens (Dynamo's)."""
        jump = max(0.0, self.urgency.jump)
        if policy == "wspt":
            return (1 + jump) / max(1, self.uncached_tokens)
        return jump + (self.arrived if policy == "lcfs" else -self.arrived - self.order_penalty_s)


class AdmissionQueue:
    """Orders what waits.

    `seconds_until_free(lane)` says in how many seconds a request of that lane should go: 0 is now,
    inf is not before load falls; `wait_times()` gives that for any lane, as of now, where many are
    asked for. At most `limit` requests wait. Ids are unique among them.
    """

    def __init__(
        self,
        seconds_until_free: Callable[[Lane], float],
        *,
        policy: QueuePolicy = "fcfs",
        limit: int = 10_000,
        wait_times: Callable[[], Callable[[Lane], float]] | None = None,
    ) -> None:
        self._seconds_until_free = seconds_until_free
        self._wait_times = wait_times or (lambda: seconds_until_free)
        self.policy: QueuePolicy = policy
        self.limit = limit
        self._waiting: dict[str, Ticket] = {}
        self._lanes: dict[Lane, list[_Entry]] = {}
        self._serial = itertools.count()
        self.queued = 0
        """requests that had to wait, ever"""
        self.refused = 0
        """requests turned away because too many waited, ever"""
        self.ask_again_s = math.inf
        """seconds after which `next` should be asked again even if load has not fallen"""

    def __len__(self) -> int:
        return len(self._waiting)

    def is_open(self, lane: Lane) -> bool:
        """Whether a request of that lane goes at once; else it must `enter`."""
        if self._head(lane):
            return False
        wait = self._seconds_until_free(lane)
        self._await(wait)
        return wait <= 0

    def enter(self, make_ticket: Callable[[], Ticket]) -> Ticket:
        """A request waits, whoever is free, and `next` will name it. Its ticket is asked for here.

        Raises NoWorkersError (overloaded), and asks for none, if as many as may wait do.
        """
        if len(self._waiting) >= self.limit:
            self.refused += 1
            raise NoWorkersError(
                f"all workers are saturated and {self.limit} requests wait", overloaded=True
            )
        ticket = make_ticket()
        self._waiting[ticket.request_id] = ticket
        entry = (
            -ticket.urgency.priority,
            -ticket.score(self.policy),
            next(self._serial),
            ticket,
        )
        heapq.heappush(self._lanes.setdefault(ticket.lane, []), entry)
        self.queued += 1
        return ticket

    def next(self) -> Ticket | None:
        """Take out the most urgent request for which a worker is free; None if there is none.

        Book it, or give it up, before asking again: the answer depends on the load.
        """
        self.ask_again_s = math.inf
        if not self._waiting:
            return None
        seconds, best = self._wait_times(), None
        for lane in list(self._lanes):
            head = self._head(lane)
            if head is None or (best is not None and best < head):
                continue
            wait = seconds(lane)
            self._await(wait)
            if wait <= 0:
                best = head
        if best is None:
            return None
        self.discard(best[3].request_id)
        return best[3]

    def discard(self, request_id: str) -> bool:
        """It waits no more, whatever the reason; False if it did not."""
        ticket = self._waiting.pop(request_id, None)
        if ticket is None:
            return False
        # Its entry stays until it comes to the head, or until such entries are the most.
        lane = self._lanes[ticket.lane]
        if len(lane) > 2 * len(self._waiting) + 64:
            lane[:] = [entry for entry in lane if self._is_waiting(entry)]
            heapq.heapify(lane)
        return True

    def _await(self, seconds: float) -> None:
        if seconds > 0:
            self.ask_again_s = min(self.ask_again_s, max(seconds, SHORTEST_WAIT_S))

    def _head(self, lane: Lane) -> _Entry | None:
        entries = self._lanes.get(lane)
        if entries is None:
            return None
        while entries and not self._is_waiting(entries[0]):
            heapq.heappop(entries)
        if not entries:
            del self._lanes[lane]
            return None
        return entries[0]

    def _is_waiting(self, entry: _Entry) -> bool:
        return self._waiting.get(entry[3].request_id) is entry[3]
