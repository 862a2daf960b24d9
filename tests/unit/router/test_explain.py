"""An explanation shows the cost that decides, whatever the policy, and Dynamo's terms beside it."""

import json
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from dynamo_router import KvRouter, KvRouterConfig
from dynamo_router.base.clock import ManualClock
from dynamo_router.router.admission import AdmissionConfig
from dynamo_router.router.policy import (
    Candidates,
    CandidateTerms,
    DynamoCost,
    Explanation,
    Floats,
    Policy,
)
from dynamo_router.router.policy.forecast import ForecastPolicy
from dynamo_router.router.policy.modes import LeastLoaded, RandomWorker
from dynamo_router.workers.registry import WorkerState

BLOCK = 16
PROMPT = list(range(6 * BLOCK))


class Counting(Policy):
    """The worker with the highest number, and what it says of that."""

    def score(self, candidates: Candidates) -> Floats:
        numbers = np.arange(len(candidates.eligible))
        return np.where(candidates.eligible, -1.5 * numbers, np.inf)

    def explain(self, candidates: Candidates) -> dict[int, dict[str, float]]:
        return {number: {"number": float(number)} for number in range(len(candidates.eligible))}


class Failing(Policy):
    def score(self, candidates: Candidates) -> Floats:
        raise KeyError("cost")


def busy_router(given: Policy | None = None, **config: Any) -> KvRouter:
    """Three workers that predict caches, with requests that differ in number and prefix."""
    made = KvRouter(
        KvRouterConfig(block_size=BLOCK, use_kv_events=False, **config),
        clock=ManualClock(),
        seed=1,
        strategy=given,
    )
    for worker_id in (1, 2, 3):
        made.add_worker(worker_id, total_kv_blocks=500, max_num_batched_tokens=512)
    for turn, worker_id in enumerate((1, 1, 2)):
        made.decide(PROMPT[: 3 * BLOCK] + [turn] * 100, f"r{turn}", pinned_worker=worker_id)
    return made


def by_id(explanation: Explanation) -> dict[int, CandidateTerms]:
    return {each.worker.worker_id: each for each in explanation.candidates}


@pytest.mark.parametrize(
    ("config", "kind"),
    [
        ({}, ForecastPolicy),
        ({"policy": "dynamo:4"}, DynamoCost),
        ({"mode": "random"}, RandomWorker),
        ({"mode": "least-loaded"}, LeastLoaded),
    ],
)
def test_the_costs_are_those_that_choose_compares(
    config: dict[str, Any], kind: type[Policy], monkeypatch: pytest.MonkeyPatch
) -> None:
    compared = []
    choose: Callable[[Any, Candidates, Any], int] = kind.choose

    def spy(self: Policy, candidates: Candidates, rng: Any) -> int:
        compared.append(self.score(candidates))
        return choose(self, candidates, rng)

    with busy_router(**config) as router:
        explanation = router.explain(PROMPT)
        monkeypatch.setattr(kind, "choose", spy)
        decision = router.decide(PROMPT)
    assert [each.cost for each in explanation.candidates] == compared[0].tolist()
    assert decision.worker in explanation.cheapest
    assert explanation.policy == (config.get("policy") or config.get("mode") or "forecast")


def test_the_terms_of_the_policy_and_of_dynamos_cost_stand_beside_it() -> None:
    with busy_router() as router:
        for each in router.explain(PROMPT).candidates:
            assert each.policy_terms is not None and each.policy_terms["cost"] == each.cost
            weighed = max(0.0, each.raw_prefill_blocks - each.effective_overlap_blocks)
            assert each.dynamo_cost == weighed + each.decode_blocks
    with busy_router(policy="dynamo") as router:
        told = router.explain(PROMPT).candidates
        assert all(each.cost == each.dynamo_cost and each.policy_terms is None for each in told)


def test_a_policy_of_ones_own_is_named_and_shown() -> None:
    with busy_router(Counting()) as router:
        explanation = router.explain(PROMPT)
        assert explanation.policy == "Counting" and explanation.cheapest == ((3, 0),)
        assert [each.cost for each in explanation.candidates] == [0.0, -1.5, -3.0]
        assert [each.policy_terms for each in explanation.candidates] == [
            {"number": 0.0},
            {"number": 1.0},
            {"number": 2.0},
        ]
        assert explanation.candidates[0].overlap_blocks == 3


def test_where_a_policy_fails_the_cost_that_takes_its_place_is_shown() -> None:
    with busy_router(Failing()) as router:
        for each in router.explain(PROMPT).candidates:
            assert each.cost == each.dynamo_cost
        assert router.policy_failures == 1


def test_in_mode_direct_no_cost_decides() -> None:
    with busy_router(mode="direct") as router:
        explanation = router.explain(PROMPT)
        assert {each.cost for each in explanation.candidates} == {math.inf}
        assert explanation.cheapest == () and explanation.candidates[0].dynamo_cost > 0
        assert '"cost": null' in json.dumps(explanation.to_dict(), allow_nan=False)


@pytest.mark.parametrize("config", [{}, {"policy": "dynamo"}, {"mode": "least-loaded"}])
def test_who_is_not_eligible_shows_what_it_would_cost_and_why_it_is_not(
    config: dict[str, Any],
) -> None:
    with busy_router(**config) as router:
        before = by_id(router.explain(PROMPT))
        router.registry.set_state(3, WorkerState.DRAINING)
        router.registry.inhibit(2, 10.0)
        explanation = router.explain(PROMPT)
        told = by_id(explanation)
        assert explanation.cheapest == ((1, 0),)
        assert [told[n].reason for n in (1, 2, 3)] == ["", "inhibited", "draining"]
        assert {n: each.cost for n, each in told.items()} == {
            n: each.cost for n, each in before.items()
        }


def test_busy_workers_are_no_candidates() -> None:
    admission = AdmissionConfig(active_prefill_tokens_threshold=200)
    with busy_router(admission=admission) as router:
        told = by_id(router.explain(PROMPT))
        assert [(told[n].eligible, told[n].reason) for n in (1, 2, 3)] == [
            (False, "busy"),
            (True, ""),
            (True, ""),
        ]


def test_no_workers_no_candidates() -> None:
    with KvRouter(KvRouterConfig(block_size=BLOCK)) as router:
        assert router.explain(PROMPT).candidates == ()
