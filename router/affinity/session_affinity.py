"""SessionAffinity: which worker a request's session wants, and what became of that."""

import time
from collections import Counter
from collections.abc import Collection, Iterable
from random import SystemRandom
from threading import Lock
from typing import NamedTuple

from ...base.clock import Clock
from ...base.identity import WorkerWithDpRank
from ...workers.registry import WorkerRegistry
from .bindings import Binding, SessionTable
from .config import AffinityConfig, AffinityMode
from .session import Session


class BoundWorker(NamedTuple):
    """The worker that a request's session is bound to: it must be that one, or had better be."""

    worker: WorkerWithDpRank
    mode: AffinityMode

    @property
    def pinned(self) -> WorkerWithDpRank | None:
        return self.worker if self.mode == "hard" else None

    @property
    def preferred(self) -> WorkerWithDpRank | None:
        return self.worker if self.mode == "soft" else None


class SessionAffinity:
    """The sessions of one router. Thread-safe. Without a TTL in the settings it knows none.

    `counts` says what became of requests with a session: `new` (it was not bound), `kept`
    (they went to its worker), `moved` (to another one: the worker left, failed, or cost too much),
    `refused` (no worker could take them).
    """

    def __init__(self, config: AffinityConfig, registry: WorkerRegistry, clock: Clock) -> None:
        self._config, self._registry, self._now = config, registry, clock.now
        ttl = config.session_affinity_ttl_secs
        self.enabled = ttl is not None
        self._lock = Lock()
        self.table = SessionTable(
            ttl_s=0.0 if ttl is None else ttl,
            max_sessions=config.max_sessions,
            writer=1 + SystemRandom().randrange(2**53 - 1),
            # As Dynamo's routers: greater than those of a router that was here before.
            sequence=time.time_ns(),
            repeat_s=min(10.0, (ttl or 0.0) / 4),
        )
        self.counts: Counter[str] = Counter()
        registry.on_remove.append(self._on_worker_gone)

    def close(self) -> None:
        """Let go of the registry. Idempotent."""
        if self._on_worker_gone in self._registry.on_remove:
            self._registry.on_remove.remove(self._on_worker_gone)

    def __len__(self) -> int:
        return len(self.table)

    def count_on(self, worker: WorkerWithDpRank) -> int:
        """How many sessions are bound to a worker."""
        return self.table.count_on(worker)

    def wanted(self, session: Session | None, excluded: Collection[int] = ()) -> BoundWorker | None:
        """The worker that a request with this session should go to; None: any worker will do.

        A worker that takes no requests, or is among the `excluded` ones, is not wanted.
        """
        if session is None or not self.enabled:
            return None
        with self._lock:
            worker = self.table.worker_of(session.key, self._now())
        if worker is None or worker.worker_id in excluded:
            return None
        number = self._registry.find(worker)
        if number is None or not self._registry.is_ready(number):
            return None
        return BoundWorker(worker, self._config.session_affinity_mode)

    def begin(self, session: Session | None) -> None:
        """A request of the session is in flight, until `end`."""
        if session is not None and self.enabled:
            with self._lock:
                self.table.begin(session.key, self._now())

    def bind(
        self, session: Session | None, worker: WorkerWithDpRank, *, in_flight: bool = True
    ) -> None:
        """A request of the session goes to this worker; `in_flight`: `end` says when it is over."""
        if session is None or not self.enabled:
            return
        now = self._now()
        with self._lock:
            before = self.table.worker_of(session.key, now)
            moved = self.table.bind(session, worker, now)
            if session.final and not in_flight:
                self.table.unbind(session.key)
        self.counts["moved" if moved else "new" if before is None else "kept"] += 1

    def end(self, session: Session | None) -> None:
        """The request is over, and with it the session if it was its last one."""
        if session is None or not self.enabled:
            return
        now = self._now()
        with self._lock:
            self.table.end(session.key, now)
            if session.final:
                self.table.unbind(session.key)
            self.table.expire(now)

    def unbind(self, session: Session | None, worker: WorkerWithDpRank) -> None:
        """The worker failed the session's request: the next one may go elsewhere."""
        if session is not None:
            with self._lock:
                self.table.unbind(session.key, worker)

    @property
    def hard(self) -> bool:
        """Whether sessions stay with their workers whatever that costs."""
        return self.enabled and self._config.session_affinity_mode == "hard"

    def merge(self, bindings: Iterable[Binding]) -> None:
        """What other routers bound."""
        now = self._now()
        with self._lock:
            for binding in bindings:
                if binding.writer != self.table.writer:
                    self.table.merge(binding, now)

    def send_all(self) -> None:
        """Another router came, and knows no session."""
        with self._lock:
            self.table.send_all()

    def take_unsent(self, most: int) -> list[Binding]:
        """Bindings to send to the other routers now."""
        with self._lock:
            return self.table.take_unsent(most, self._now())

    def _on_worker_gone(self, worker: WorkerWithDpRank, number: int) -> None:
        with self._lock:
            self.table.on_worker_gone(worker)
