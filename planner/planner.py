"""Planner: observations in, decisions out. Pure: it knows no clock but that of what is observed.

A plan is made every `plan_every_s`, and at an alarm: candidates are simulated over the forecast's
scenarios, and the cheapest is taken that keeps the objectives with the wanted chance. Between plans
rules may add engines. Engines are removed by a plan alone, not while data is missing or the engine
model is off, and only down to what the last plans have all found enough.
"""

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from .arrival_bins import ArrivalBins
from .candidates import roles_of
from .constraints import Change, Constraints, constrain
from .decision import Decision, DecisionKind, Score
from .fleet import ROLES, Fleet, Role
from .forecast import LONGEST_STRETCH, ONE_RATE_S, ArrivalForecast
from .objectives import Objectives
from .observation import Observation, choose_victims
from .planning import CpuBudget, Oracle, PlanningConfig
from .rules import Debt, alarms, attainment
from .search import BIN_S, Problem, Proposal, Search
from .what_if import EngineModel

WARM_UP_REQUESTS = 5
"""Of a new worker, that say nothing of how fast engines are."""
LEAST_SAMPLES = 20
SETTLED_S = 60.0
"""After the newest engine began to serve, until latencies are compared with the model's."""
MODEL_LIMITS = 0.5, 2.0
"""How much slower or faster than their model engines may be before no plan is believed."""
CORRECTION = 0.3  # weight of the newest comparison
AGREEING_PLANS = 2
"""that have to find a fleet enough before it may shrink to that."""
MOST_AGREEING = 24
REGRET_S = 300.0
"""after a removal, in which an engine that is added says that it was wrong: from then on twice as
many plans have to agree, half as many again after an hour without, and AGREEING_PLANS once
arrivals are no longer those of that time."""
LEAST_TRIALS, MANY_TRIALS, MOST_TRIALS = 3, 8, 64
"""Plans of a steady load: from how many on their mean may keep a fleet, and change it."""
ALIKE = 1.1
"""times as fast, or as slow: plans with other engines than the model has by now do not count."""
TRIED_S = 300.0
"""that a fleet has served, from when on what it was seen to miss says more than plans do."""
SHRINK_MARGIN, INDEBTED = 0.7, 0.5
"""of the misses that the target allows are enough for a fleet that shrinks; and of those, while
the last hour has a debt."""
SETTLED_MARGIN = 0.3
"""of the misses that the target allows, at the rate of an hour: bursts of that hour miss more."""
LEAST_BINS, KNOWN_BINS = 4, 8
"""Bins of arrivals that are known to a plan at least, and to one whose fleets count in a mean."""
SPARE = 0.1, 0.5
"""Of the misses that the target allows: how many have to be left until less than the wanted chance
is planned for, and from where on the median is."""
LEAST_PAUSE_S = 10.0
"""from a plan to one that an alarm, or a jump of arrivals, calls for."""
SOON_S = 15.0
"""from one look at a silence to the next: the first requests are planned for soon."""
IDLE_S = 300.0
"""Silence that is confirmed, after which the fleet shrinks to its smallest."""


class _Trial(NamedTuple):
    """What a plan found that the present fleet keeps, and smaller ones, with engines of a speed."""

    at: float
    kept: dict[Fleet, float]
    speed: float

    def most(self, fleet: Fleet) -> float:
        """What `fleet` keeps at most: no more than any that is as large."""
        larger = (kept for each, kept in self.kept.items() if fleet.lowest(each) == fleet)
        return min(larger, default=1.0)


class Planner:
    """One pool's planner.

    `season`: arrivals of a past day by bins of BIN_S. `proposals`: formulas and rules of others,
    whose fleets are candidates too. `budget`: of each plan; None: `plan_budget_s` of CPU time.
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
        budget: CpuBudget | None = None,
    ) -> None:
        self.config, self.objectives, self.constraints = config, objectives, constraints
        self.model = model
        self._nominal = model.speed
        self._seed, self._oracle, self._corrects = seed, oracle, corrects
        self._budget = budget or CpuBudget(config.plan_budget_s)
        self._proposals = proposals or {}
        self._bins = ArrivalBins(BIN_S)
        self.forecast = ArrivalForecast(BIN_S, math.ceil(config.horizon_s / BIN_S) + 1, season)
        self.changes: deque[Change] = deque(maxlen=512)
        self.capacity: dict[Role, float] = {}
        self._next_plan = self._planned_at = -math.inf
        self._choices: deque[Fleet] = deque(maxlen=MOST_AGREEING)
        self._trials: deque[_Trial] = deque(maxlen=MOST_TRIALS)
        self._agreeing, self._regret_at = AGREEING_PLANS, -math.inf
        self._debt, self._margin = Debt(), SHRINK_MARGIN
        self._dispersion = 1.0  # of arrivals, as the last plan found
        self._enough: Fleet | None = None  # by the last plan, if engines may be removed
        self._number = self._plans = 0
        self._compared = False
        self._pairs: list[tuple[float, float]] = []  # ITLs in ms: measured, and simulated
        self.mismatch = ""
        self.planned_s = 0.0

    def observe(self, seen: Observation) -> Decision:
        """What to do now. The changes that it holds are taken to be made."""
        self._budget.begin()
        present = seen.fleet()
        reasons: list[str] = []
        counts = self._bins.take(seen)
        for count in counts:
            if count is None:
                self.forecast.skip()
            else:
                self.forecast.update(count)
        if self._bins.trouble:
            reasons.append(self._bins.trouble)
        if seen.unmatched:
            reasons.append(f"{seen.unmatched} reports of unknown workers were left out")
        if seen.senseless:
            reasons.append(f"{seen.senseless} records of requests make no sense and were left out")
        failed = seen.fleet("failed")
        if failed.engines:
            reasons.append(f"given up, as they do not get ready: {failed}")
        found = alarms(seen, self.objectives, self.capacity, present, self._dispersion)
        if self._bins.trouble and seen.at < self._next_plan - 2 * self.config.plan_every_s:
            self._next_plan = seen.at  # the clock went back
        kind: DecisionKind = "hold"
        wanted, scores, may_remove = present, tuple[Score, ...](), False
        jump = self.forecast.jump(self._dispersion) / BIN_S if counts else 0.0
        if jump:
            reasons.append(f"arrivals have jumped to {jump:.1f} a second")
        alarmed = (found or jump) and seen.at >= self._planned_at + LEAST_PAUSE_S
        if seen.at >= self._next_plan or alarmed:
            self._planned_at, self._next_plan = seen.at, seen.at + self.config.plan_every_s
            wanted, scores, may_remove, why = self._plan(seen, present, bool(found))
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
            by = count - before.count(role)
            since = max(seen.at - REGRET_S, self._regret_at)
            if by > 0 and any(
                each.role == role and each.by < 0 and each.at > since for each in self.changes
            ):
                self._agreeing = min(MOST_AGREEING, 2 * self._agreeing)
                self._regret_at = seen.at
                self._choices.clear()
            if by:
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
        window has kept more than the target, without a debt of the last hour. What was kept beyond
        the target is there to be spent."""
        objectives = self.objectives
        if self._debt.due(objectives.target):
            return objectives.confidence
        share, count = attainment(seen, objectives, seen.window_s)
        if share is None or count < LEAST_SAMPLES:
            return objectives.confidence
        spare = (share - objectives.target) / max(1e-9, 1 - objectives.target)
        spent = float(np.interp(spare, SPARE, (0.0, 1.0)))
        return objectives.confidence - spent * max(0.0, objectives.confidence - 0.5)

    # A plan

    def _plan(
        self, seen: Observation, present: Fleet, alarmed: bool
    ) -> tuple[Fleet, tuple[Score, ...], bool, list[str]]:
        """(the fleet wanted, what candidates were worth, whether engines may be removed, why)."""
        self._plans += 1
        if seen.requests is None:
            self._choices.clear()
            return present, (), False, ["nothing is planned without data on requests"]
        if not seen.requests:
            self._next_plan = seen.at + SOON_S
            return self._plan_silence(seen, present)
        if self.forecast.seen < LEAST_BINS and not alarmed:
            self._next_plan = seen.at + SOON_S
            return present, (), False, ["too little is known of arrivals"]
        self._debt.take(seen, self.objectives)
        due = self._debt.due(self.objectives.target)
        self._margin = SHRINK_MARGIN * (1 - (1 - INDEBTED) * due)
        level = self.level(seen)

        def path(dispersion: float) -> NDArray[np.float64]:
            steady = self.forecast.of_one_rate(level, dispersion)
            return self.forecast.quantile(level, self._dispersion) if steady is None else steady

        problem = Problem(
            config=self.config,
            model=self.model,
            objectives=self.objectives,
            constraints=self.constraints,
            proposals=self._proposals,
            path=path,
            level=level,
            margin=self._margin,
            capacity=dict(self.capacity),
            oracle=self._oracle,
            number=self._seed * 7919 + self._plans * 31,
        )
        search = Search(problem, seen, present, self._budget)
        chosen, why = search.choose()
        unproven, modelled = not self._compared, self.model.speed
        self._compare(seen, search)
        self.planned_s += self._budget.spent_s
        if chosen.cost(self.constraints.costs) > present.cost(self.constraints.costs):
            unknown = not self._compared and self.forecast.seen < KNOWN_BINS
            faster = unproven and self.model.speed > ALIKE * modelled
            if (unknown or faster) and not alarmed and self._keeps_target(seen, SETTLED_S):
                self._next_plan = seen.at + SOON_S
                why.append("how fast engines are was not known: more are not started yet")
                return present, search.scores(), False, why
        self._learn_capacity(search, chosen)
        self._choices.append(chosen)
        self._dispersion = search.dispersion
        steady_s = self.forecast.steady_s(self._dispersion)
        if steady_s < min(LONGEST_STRETCH * BIN_S, seen.at - self._regret_at - REGRET_S):
            self._agreeing = AGREEING_PLANS  # what was missed then was of another load
        if seen.at - self._regret_at > 3600 and self._agreeing > AGREEING_PLANS:
            self._agreeing, self._regret_at = self._agreeing // 2, seen.at
        wanted, may_remove = chosen, not self.mismatch and not self._bins.trouble
        if chosen.cost(self.constraints.costs) < present.cost(self.constraints.costs):
            # An engine that is started anew costs a start-up: it stays for as long as that.
            dwelling = 1 + round(self.config.start_up_s / self.config.plan_every_s)
            agreeing = min(MOST_AGREEING, max(self._agreeing, dwelling))
            shrunk = chosen
            for each in [*self._choices][-agreeing:]:
                shrunk = shrunk.highest(each.lowest(present))
            if len(self._choices) < agreeing:
                shrunk = present
            if shrunk == present and agreeing == AGREEING_PLANS:
                self._next_plan = seen.at + self.config.plan_every_s / AGREEING_PLANS
            if shrunk != chosen:
                why.append(f"{chosen} is enough: {agreeing} plans have to find that")
            wanted = shrunk
        steady = self._of_steady_load(seen, present, chosen, wanted, search, steady_s)
        if steady != wanted:
            why.append(f"{steady} it is: arrivals have been steady for {steady_s:.0f} s")
            wanted = steady
        if self.mismatch:
            why.append(f"model mismatch: {self.mismatch}")
        return wanted, search.scores(), may_remove, why

    def _of_steady_load(
        self,
        seen: Observation,
        present: Fleet,
        chosen: Fleet,
        wanted: Fleet,
        search: Search,
        steady_s: float,
    ) -> Fleet:
        """What is wanted while arrivals are of one rate: then what moves the forecast is chance,
        and fleets, though none below the `chosen` one, are judged by the mean of what the plans of
        that time found of them."""
        kept = {
            fleet: outcome.attainment
            for fleet, outcome in search.outcomes.items()
            if fleet.lowest(present) == fleet
        }
        settled = self.forecast.is_settled(self._dispersion)
        if self.forecast.seen >= KNOWN_BINS and (steady_s or settled):
            self._trials.append(_Trial(seen.at, kept, self.model.speed))
        if settled:
            return self._of_settled_load(seen, present, wanted, kept)
        since = max(seen.at - min(steady_s, self.config.window_s), self._regret_at)
        trials = [each for each in self._trials if since < each.at <= seen.at]
        if len(trials) < LEAST_TRIALS:
            return wanted
        costs, allowed = self.constraints.costs, 1 - self.objectives.target
        missed = {
            fleet: 1 - float(np.mean([each.most(fleet) for each in trials]))
            for fleet in {*kept, present}
        }
        if wanted.cost(costs) > present.cost(costs):
            share, count = attainment(seen, self.objectives, self.config.plan_every_s)
            if share is None or count < LEAST_SAMPLES or 1 - share > allowed:
                return wanted  # what is measured is not outvoted
            if 1 - _Trial(seen.at, kept, 1.0).most(present) > 2 * allowed:
                return wanted  # too much is at stake
            return present if missed[present] <= allowed else wanted
        if wanted == present and len(trials) < max(MANY_TRIALS, self._agreeing):
            return present
        enough = [
            fleet
            for fleet in kept
            if missed[fleet] <= self._margin * allowed and fleet.lowest(chosen) == chosen
        ]
        return min(enough, key=lambda each: (each.cost(costs), str(each)), default=present)

    def _of_settled_load(
        self, seen: Observation, present: Fleet, wanted: Fleet, kept: dict[Fleet, float]
    ) -> Fleet:
        """What is wanted while arrivals have been of one rate for an hour: a larger fleet where
        this one was seen to miss too much, or, as long as it is new, plans say so in the mean; and
        a smaller one that many plans have found enough in the mean."""
        since = max(seen.at - ONE_RATE_S, self._regret_at)
        trials = [
            each
            for each in self._trials
            if since < each.at <= seen.at and 1 / ALIKE < each.speed / self.model.speed < ALIKE
        ]
        costs, allowed = self.constraints.costs, 1 - self.objectives.target
        # A burst is over before engines serve: one more is enough for what is too much for these.
        wanted = wanted.lowest(Fleet(*(count + 1 for _, count in present)))
        if len(trials) < LEAST_TRIALS:
            return wanted if wanted.cost(costs) > present.cost(costs) else present
        missed = {
            fleet: 1 - float(np.mean([each.most(fleet) for each in trials]))
            for fleet in {*kept, present}
        }
        if wanted.cost(costs) > present.cost(costs):
            newest_s = min((each.age_s for each in seen.workers), default=0.0)
            served_s = min(seen.window_s, newest_s - self.config.start_up_s)
            share, count = attainment(seen, self.objectives, served_s)
            if share is not None and count >= LEAST_SAMPLES and served_s >= TRIED_S:
                # Plans that find it enough say that a burst was seen: it has to be a worse one.
                chance = missed[present] <= SHRINK_MARGIN * allowed
                return wanted if 1 - share > (1 + chance) * allowed else present
            return wanted if missed[present] > allowed else present
        # What a smaller fleet was seen to miss is not outvoted by the plans of before.
        grown_at = max((each.at for each in self.changes if each.by > 0), default=-math.inf)
        since_s = trials[-1].at - max(trials[0].at, grown_at)
        if since_s < ONE_RATE_S / 3 or len(trials) < self._agreeing:
            return present
        enough = [fleet for fleet in kept if missed[fleet] <= SETTLED_MARGIN * allowed]
        return min(enough, key=lambda each: (each.cost(costs), str(each)), default=present)

    def _plan_silence(
        self, seen: Observation, present: Fleet
    ) -> tuple[Fleet, tuple[Score, ...], bool, list[str]]:
        """No request in the window: that is silence, if records can be read. Where the season ends
        it there are engines in time, of the capacity that was known before."""
        if seen.window_s < min(IDLE_S, self.config.window_s):
            return present, (), False, [f"no request in {seen.window_s:.0f} s: too short a silence"]
        least = max(1, self.constraints.engines_min)
        smallest = Fleet(*(least if role in self._smallest_roles(present) else 0 for role in ROLES))
        self._choices.clear()
        why = [f"no request in {seen.window_s:.0f} s"]
        path = self.forecast.quantile(self.objectives.confidence)
        rate = float(path[int(self.config.start_up_s // BIN_S) :].mean()) / BIN_S
        for role, count in smallest:
            capacity = self.capacity.get(role, math.inf)
            if count and (needed := math.ceil(rate / capacity - 1e-9)) > count:
                smallest = smallest.replaced(role, needed)
                why.append(f"the day before {rate:.1f} requests a second came now")
        return smallest, (), True, why

    def _smallest_roles(self, present: Fleet) -> tuple[Role, ...]:
        if self.config.roles == "disaggregated":
            return ("prefill", "decode")
        if self.config.roles == "both" and not present.aggregated and present.engines:
            return ("prefill", "decode")
        return ("aggregated",)

    def _learn_capacity(self, search: Search, chosen: Fleet) -> None:
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
                for fleet, outcome in search.outcomes.items()
                if fleet.count(role) and outcome.attainment < self.objectives.target
            ]
            known = self.capacity.get(role, 0.0)
            if failing:  # what failed is a bound above
                known = min(known, min(failing)) if known else known
            elif not known:
                continue
            # Remembered for a while: a fleet that is larger than needed shows less.
            self.capacity[role] = max(per_engine, 0.98 * known)

    def _is_settled(self, seen: Observation) -> bool:
        """Whether no backlog is left of a time with fewer engines: all have served for a while, or
        answers of that time were good."""
        settled_s = self.config.start_up_s + SETTLED_S
        if all(each.state != "starting" and each.age_s >= settled_s for each in seen.workers):
            return True
        return self._keeps_target(seen, SETTLED_S)

    def _keeps_target(self, seen: Observation, last_s: float) -> bool:
        share, count = attainment(seen, self.objectives, last_s)
        return share is not None and count >= LEAST_SAMPLES and share >= self.objectives.target

    def _compare(self, seen: Observation, search: Search) -> None:
        """How far the engine model is off: measured against simulated, of the same requests."""
        outcome = next(iter(search.outcomes.values()), None)
        if outcome is None or seen.requests is None:
            return
        if not self._is_settled(seen):
            return  # a backlog older than the lead is measured, and not simulated
        served = {each.worker_id: each.served for each in seen.workers}
        for each, itl in zip(search.lead, outcome.past_itl_ms.tolist(), strict=True):
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
