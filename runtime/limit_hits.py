"""How often a limit was hit: one counter for every bound that requests and peers can reach."""

from collections import Counter


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
