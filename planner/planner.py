"""Planner: observations in, decisions out. Pure: it knows no clock but that of what is observed.

A plan is made every `plan_every_s`, and at an alarm: candidates are simulated over the forecast's
scenarios, and the cheapest is taken that keeps the objectives with the wanted chance. Between plans
rules may add engines. Engines are removed by a plan alone, not while data is missing or the engine
model is off, and only down to what the last plans have all found enough.
"""

import math
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..bench.simulation import SampledRequest
from ..process.setting_checks import require_finite, require_positive
from ..process.settings import bad_setting, option
from .arrival_bins import ArrivalBins
from .candidates import ROLE_SETS, Roles, neighbours, ordered, roles_of
from .constraints import Change, Constraints, constrain
from .decision import Decision, DecisionKind, Score
from .fleet import ROLES, Fleet, Role
from .forecast import ArrivalForecast, RequestBodies
from .objectives import Objectives
from .observation import Observation, ObservedWorker, choose_victims
from .rules import alarms, attainment
from .what_if import EngineModel, Outcome, Scenario, simulate_candidate

BIN_S = 15.0
LEAD_S = 30.0
"""Seconds of the past that a simulation begins with."""
DRAIN_S = 15.0
"""What a drain is taken to need."""
WARM_UP_REQUESTS = 5
"""Of a new worker, that say nothing of how fast engines are."""
LEAST_SAMPLES = 20
SETTLED_S = 60.0
"""After the newest engine began to serve, until latencies are compared with the model's."""
MODEL_LIMITS = 0.5, 2.0
"""How much slower or faster than their model engines may be before no plan is believed."""
CORRECTION = 0.3  # weight of the newest comparison
AGREEING_PLANS = 3
"""that have to find a fleet enough before it may shrink to that."""
LONGEST_STEPS = 40
"""Candidates that are simulated for one plan, at most."""
SHRINK_MARGIN = 0.7
"""of the misses that the target allows are enough for a fleet that shrinks."""
SPARE = 0.1, 0.5
"""Of the misses that the target allows: how many have to be left until less than the wanted chance
is planned for, and from where on the median is."""
FAR_OFF = 0.5
"""Attainment below which engines are tried by more than one."""
WORTH = 1.15
"""times the fewest misses of any candidate are as good, where none keeps the target."""
IDLE_S = 300.0
"""Silence that is confirmed, after which the fleet shrinks to its smallest."""


@dataclass(frozen=True, kw_only=True)
class PlanningConfig:
    """How plans are made. Raises ConfigError, naming the key, on a bad value."""

    start_up_s: float = option(60.0, "Seconds from the decision until a new engine serves.")
    roles: Roles = option("aggregated", "Roles that engines may have.", choices=ROLE_SETS)
    plan_every_s: float = option(60.0, "Seconds from one plan to the next.")
    plan_budget_s: float = option(0.5, "CPU seconds that a plan may take.")
    window_s: float = option(600.0, "Seconds of the past whose requests a plan makes more of.")

    def __post_init__(self) -> None:
        require_finite(self, 0, "start_up_s")
        require_positive(self, "plan_every_s", "plan_budget_s")
        require_finite(self, 60, "window_s")
        if self.roles not in ROLE_SETS:
            raise bad_setting("roles", f"{self.roles!r} is none of {', '.join(ROLE_SETS)}")

    @property
    def horizon_s(self) -> float:
        """As far as a plan looks: until the next plan's engines would serve."""
        return self.start_up_s + DRAIN_S + self.plan_every_s


class Oracle(NamedTuple):
    """The truth, for bounds: requests from a time to another, instead of a forecast."""

    requests: Callable[[float, float], tuple[list[SampledRequest], NDArray[np.float64]]]


Proposal = Callable[[Observation], Fleet | None]


class Planner:
    """One pool's planner.

    `season`: arrivals of a past day by bins of BIN_S. `proposals`: formulas and rules of others,
    whose fleets are candidates too. `cpu`: a clock of CPU seconds.
    """

    def __init__(
        self,
        config: PlanningConfig,
        model: EngineModel,
        objectives: Objectives,
        constraints: Constraints,
        *,
        seed: int = 0,
        season: Sequence[float] = (),
        proposals: dict[str, Proposal] | None = None,
        oracle: Oracle | None = None,
        corrects: bool = True,
        cpu: Callable[[], float] = time.process_time,
    ) -> None:
        self.config, self.objectives, self.constraints = config, objectives, constraints
        self.model = model
        self._nominal = model.speed
        self._seed, self._cpu, self._oracle, self._corrects = seed, cpu, oracle, corrects
        self._proposals = proposals or {}
        self._bins = ArrivalBins(BIN_S)
        self.forecast = ArrivalForecast(BIN_S, math.ceil(config.horizon_s / BIN_S) + 1, season)
        self.changes: deque[Change] = deque(maxlen=512)
        self.capacity: dict[Role, float] = {}
        self._next_plan = -math.inf
        self._choices: deque[Fleet] = deque(maxlen=AGREEING_PLANS)
        self._enough: Fleet | None = None  # by the last plan, if engines may be removed
        self._number = self._plans = 0
        self._per_request_s = 2e-4  # CPU of a simulated request, learnt
        self._compared = False
        self._pairs: list[tuple[float, float]] = []  # ITLs in ms: measured, and simulated
        self.mismatch = ""
        self.planned_s = 0.0

    def observe(self, seen: Observation) -> Decision:
        """What to do now. The changes that it holds are taken to be made."""
        present = seen.fleet()
        reasons: list[str] = []
        for count in self._bins.take(seen):
            if count is None:
                self.forecast.skip()
            else:
                self.forecast.update(count)
        if self._bins.trouble:
            reasons.append(self._bins.trouble)
        if seen.unmatched:
            reasons.append(f"{seen.unmatched} reports of unknown workers were left out")
        failed = seen.fleet("failed")
        if failed.engines:
            reasons.append(f"given up, as they do not get ready: {failed}")
        found = alarms(seen, self.objectives, self.capacity, present)
        if self._bins.trouble and seen.at < self._next_plan - 2 * self.config.plan_every_s:
            self._next_plan = seen.at  # the clock went back
        kind: DecisionKind = "hold"
        wanted, scores, may_remove = present, tuple[Score, ...](), False
        alarmed = bool(found) and seen.at >= self._next_plan - self.config.plan_every_s + 10
        if seen.at >= self._next_plan or alarmed:
            self._next_plan = seen.at + self.config.plan_every_s
            wanted, scores, may_remove, why = self._plan(seen, present)
            reasons += why
            kind = "plan"
            self._enough = wanted if may_remove and not found else None
        elif found or reasons or seen.requests is None:
            self._enough = None
        elif self._enough is not None and (less := present.lowest(self._enough)) != present:
            return self._go_on(seen, present, less)
        for alarm in found:
            if wanted.count(alarm.role) < alarm.least and alarm.role in roles_of(self.config.roles):
                wanted = wanted.replaced(alarm.role, alarm.least)
                reasons.append(f"rule: {alarm.reason}")
                kind = "rule" if kind == "hold" else kind
        if kind == "hold" and not reasons:
            return self._decision(seen, kind, present, present, (), ())
        allowed = constrain(
            wanted, seen, self.constraints, self.changes, may_remove=may_remove and kind == "plan"
        )
        reasons += allowed.reasons
        after = allowed.fleet
        self._note(seen, present, after)
        return self._decision(seen, kind, present, after, tuple(reasons), scores, wanted)

    def _go_on(self, seen: Observation, present: Fleet, less: Fleet) -> Decision:
        """What the last plan found too many goes on to drain, engine by engine, until the next."""
        allowed = constrain(less, seen, self.constraints, self.changes, may_remove=True)
        if allowed.fleet == present:
            return self._decision(seen, "hold", present, present, (), ())
        self._note(seen, present, allowed.fleet)
        reasons = (f"the last plan found {less} enough", *allowed.reasons)
        return self._decision(seen, "plan", present, allowed.fleet, reasons, (), less)

    def _note(self, seen: Observation, before: Fleet, after: Fleet) -> None:
        for role, count in after:
            if by := count - before.count(role):
                self.changes.append(Change(seen.at, role, by))

    def _decision(
        self,
        seen: Observation,
        kind: DecisionKind,
        before: Fleet,
        after: Fleet,
        reasons: tuple[str, ...],
        scores: tuple[Score, ...],
        desired: Fleet | None = None,
    ) -> Decision:
        self._number += kind != "hold"
        return Decision(
            id=self._number,
            at=seen.at,
            before=before,
            after=after,
            kind=kind,
            pool=seen.pool,
            reasons=reasons,
            scores=scores,
            scenarios=max((each.scenarios for each in scores), default=0),
            desired=desired if desired != after else None,
            victims=choose_victims(seen, after),
            expires=seen.at + self.config.start_up_s + 2 * self.config.plan_every_s,
        )

    def level(self, seen: Observation) -> float:
        """The forecast's quantile that is planned for: the wanted chance, and less where the past
        window has kept more than the target. What was kept beyond it is there to be spent."""
        objectives = self.objectives
        share, count = attainment(seen, objectives, seen.window_s)
        if share is None or count < LEAST_SAMPLES:
            return objectives.confidence
        spare = (share - objectives.target) / max(1e-9, 1 - objectives.target)
        spent = float(np.interp(spare, SPARE, (0.0, 1.0)))
        return objectives.confidence - spent * max(0.0, objectives.confidence - 0.5)

    # A plan

    def _plan(
        self, seen: Observation, present: Fleet
    ) -> tuple[Fleet, tuple[Score, ...], bool, list[str]]:
        """(the fleet wanted, what candidates were worth, whether engines may be removed, why)."""
        self._plans += 1
        if seen.requests is None:
            self._choices.clear()
            return present, (), False, ["nothing is planned without data on requests"]
        if not seen.requests:
            return self._plan_silence(seen, present)
        began = self._cpu()
        bodies = RequestBodies(seen.requests, seen.block_size, seed=self._seed + self._plans)
        search = _Search(self, seen, bodies, present, began)
        chosen, why = search.choose()
        self._learn_capacity(search, chosen)
        self._compare(seen, search)
        self.planned_s += self._cpu() - began
        self._choices.append(chosen)
        wanted, may_remove = chosen, not self.mismatch and not self._bins.trouble
        if chosen.cost(self.constraints.costs) < present.cost(self.constraints.costs):
            shrunk = chosen
            for each in self._choices:
                shrunk = shrunk.highest(each.lowest(present))
            if len(self._choices) < AGREEING_PLANS:
                shrunk = present
            if shrunk != chosen:
                why.append(f"{chosen} is enough: {AGREEING_PLANS} plans have to find that")
            wanted = shrunk
        if self.mismatch:
            why.append(f"model mismatch: {self.mismatch}")
        return wanted, search.scores(), may_remove, why

    def _plan_silence(
        self, seen: Observation, present: Fleet
    ) -> tuple[Fleet, tuple[Score, ...], bool, list[str]]:
        """No request in the window: that is silence, if records can be read."""
        if seen.window_s < min(IDLE_S, self.config.window_s):
            return present, (), False, [f"no request in {seen.window_s:.0f} s: too short a silence"]
        least = max(1, self.constraints.engines_min)
        smallest = Fleet(*(least if role in self._smallest_roles(present) else 0 for role in ROLES))
        self._choices.clear()
        return smallest, (), True, [f"no request in {seen.window_s:.0f} s"]

    def _smallest_roles(self, present: Fleet) -> tuple[Role, ...]:
        if self.config.roles == "disaggregated":
            return ("prefill", "decode")
        if self.config.roles == "both" and not present.aggregated and present.engines:
            return ("prefill", "decode")
        return ("aggregated",)

    def _learn_capacity(self, search: "_Search", chosen: Fleet) -> None:
        """Requests a second of an engine, as the candidates show: the best that passed, once one
        has failed. What passes alone says how much is asked of engines, not how much they can do.
        """
        for role, count in chosen:
            if not count:
                self.capacity.pop(role, None)
                continue
            per_engine = search.rate / count
            failing = [
                search.rate / fleet.count(role)
                for fleet, outcome in search.first.items()
                if fleet.count(role) and outcome.attainment < self.objectives.target
            ]
            known = self.capacity.get(role, 0.0)
            if failing:  # what failed is a bound above
                known = min(known, min(failing)) if known else known
            elif not known:
                continue
            # Remembered for a while: a fleet that is larger than needed shows less.
            self.capacity[role] = max(per_engine, 0.98 * known)

    def _compare(self, seen: Observation, search: "_Search") -> None:
        """How far the engine model is off: measured against simulated, of the same requests."""
        outcome = next(iter(search.first.values()), None)
        if outcome is None or seen.requests is None:
            return
        settled_s = self.config.start_up_s + SETTLED_S
        if any(each.state == "starting" or each.age_s < settled_s for each in seen.workers):
            return  # a backlog older than the lead is measured, and not simulated
        served = {each.worker_id: each.served for each in seen.workers}
        past = seen.requests[search.lead_first :]
        for each, itl in zip(past, outcome.past_itl_ms.tolist(), strict=True):
            warm = each.worker_id is None or served.get(each.worker_id, 0) >= WARM_UP_REQUESTS
            known = each.itl_ms is not None and math.isfinite(each.itl_ms) and math.isfinite(itl)
            if warm and known and each.itl_ms:
                self._pairs.append((each.itl_ms, itl))
        if len(self._pairs) < LEAST_SAMPLES:
            return  # those of the next plan are added
        measured, simulated = np.array(self._pairs).sum(axis=0)
        self._pairs.clear()
        ratio = float(measured / simulated)
        low, high = MODEL_LIMITS
        factor = self.model.speed / self._nominal
        weight = CORRECTION if self._compared else 1.0
        self._compared = True
        wished = factor * ratio**-weight if self._corrects else factor
        off = 1 / wished if self._corrects else ratio
        self.mismatch = ""
        if not low <= off <= high:
            self.mismatch = f"engines take {off:.2f} times what they are simulated to take"
        clipped = float(np.clip(wished, 1 / high, 1 / low))
        self.model = replace(self.model, speed=self._nominal * clipped)


class _Search:
    """The candidates of one plan, and what they are worth."""

    def __init__(
        self,
        planner: Planner,
        seen: Observation,
        bodies: RequestBodies,
        present: Fleet,
        began: float,
    ) -> None:
        self._planner, self._seen, self._bodies = planner, seen, bodies
        self._present = present
        self._began = began
        requests = seen.requests
        assert requests is not None
        self.lead_first = next(
            (n for n, each in enumerate(requests) if each.arrival_s >= seen.at - LEAD_S),
            len(requests),
        )
        self._lead_s = np.array([each.arrival_s for each in requests[self.lead_first :]]) - seen.at
        self._lead = bodies.as_seen(self.lead_first)
        self._scenarios: dict[tuple[float, int], Scenario] = {}
        self._outcomes: dict[tuple[Fleet, float, int], Outcome] = {}
        self.first: dict[Fleet, Outcome] = {}
        self._proposed: dict[Fleet, str] = {}
        self._level = level = planner.level(seen)
        coming = len(self._scenario(level, 0).requests) - len(self._lead)
        self.rate = coming / planner.config.horizon_s

    def choose(self) -> tuple[Fleet, list[str]]:
        """The cheapest fleet that keeps the objectives; without one, the best of those seen."""
        planner, target = self._planner, self._planner.objectives.target
        roles, constraints = planner.config.roles, planner.constraints
        costs = constraints.costs
        start = self._start(roles, constraints)
        proposals = self._proposals(roles, constraints)
        if self._passes(start, target):
            chosen = self._descend(start, proposals)
            if chosen == start:
                return start, [f"{start} keeps {self.first[start].attainment:.1%}"]
            outcome = self.first[chosen]
            return chosen, [f"{chosen} is enough: {outcome.attainment:.1%} of answers are good"]
        if roles == "aggregated" and (enough := self._climb(start, proposals)) is not None:
            return enough, [self._gain(start, enough)]
        tried, base = set(self.first), start
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
            for each in field:
                tried.add(each)
                if self._passes(each, target):
                    return each, [self._gain(start, each)]
                if self._spent():
                    break
            base = max(self.first, key=lambda each: (self._late(each), -each.cost(costs)))
            if base in tried and not any(
                each not in tried and each.cost(costs) >= base.cost(costs)
                for each in neighbours(base, roles, constraints)
            ):
                break
        # What waits on full engines stays there: others only help those that come. An engine that
        # hardly changes the misses is none to ask for, plan by plan, until the backlog is gone.
        fewest = min(1 - self._late(each) for each in self.first)
        worth = [each for each in self.first if 1 - self._late(each) <= fewest * WORTH + 1e-9]
        best = min(worth, key=lambda each: (each.cost(costs), -self._late(each)))
        return best, [f"no fleet seen keeps {target:.1%}: {best} keeps {self._late(best):.1%}"]

    def scores(self) -> tuple[Score, ...]:
        """Of every candidate that was simulated, the cheapest first."""
        found = []
        target = self._planner.objectives.target
        for fleet, outcome in self.first.items():
            every = [each for key, each in self._outcomes.items() if key[0] == fleet]
            missed = sum(1 - each.attainment for each in every) / len(every)
            found.append(
                Score(
                    fleet,
                    self._proposed.get(fleet, "neighbour"),
                    outcome.engine_seconds * (1 + (missed > 1 - target)),
                    outcome.engine_seconds,
                    sum(each.attainment for each in every) / len(every),
                    sum(each.attainment >= target for each in every) / len(every),
                    len(every),
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
        for name, proposal in self._planner._proposals.items():
            fleet = proposal(self._seen)
            if fleet is not None:
                found[fleet] = name
        for fleet in ordered(found, roles, constraints):
            self._proposed.setdefault(fleet, found[fleet])
        return ordered(found, roles, constraints)

    def _gain(self, start: Fleet, chosen: Fleet) -> str:
        kept = f"{start} keeps {self._late(start):.1%}, {chosen} {self._late(chosen):.1%}"
        return f"{kept}, wanted are {self._planner.objectives.target:.1%}"

    def _climb(self, start: Fleet, proposals: list[Fleet]) -> Fleet | None:
        """The smallest fleet above `start` that keeps the target, where engines have one role: by
        one engine, by half as many again where most answers miss, then between what failed and
        what passed, a proposal first. None if there is none, or the CPU was spent before."""
        planner = self._planner
        cost = planner.constraints.costs.get("aggregated", 1)
        most, target = planner.constraints.engines_max // cost, planner.objectives.target
        failed = start.aggregated
        while failed < most and not self._spent():
            wide = self._late(Fleet(aggregated=failed)) < FAR_OFF
            passed = min(most, failed + (max(1, failed // 2) if wide else 1))
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

    def _descend(self, start: Fleet, proposals: list[Fleet]) -> Fleet:
        """Cheaper and cheaper, while one keeps more than the target, in more than a scenario."""
        planner, chosen = self._planner, start
        constraints, roles = planner.constraints, planner.config.roles
        margin = 1 - SHRINK_MARGIN * (1 - planner.objectives.target)
        while not self._spent():
            cost = chosen.cost(constraints.costs)
            field = [
                each
                for each in ordered(
                    [*proposals, *neighbours(chosen, roles, constraints)], roles, constraints
                )
                if each.cost(constraints.costs) < cost and each not in self.first
            ]
            field.sort(key=lambda each: -each.cost(constraints.costs))  # one step, then the next
            for each in field:
                if self._spent():
                    return chosen
                if self._outcome(each, self._level, 0).attainment < margin:
                    continue
                if self._spent() or self._outcome(each, self._level, 1).attainment < margin:
                    continue
                chosen = each
                break
            else:
                return chosen
        return chosen

    def _passes(self, fleet: Fleet, target: float) -> bool:
        outcome = self._outcome(fleet, self._level, 0)
        if fleet == self._present or fleet.cost({}) <= self._present.cost({}):
            return outcome.attainment >= target or outcome.late >= target
        return outcome.late >= target

    def _late(self, fleet: Fleet) -> float:
        return self.first[fleet].late

    def _spent(self) -> bool:
        """Whether there is no CPU left for another candidate."""
        planner = self._planner
        requests = len(next(iter(self._scenarios.values())).requests)
        spent = planner._cpu() - self._began
        next_s = requests * planner._per_request_s
        enough = len(self._outcomes) >= 2 and spent + next_s > planner.config.plan_budget_s
        return enough or len(self._outcomes) >= LONGEST_STEPS

    def _outcome(self, fleet: Fleet, level: float, seed: int) -> Outcome:
        key = fleet, level, seed
        if key not in self._outcomes:
            planner, scenario = self._planner, self._scenario(level, seed)
            began = planner._cpu()
            workers = _serving_view(self._seen.workers)
            found = simulate_candidate(planner.model, workers, fleet, scenario, planner.objectives)
            took = (planner._cpu() - began) / max(1, len(scenario.requests))
            planner._per_request_s += 0.3 * (took - planner._per_request_s)
            self._outcomes[key] = found
            self.first.setdefault(fleet, found)
        return self._outcomes[key]

    def _scenario(self, level: float, seed: int) -> Scenario:
        """Common to all candidates: the same arrivals, bodies and random numbers."""
        key = level, seed
        if key not in self._scenarios:
            planner, horizon = self._planner, self._planner.config.horizon_s
            number = planner._seed * 7919 + planner._plans * 31 + seed
            if planner._oracle is not None:
                at = self._seen.at
                requests, times = planner._oracle.requests(at, at + horizon)
            else:
                path = planner.forecast.quantile(level)
                times = _arrivals(path, BIN_S, horizon, number)
                requests = self._bodies.draw(len(times), number)
            self._scenarios[key] = Scenario(
                [*self._lead, *requests],
                np.concatenate([self._lead_s, times]),
                horizon,
                planner.config.start_up_s,
                level,
                number,
            )
        return self._scenarios[key]


def _serving_view(workers: Sequence[ObservedWorker]) -> Sequence[ObservedWorker]:
    return [each for each in workers if each.state in ("starting", "serving")]


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
