"""Shadow: a policy that is asked beside the one that decides, and only counted."""

import logging
from collections import Counter
from typing import Final

from ...workers.registry import WorkerEntry
from .base import Candidates, HeardBooking, Policy
from .draw import Rng

SHADOW_OUTCOMES: Final = ("same", "other", "failed")
LOG_EVERY = 1000  # failures between two lines in the log

log = logging.getLogger(__name__)


class Shadow:
    """What `policy` would have chosen, and by a model's word gained, of requests that another
    policy sends. If it learns, it learns from them as they were sent: its own choices never happen.
    It sees the caches where the serving policy looks at them.

    Under the router's lock, as policies are. A failure of it costs no request.
    """

    def __init__(self, name: str, policy: Policy, rng: Rng) -> None:
        self.name = name
        self.policy = policy
        self._rng = rng
        self.outcomes: Counter[str] = Counter(dict.fromkeys(SHADOW_OUTCOMES, 0))
        """requests by what it chose: the same worker, another one, none"""
        self.sooner_s = 0.0
        """by how much earlier the first tokens would have come, of those where that is foreseen"""
        self.later_s = 0.0
        """the same of those that would have come later"""

    def compare(self, serving: Policy, candidates: Candidates, number: int) -> None:
        """A request goes to the worker `number`, as `serving` chose; it is not booked yet."""
        kept = candidates.eligible, candidates.chosen, candidates.bound
        candidates.bound = None  # it is not to refuse what is served
        try:
            other = self.policy.choose(candidates, self._rng)
        except Exception as error:
            self._note_failure(error)
            return
        finally:
            candidates.eligible, candidates.chosen, candidates.bound = kept
        if other == number:
            self.outcomes["same"] += 1
            return
        self.outcomes["other"] += 1
        # By one model both: that of the policy that decides, if it has one.
        for policy in (serving, self.policy):
            here = policy.foresee(candidates, number)
            there = policy.foresee(candidates, other)
            if here is not None and there is not None:
                saved_s = here.ttft_s - there.ttft_s
                self.sooner_s += max(saved_s, 0.0)
                self.later_s += max(-saved_s, 0.0)
                break
        candidates.eligible, candidates.chosen, candidates.bound = kept

    def _note_failure(self, error: Exception) -> None:
        self.outcomes["failed"] += 1
        if self.outcomes["failed"] % LOG_EVERY == 1:
            log.warning(
                "shadow policy %r failed, %d times so far; requests are not affected: %s",
                self.name,
                self.outcomes["failed"],
                f"{type(error).__name__}: {error}",
            )


class BothLearn(Policy):
    """What becomes of requests, for two policies that learn from it."""

    def __init__(self, first: Policy, second: Policy) -> None:
        self._both = first, second

    def on_worker(self, number: int, entry: WorkerEntry) -> None:
        for policy in self._both:
            policy.on_worker(number, entry)

    def on_worker_gone(self, number: int) -> None:
        for policy in self._both:
            policy.on_worker_gone(number)

    def on_booked(self, request_id: str, number: int, candidates: Candidates) -> None:
        for policy in self._both:
            policy.on_booked(request_id, number, candidates)

    def on_expected(self, request_id: str, number: int, candidates: Candidates) -> None:
        for policy in self._both:
            policy.on_expected(request_id, number, candidates)

    def on_heard(self, heard: HeardBooking) -> None:
        for policy in self._both:
            policy.on_heard(heard)

    def on_cached(self, request_id: str, cached_tokens: int) -> None:
        for policy in self._both:
            policy.on_cached(request_id, cached_tokens)

    def on_first_token(self, request_id: str, now: float) -> None:
        for policy in self._both:
            policy.on_first_token(request_id, now)

    def on_end(self, request_id: str, now: float, output_tokens: int | None) -> None:
        for policy in self._both:
            policy.on_end(request_id, now, output_tokens)
