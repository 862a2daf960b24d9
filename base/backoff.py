"""How long to wait before trying again: doubling, capped, with jitter."""

from random import Random


class Backoff:
    """Delays in seconds for one retry loop: about first, 2*first, 4*first, ... up to `cap`.

    Each is drawn from the upper half of its range, so that a fleet that lost the same server
    does not come back in lockstep.
    """

    def __init__(self, first: float = 0.05, cap: float = 5.0, rng: Random | None = None) -> None:
        if not 0 < first <= cap:
            raise ValueError(f"a backoff needs 0 < first <= cap, not {first} and {cap}")
        self._first = first
        self._cap = cap
        self._rng = rng or Random()
        self._ceiling = first

    def next(self) -> float:
        ceiling = self._ceiling
        self._ceiling = min(self._cap, 2 * ceiling)
        return self._rng.uniform(ceiling / 2, ceiling)

    def reset(self) -> None:
        """Start over: the last attempt went well."""
        self._ceiling = self._first
