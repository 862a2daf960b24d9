"""How often a limit was hit: one counter for every bound that requests and peers can reach, and a
line in the log now and then."""

import logging
from collections import Counter
from collections.abc import Callable

from .clock import Clock, SystemClock

log = logging.getLogger(__name__)

_SHARED = (
    "max_requests",
    "max_questions",
    "max_request_bytes",
    "max_answer_bytes",
    "max_computations",
    "max_computation_bytes",
)
LIMITS = (
    *_SHARED,
    *(f"{limit}_per_caller" for limit in _SHARED),
    "attempt_timeout_s",
    "client_floods",
    "client_violations",
    "connection_age_grace_s",
    "connection_handshake_s",
    "connection_idle_s",
    "connection_keepalive",
    "decoded_bytes",
    "descriptors",
    "json_parts",
    "max_body_bytes",
    "max_connection_share",
    "max_connections",
    "max_http_connections",
    "max_id_bytes",
    "max_message_bytes",
    "max_metadata_bytes",
    "max_prompt_tokens",
    "max_streams",
    "max_unknown_workers",
    "max_unread_prompts",
    "message_timeout_s",
    "pick_timeout_s",
    "queue_timeout_s",
    "request_timeout_s",
    "retry_budget",
    "router_max_booked_blocks",
    "total_timeout_s",
    "write_timeout_s",
)
"""All names of limits. Metrics have each from the start: Prometheus's `increase` does not see the
hit that a counter appears with."""


class LimitHits:
    """Counts by the limit's name, on the event loop. Shown as dynamo_router_limits_hit_total."""

    def __init__(self) -> None:
        self._counts = Counter[str]()

    def hit(self, limit: str, times: int = 1) -> None:
        """`limit` is one of LIMITS, never a peer's word."""
        self._counts[limit] += times

    def counts(self) -> dict[str, int]:
        return dict(self._counts)

    def __getitem__(self, limit: str) -> int:
        return self._counts[limit]


class LimitLog:
    """Counts a limit, and says in the log that it was hit, of each limit once in `every_s`."""

    def __init__(
        self, count: Callable[[str], None], every_s: float = 60.0, clock: Clock | None = None
    ) -> None:
        self._count, self._every_s = count, every_s
        self._clock = clock or SystemClock()
        self._last: dict[str, tuple[float, int]] = {}  # when it was logged, and the hits by then

    def hit(self, limit: str, who: str) -> None:
        """`who` has hit it."""
        self._count(limit)
        self.note(limit, who)

    def note(self, limit: str, who: str) -> None:
        """The same of a limit that its owner counts."""
        now = self._clock.now()
        logged_at, hits = self._last.get(limit, (float("-inf"), 0))
        if now - logged_at < self._every_s:
            self._last[limit] = (logged_at, hits + 1)
            return
        self._last[limit] = (now, 0)
        text = f" ({hits} more since the last time)" if hits else ""
        log.warning("limit %s was hit by %s%s", limit, who or "a client", text)
