"""SessionSync: which worker each session is bound to, as routers send it to each other. No I/O.

The messages are those of Dynamo's routers (`tests/vectors/dynamo_event_channels.json`): a
binding is sent when it is made, and again now and then while it is used, so that what was lost is
sent once more. A router that comes later gets all.
"""

import time
from collections.abc import Callable, Collection

import msgspec

from ...base.envelope import EnvelopeWriter, decode_envelope
from ...base.errors import UNREADABLE, EventError
from ...base.identity import as_worker
from ..affinity import Binding, SessionAffinity

SESSION_AFFINITY = "session_affinity_events"
"""Dynamo's topic."""
AT_ONCE = 256
"""Bindings sent in one turn."""
SEND_AGAIN_S = 10.0
"""A router gets all at most once in this time."""
MOST_NEWCOMERS = 64
AHEAD_NS = 24 * 3600 * 10**9
"""By this much the clock that a version was counted from may be ahead of ours."""
LONGEST_KEY = 1024
"""Bytes of a session's id with its caller's name."""


class _Update(msgspec.Struct, frozen=True):
    """The field order is the wire's."""

    session_id: str
    worker_id: int
    dp_rank: int | None
    sequence: int
    writer_id: int


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(_Update).decode


class SessionSync:
    """One router's part in it. `wall_ns` is the time of day, from which versions are counted: one
    from far ahead is refused, since all later ones would have to be greater still."""

    def __init__(
        self,
        sessions: SessionAffinity,
        publisher_id: int,
        wall_ns: Callable[[], int] = time.time_ns,
        *,
        elsewhere: Callable[[], Collection[int]] = frozenset,
    ) -> None:
        """`elsewhere`: workers of the endpoint whose sessions are of no concern here."""
        self._sessions, self._wall_ns, self._elsewhere = sessions, wall_ns, elsewhere
        self._envelopes = EnvelopeWriter(publisher_id, SESSION_AFFINITY, wall_ns)
        self._sent_at: dict[int, float] = {}

    @property
    def enabled(self) -> bool:
        """Whether this router binds sessions at all."""
        return self._sessions.enabled

    def on_newcomer(self, router_id: int, now: float) -> None:
        """A router asks for all there is to know, perhaps because it has missed something."""
        if now - self._sent_at.get(router_id, float("-inf")) < SEND_AGAIN_S:
            return
        if len(self._sent_at) >= MOST_NEWCOMERS:
            self._sent_at.clear()
        self._sent_at[router_id] = now
        self._sessions.send_all()

    def hear(self, message: bytes) -> None:
        """Take a message in. EventError if it cannot be read."""
        try:
            update = _decode(decode_envelope(message).payload)
            worker = as_worker((update.worker_id, update.dp_rank or 0))
        except (*UNREADABLE, ValueError) as error:
            raise EventError(f"no binding of a session: {error}") from error
        if len(update.session_id.encode()) > LONGEST_KEY:
            raise EventError("no binding of a session: its id is too long")
        latest = self._wall_ns() + AHEAD_NS
        if not (0 < update.sequence <= latest and 0 <= update.writer_id < 1 << 64):
            raise EventError("no binding of a session: a number is out of range")
        if worker.worker_id in self._elsewhere():
            return
        binding = Binding(update.session_id, worker, update.sequence, update.writer_id)
        self._sessions.merge([binding])

    def messages(self) -> list[bytes]:
        """Messages to send to the others now."""
        unsent = self._sessions.take_unsent(AT_ONCE)
        return [self._envelopes.wrap(_encode(_update_of(binding))) for binding in unsent]


def _update_of(binding: Binding) -> _Update:
    worker = binding.worker
    return _Update(binding.key, worker.worker_id, worker.dp_rank, binding.sequence, binding.writer)
