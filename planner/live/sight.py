"""Sight: engines by the store and by every router, put together; and the requests of the last
minutes. Pure.

Where a router gives no answer there is no data of it, and so none of the whole: an engine that it
may be sending requests to is not idle.
"""

from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from ...workers.records import ModelCard
from ..fleet import ROLES, Fleet, Role
from ..observation import Observation, ObservedRequest, ObservedWorker, WorkerState
from .router_client import RecordedRequest, RouterLook
from .transaction import EngineState, SeenEngine

MAX_REQUESTS = 20_000
CLOCK_SLACK_S = 30.0
"""by which a record's requests may be seen later than those before: more, and its clock went back.
"""
FAR_AHEAD_S = 86_400.0
"""A record that ends so long after most others of its look has another clock than they."""
_STATES: dict[EngineState, WorkerState] = {
    EngineState.STARTING: "starting",
    EngineState.READY: "serving",
    EngineState.DRAINING: "draining",
}


@dataclass(frozen=True, slots=True)
class Seen:
    """What is known at one moment."""

    engines: tuple[SeenEngine, ...]
    cards: Mapping[int, ModelCard]
    queued: float | None
    """requests that wait for admission, at all routers; None: no data"""
    in_flight: int | None
    requests: tuple["ArrivedRequest", ...] | None
    """that ended within the window, by arrival; None: no data"""
    complete_s: float
    """for how long every router has answered without a gap"""
    idle_s: float
    """for how long it is confirmed that there was no request"""
    block_size: int | None
    unmatched: int = 0
    """workers that routers have, and the store has not"""
    senseless: int = 0
    """records of this look that were left out, as they make no sense"""
    trouble: str = ""
    """why there is no data"""

    def count(self, *states: EngineState) -> Fleet:
        """Engines in these states."""
        engines = self.engines
        return Fleet(
            *(sum(each.role == role and each.state in states for each in engines) for role in ROLES)
        )

    def observation(
        self, at: float, window_s: float, asked: Fleet, start_limit_s: float
    ) -> Observation:
        """The same as planners take it. `asked`: engines that were asked for; those of them that
        are not registered are starting ones, of an age that is not known."""
        workers = [
            ObservedWorker(
                worker_id=each.engine_id,
                role=each.role,
                state=_STATES[each.state]
                if each.state is not EngineState.STARTING or each.age_s <= start_limit_s
                else "failed",
                age_s=each.age_s,
                served=each.served,
                running=each.in_flight,
                active_blocks=each.active_blocks if each.in_flight is not None else None,
                total_blocks=self.cards[each.engine_id].total_kv_blocks,
            )
            for each in self.engines
        ]
        registered = self.roles
        for role, count in asked:
            for number in range(count - registered.count(role)):
                workers.append(
                    ObservedWorker(
                        worker_id=-1 - number - MAX_REQUESTS * ROLES.index(role),
                        role=role,
                        state="starting",
                        age_s=0.0,
                    )
                )
        requests = self.requests
        begin = at - min(window_s, self.complete_s)
        return Observation(
            at=at,
            workers=workers,
            requests=None
            if requests is None or self.complete_s <= 0
            else [each.observed for each in requests if each.at >= begin],
            window_s=at - begin,
            block_size=self.block_size or 512,
            queued=None if self.queued is None else int(self.queued),
            unmatched=self.unmatched,
            senseless=self.senseless,
        )

    @property
    def roles(self) -> Fleet:
        """All engines that are registered."""
        return self.count(*EngineState)


@dataclass(frozen=True, slots=True)
class ArrivedRequest:
    """A request with the monotonic time at which it arrived, to within one look."""

    at: float
    request: RecordedRequest

    @property
    def observed(self) -> ObservedRequest:
        """The same as planners take it."""
        request = self.request
        return ObservedRequest(
            self.at,
            request.input_length,
            max(0, request.output_length),
            tuple(request.hash_ids),
            request.session_id or None,
            request.ttft_ms,
            request.itl_ms,
            request.cached_tokens,
            request.worker_id,
        )


class Sight:
    """Fed by `look`, once in a while; all times are of a monotonic clock."""

    def __init__(self, window_s: float) -> None:
        """`window_s`: how long requests are remembered."""
        self._window_s = window_s
        self._served: Counter[int] = Counter()
        self._ready_since: dict[int, float] = {}
        self._requests: deque[ArrivedRequest] = deque(maxlen=MAX_REQUESTS)
        self._offsets: dict[str, tuple[float, float]] = {}
        """by records: from its clock to ours, and when that was seen last"""
        self._complete_since: float | None = None
        self._idle_since: float | None = None
        self._record = ""

    def look(
        self,
        now: float,
        engines: Mapping[int, tuple[ModelCard, float]],
        routers: Sequence[RouterLook | None],
    ) -> Seen:
        """`engines`: card and age of each that is registered; one entry for each router, None for
        one that gave no answer."""
        looks = [router for router in routers if router is not None]
        complete = bool(looks) and len(looks) == len(routers)
        recorded = complete and all(look.requests is not None for look in looks)
        gap = not recorded or any(look.missed for look in looks)
        self._complete_since = _since(self._complete_since, now, not gap)
        senseless = sum(self._take_requests(now, look) for look in looks)
        while self._requests and self._requests[0].at < now - self._window_s:
            self._requests.popleft()
        seen = tuple(
            self._engine(now, engine_id, card, age_s, looks, complete)
            for engine_id, (card, age_s) in sorted(engines.items())
        )
        self._served = Counter({each: self._served[each] for each in engines})
        in_flight = sum(each.in_flight or 0 for each in seen) if complete else None
        queued = None
        if complete and all(look.queued is not None for look in looks):
            queued = sum(look.queued or 0.0 for look in looks)
        busy = in_flight != 0 or queued != 0 or any(look.requests for look in looks) or gap
        self._idle_since = _since(self._idle_since, now, not busy)
        block_sizes = [look.block_size for look in looks if look.block_size is not None]
        return Seen(
            seen,
            {engine_id: card for engine_id, (card, _) in engines.items()},
            queued,
            in_flight,
            tuple(sorted(self._requests, key=lambda each: each.at)) if recorded else None,
            0.0 if self._complete_since is None else now - self._complete_since,
            0.0 if self._idle_since is None else now - self._idle_since,
            block_sizes[0] if block_sizes else None,
            len({each for look in looks for each in look.workers} - engines.keys()),
            senseless,
            self._trouble(routers, looks, recorded),
        )

    @staticmethod
    def _trouble(
        routers: Sequence[RouterLook | None], looks: Sequence[RouterLook], recorded: bool
    ) -> str:
        if not looks:
            return "no router answers"
        if len(looks) < len(routers):
            return f"{len(routers) - len(looks)} of {len(routers)} routers give no answer"
        if not recorded:
            return "a router records no requests (--record)"
        if any(look.queued is None for look in looks):
            return "a router's queue has no number"
        return ""

    def _take_requests(self, now: float, look: RouterLook) -> int:
        """Note when requests arrived: the newest one that ended, ended by now. How many records
        were left out: one that ended in a year would put all others a year back."""
        requests = [each for each in look.requests or () if each.makes_sense]
        if not requests:
            return len(look.requests or ())
        last_s = self._last_end_s(now, look.record, requests)
        requests = [each for each in requests if _end_s(each) <= last_s]
        offset = now - max(map(_end_s, requests))
        known, seen_at = self._offsets.get(look.record, (offset, now))
        # The looks' least delay is the nearest; a record that begins anew has its own clock, and
        # one whose clock went back is later than what was missed in between.
        if offset - known <= now - seen_at + CLOCK_SLACK_S:
            offset = min(offset, known)
        self._offsets[look.record] = offset, now
        for request in requests:
            self._requests.append(ArrivedRequest(offset + request.timestamp / 1e3, request))
            if (worker_id := request.worker_id) is not None and request.status == "ok":
                self._served[worker_id] += 1
        return len(look.requests or ()) - len(requests)

    def _last_end_s(self, now: float, record: str, requests: Sequence[RecordedRequest]) -> float:
        """When the newest of a look's requests can have ended, by their record's clock: one that
        was stamped ahead of it, or after it jumped ahead, cannot date the others."""
        ends = sorted(map(_end_s, requests))
        if (found := self._offsets.get(record)) is not None:
            offset, seen_at = found
            last_s = now + CLOCK_SLACK_S - offset
            if any(seen_at - CLOCK_SLACK_S - offset <= end <= last_s for end in ends):
                return last_s
        return ends[(len(ends) - 1) // 2] + FAR_AHEAD_S  # the clock is new, or all of it jumped

    def _engine(
        self,
        now: float,
        engine_id: int,
        card: ModelCard,
        age_s: float,
        looks: Iterable[RouterLook],
        complete: bool,
    ) -> SeenEngine:
        rows = [look.workers.get(engine_id) for look in looks]
        known = [row for row in rows if row is not None]
        if age_s == 0.0:
            self._ready_since.pop(engine_id, None)
        states = {row.state for row in known}
        if EngineState.DRAINING in states:
            state = EngineState.DRAINING
        elif complete and len(known) == len(rows) and states == {EngineState.READY}:
            state = EngineState.READY
        else:
            state = EngineState.STARTING
        if state is EngineState.READY:
            since = self._ready_since.setdefault(engine_id, now)
        elif complete:
            self._ready_since.pop(engine_id, None)
            since = now
        else:
            since = self._ready_since.get(engine_id, now)
        requests = sum(row.active_requests for row in known)
        if requests and state is EngineState.READY and not self._served[engine_id]:
            self._served[engine_id] = 1  # it has its first ones
        return SeenEngine(
            engine_id,
            _role(card),
            state,
            age_s,
            now - since,
            self._served[engine_id],
            requests if complete else None,
            sum(row.active_blocks for row in known),
        )


def _end_s(request: RecordedRequest) -> float:
    """When it ended, by its record's clock."""
    return (request.timestamp + (request.e2e_ms or 0.0)) / 1e3


def _since(since: float | None, now: float, holds: bool) -> float | None:
    """Since when something holds, given since when it did; None while it does not."""
    if not holds:
        return None
    return now if since is None else since


def _role(card: ModelCard) -> Role:
    for role in ROLES:
        if role == card.worker_type:
            return role
    return "aggregated"
