"""How long a step of the engine takes: the polynomial model. Asked by the engine each step."""

from typing import Protocol


class StepTiming(Protocol):
    """A latency model. Times are milliseconds, sizes are tokens."""

    def prefill_ms(self, new_tokens: int) -> float:
        """Time to compute `new_tokens` prompt tokens of one step, all requests together."""

    def decode_ms(self, active_tokens: int) -> float:
        """Time to compute one token for each decoding request; they are `active_tokens` long.

        A prefix they share counts for each of them: each reads all that it attends to.
        """


class PolynomialTiming:
    """Two polynomials fitted to a GPU, the one for decoding over the share of the cache in use.

    The share is capped at 1, where the parabola has all but reached its peak: past the peak it
    falls, and would make an overfull engine decode in no time.
    """

    __slots__ = ("_total_tokens", "_decode_speedup")

    def __init__(self, total_tokens: int, *, decode_speedup: float = 1.0) -> None:
        """`total_tokens`: what the whole cache holds."""
        self._total_tokens = total_tokens
        self._decode_speedup = decode_speedup

    def prefill_ms(self, new_tokens: int) -> float:
        if new_tokens <= 0:
            return 0.0
        return (4.209989e-7 * new_tokens + 1.518344e-2) * new_tokens + 16.50142

    def decode_ms(self, active_tokens: int) -> float:
        share = min(1.0, active_tokens / self._total_tokens)
        return max(1.0, (-25.74 * share + 54.01) * share + 5.74) / self._decode_speedup
