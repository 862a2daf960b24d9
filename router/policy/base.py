"""What a policy is: the modes, and what it has to say about waiting."""

from typing import Literal, Protocol

from .cost import Counts, Mask

Mode = Literal["kv", "round-robin", "random", "least-loaded", "power-of-two", "direct"]
MODES: tuple[str, ...] = ("kv", "round-robin", "random", "least-loaded", "power-of-two", "direct")


class Hold(Protocol):
    """Says when a request had better wait in the router than in an engine, and who goes first."""

    def room_in(self, eligible: Mask, active_blocks: Counts, now: float) -> float:
        """Seconds until one of these workers should get one more: 0 now, inf when load falls."""

    def patience(self, uncached_tokens: int) -> float:
        """Seconds that a request's turn counts as later than its arrival, for what it computes."""
