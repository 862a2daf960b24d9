"""A planner of small engines whose right fleets are known, and what it observes."""

from collections.abc import Sequence
from itertools import count
from typing import Any

import numpy as np
import pytest

from dynamo_router.engines.mocker import EngineConfig
from dynamo_router.planner import (
    Constraints,
    Decision,
    EngineModel,
    Fleet,
    Objectives,
    Observation,
    ObservedRequest,
    ObservedWorker,
    Planner,
    PlanningConfig,
    search,
)
from dynamo_router.planner.planning import CpuBudget
from dynamo_router.planner.what_if import Outcome, Scenario

ENGINE = EngineConfig(num_gpu_blocks=2048, max_num_seqs=8, max_model_len=0)
SPEED = 0.2  # few requests a second are work enough
ITL_MS, TTFT_MS = 40.0, 300.0  # of the requests below, on engines that are not overrun


def new_planner(
    *, roles: str = "aggregated", engines_max: int = 8, speed: float = SPEED, **more: Any
) -> Planner:
    """Its CPU is counted by questions, some dozen simulations a plan: the same on every machine."""
    ticks = count()
    facts = {"start_up_s": 30.0, "roles": roles, **more.pop("planning", {})}
    planning = PlanningConfig(**facts)
    more.setdefault("budget", CpuBudget(planning.plan_budget_s, lambda: 0.002 * next(ticks)))
    return Planner(
        planning,
        EngineModel(
            engine=ENGINE, start_up_s=planning.start_up_s, speed=speed, trace_block_size=64
        ),
        Objectives(objective_ttft_ms=5000, objective_itl_ms=200),
        Constraints(engines_max=engines_max, dwell_s=0),
        **more,
    )


def requests(at: float, rate: float, window_s: float, **more: Any) -> list[ObservedRequest]:
    """Prompts of 256 tokens and answers of 120: an engine of eight at a time does some 1.6 a
    second."""
    times = np.arange(at - window_s, at, 1 / rate) if rate else []
    facts = {"output_tokens": 120, "ttft_ms": TTFT_MS, "itl_ms": ITL_MS, **more}
    return [ObservedRequest(float(each), 256, **facts) for each in times]


def workers(count: int, **more: Any) -> list[ObservedWorker]:
    facts = {"role": "aggregated", "state": "serving", "age_s": 1000.0, "served": 500, **more}
    return [ObservedWorker(worker_id=n, **facts) for n in range(count)]


def observation(at: float, rate: float, there: int, **more: Any) -> Observation:
    window_s = 90.0
    facts = {
        "requests": requests(at, rate, window_s),
        "workers": workers(there),
        "window_s": window_s,
        "block_size": 64,
        **more,
    }
    return Observation(at=at, **facts)


def decide(planner: Planner, rate: float, there: int, plans: int = 4, **more: Any) -> Decision:
    """The last of some plans, a minute apart, of one observed state."""
    found = None
    for n in range(plans):
        found = planner.observe(observation(1000.0 + 60 * n, rate, there, **more))
    assert found is not None
    return found


def judge_by(monkeypatch: pytest.MonkeyPatch, two_keep: Sequence[float]) -> None:
    """Three engines keep all, one keeps none, and two what the plan's number says, in turn."""

    def judged(_model: Any, _workers: Any, fleet: Fleet, scenario: Scenario, *_: Any) -> Outcome:
        turn = scenario.seed // 31 % len(two_keep)
        kept = {0: 0.0, 1: 0.0, 2: two_keep[turn]}.get(fleet.aggregated, 1.0)
        past = np.full(int((np.asarray(scenario.arrivals_s) < 0).sum()), ITL_MS)
        return Outcome(kept, kept, 1 - kept, 0.0, 100.0 * fleet.aggregated, past, past)

    monkeypatch.setattr(search, "simulate_candidate", judged)


def fleets_of(planner: Planner, there: int, plans: int, rates: Sequence[float]) -> list[int]:
    """Engines after each of the plans, a minute apart; the rates follow each other."""
    found = []
    for n in range(plans):
        decision = planner.observe(observation(1000.0 + 60 * n, rates[n % len(rates)], there))
        there = decision.after.aggregated
        found.append(there)
    return found
