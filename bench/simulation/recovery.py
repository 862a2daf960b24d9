"""Event recovery in virtual time: what routers and publishers do about lost events.

The recovery is the one that the event feed drives. Requests, heartbeats and answers arrive after
the delay of the event plane, and get lost at the rate of events.
"""

import heapq
import math
from collections.abc import Callable
from functools import partial
from itertools import count
from random import Random

from ...base.identity import WorkerWithDpRank
from ...engines.event_stream import MIN_ANNOUNCE_INTERVAL_S
from ...engines.mocker import VirtualFleet
from ...engines.publisher import HEARTBEAT_S
from ...engines.replay_log import MIN_REPLAY_INTERVAL_S
from ...indexer.event_index import EventIndex
from ...kv_events import REPLAY_TICK_S, TICK_S, EventRecovery, RecoveryActions
from ...kv_events.resync_wire import ResyncRequest
from ...router.kv_router import KvRouter


class SimulatedRecovery:
    """The recovery's steps and the engines' answers, in the order of time.

    From its making on the index holds events behind gaps back. `loss` is the share of messages that
    get lost; `delay_s` is how long each is under way.
    """

    def __init__(
        self, router: KvRouter, fleet: VirtualFleet, *, loss: float, delay_s: float, seed: int
    ) -> None:
        assert isinstance(router.index, EventIndex)
        self._router, self._fleet, self._index = router, fleet, router.index
        self._loss = loss
        self._delay = delay_s
        self._rng = Random(f"resync {seed}")
        self._recovery = EventRecovery(router.index)
        self._order = count()
        self._due: list[tuple[float, int, Callable[[float], None]]] = []
        self._looking = False  # whether the next look for gaps is due at a known time
        self._announcing: set[WorkerWithDpRank] = set()
        self._last: dict[tuple[str, WorkerWithDpRank], float] = {}
        self.announcements = 0
        self.replays = 0
        self._index.await_replays()
        self._at(0.0, self._keep_up)
        for _, engine in router.registry.numbered():
            self._at(self._rng.random() * HEARTBEAT_S, partial(self._beat, engine))

    @property
    def next_time(self) -> float:
        return self._due[0][0]

    def act(self) -> None:
        """Do what is due first. What was published until then has arrived, as far as it has."""
        time, _, action = heapq.heappop(self._due)
        action(time)
        self.notice(time)

    def notice(self, now: float) -> None:
        """The index took events in: look for gaps, if it noticed any."""
        if self._recovery.gap_noticed and not self._looking:
            self._looking = True
            self._at(now, self._look)

    def _at(self, time: float, action: Callable[[float], None]) -> None:
        heapq.heappush(self._due, (time, next(self._order), action))

    def _gets_lost(self) -> bool:
        return self._rng.random() < self._loss

    def _look(self, now: float) -> None:
        self._looking = False
        self._send(self._recovery.fill_gaps(now), now)
        if self._recovery.waiting:
            self._looking = True
            self._at(now + REPLAY_TICK_S, self._look)

    def _keep_up(self, now: float) -> None:
        workers = [worker for _, worker in self._router.registry.numbered()]
        self._send(self._recovery.keep_up(self._index.sources(), workers, now), now)
        self._at(now + TICK_S, self._keep_up)

    def _send(self, actions: RecoveryActions, now: float) -> None:
        for request in actions.ask:
            if self._gets_lost():
                continue
            engine = _asked(request)
            if request.from_event_id is None:
                self._want_announcement(engine, now)
            else:
                time = self._no_sooner("replay", engine, now, MIN_REPLAY_INTERVAL_S)
                self._at(time, partial(self._replay, request))

    def _no_sooner(self, what: str, engine: WorkerWithDpRank, now: float, interval: float) -> float:
        """When the engine answers a request that leaves now; its answers keep their distance."""
        time = max(now + self._delay, self._last.get((what, engine), -math.inf) + interval)
        self._last[what, engine] = time
        return time

    def _want_announcement(self, engine: WorkerWithDpRank, now: float) -> None:
        if engine not in self._announcing:
            self._announcing.add(engine)
            time = self._no_sooner("announcement", engine, now, MIN_ANNOUNCE_INTERVAL_S)
            self._at(time, partial(self._announce, engine))

    def _announce(self, engine: WorkerWithDpRank, now: float) -> None:
        self._announcing.discard(engine)
        self.announcements += 1
        self._fleet.announce(engine.worker_id, now, engine.dp_rank)

    def _replay(self, request: ResyncRequest, now: float) -> None:
        """Answer a request for missing events."""
        engine, first = _asked(request), request.from_event_id
        assert first is not None
        message = self._fleet.replay(*engine, first, request.until_event_id)
        if message is None:
            self._want_announcement(engine, now)
            return
        self.replays += 1
        self._arrive(message, now)
        self._tell(engine, now)

    def _beat(self, engine: WorkerWithDpRank, now: float) -> None:
        self._tell(engine, now)
        self._at(now + HEARTBEAT_S, partial(self._beat, engine))

    def _tell(self, engine: WorkerWithDpRank, now: float) -> None:
        """The engine says which event was its last."""
        if not self._gets_lost():
            self._arrive(self._fleet.heartbeat(*engine), now)

    def _arrive(self, message: bytes, now: float) -> None:
        self._at(now + self._delay, lambda _: self._router.apply_event(message))


def _asked(request: ResyncRequest) -> WorkerWithDpRank:
    assert request.worker_id is not None and request.dp_rank is not None
    return WorkerWithDpRank(request.worker_id, request.dp_rank)
