"""Outlier detection: which workers fail their requests while others serve them. Pure.

Fed by the health monitor with how requests ended and who is alive; `now` is a monotonic time
handed in. A worker that fails is ejected for a time that grows, then on probation; one that
failed just now counts as loaded for about as long as the request would have kept it busy.

Invariants: at most `max_ejected` of the workers that are alive are out, and never the last one;
where those that are left would be fewer than that, no worker is out (panic).
"""

import math
from collections import deque
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from ..process.setting_checks import require_finite, require_positive, require_share
from ..process.settings import option

KNOWN_BY = 0.1  # weight of the newest sample in the fleet's mean times
LONGEST_PENALTY_S = 5.0
SHORTEST_PENALTY_S = 0.05


@dataclass(frozen=True, kw_only=True)
class OutlierPolicy:
    """When a worker is left alone. ConfigError, naming the key, on a bad value."""

    GROUP: ClassVar[str] = "Health of workers"

    failures_in_a_row: int = option(
        5,
        "Requests in a row that a worker may fail, by its own fault, before it is ejected.",
        "--eject-after",
    )
    failure_rate: float = option(
        0.5,
        "Share of its requests that a worker may fail, if above twice that of the others; 1: any.",
        "--eject-failure-rate",
    )
    window_s: float = option(30.0, "Window over which that share is counted.", "--eject-window-s")
    least_requests: int = option(
        10, "Fewest requests in that window for the share to count.", "--eject-least-requests"
    )
    ejection_s: float = option(
        5.0, "How long a worker is ejected; doubles with each further time.", "--ejection-s"
    )
    longest_ejection_s: float = option(
        300.0, "Longest ejection of a worker.", "--longest-ejection-s"
    )
    max_ejected: float = option(
        0.5,
        "Most workers out at a time, as a share of those that are alive; never the last one.",
        "--max-ejected",
    )
    probation: int = option(
        3, "Requests, one at a time, that a worker must answer after an ejection.", "--probation"
    )

    def __post_init__(self) -> None:
        require_finite(self, 0, "longest_ejection_s", "probation")
        require_positive(self, "failures_in_a_row", "least_requests", "ejection_s", "window_s")
        require_share(self, "failure_rate", "max_ejected")


class Standing(NamedTuple):
    """What a worker's requests say of it now."""

    out_until: float
    """it should get no request before; see OutlierDetector.out_until"""
    ejected_until: float
    """-inf: it is not ejected"""
    ejected_for: str
    """why; empty if it is not"""


class OutlierDetector:
    """Judges the workers of a fleet by their requests.

    `out_until` and `reason` say who is out; `ejections` how often each was ejected.
    """

    def __init__(self, policy: OutlierPolicy | None = None) -> None:
        self.policy = policy or OutlierPolicy()
        self._workers: dict[int, _Record] = {}
        self.in_trouble: dict[int, _Record] = {}
        """those that are ejected, penalized or on probation"""
        self._service_s = 0.0
        self._answer_s = 0.0

    # Who there is

    def set_alive(self, worker_id: int, alive: bool) -> None:
        """Whether a worker answers its probes; only those that do can be out."""
        record = self._workers.get(worker_id)
        if record is None:
            record = self._workers[worker_id] = _Record()
        record.alive = alive

    def remove(self, worker_id: int) -> None:
        self._workers.pop(worker_id, None)
        self.in_trouble.pop(worker_id, None)

    # What happens to requests

    def on_start(self, worker_id: int) -> bool:
        """A request goes to a worker. True if that changed who is out."""
        record = self.in_trouble.get(worker_id)
        if record is None or not record.probation:
            return False
        record.trials += 1
        return True

    def on_answer(self, worker_id: int, now: float, seconds: float) -> bool:
        """The first message of an answer came, `seconds` after the request was sent.

        A worker on probation has passed one of its trials. True as above.
        """
        record = self._workers.get(worker_id)
        if record is None:
            return False
        record.answered_at = now
        known = self._answer_s or seconds
        self._answer_s = known + KNOWN_BY * (seconds - known)
        if worker_id not in self.in_trouble:
            return False
        if record.probation and record.ejected_until <= now:
            record.trials = max(0, record.trials - 1)
            record.probation -= 1
        self._forget_if_well(worker_id, record, now)
        return True

    def on_success(self, worker_id: int, now: float, seconds: float) -> bool:
        """A request ended well after `seconds`. True if that changed who is out."""
        record = self._workers.get(worker_id)
        if record is None:
            return False
        known = self._service_s or seconds
        self._service_s = known + KNOWN_BY * (seconds - known)
        record.count(now, False, self.policy.window_s)
        record.in_a_row = 0
        if worker_id not in self.in_trouble:
            return False
        record.penalty_until = -math.inf
        self._forget_if_well(worker_id, record, now)
        return True

    def on_no_verdict(self, worker_id: int) -> bool:
        """A request ended in a way that says nothing of the worker. True as above."""
        record = self.in_trouble.get(worker_id)
        if record is None or not record.trials:
            return False
        record.trials -= 1
        return True

    def on_fault(self, worker_id: int, now: float) -> bool:
        """A request failed by this worker's fault for certain. True as above."""
        record = self._workers.get(worker_id)
        if record is None or not record.alive:
            return False
        record.count(now, True, self.policy.window_s)
        record.in_a_row += 1
        if record.ejected_until > now:  # it was sent before the ejection
            return False
        if record.probation:
            record.trials = max(0, record.trials - 1)
            return self._eject(worker_id, record, now, "failed on probation")
        if record.in_a_row >= self.policy.failures_in_a_row:
            reason = f"failed {record.in_a_row} requests in a row"
            return self._eject(worker_id, record, now, reason)
        return self._judge_rate(worker_id, record, now)

    def on_undecided(self, worker_id: int, now: float) -> bool:
        """A request failed by the worker's fault or its own, and no other worker tried it."""
        record = self._workers.get(worker_id)
        if record is None or not record.alive:
            return False
        changed = self.on_no_verdict(worker_id)
        record.count(now, True, self.policy.window_s)
        return self._judge_rate(worker_id, record, now) or changed

    def on_slow(self, worker_id: int, now: float, since: float) -> bool:
        """A request sent at `since` was given up without a message. True as above.

        The worker's fault if it has begun no answer since then, while another one has, and
        if the wait was long beside the fleet's usual one.
        """
        record = self._workers.get(worker_id)
        if record is None or not self._is_stuck(worker_id, record, now, since):
            return self.on_no_verdict(worker_id)
        return self.on_fault(worker_id, now)

    def on_stuck(self, worker_id: int, now: float, since: float) -> bool:
        """A request sent at `since` waits still, far too long: eject the worker, if it is slow
        in the sense of `on_slow`. True as above.
        """
        record = self._workers.get(worker_id)
        if record is None or record.ejected_until > now:
            return False
        if not self._is_stuck(worker_id, record, now, since):
            return False
        reason = f"has begun no answer for {now - since:.0f} s while others did"
        return self._eject(worker_id, record, now, reason)

    def penalize(self, worker_id: int, now: float, seconds: float) -> bool:
        """A request failed after `seconds`: count it as load for as long as it would have taken.

        Failures in a row count for longer and longer. True as above.
        """
        record = self._workers.get(worker_id)
        if record is None or not record.alive or not self._may_go(worker_id, now):
            return False
        record.failures += 1
        least = min(LONGEST_PENALTY_S, SHORTEST_PENALTY_S * 2.0 ** min(record.failures, 30))
        rest = min(LONGEST_PENALTY_S, max(self._service_s - seconds, least))
        record.penalty_until = max(record.penalty_until, now + rest)
        self.in_trouble[worker_id] = record
        return True

    # Who is out

    def out_until(self, worker_id: int, now: float) -> float:
        """Until when a worker should get no request; -inf if it may get one now.

        Infinite while a worker on probation has the request it is tried with.
        """
        record = self.in_trouble.get(worker_id)
        if record is None or self.panic(now):
            return -math.inf
        until = max(record.ejected_until, record.penalty_until)
        if until > now:
            return until
        if record.probation and record.trials and self._may_go(worker_id, now):
            return math.inf
        self._forget_if_well(worker_id, record, now)
        return -math.inf

    def ejected_until(self, worker_id: int, now: float) -> float:
        """Until when a worker is ejected; -inf if it is not."""
        record = self.in_trouble.get(worker_id)
        if record is None or record.ejected_until <= now or self.panic(now):
            return -math.inf
        return record.ejected_until

    def standing(self, worker_id: int, now: float) -> Standing:
        """All of that, to be published."""
        ejected_until = self.ejected_until(worker_id, now)
        reason = self.reason(worker_id) if ejected_until > now else ""
        return Standing(self.out_until(worker_id, now), ejected_until, reason)

    def reason(self, worker_id: int) -> str:
        """Why a worker was ejected last."""
        record = self._workers.get(worker_id)
        return record.reason if record is not None else ""

    def panic(self, now: float) -> bool:
        """Whether ejections are ignored, because too few workers would be left."""
        if not self.in_trouble:
            return False
        return self._out(now) > self._most_out()

    @property
    def troubled(self) -> list[int]:
        """Those who may be out now or later: for whom the answers above can change with time."""
        return list(self.in_trouble)

    @property
    def ejections(self) -> dict[int, int]:
        """How often each worker was ejected."""
        return {worker: r.ejections for worker, r in self._workers.items() if r.ejections}

    def _eject(self, worker_id: int, record: "_Record", now: float, reason: str) -> bool:
        if not self._may_go(worker_id, now):
            return False
        policy = self.policy
        level = record.level
        if level:  # each ejection's time that passed well since makes the next one shorter
            last = _ejection_s(policy, level)
            level = max(0, level - int((now - record.ejected_until) / last))
        record.level = level + 1
        length = _ejection_s(policy, record.level)
        record.ejected_until = now + length
        record.reason = f"{reason}; ejected for {length:g} s"
        record.probation, record.trials = policy.probation, 0
        record.in_a_row = 0
        record.window.clear()
        record.ejections += 1
        self.in_trouble[worker_id] = record
        return True

    def _judge_rate(self, worker_id: int, record: "_Record", now: float) -> bool:
        """Eject a worker that fails much more of its requests than the others do of theirs."""
        policy = self.policy
        failed, total = record.share(now, policy.window_s)
        if total < policy.least_requests or failed < policy.failure_rate * total:
            return False
        others = [
            other.share(now, policy.window_s)
            for number, other in self._workers.items()
            if number != worker_id and other.alive
        ]
        their_failed = sum(share[0] for share in others)
        their_total = sum(share[1] for share in others)
        if not their_total or 2 * their_failed * total >= failed * their_total:
            return False
        reason = f"failed {failed} of {total} requests in {policy.window_s:g} s"
        return self._eject(worker_id, record, now, reason)

    def _is_stuck(self, worker_id: int, record: "_Record", now: float, since: float) -> bool:
        if record.answered_at >= since or now - since < max(1.0, 3.0 * self._answer_s):
            return False
        return any(
            other.answered_at > since
            for number, other in self._workers.items()
            if number != worker_id and other.alive
        )

    def _most_out(self) -> int:
        alive = sum(record.alive for record in self._workers.values())
        return min(alive - 1, max(1, int(self.policy.max_ejected * alive)))

    def _out(self, now: float) -> int:
        return sum(record.alive and record.is_out(now) for record in self.in_trouble.values())

    def _may_go(self, worker_id: int, now: float) -> bool:
        """Whether one more may be out; it counts itself if it is."""
        if self.policy.max_ejected <= 0:
            return False
        record = self._workers[worker_id]
        out = self._out(now) + (not (record.alive and record.is_out(now)))
        return out <= self._most_out()

    def _forget_if_well(self, worker_id: int, record: "_Record", now: float) -> None:
        if not record.probation and not record.is_out(now):
            self.in_trouble.pop(worker_id, None)


class _Record:
    """One worker's requests."""

    __slots__ = (
        "alive", "answered_at", "ejected_until", "ejections", "failures", "in_a_row", "level",
        "penalty_until", "probation", "reason", "trials", "window",
    )  # fmt: skip

    def __init__(self) -> None:
        self.alive = False
        self.answered_at = -math.inf  # when it last began an answer
        self.in_a_row = 0
        self.failures = 0  # penalties since its last success
        self.level = 0  # how often it was ejected of late
        self.ejected_until = -math.inf
        self.penalty_until = -math.inf
        self.probation = 0  # requests it has to answer yet
        self.trials = 0  # of them, under way
        self.reason = ""
        self.ejections = 0
        self.window: deque[list[float]] = deque()  # [second, failed, total], oldest first

    def is_out(self, now: float) -> bool:
        if max(self.ejected_until, self.penalty_until) > now:
            return True
        return self.probation > 0 and self.trials > 0

    def count(self, now: float, failed: bool, window_s: float) -> None:
        if not failed:
            self.failures = 0
        window = self.window
        if window and now - window[-1][0] < 1.0:
            window[-1][1] += failed
            window[-1][2] += 1
            return
        window.append([now, float(failed), 1.0])
        while now - window[0][0] > window_s:
            window.popleft()

    def share(self, now: float, window_s: float) -> tuple[int, int]:
        """(failed, ended) requests of the last `window_s` seconds."""
        recent = [entry for entry in self.window if now - entry[0] <= window_s]
        return int(sum(e[1] for e in recent)), int(sum(e[2] for e in recent))


def _ejection_s(policy: OutlierPolicy, level: int) -> float:
    longest = max(policy.ejection_s, policy.longest_ejection_s)
    return min(longest, policy.ejection_s * 2.0 ** min(level - 1, 60))
