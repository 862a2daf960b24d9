"""Bounds of a day: what no policy can do without, and what one with foresight can reach.

`needs` simulates each minute's true requests, the minute before them first so that caches are
filled, on the smallest fleet that keeps the objectives: no start-up, no drain, no cost of change.
`reachable` is the cheapest course of engines that has them in time, with start-up and drain paid:
a dynamic programme over minutes. Its course is then run as any policy is.
"""

import math
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from ..bench.simulation import SampledTrace
from .candidates import Roles, neighbours, ordered, roles_of
from .constraints import Constraints
from .day import DayTrace
from .decision import Decision
from .fleet import ROLES, Fleet, Role
from .objectives import Objectives
from .observation import Observation, choose_victims
from .what_if import EngineModel, latencies

MINUTE_S = 60.0
LEAD_S = 30.0
DRAIN_S = 10.0


class Needs:
    """The smallest fleets by minutes, and the attainment that they have."""

    def __init__(
        self,
        day: DayTrace,
        model: EngineModel,
        objectives: Objectives,
        constraints: Constraints,
        roles: Roles,
    ) -> None:
        self._day, self._model, self._objectives = day, model, objectives
        self._constraints = constraints
        self._roles: Roles = roles
        self.fleets: list[Fleet] = []
        self.shares: list[tuple[int, int]] = []  # good answers, of how many
        last = self._smallest()
        for minute in range(max(1, math.ceil(day.end_s / MINUTE_S))):
            last, good, count = self._of_minute(minute * MINUTE_S, last)
            self.fleets.append(last)
            self.shares.append((good, count))

    @property
    def attainment(self) -> float:
        return sum(good for good, _ in self.shares) / max(1, sum(all_ for _, all_ in self.shares))

    @property
    def engine_hours(self) -> float:
        seconds = np.full(len(self.fleets), MINUTE_S)
        seconds[-1] = self._day.end_s - MINUTE_S * (len(self.fleets) - 1)
        engines = np.array([each.cost(self._constraints.costs) for each in self.fleets])
        return float((engines * seconds).sum()) / 3600

    def peak(self) -> Fleet:
        """As many of each role as any minute needs."""
        found = Fleet()
        for each in self.fleets:
            found = found.highest(each)
        return self._possible(found)

    def mean(self) -> Fleet:
        """As many of each role as minutes need in the mean, rounded up."""
        counts = [
            math.ceil(float(np.mean([each.count(role) for each in self.fleets])) - 1e-9)
            for role in ROLES
        ]
        return self._possible(Fleet(*counts))

    def _possible(self, fleet: Fleet) -> Fleet:
        while fleet.cost(self._constraints.costs) > self._constraints.engines_max:
            fleet = fleet.changed(max(ROLES, key=fleet.count), -1)
        return fleet

    def _smallest(self) -> Fleet:
        least = max(1, self._constraints.engines_min)
        if self._roles == "disaggregated":
            return Fleet(prefill=least, decode=least)
        return Fleet(aggregated=least)

    def _of_minute(self, first_s: float, guess: Fleet) -> tuple[Fleet, int, int]:
        low, high = self._day.between(first_s, first_s + MINUTE_S)
        if low == high:
            return self._smallest(), 0, 0
        found: dict[Fleet, int] = {}
        target = self._objectives.target * (high - low)
        start = max(0.0, first_s - LEAD_S)
        first, _ = self._day.between(start, first_s)
        trace = SampledTrace(
            self._day.requests[first:high],
            self._day.arrivals_s[first:high] - start,
            block_size=self._model.engine.block_size,
            trace_block_size=self._day.block_size,
        )

        def good(fleet: Fleet) -> int:
            if fleet not in found:
                found[fleet] = int(self._good(trace, fleet)[low - first :].sum())
            return found[fleet]

        current, costs = guess, self._constraints.costs
        while good(current) < target:
            field = [current.changed(role, 1) for role in roles_of(self._roles)]
            field = ordered(
                [*field, *neighbours(current, self._roles, self._constraints)],
                self._roles,
                self._constraints,
            )
            field = [each for each in field if each.cost(costs) > current.cost(costs)]
            if not field:
                return current, good(current), high - low
            current = max(field, key=lambda each: (good(each) >= target, good(each)))
        while True:
            field = [
                each
                for each in neighbours(current, self._roles, self._constraints)
                if each.cost(costs) < current.cost(costs) and good(each) >= target
            ]
            if not field:
                return current, good(current), high - low
            current = field[0]

    def _good(self, trace: SampledTrace, fleet: Fleet) -> NDArray[np.bool_]:
        """Which answers are good, on a fleet that is there."""
        simulation = self._model.simulation(trace, fleet)
        engines = simulation.engines
        assert engines is not None
        for role, count in fleet:
            for _ in range(count):
                engines.start(role, 0.0, 0.0)
        log = simulation.run(control=_NoChange())
        outputs = np.array([each.output_length for each in trace.requests], np.int64)
        return self._objectives.good(*latencies(log, outputs))


class _NoChange:
    next_time = math.inf

    def act(self, now: float) -> None:
        raise AssertionError("no change is ever due")


def cheapest_course(needed: Sequence[int], start_up_s: float, drain_s: float) -> list[int]:
    """Engines by minutes, at least as many as needed in each, for the fewest engine seconds: those
    that serve, and `start_up_s` and `drain_s` more for each that comes or goes."""
    if not needed:
        return []
    most = max(needed)
    counts = np.arange(most + 1)
    change = np.subtract.outer(counts, counts)  # [to, from]
    price = np.where(change > 0, change * start_up_s, -change * drain_s)
    cost = np.where(counts >= needed[0], counts * MINUTE_S, np.inf)
    steps = []
    for need in needed[1:]:
        total = cost[None, :] + price
        steps.append(np.argmin(total, axis=1))
        cost = np.min(total, axis=1) + np.where(counts >= need, counts * MINUTE_S, np.inf)
    course = [int(np.argmin(cost))]
    for step in reversed(steps):
        course.append(int(step[course[-1]]))
    return course[::-1]


class Course:
    """A policy that knows: fleets by minutes, each asked for a start-up and `lead_s` before its
    minute begins."""

    window_s = 0.0
    drain_limit_s = math.inf

    def __init__(
        self, fleets: Sequence[Fleet], start_up_s: float, budget: int, *, lead_s: float = 5.0
    ) -> None:
        self._fleets, self._start_up_s, self._budget = fleets, start_up_s, budget
        self._lead_s = lead_s

    def observe(self, seen: Observation) -> Decision:
        present = seen.fleet()
        serving_then = self._at(seen.at + self._start_up_s + self._lead_s)
        now = self._at(seen.at)
        after = Fleet()
        for role in ROLES:
            ahead = [
                self._at(seen.at + passed).count(role)
                for passed in np.arange(0, self._start_up_s + 1, 5)
            ]
            count = max(now.count(role), serving_then.count(role), *ahead)
            after = after.replaced(role, count)
        left = self._budget - seen.held.engines
        for role, count in after:
            if (more := count - present.count(role)) > left:
                after = after.replaced(role, present.count(role) + max(0, left))
            left -= max(0, more)
        return Decision(
            id=0,
            at=seen.at,
            before=present,
            after=after,
            kind="plan" if after != present else "hold",
            reasons=("foreseen",) if after != present else (),
            victims=choose_victims(seen, after),
        )

    def _at(self, time_s: float) -> Fleet:
        place = min(max(0, int(time_s // MINUTE_S)), len(self._fleets) - 1)
        return self._fleets[place]


def course_of(needs: Sequence[Fleet], start_up_s: float, drain_s: float = DRAIN_S) -> list[Fleet]:
    """The cheapest course of each role by itself."""
    by_role: dict[Role, list[int]] = {
        role: cheapest_course([each.count(role) for each in needs], start_up_s, drain_s)
        for role in ROLES
    }
    return [Fleet(*(by_role[role][n] for role in ROLES)) for n in range(len(needs))]


def reach(
    needs: Needs,
    run: Callable[[Course], tuple[float, list[bool]]],
    start_up_s: float,
    target: float,
    budget: int,
    rounds: int = 4,
) -> list[Fleet]:
    """A course whose day keeps the target: minutes whose run fails get an engine more, some rounds
    of it. `run` gives a day's attainment, and which minutes kept the target."""
    wanted = list(needs.fleets)
    course = course_of(wanted, start_up_s)
    for _ in range(rounds):
        attained, kept = run(Course(course, start_up_s, budget))
        if attained >= target:
            break
        for minute, fine in enumerate(kept[: len(wanted)]):
            if fine:
                continue
            for role, count in wanted[minute]:
                more = wanted[minute].changed(role, 1)
                if count and more.engines <= budget:
                    wanted[minute] = more
        course = course_of(wanted, start_up_s)
    return course
