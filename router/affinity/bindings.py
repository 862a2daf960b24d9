"""SessionTable: which worker each session is bound to, bounded by number, callers and time. Pure.

Every binding has a version, (sequence, writer). The greater one wins, so routers that send each
other their bindings come to agree, in whatever order these arrive. A sequence is greater
than any that came before. Source of the versions: recorded from ai-dynamo 1.6.1
(`tests/vectors/dynamo_event_channels.json`).
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from ...base.identity import WorkerWithDpRank
from .session import Session

PEERS = "\x1fpeers"
"""The owner of what other routers bound: no caller is called so."""
SHARE = 0.5
"""Of the table, for one owner."""


class Binding(NamedTuple):
    """A session's worker, as routers send it to each other."""

    key: str
    worker: WorkerWithDpRank
    sequence: int
    writer: int


@dataclass(slots=True)
class _Bound:
    """What is kept of a session."""

    binding: Binding
    owner: str
    ttl_s: float
    used_at: float
    requests: int = 0
    """in flight; while there are any it does not expire"""
    sent_at: float = float("-inf")


@dataclass(slots=True)
class SessionCounts:
    """Since the table was made; they only grow."""

    expired: int = 0
    evicted: int = 0
    """forgotten for want of room"""
    merged: int = 0
    """bindings of other routers that were taken over"""
    outdated: int = 0
    """bindings of other routers that were older than what is known"""


@dataclass(slots=True)
class SessionTable:
    """Times are seconds that never go back. `repeat_s`: how often a binding in use is sent anew."""

    ttl_s: float
    max_sessions: int
    writer: int
    sequence: int
    """of the last binding made or received"""
    repeat_s: float = 10.0
    counts: SessionCounts = field(default_factory=SessionCounts)
    _sessions: dict[str, _Bound] = field(default_factory=dict)  # least recently used first
    _owned: dict[str, dict[str, None]] = field(default_factory=dict)  # the same by owner
    _on_worker: dict[WorkerWithDpRank, set[str]] = field(default_factory=dict)
    _unsent: dict[str, None] = field(default_factory=dict)  # keys, in their order
    _to_all: int = 0  # the first N of them are sent again because a router came
    _came_since: bool = False  # a router that has not received those sent already
    _unbound: dict[str, int] = field(default_factory=dict)  # requests in flight of other sessions

    def __len__(self) -> int:
        return len(self._sessions)

    def count_on(self, worker: WorkerWithDpRank) -> int:
        """How many sessions are bound to a worker."""
        return len(self._on_worker.get(worker, ()))

    def worker_of(self, key: str, now: float) -> WorkerWithDpRank | None:
        """The worker that a session is bound to."""
        bound = self._live(key, now)
        return None if bound is None else bound.binding.worker

    def begin(self, key: str, now: float) -> None:
        """A request of a session is on its way, until `end`, whether it is bound or not yet."""
        bound = self._live(key, now)
        if bound is None:
            self._unbound[key] = self._unbound.get(key, 0) + 1
        else:
            bound.requests += 1
            self._use(bound, now)

    def end(self, key: str, now: float) -> None:
        """It is over: the session's time begins anew."""
        bound = self._sessions.get(key)
        if bound is not None:
            bound.requests = max(0, bound.requests - 1)
            self._use(bound, now)
        elif (left := self._unbound.pop(key, 0) - 1) > 0:
            self._unbound[key] = left

    def bind(self, session: Session, worker: WorkerWithDpRank, now: float) -> bool:
        """A request of the session goes to a worker. Whether it was bound to another one."""
        bound = self._live(session.key, now)
        if bound is not None and bound.binding.worker == worker:
            bound.ttl_s = min(session.timeout_s, self.ttl_s)
            self._use(bound, now)
            return False
        self.sequence += 1
        binding = Binding(session.key, worker, self.sequence, self.writer)
        ttl_s = min(session.timeout_s, self.ttl_s)
        self._put(binding, session.owner, ttl_s, now)
        self._unsent[session.key] = None
        return bound is not None

    def unbind(self, key: str, worker: WorkerWithDpRank | None = None) -> None:
        """Forget a session; with a `worker` only if it is bound to that one."""
        bound = self._sessions.get(key)
        if bound is not None and worker in (None, bound.binding.worker):
            self._drop(key)

    def on_worker_gone(self, worker: WorkerWithDpRank) -> None:
        """It left: its sessions are not bound any more."""
        for key in self._on_worker.pop(worker, set()):
            self._drop(key)

    # Other routers

    def merge(self, binding: Binding, now: float) -> None:
        """Another router bound a session, or says again that it is bound."""
        self.sequence = max(self.sequence, binding.sequence)
        bound = self._live(binding.key, now)
        if bound is None:
            self._put(binding, PEERS, self.ttl_s, now)
        elif binding[2:] > bound.binding[2:]:
            self._put(binding, bound.owner, bound.ttl_s, now)
        elif binding == bound.binding:
            self._use(bound, now, send=False)
            return
        else:
            self.counts.outdated += 1
            return
        self.counts.merged += 1

    def send_all(self) -> None:
        """A router came that knows nothing: everything is to be sent. While it is being sent, all
        that come meanwhile get it together, after that."""
        if self._to_all:
            self._came_since = True
            return
        self._unsent = dict.fromkeys(self._sessions)
        self._to_all = len(self._unsent)

    def take_unsent(self, most: int, now: float) -> list[Binding]:
        """Bindings to send to the other routers, at most `most` at a time."""
        taken: list[Binding] = []
        while len(taken) < most:
            if not self._unsent:
                self._to_all = 0  # some of them were forgotten unsent
            if self._came_since and not self._to_all:
                self._came_since = False
                self.send_all()
            if not self._unsent:
                break
            key = next(iter(self._unsent))
            del self._unsent[key]
            self._to_all = max(0, self._to_all - 1)
            bound = self._live(key, now)
            if bound is not None:
                bound.sent_at = now
                taken.append(bound.binding)
        return taken

    def expire(self, now: float) -> None:
        """Forget the oldest sessions whose time is over."""
        while self._sessions:
            bound = next(iter(self._sessions.values()))
            if now - bound.used_at < bound.ttl_s:
                return
            if bound.requests:
                self._use(bound, now)
            else:
                self.counts.expired += 1
                self._drop(bound.binding.key)

    def check_integrity(self) -> None:
        """AssertionError if the views of the table do not agree, or a bound is passed."""
        keys = set(self._sessions)
        assert len(keys) <= self.max_sessions
        assert set().union(*self._owned.values()) == keys
        assert sum(map(len, self._owned.values())) == len(keys)
        assert all(len(owned) <= self._most_each for owned in self._owned.values())
        assert set().union(*self._on_worker.values()) == keys
        assert sum(map(len, self._on_worker.values())) == len(keys)
        assert set(self._unsent) <= keys and not keys & set(self._unbound)
        for key, bound in self._sessions.items():
            assert bound.binding.key == key and key in self._owned[bound.owner]
            assert key in self._on_worker[bound.binding.worker]
            assert bound.binding.sequence <= self.sequence

    @property
    def _most_each(self) -> int:
        return max(1, int(self.max_sessions * SHARE))

    def _live(self, key: str, now: float) -> _Bound | None:
        bound = self._sessions.get(key)
        if bound is None or bound.requests or now - bound.used_at < bound.ttl_s:
            return bound
        self.counts.expired += 1
        self._drop(key)
        return None

    def _use(self, bound: _Bound, now: float, *, send: bool = True) -> None:
        """It was used just now, which is sent to the others now and then."""
        key = bound.binding.key
        bound.used_at = now
        owned = self._owned[bound.owner]
        self._sessions[key] = self._sessions.pop(key)
        owned[key] = owned.pop(key)
        if send and now - bound.sent_at >= self.repeat_s:
            self._unsent.setdefault(key)

    def _put(self, binding: Binding, owner: str, ttl_s: float, now: float) -> None:
        """Remember a binding, in place of what was known of its session."""
        if binding.key in self._sessions:
            self._drop(binding.key)
        requests = self._unbound.pop(binding.key, 0)
        owned = self._owned.get(owner, {})
        if len(owned) >= self._most_each:
            self._evict(owned)
        elif len(self._sessions) >= self.max_sessions:
            self._evict(self._sessions)
        bound = _Bound(binding, owner, ttl_s, now, requests)
        self._sessions[binding.key] = bound
        self._owned.setdefault(owner, {})[binding.key] = None
        self._on_worker.setdefault(binding.worker, set()).add(binding.key)

    def _evict(self, keys: Iterable[str]) -> None:
        self.counts.evicted += 1
        self._drop(next(iter(keys)))

    def _drop(self, key: str) -> None:
        bound = self._sessions.pop(key)
        if bound.requests:
            self._unbound[key] = bound.requests
        owned = self._owned[bound.owner]
        del owned[key]
        if not owned:
            del self._owned[bound.owner]
        there = self._on_worker.get(bound.binding.worker)
        if there is not None:
            there.discard(key)
            if not there:
                del self._on_worker[bound.binding.worker]
        self._unsent.pop(key, None)
