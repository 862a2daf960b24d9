"""Search: the candidates of one plan, simulated over a common scenario within the CPU that it has.

A scenario has as many requests as that CPU is enough for: of each bin of the horizon its first
part is simulated, at the forecast's rate, and start-ups are as much shorter. So the fleet, its
load and its prompts are whole, and only time is left out, above all before new engines serve.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .candidates import Roles, neighbours, ordered, roles_of
from .constraints import Constraints
from .decision import Score
from .fleet import ROLES, Fleet, Role
from .forecast import RequestBodies
from .objectives import Objectives
from .observation import Observation
from .planning import CpuBudget, Oracle, OutOfCpuError, PlanningConfig
from .what_if import EngineModel, Excerpt, Outcome, Scenario, simulate_candidate

BIN_S = 15.0
LEAD_S = 30.0
"""Seconds of the past that a simulation begins with."""
LONGEST_STEPS = 40
"""Candidates that are simulated for one plan, at most."""
SIMULATIONS = 3.5
"""that the CPU of a plan is to be enough for, at least."""
LEAD_SHARE = 0.4
"""of a scenario's requests that may be those of the past."""
BODIES_SHARE = 0.15
"""of the CPU that reading the window may take."""
STATED_SHARE = 0.5
"""of the horizon: a plan that simulated less says so."""
LAST_SHARE = 0.1
"""of the CPU: with less no first simulation is tried again."""
LEAST_COMING = 20
"""Requests to come in a scenario, at least: fewer say nothing."""
FAR_OFF = 0.5
"""Attainment below which engines are tried by more than one."""
WORTH = 1.15
"""times the fewest misses of any candidate are as good, where none keeps the target."""

Proposal = Callable[[Observation], Fleet | None]


@dataclass(frozen=True, kw_only=True)
class Problem:
    """What a plan is searched for with. `path`: counts of the coming bins, as they are planned for,
    by the dispersion of arrivals; `level`: the forecast's quantile that they are; `margin`: of the
    misses that the target allows, as many are enough for a fleet that shrinks; `capacity`: requests
    a second that an engine is known to serve well; `number`: of all that is random."""

    config: PlanningConfig
    model: EngineModel
    objectives: Objectives
    constraints: Constraints
    proposals: Mapping[str, Proposal]
    path: Callable[[float], NDArray[np.float64]]
    level: float
    margin: float
    capacity: Mapping[Role, float]
    oracle: Oracle | None
    number: int


class Search:
    """The candidates of one plan, and what they are worth."""

    def __init__(
        self, problem: Problem, seen: Observation, present: Fleet, budget: CpuBudget
    ) -> None:
        """Of an observation with requests."""
        self._problem, self._seen, self._present = problem, seen, present
        self._budget = budget
        requests = seen.requests
        assert requests
        most = max(LEAST_COMING, int(BODIES_SHARE * budget.budget_s / budget.per_body_s))
        self._left_out = max(0, len(requests) - most)
        before = budget.spent_s
        window = requests[self._left_out :]
        engine = problem.model.engine
        self._bodies = RequestBodies(
            window,
            seen.block_size,
            seed=problem.number,
            most_tokens=engine.num_gpu_blocks * engine.block_size // 2,  # that an engine can serve
        )
        self.dispersion = self._bodies.dispersion
        budget.note_bodies(len(window), budget.spent_s - before)
        self.outcomes: dict[Fleet, Outcome] = {}
        self._proposed: dict[Fleet, str] = {}
        self._path = problem.path(self.dispersion)
        self._resize()

    def _resize(self) -> None:
        """Scenarios of as many requests as the CPU left is enough for."""
        budget, problem = self._budget, self._problem
        self._scenario: Scenario | None = None
        most = int(budget.left_s / SIMULATIONS / budget.per_request_s)
        requests = self._seen.requests
        assert requests
        lead = sum(each.arrival_s >= self._seen.at - LEAD_S for each in requests)
        lead = min(lead, max(LEAST_COMING, int(LEAD_SHARE * most)), len(self._bodies))
        self.lead = requests[len(requests) - lead :]
        """requests of the past that are simulated first"""
        # One that is dated after what is seen, by a router's clock, is past as well.
        self._lead_s = np.minimum([each.arrival_s - self._seen.at for each in self.lead], -1e-6)
        horizon_s = problem.config.horizon_s
        self._coming = coming = _arrivals(self._path, BIN_S, horizon_s, problem.number)
        self.rate = len(coming) / horizon_s
        if problem.oracle is not None:
            self._foreseen, self._coming = problem.oracle.requests(
                self._seen.at, self._seen.at + horizon_s
            )
            coming = self._coming
        late_s = horizon_s - problem.config.start_up_s
        self.late_rate = float((coming >= problem.config.start_up_s).sum()) / late_s
        """requests a second that come once new engines could serve"""
        affordable = max(LEAST_COMING, most - lead)
        self.excerpt = _excerpt(coming, affordable, problem.config)
        self.simulated_s = self.excerpt.at(horizon_s)
        """of the horizon"""

    def choose(self) -> tuple[Fleet, list[str]]:
        """The cheapest fleet that keeps the objectives; without one, the best of those seen."""
        try:
            chosen, why = self._choose()
        except OutOfCpuError:
            chosen, why = self._best_yet()
        horizon_s = self._problem.config.horizon_s
        if self.simulated_s < STATED_SHARE * horizon_s:
            why.append(f"{self.simulated_s:.0f} of {horizon_s:.0f} s ahead were simulated")
        return chosen, why

    def _best_yet(self) -> tuple[Fleet, list[str]]:
        """Where the CPU ended within a simulation."""
        budget_s = self._budget.budget_s
        if not self.outcomes:
            return self._present, [f"no fleet could be simulated in {budget_s:g} s of CPU"]
        start = next(iter(self.outcomes))
        if self._passes(start, self._problem.objectives.target):
            return start, [f"{start} keeps {self.outcomes[start].attainment:.1%}"]
        return self._least_late()

    def _choose(self) -> tuple[Fleet, list[str]]:
        problem, target = self._problem, self._problem.objectives.target
        roles, constraints = problem.config.roles, problem.constraints
        costs = constraints.costs
        start = self._start(roles, constraints)
        proposals = self._proposals(roles, constraints)
        if self._passes(start, target):
            chosen = self._descend(start, proposals)
            if chosen == start:
                return start, [f"{start} keeps {self.outcomes[start].attainment:.1%}"]
            outcome = self.outcomes[chosen]
            return chosen, [f"{chosen} is enough: {outcome.attainment:.1%} of answers are good"]
        if roles == "aggregated":
            if (enough := self._climb(start, proposals)) is not None:
                return enough, [self._gain(start, enough)]
            self._look_between(start)
        tried, base = set(self.outcomes), start
        while roles != "aggregated" and not self._spent():
            field = [*proposals, *neighbours(base, roles, constraints)]
            wider = [base.changed(role, 2) for role in roles_of(roles)]
            field = [
                each
                for each in ordered([*field, *wider], roles, constraints)
                if each not in tried and each.cost(costs) >= base.cost(costs)
            ]
            if not field:
                break
            scarce: Role = self._scarce(base)
            there = base.count(scarce)
            field = [
                *(each for each in field if each.count(scarce) > there),
                *(each for each in field if each.count(scarce) <= there),
            ]
            for each in field:
                tried.add(each)
                if self._passes(each, target):
                    return each, [self._gain(start, each)]
                if self._spent():
                    break
            base = max(self.outcomes, key=lambda each: (self._late(each), -each.cost(costs)))
            if base in tried and not any(
                each not in tried and each.cost(costs) >= base.cost(costs)
                for each in neighbours(base, roles, constraints)
            ):
                break
        return self._least_late()

    def _least_late(self) -> tuple[Fleet, list[str]]:
        """The best of those seen, where none keeps the target."""
        target, costs = self._problem.objectives.target, self._problem.constraints.costs
        # What waits on full engines stays there: others only help those that come. An engine that
        # hardly changes the misses is none to ask for, plan by plan, until the backlog is gone.
        fewest = min(1 - self._late(each) for each in self.outcomes)
        worth = [each for each in self.outcomes if 1 - self._late(each) <= fewest * WORTH + 1e-9]
        best = min(worth, key=lambda each: (each.cost(costs), -self._late(each)))
        return best, [f"no fleet seen keeps {target:.1%}: {best} keeps {self._late(best):.1%}"]

    def scores(self) -> tuple[Score, ...]:
        """Of every candidate that was simulated, the cheapest first."""
        found = []
        target = self._problem.objectives.target
        for fleet, outcome in self.outcomes.items():
            kept = outcome.attainment >= target
            found.append(
                Score(
                    fleet,
                    self._proposed.get(fleet, "neighbour"),
                    outcome.engine_seconds * (2 - kept),
                    outcome.engine_seconds,
                    outcome.attainment,
                    float(kept),
                    1,
                )
            )
        return tuple(sorted(found, key=lambda each: (each.engine_seconds, str(each.fleet))))

    def _start(self, roles: Roles, constraints: Constraints) -> Fleet:
        """The present fleet, or the possible one next to it."""
        least = max(1, constraints.engines_min)
        bounded = Fleet(
            *(
                (max(least, count) if count or len(roles_of(roles)) < 3 else 0)
                if role in roles_of(roles)
                else 0
                for role, count in self._present
            )
        )
        if not bounded.engines:
            bounded = Fleet(aggregated=least)
        while bounded.cost(constraints.costs) > constraints.engines_max:
            largest = max(ROLES, key=bounded.count)
            bounded = bounded.changed(largest, -1)
        self._proposed[bounded] = "present"
        return bounded

    def _proposals(self, roles: Roles, constraints: Constraints) -> list[Fleet]:
        found = {}
        for name, proposal in self._problem.proposals.items():
            fleet = proposal(self._seen)
            if fleet is not None:
                found[fleet] = name
        for fleet in ordered(found, roles, constraints):
            self._proposed.setdefault(fleet, found[fleet])
        return ordered(found, roles, constraints)

    def _gain(self, start: Fleet, chosen: Fleet) -> str:
        kept = f"{start} keeps {self._late(start):.1%}, {chosen} {self._late(chosen):.1%}"
        return f"{kept}, wanted are {self._problem.objectives.target:.1%}"

    def _climb(self, start: Fleet, proposals: list[Fleet]) -> Fleet | None:
        """The smallest fleet above `start` that keeps the target, where engines have one role: by
        one engine, where most answers miss by half as many again, and at first as many as what is
        known of an engine says, then between what failed and what passed, a proposal first. None
        if there is none, or the CPU was spent before."""
        problem = self._problem
        cost = problem.constraints.costs.get("aggregated", 1)
        most, target = problem.constraints.engines_max // cost, problem.objectives.target
        failed = start.aggregated
        capacity = problem.capacity.get("aggregated")
        known = 0 if not capacity else math.ceil(self.late_rate / capacity)
        while failed < most and not self._spent():
            wide = self._late(Fleet(aggregated=failed)) < FAR_OFF
            passed = min(most, failed + (max(1, failed // 2, known - failed) if wide else 1))
            if not self._passes(Fleet(aggregated=passed), target):
                failed = passed
                continue
            while passed - failed > 1 and not self._spent():
                between = [each.aggregated for each in proposals]
                middle = next((n for n in between if failed < n < passed), (failed + passed) // 2)
                if self._passes(Fleet(aggregated=middle), target):
                    passed = middle
                else:
                    failed = middle
            return Fleet(aggregated=passed)
        return None

    def _look_between(self, start: Fleet) -> None:
        """Where no fleet keeps the target: whether fewer engines than the most are as good."""
        fewer, most = start.aggregated, max(each.aggregated for each in self.outcomes)
        enough = WORTH * (1 - self._late(Fleet(aggregated=most))) + 1e-9
        while most - fewer > 1 and not self._spent():
            middle = (fewer + most) // 2
            if 1 - self._outcome(Fleet(aggregated=middle)).late <= enough:
                most = middle
            else:
                fewer = middle

    def _descend(self, start: Fleet, proposals: list[Fleet]) -> Fleet:
        """A cheaper fleet that keeps more than the target: the plans after this one, of other
        arrivals, have to find so too. Where engines have one role: one less, then thrice as many,
        then between what failed and what passed."""
        if self._problem.config.roles != "aggregated":
            return self._step_down(start, proposals)
        least = max(1, self._problem.constraints.engines_min)
        passed, failed, step = start.aggregated, least - 1, 1
        while passed - failed > 1 and not self._spent():
            tried = max(passed - step, (passed + failed) // 2, failed + 1)
            between = [each.aggregated for each in proposals]
            if step > 1:
                tried = next((n for n in between if tried < n < passed), tried)
            if self._is_ample(Fleet(aggregated=tried)):
                passed, step = tried, 3 * step
            else:
                failed = tried
        return start.replaced("aggregated", passed)

    def _step_down(self, start: Fleet, proposals: list[Fleet]) -> Fleet:
        """Cheaper and cheaper, while one of the fleets beside is enough."""
        problem, chosen = self._problem, start
        constraints, roles = problem.constraints, problem.config.roles
        while not self._spent():
            cost = chosen.cost(constraints.costs)
            field = [
                each
                for each in ordered(
                    [*proposals, *neighbours(chosen, roles, constraints)], roles, constraints
                )
                if each.cost(constraints.costs) < cost and each not in self.outcomes
            ]
            field.sort(key=lambda each: -each.cost(constraints.costs))  # one step, then the next
            for each in field:
                if self._spent():
                    return chosen
                if self._is_ample(each):
                    chosen = each
                    break
            else:
                return chosen
        return chosen

    def _is_ample(self, fleet: Fleet) -> bool:
        """Whether it keeps more than the target."""
        allowed = self._problem.margin * (1 - self._problem.objectives.target)
        return self._outcome(fleet).attainment >= 1 - allowed

    def _scarce(self, fleet: Fleet) -> Role:
        """Which role's engines its late answers are for: more of it is tried first."""
        if not fleet.decode:
            return "aggregated"
        outcome = self.outcomes[fleet]
        return "decode" if outcome.slow_next > outcome.slow_first else "prefill"

    def _passes(self, fleet: Fleet, target: float) -> bool:
        outcome = self._outcome(fleet)
        if fleet == self._present or fleet.cost({}) <= self._present.cost({}):
            return outcome.attainment >= target or outcome.late >= target
        return outcome.late >= target

    def _late(self, fleet: Fleet) -> float:
        return self.outcomes[fleet].late

    def _spent(self) -> bool:
        """Whether there is no CPU left for another candidate."""
        next_s = len(self._common().requests) * self._budget.per_request_s
        return next_s > self._budget.left_s or len(self.outcomes) >= LONGEST_STEPS

    def _outcome(self, fleet: Fleet) -> Outcome:
        """OutOfCpuError if it cannot be simulated in what is left."""
        problem, budget = self._problem, self._budget
        workers = [each for each in self._seen.workers if each.state in ("starting", "serving")]
        while fleet not in self.outcomes:
            scenario = self._common()
            watch = budget.watch(budget.left_s if self.outcomes else budget.left_s / 2)
            try:
                found = simulate_candidate(
                    problem.model, workers, fleet, scenario, problem.objectives, watch
                )
            except OutOfCpuError:
                if self.outcomes or budget.left_s < LAST_SHARE * budget.budget_s:
                    raise
                self._resize()
                continue
            watch.ended(len(scenario.requests))
            self.outcomes[fleet] = found
        return self.outcomes[fleet]

    def _common(self) -> Scenario:
        """The scenario of all candidates: the same arrivals, bodies and random numbers."""
        if self._scenario is None:
            problem = self._problem
            horizon_s, number = problem.config.horizon_s, problem.number
            kept, times = self.excerpt.shortened(self._coming)
            if problem.oracle is not None:
                requests = [self._foreseen[place] for place in kept.tolist()]
            else:
                requests = self._bodies.draw(len(times), number)
            lead = self._bodies.as_seen(len(self._bodies) - len(self.lead))
            self._scenario = Scenario(
                [*lead, *requests],
                np.concatenate([self._lead_s, times]),
                horizon_s,
                self.excerpt,
                problem.level,
                number,
                problem.model.engine.block_size,
                problem.model.trace_block_size,
            )
        return self._scenario


def _excerpt(times_s: NDArray[np.float64], affordable: int, config: PlanningConfig) -> Excerpt:
    """So that of the arrivals some `affordable` are simulated; half of these, if need be, for those
    that come once a new engine could serve, by which fleets are judged."""
    bins = math.ceil(config.horizon_s / BIN_S)
    late = BIN_S * np.arange(1, bins + 1) > config.start_up_s
    first = BIN_S * float(np.argmax(late))
    of_late = int((times_s >= first).sum())
    of_early = len(times_s) - of_late
    for_late = min(of_late, max(affordable // 2, affordable - of_early))
    shares = np.where(
        late,
        for_late / max(1, of_late) if of_late else 1.0,
        min(1.0, (affordable - for_late) / of_early) if of_early else 1.0,
    )
    return Excerpt(BIN_S, shares)


def _arrivals(
    path: NDArray[np.float64], bin_s: float, horizon_s: float, seed: int
) -> NDArray[np.float64]:
    """Times of as many arrivals a bin as the path has, at random within it, until the horizon."""
    rng = np.random.default_rng(seed)
    whole = np.floor(np.cumsum(path) + rng.random()).astype(np.int64)
    counts = np.diff(whole, prepend=0)
    times = np.repeat(bin_s * np.arange(len(path)), counts) + bin_s * rng.random(int(counts.sum()))
    times.sort()
    return times[times < horizon_s]
