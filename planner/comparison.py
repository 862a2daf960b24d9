"""A planner beside what others scale by, and beside bounds, on one day; tuned on another one."""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from ..bench.simulation import SampledRequest
from .bounds import Course, Needs, reach
from .constraints import Constraints
from .day import MINUTE_S, Autoscaler, DayRun, DayTrace, HopelessError, run_day
from .decision import Decision
from .fleet import Fleet, Role
from .objectives import Objectives
from .observation import Observation, ObservedRequest
from .peers import Dynamo08, Dynamo15, Hpa, Keda, Rule, Scaler, Static, Wva
from .planner import Planner
from .planning import CountedBudget, Oracle, PlanningConfig
from .profile import Curves
from .search import BIN_S
from .what_if import EngineModel

PEERS = (
    "static-peak",
    "static-mean",
    "hpa-queue",
    "hpa-kv",
    "keda",
    "wva",
    "dynamo-0.8",
    "dynamo-1.5",
)
BOUNDS = (
    "bound-clairvoyant",
    "bound-reachable",
    "bound-no-foresight",
    "bound-perfect-forecast",
    "bound-perfect-model",
)
POLICIES = ("plan", *PEERS, *(f"{name}-tuned" for name in PEERS), *BOUNDS)
# What a peer is tuned over: the number that an operator would set, its usual value first.
GRIDS: Mapping[str, tuple[float, ...]] = {
    "hpa-queue": (32, 8, 16, 64),
    "hpa-kv": (0.8, 0.2, 0.4, 0.6),
    "keda": (5, 0.5, 2),
    "wva": (0.8, 0.2, 0.4, 0.6),
    "dynamo-0.8": (1.0, 0.5, 0.7, 1.5),
    "dynamo-1.5": (1.0, 0.5, 0.7, 1.5),
}
WINDOW_OF_MEANS_S = 180.0
TUNED = "-tuned"


class PlanPolicy:
    """The planner as a policy of a day: it drains for as long as it takes. `prompts` are another
    day's, which it takes the requests to have had: as much is found in caches there as here."""

    drain_limit_s = math.inf

    def __init__(
        self, planner: Planner, day: DayTrace | None = None, prompts: DayTrace | None = None
    ) -> None:
        self.planner, self.window_s = planner, planner.config.window_s
        self._day, self._prompts = day, prompts
        self._other: dict[int, tuple[ObservedRequest, ObservedRequest]] = {}

    def observe(self, seen: Observation) -> Decision:
        """The planner's decision."""
        if self._day is not None and self._prompts is not None and seen.requests is not None:
            places = np.searchsorted(
                self._day.arrivals_s, [each.arrival_s for each in seen.requests]
            ).tolist()
            requests = [
                self._with_other_ids(each, place)
                for each, place in zip(seen.requests, places, strict=True)
            ]
            seen = replace(seen, requests=requests)
        return self.planner.observe(seen)

    def _with_other_ids(self, request: ObservedRequest, place: int) -> ObservedRequest:
        """Made once of each request that has ended: that is the same object from then on."""
        before, found = self._other.get(place, (None, None))
        if found is None or before is not request:
            found = replace(request, block_ids=self._ids_of(request, place))
            self._other[place] = request, found
        return found

    def _ids_of(self, request: ObservedRequest, place: int) -> tuple[int, ...]:
        """As many as it has blocks: the other prompt's, and ids that nothing else has."""
        assert self._prompts is not None
        count = len(request.block_ids)
        ids = self._prompts.ids[place % len(self._prompts.ids)][:count]
        return ids + tuple((place + 1 << 32) + n for n in range(len(ids), count))


@dataclass(frozen=True, kw_only=True)
class Setting:
    """What a day is run with. `model` is what engines are really like; the planner's own has
    `model_error` times its step times."""

    model: EngineModel
    objectives: Objectives
    constraints: Constraints
    planning: PlanningConfig
    curves: Curves
    model_error: float = 1.0
    prompts: DayTrace | None = None  # that the planner takes the requests to have
    seed: int = 0
    counts_cpu: bool = False  # plans take simulated requests, not CPU time


class Comparison:
    """One day, and perhaps another one to tune on."""

    def __init__(self, setting: Setting, day: DayTrace, train: DayTrace | None = None) -> None:
        self.setting, self.day, self.train = setting, day, train

    def policies(self) -> list[str]:
        """Those that can be run: tuned ones need a day to tune on."""
        return [each for each in POLICIES if self.train is not None or not each.endswith(TUNED)]

    @cached_property
    def needs(self) -> Needs:
        return self._needs_of(self.day)

    @cached_property
    def train_needs(self) -> Needs:
        """Of the day to tune on."""
        assert self.train is not None
        return self._needs_of(self.train)

    @cached_property
    def start(self) -> Fleet:
        """The fleet that every policy begins with: what the first minute needs."""
        return self.needs.fleets[0]

    @cached_property
    def places(self) -> Fleet:
        """Engines at a time: of a role at most the budget, and as many again that drain."""
        most = 2 * self.setting.constraints.engines_max
        roles = self.setting.planning.roles
        if roles == "aggregated":
            return Fleet(aggregated=most)
        return Fleet(most if roles == "both" else 0, most, most)

    def run(self, name: str) -> DayRun:
        """A policy's day. KeyError for a name that is none of POLICIES."""
        began = time.process_time()
        run = self._run(name)
        run.policy, run.cpu_s = name, time.process_time() - began
        return run

    def _run(self, name: str) -> DayRun:
        if name == "plan":
            return self._day(self._planner())
        if name == "bound-clairvoyant":
            needs = self.needs
            return DayRun(name, needs.attainment, needs.engine_hours, settings="no start-up")
        if name == "bound-reachable":
            return self._reachable()
        if name == "bound-no-foresight":
            return self._day(self._instant())
        if name == "bound-perfect-forecast":
            return self._day(self._planner(oracle=self._oracle()))
        if name == "bound-perfect-model":
            return self._day(self._planner(perfect=True))
        if name.endswith(TUNED):
            return self._tuned(name.removesuffix(TUNED))
        return self._peer(name, GRIDS.get(name, (0.0,))[0], self.day, self.start)

    def _day(
        self,
        policy: Autoscaler,
        day: DayTrace | None = None,
        start: Fleet | None = None,
        most_missed: float = math.inf,
    ) -> DayRun:
        setting = self.setting
        return run_day(
            "",
            day or self.day,
            policy,
            start or self.start,
            setting.model,
            setting.objectives,
            budget=setting.constraints.engines_max,
            places=self.places,
            most_missed=most_missed,
        )

    def _planner(self, *, oracle: Oracle | None = None, perfect: bool = False) -> PlanPolicy:
        setting, season = self.setting, list[float]()
        if self.train is not None:
            season = self.train.counts(BIN_S)
        speed = setting.model.speed / (1.0 if perfect else setting.model_error)
        planner = Planner(
            setting.planning,
            replace(setting.model, speed=speed),
            setting.objectives,
            setting.constraints,
            seed=setting.seed,
            season=season,
            proposals=self._proposals(),
            oracle=oracle,
            corrects=not perfect,
            budget=CountedBudget(setting.planning.plan_budget_s) if setting.counts_cpu else None,
        )
        return PlanPolicy(planner, self.day, None if perfect else setting.prompts)

    def _proposals(self) -> dict[str, Callable[[Observation], Fleet | None]]:
        """Others' fleets as candidates."""
        rules: dict[str, Rule] = {
            "wva": Wva(),
            "dynamo-0.8": Dynamo08(self.setting.curves, self.setting.objectives),
        }
        return {
            name: (lambda seen, rule=rule: rule.wanted(seen)[0])  # type: ignore[misc]  # bound now
            for name, rule in rules.items()
        }

    def _oracle(self) -> Oracle:
        day = self.day

        def requests(
            first_s: float, last_s: float
        ) -> tuple[list[SampledRequest], NDArray[np.float64]]:
            low, high = day.between(first_s, last_s)
            return day.requests[low:high], day.arrivals_s[low:high] - first_s

        return Oracle(requests)

    def _reachable(self) -> DayRun:
        setting, runs = self.setting, list[DayRun]()

        def attempt(course: Course) -> tuple[float, list[bool]]:
            run = self._day(course)
            runs.append(run)
            minutes = (self.day.arrivals_s // MINUTE_S).astype(np.int64)
            total = np.bincount(minutes)
            good = np.bincount(minutes, run.good)
            kept = good >= setting.objectives.target * total
            return run.attainment, [bool(each) for each in kept]

        reach(
            self.needs,
            attempt,
            setting.planning.start_up_s,
            setting.objectives.target,
            setting.constraints.engines_max,
        )
        reaching = [each for each in runs if each.attainment >= setting.objectives.target]
        best = min(reaching, key=lambda each: each.engine_hours) if reaching else runs[-1]
        best.settings = f"{len(runs)} courses"
        return best

    def _instant(self) -> Course:
        """What reacting can reach: each minute's need is known as the minute begins, not before,
        and engines stay until those that start then could have cleared the backlog."""
        held = 1 + math.ceil(self.setting.planning.start_up_s / MINUTE_S)
        fleets, needs = list[Fleet](), self.needs.fleets
        for minute in range(len(needs)):
            fleet = Fleet()
            for each in needs[max(0, minute - held) : minute + 1]:
                fleet = fleet.highest(each)
            fleets.append(fleet)
        return Course(fleets, 0.0, self.setting.constraints.engines_max, lead_s=0.0)

    def _needs_of(self, day: DayTrace) -> Needs:
        setting = self.setting
        roles = setting.planning.roles
        return Needs(day, setting.model, setting.objectives, setting.constraints, roles)

    # Peers

    def _peer(
        self, name: str, value: float, day: DayTrace, start: Fleet, most_missed: float = math.inf
    ) -> DayRun:
        rule, window_s, settings = self._rule(name, value)
        scaler = Scaler(rule, self.setting.constraints, window_s=window_s)
        if isinstance(rule, Static):
            start = rule.fleet
        run = self._day(scaler, day, start, most_missed)
        run.settings = settings
        return run

    def _rule(self, name: str, value: float) -> tuple[Rule, float, str]:
        setting = self.setting
        if name == "static-peak":
            fleet = self.needs.peak()
            return Static(fleet), 0.0, str(fleet)
        if name == "static-mean":
            fleet = self.needs.mean()
            return Static(fleet), 0.0, str(fleet)
        if name in ("hpa-queue", "hpa-kv"):
            metric = name.removeprefix("hpa-")
            return Hpa(metric, value), 0.0, f"{metric} {value:g}"
        if name == "keda":
            return Keda(value), 0.0, f"threshold {value:g}"
        if name == "wva":
            return Wva(kv_limit=value, spare_kv=value / 8), 0.0, f"kv limit {value:g}"
        kinds = {"dynamo-0.8": Dynamo08, "dynamo-1.5": Dynamo15}
        rule: Any = kinds[name](setting.curves, setting.objectives, value)
        return rule, WINDOW_OF_MEANS_S, f"demand times {value:g}"

    def _tuned(self, name: str) -> DayRun:
        """The peer with what was best on the day to tune on: the cheapest that keeps the target,
        else the one that keeps most."""
        assert self.train is not None
        if name.startswith("static"):
            fleet = self._static_of_train(mean=name == "static-mean")
            run = self._day(Scaler(Static(fleet), self.setting.constraints), None, fleet)
            run.settings = str(fleet)
            return run
        tried: list[tuple[float, DayRun]] = []
        requests, limit = len(self.train.requests), math.inf
        for value in GRIDS[name]:
            try:
                run = self._peer(name, value, self.train, self.start, limit)
            except HopelessError:
                continue
            tried.append((value, run))
            # Who misses more neither keeps the target nor comes nearest to it.
            missed = (1 - max(each.attainment for _, each in tried)) * requests
            limit = max((1 - self.setting.objectives.target) * requests, missed) + 0.5
        value = best_value(tried, self.setting.objectives.target)
        return self._peer(name, value, self.day, self.start)

    def _static_of_train(self, *, mean: bool) -> Fleet:
        """Of the peak: the smallest static fleet that keeps the target on the day to tune on. Of
        the mean: what its minutes need in the mean."""
        assert self.train is not None
        needs = self.train_needs
        if mean:
            return needs.mean()
        fleet, peak = needs.mean(), needs.peak()
        while fleet != peak:
            run = self._day(Scaler(Static(fleet), self.setting.constraints), self.train, fleet)
            if run.attainment >= self.setting.objectives.target:
                return fleet
            short: list[Role] = [role for role, count in peak if fleet.count(role) < count]
            fleet = fleet.changed(max(short, key=lambda role: peak.count(role)), 1)
        return fleet


def best_value(tried: Sequence[tuple[float, DayRun]], target: float) -> float:
    """Of settings that were run: the cheapest that keeps the target, else the one nearest to it."""
    keeping = [each for each in tried if each[1].attainment >= target]
    if keeping:
        return min(keeping, key=lambda each: each[1].engine_hours)[0]
    return max(tried, key=lambda each: each[1].attainment)[0]


BEST = "no other policy has as many good answers for fewer engine hours"
"""What `pareto` finds, in words."""


def pareto(runs: Sequence[DayRun]) -> list[str]:
    """Policies that no other beats: more attainment for no more engine hours, or as much for
    fewer. Bounds are not among them."""
    real = [each for each in runs if not each.policy.startswith("bound-")]
    return [
        each.policy
        for each in real
        if not any(
            other.attainment >= each.attainment
            and other.engine_hours <= each.engine_hours
            and (other.attainment, -other.engine_hours) != (each.attainment, -each.engine_hours)
            for other in real
        )
    ]


def row(run: DayRun) -> dict[str, object]:
    """A run's figures."""
    return {
        "policy": run.policy,
        "attainment": run.attainment,
        "engine_hours": run.engine_hours,
        "changes": run.changes,
        "aborted_streams": run.aborted_streams,
        "good_minutes": run.good_minutes,
        "worst_5_min": run.worst_5_min,
        "rejected": run.rejected,
        "peak_engines": run.peak_engines,
        "over_budget_s": run.over_budget_s,
        "settings": run.settings,
        "cpu_s": run.cpu_s,
    }


def minutes_of(day: DayTrace, runs: Sequence[DayRun]) -> dict[str, object]:
    """By minutes: arrivals, and of each policy the good answers; and its engines as they change."""
    minutes = (day.arrivals_s // MINUTE_S).astype(np.int64)
    return {
        "arrivals": np.bincount(minutes).tolist(),
        "good": {
            each.policy: np.bincount(minutes, each.good).astype(np.int64).tolist()
            for each in runs
            if len(each.good)
        },
        "engines": {
            each.policy: [
                {
                    "at": at,
                    "serving": msgspec.to_builtins(serving),
                    "starting": msgspec.to_builtins(starting),
                    "draining": msgspec.to_builtins(draining),
                }
                for at, serving, starting, draining in each.moments
            ]
            for each in runs
        },
    }


def decisions_of(run: DayRun) -> list[Decision]:
    """What is worth a line: changes, and plans."""
    return [each for each in run.decisions if each.changes or each.kind != "hold"]
