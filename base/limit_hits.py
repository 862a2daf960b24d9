"""How often a limit was hit: one counter for every bound that requests and peers can reach, and a
line in the log now and then."""

import logging
from collections import Counter
from collections.abc import Callable

from .clock import Clock, SystemClock

log = logging.getLogger(__name__)


class LimitHits:
    """Counts by the limit's name, on the event loop. Shown as dynamo_router_limits_hit_total."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()

    def hit(self, limit: str, times: int = 1) -> None:
        """`limit` is the name of a setting or of a fixed bound, never a peer's word."""
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
        self.tell(limit, who)

    def tell(self, limit: str, who: str) -> None:
        """The same of a limit that its owner counts."""
        now = self._clock.now()
        logged_at, hits = self._last.get(limit, (float("-inf"), 0))
        if now - logged_at < self._every_s:
            self._last[limit] = (logged_at, hits + 1)
            return
        self._last[limit] = (now, 0)
        text = f" ({hits} more since the last time)" if hits else ""
        log.warning("limit %s was hit by %s%s", limit, who or "a client", text)
