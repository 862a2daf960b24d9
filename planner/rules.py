"""Rules between plans: what is seen without a simulation. They add engines and remove none."""

import math
from bisect import bisect_left, bisect_right
from collections import deque
from operator import attrgetter
from typing import NamedTuple

import numpy as np

from .fleet import Fleet, Role
from .objectives import Objectives
from .observation import Observation, ObservedRequest

RECENT_S = 15.0
"""What a rule looks back on."""
LEAST_REQUESTS = 8
"""Answers to fewer requests raise no alarm."""
SURE = 2.0  # standard deviations of answers by chance
HOUR_S, ENDED_S = 3600.0, 30.0
"""What misses are made good in, and how old arrivals are whose answers are counted for that."""
LEAST_ANSWERS = 100
"""Fewer make no debt."""
NEARLY = 0.9
"""of the misses that the target allows: from there on there is a debt, a full one at the target."""
SURELY_MORE = 3.0  # of arrivals: they are looked at some hundred times an hour


class Alarm(NamedTuple):
    """Engines of a role that should be there at least, and why."""

    role: Role
    least: int
    reason: str


_ARRIVAL = attrgetter("arrival_s")


def is_good(request: ObservedRequest, now: float, objectives: Objectives) -> bool | None:
    """Whether an answer is good; None while that is open. No answer in time is not good."""
    if request.ttft_ms is None:
        late = (now - request.arrival_s) * 1e3 > objectives.objective_ttft_ms
        return False if late else None
    if request.ttft_ms > objectives.objective_ttft_ms:
        return False
    if request.itl_ms is None:
        return True
    return request.itl_ms <= objectives.objective_itl_ms


def attainment(
    seen: Observation, objectives: Objectives, last_s: float
) -> tuple[float | None, int]:
    """The share of good answers to requests of the last seconds, of how many; None: none known."""
    if seen.requests is None:
        return None, 0
    last = seen.requests[bisect_left(seen.requests, seen.at - last_s, key=_ARRIVAL) :]
    judged = [is_good(each, seen.at, objectives) for each in last]
    found = [each for each in judged if each is not None]
    return (sum(found) / len(found), len(found)) if found else (None, 0)


class _Part(NamedTuple):
    """Arrivals after `begin_s`, until `until_s`: requests that were seen, and their answers."""

    begin_s: float
    until_s: float
    requests: int
    good: int
    answers: int


def _part(seen: Observation, objectives: Objectives, begin_s: float, until_s: float) -> _Part:
    requests = seen.requests or ()
    first = bisect_right(requests, begin_s, key=_ARRIVAL)
    found = requests[first : bisect_right(requests, until_s, key=_ARRIVAL)]
    judged = [is_good(each, seen.at, objectives) for each in found]
    good, answers = judged.count(True), len(found) - judged.count(None)
    return _Part(begin_s, until_s, len(found), good, answers)


class Debt:
    """Misses of the last hour, as far as they near what the target allows."""

    def __init__(self) -> None:
        self._parts: deque[_Part] = deque()

    def take(self, seen: Observation, objectives: Objectives) -> None:
        """Count the answers to what has come since the last time, and again where more requests
        of the window are there by now: records come when answers end, those of slow ones last."""
        if seen.requests is None:
            return
        until = seen.at - ENDED_S
        begin = self._parts[-1].until_s if self._parts else -math.inf
        if until < begin:  # the clock went back
            self._parts.clear()
            begin = -math.inf
        for n, (begin_s, until_s, requests, *_) in enumerate(self._parts):
            if begin_s >= seen.at - seen.window_s:
                found = _part(seen, objectives, begin_s, until_s)
                if found.requests > requests:
                    self._parts[n] = found
        self._parts.append(_part(seen, objectives, begin, until))
        while self._parts[0].until_s < until - HOUR_S:
            self._parts.popleft()

    def due(self, target: float) -> float:
        """From 0, nothing, to 1. Nothing is due of more than an hour of good answers could make
        good: that is lost, and engines bring it back no more."""
        count = sum(part.answers for part in self._parts)
        if count < LEAST_ANSWERS:
            return 0.0
        missed = 1 - sum(part.good for part in self._parts) / count
        spent = missed / max(1e-9, 1 - target)
        return 0.0 if spent > 2 else float(np.interp(spent, (NEARLY, 1.0), (0.0, 1.0)))


def alarms(
    seen: Observation,
    objectives: Objectives,
    capacity: dict[Role, float],
    fleet: Fleet,
    dispersion: float = 1.0,
) -> list[Alarm]:
    """What calls for more engines at once.

    `capacity`: requests a second that an engine of a role was found to serve in good time. Arrivals
    of the last seconds count for what they are at least, chance taken off; `dispersion` is the
    variance of counts, of their mean, that is chance.
    """
    found: list[Alarm] = []
    if seen.requests is None:
        return found
    since = bisect_right(seen.requests, seen.at - RECENT_S, key=_ARRIVAL)
    recent = len(seen.requests) - since
    sure = max(0.0, recent - SURELY_MORE * math.sqrt(dispersion * recent)) / RECENT_S
    for role, rate in capacity.items():
        least = math.ceil(sure / rate - 1e-9) if rate > 0 else 0
        if least > fleet.count(role):
            text = f"at least {sure:.1f} requests a second need {least} {role}"
            found.append(Alarm(role, least, text))
    share, count = attainment(seen, objectives, RECENT_S)
    waits = seen.queue_age_s is not None and seen.queue_age_s * 1e3 > objectives.objective_ttft_ms
    # Twice the misses that are allowed, and more than chance has.
    allowed = 1 - objectives.target
    limit = 2 * allowed + SURE * math.sqrt(allowed * objectives.target / max(1, count))
    bad = share is not None and count >= LEAST_REQUESTS and 1 - share > limit
    if (bad or waits) and not any(fleet.count(each.role) < each.least for each in found):
        role = _scarce(seen, objectives, fleet)
        starting = seen.fleet("starting").count(role)
        if not starting:
            what = f"{1 - (share or 0):.0%} of answers are late" if bad else "the queue is too old"
            found.append(Alarm(role, fleet.count(role) + 1, what))
    return found


def _scarce(seen: Observation, objectives: Objectives, fleet: Fleet) -> Role:
    """Which role's engines late answers are for: prefill for first tokens, decode for others."""
    if fleet.aggregated or not fleet.engines:
        return "aggregated"
    slow_first = slow_next = 0
    for each in seen.requests or ():
        if each.arrival_s < seen.at - RECENT_S:
            continue
        slow_first += each.ttft_ms is None or each.ttft_ms > objectives.objective_ttft_ms
        slow_next += each.itl_ms is not None and each.itl_ms > objectives.objective_itl_ms
    return "decode" if slow_next > slow_first else "prefill"
