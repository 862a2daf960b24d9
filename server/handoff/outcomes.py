"""HandoffOutcomes: what became of hand-offs, for what is learnt of links and for metrics."""

from collections import Counter
from collections.abc import Callable

from ...base.clock import Clock
from ...router.disagg import PairRule
from ...router.pairs import PairDecision
from ..request_limits import HandoffLimits
from .leg import PrefillLeg

FORECAST_FACTOR = 10.0
"""A prefill may take this many times what the whole way to the first token was expected to."""
PHASES: tuple[str, ...] = (
    "prefill", "prefill_timeout", "prefill_empty", "no_parcel", "decode", "decode_empty",
    "handoff_timeout", "unread",
)  # fmt: skip


class HandoffOutcomes:
    """Of one pool. `failures` counts attempts that failed before the decode worker's first token,
    by phase; and as `unread` prompts that stay with their prefill worker."""

    def __init__(
        self, rule: PairRule, limits: HandoffLimits, clock: Clock, block_size: int
    ) -> None:
        self.limits, self.now = limits, clock.now
        self.failures: Counter[str] = Counter(dict.fromkeys(PHASES, 0))
        self.on_handoff_s: list[Callable[[float], None]] = []
        """called with the seconds from a prefill's end to the first token of the decode worker"""
        self.on_pair: list[Callable[[str, PairDecision], None]] = []
        """called with each request's id and its decision"""
        self.on_regret_s: list[Callable[[str, float], None]] = []
        """called with a request's id, and the seconds that its first token came later than was
        forecast"""
        self.queued: dict[object, tuple[int, float]] = {}
        """prompts that decode workers were asked to put into the prefill queue, and that have no
        first token yet: by call, the tokens that are to come, and since when"""
        self._rule, self._block_size = rule, block_size

    def tokens_to_come(self, pair: PairDecision) -> int:
        """Of a prompt, those that its decode worker does not have, as the router knows it."""
        return pair.decode.request_blocks * self._block_size - pair.decode.cached_tokens

    def prefill_timeout_s(self, pair: PairDecision) -> float:
        """How long the prefill of a pair may take."""
        least = self.limits.disagg_prefill_timeout_s
        return max(least, FORECAST_FACTOR * (pair.first_token_s or 0.0))

    def on_handed_over(self, leg: PrefillLeg, pair: PairDecision) -> None:
        """The decode worker's first token is out. No time passed where its prefill worker has
        not answered yet."""
        took = 0.0 if leg.is_computing else self.now() - leg.computed_at
        if pair.landing is not None:
            self._rule.on_handed_over(pair.landing, took, self.now())
        for observe in self.on_handoff_s:
            observe(took)

    def on_first_token(self, request_id: str, pair: PairDecision, waited_s: float) -> None:
        """Of a request whose way may have been chosen by a forecast, so long after the decision."""
        if pair.first_token_s is not None:
            for observe in self.on_regret_s:
                observe(request_id, waited_s - pair.first_token_s)
