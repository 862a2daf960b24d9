"""Whether a registration that is gone means that its worker is. Pure.

A store that lost its data, or was away for longer than its leases live, forgets workers that go on
serving. They register again within moments; until then some worker has to be left to serve.
"""

from dataclasses import dataclass

GRACE_S = 20.0
"""Two lives of a lease: by then every serving worker is registered again."""


@dataclass
class _Gone:
    since: float
    kept: bool


class Departures:
    """Believes departures while at least half of those who were there lately stay; the others are
    kept until they are back, GRACE_S has passed, or they do not answer. Times are of a monotonic
    clock.
    """

    def __init__(self, grace_s: float = GRACE_S) -> None:
        self._grace_s = grace_s
        self._here: set[int] = set()
        self._gone: dict[int, _Gone] = {}

    def on_here(self, worker_id: int) -> None:
        """It is registered."""
        self._here.add(worker_id)
        self._gone.pop(worker_id, None)

    def on_moved(self, worker_id: int) -> None:
        """It is registered elsewhere: it leaves now, and says nothing of the store."""
        self._here.discard(worker_id)
        self._gone.pop(worker_id, None)

    def on_gone(self, worker_id: int, now: float) -> bool:
        """Its registration went: whether it is to leave now."""
        if worker_id not in self._here:
            return False
        self._forget(now)
        self._here.discard(worker_id)
        lately = len(self._here) + len(self._gone) + 1
        left = self._gone[worker_id] = _Gone(now, kept=2 * len(self._here) < lately)
        return not left.kept

    def overdue(self, now: float) -> list[int]:
        """Those that were kept, and did not come back in time: they are to leave now."""
        late = [
            worker_id
            for worker_id, gone in self._gone.items()
            if gone.kept and now >= gone.since + self._grace_s
        ]
        self._forget(now)
        return late

    def forget(self, worker_id: int) -> None:
        """It is gone: it does not answer either."""
        self._gone.pop(worker_id, None)

    @property
    def kept(self) -> set[int]:
        """Those that are kept though their registration is gone."""
        return {worker_id for worker_id, gone in self._gone.items() if gone.kept}

    def _forget(self, now: float) -> None:
        self._gone = {
            worker_id: gone
            for worker_id, gone in self._gone.items()
            if now < gone.since + self._grace_s
        }
