"""GuardedPolicy: an installed policy, whose failures cost no request."""

import logging
import math
from collections.abc import Mapping
from operator import index
from time import monotonic
from typing import Any, TypeVar

import numpy as np

from ...base.errors import RouterError
from ...workers.registry import WorkerEntry
from .base import Candidates, Foreseen, HeardBooking, Policy
from .draw import Rng
from .dynamo_cost import Counts, Floats, Mask
from .residuals import ResidualState

LOG_EVERY = 1000  # failures of a policy, or slow decisions, between two lines in the log
SLOW_S = 0.005
"""Of a decision: all that the router serves waits meanwhile."""

T = TypeVar("T")
log = logging.getLogger(__name__)


class GuardedPolicy(Policy):
    """Where `inner` raises, answers nonsense, or chooses who may not be chosen, `fallback` decides.

    A hold that fails holds nothing. Each failure is counted in `failures`; the first and then every
    thousandth is logged under `name`, as are those decisions that `slow` counts. What `inner`
    refuses with one of the router's own errors, such as NoWorkersError, is refused.
    """

    def __init__(self, inner: Policy, name: str, fallback: Policy) -> None:
        self._inner = inner
        self.name = name
        self._fallback = fallback
        self.needs_overlaps = inner.needs_overlaps
        self.temperature = inner.temperature
        self.holds = inner.holds
        self.learns = inner.learns
        self.failures = 0
        self.slow = 0
        """decisions that took longer than SLOW_S"""

    def score(self, candidates: Candidates) -> Floats:
        eligible = candidates.eligible
        try:
            return self._costs(candidates)
        except RouterError:
            raise
        except Exception as error:
            self._note(error)
        candidates.eligible = eligible
        return self._fallback.score(candidates)

    def choose(self, candidates: Candidates, rng: Rng) -> int:
        eligible, began = candidates.eligible, monotonic()
        try:
            number = index(self._inner.pick(self._costs(candidates), rng))
            if not 0 <= number < len(eligible) or not eligible[number]:
                raise ValueError(f"it chose worker number {number}, which is not eligible")
            if (took_s := monotonic() - began) > SLOW_S:
                self._note_slow(took_s)
            return number
        except RouterError:
            raise
        except Exception as error:
            self._note(error)
        candidates.eligible = eligible
        return self._fallback.choose(candidates, rng)

    def explain(self, candidates: Candidates) -> Mapping[int, Mapping[str, float]]:
        try:
            return dict(self._inner.explain(candidates))
        except Exception as error:
            self._note(error)
        return {}

    def residuals(self) -> ResidualState | None:
        try:
            return _of_type(self._inner.residuals(), ResidualState)
        except Exception as error:
            self._note(error, "residuals: ")
        return None

    def relief_s(self, eligible: Mask, now: float) -> float | None:
        try:
            seconds = self._inner.relief_s(eligible, now)
            return None if seconds is None else _seconds_of(seconds)
        except Exception as error:
            self._note(error, "relief_s: ")
        return None

    def cold_s(self, isl: int) -> float | None:
        try:
            seconds = self._inner.cold_s(isl)
            return None if seconds is None else _seconds_of(seconds)
        except Exception as error:
            self._note(error, "cold_s: ")
        return None

    def foresee(self, candidates: Candidates, number: int) -> Foreseen | None:
        try:
            return _of_type(self._inner.foresee(candidates, number), Foreseen)
        except Exception as error:
            self._note(error, "foresee: ")
        return None

    def foreseen_ttft_s(self, request_id: str) -> tuple[float, float] | None:
        try:
            if (found := self._inner.foreseen_ttft_s(request_id)) is None:
                return None
            own, soonest = found
            return _seconds_of(own), _seconds_of(soonest)
        except Exception as error:
            self._note(error, "foreseen_ttft_s: ")
        return None

    def hold(self, eligible: Mask, active_blocks: Counts, now: float) -> float:
        return self._seconds("hold", eligible, active_blocks, now)

    def hold_over_share(self, eligible: Mask, active_blocks: Counts, now: float) -> float:
        return self._seconds("hold_over_share", eligible, active_blocks, now)

    def order_penalty_s(self, uncached_tokens: int) -> float:
        return self._seconds("order_penalty_s", uncached_tokens)

    def on_worker(self, number: int, entry: WorkerEntry) -> None:
        self._call("on_worker", number, entry)

    def on_worker_gone(self, number: int) -> None:
        self._call("on_worker_gone", number)

    def on_booked(self, request_id: str, number: int, candidates: Candidates) -> None:
        self._call("on_booked", request_id, number, candidates)

    def on_expected(self, request_id: str, number: int, candidates: Candidates) -> None:
        self._call("on_expected", request_id, number, candidates)

    def on_heard(self, heard: HeardBooking) -> None:
        self._call("on_heard", heard)

    def on_cached(self, request_id: str, cached_tokens: int) -> None:
        self._call("on_cached", request_id, cached_tokens)

    def on_first_token(self, request_id: str, now: float) -> None:
        self._call("on_first_token", request_id, now)

    def on_end(self, request_id: str, now: float, output_tokens: int | None) -> None:
        self._call("on_end", request_id, now, output_tokens)

    def _costs(self, candidates: Candidates) -> Floats:
        """The inner policy's costs; ValueError if they cannot be costs of these candidates."""
        eligible = candidates.eligible
        costs = np.ascontiguousarray(self._inner.score(candidates), np.float64)
        if costs.shape != eligible.shape:
            raise ValueError(f"costs of shape {costs.shape} for {len(eligible)} workers")
        if np.isnan(costs[eligible]).any():
            raise ValueError("a cost is not a number")
        if np.isneginf(costs[eligible]).any():
            raise ValueError("a cost is minus infinity")
        return costs

    def _call(self, method: str, *facts: Any) -> None:
        try:
            getattr(self._inner, method)(*facts)
        except Exception as error:
            self._note(error, f"{method}: ")

    def _seconds(self, method: str, *facts: Any) -> float:
        try:
            return _seconds_of(getattr(self._inner, method)(*facts))
        except Exception as error:
            self._note(error, f"{method}: ")
            return 0.0

    def _note_slow(self, took_s: float) -> None:
        self.slow += 1
        if self.slow % LOG_EVERY == 1:
            log.warning(
                "policy %r took %.0f ms for a decision, while which all requests wait; %d of its"
                " decisions took more than %.0f ms so far",
                self.name,
                took_s * 1e3,
                self.slow,
                SLOW_S * 1e3,
            )

    def _note(self, error: Exception, where: str = "") -> None:
        self.failures += 1
        if self.failures % LOG_EVERY == 1:
            log.error(
                "policy %r failed, %d times so far; Dynamo's cost decides in its place: %s",
                self.name,
                self.failures,
                f"{where}{type(error).__name__}: {error}",
            )


def _seconds_of(answer: Any) -> float:
    """ValueError or TypeError for what is none."""
    seconds = float(answer)
    if math.isnan(seconds):
        raise ValueError("it is not a number")
    return seconds


def _of_type(answer: Any, kind: type[T]) -> T | None:
    """TypeError for what is neither that nor None."""
    if answer is not None and not isinstance(answer, kind):
        raise TypeError(f"{type(answer).__name__} in place of {kind.__name__}")
    return answer
