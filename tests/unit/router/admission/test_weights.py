"""Weights: what a worker is given, whatever the policy."""

import random
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dynamo_router.base.clock import ManualClock
from dynamo_router.router.admission.weights import MOST_CREDIT, WeightedShares
from dynamo_router.router.config import KvRouterConfig
from dynamo_router.router.kv_router import KvRouter
from dynamo_router.workers.registry import WorkerRegistry

MODES = [
    ("kv", "forecast"),
    ("kv", "dynamo:4"),
    ("round-robin", None),
    ("random", None),
    ("least-loaded", None),
    ("power-of-two", None),
]


def router_of(mode: str, policy: str | None, weights: list[float]) -> KvRouter:
    config = KvRouterConfig(mode=mode, policy=policy, use_kv_events=False, block_size=16, seed=1)
    router = KvRouter(config, clock=ManualClock())
    for worker_id, weight in enumerate(weights, 1):
        router.add_worker(worker_id, weight=weight)
    return router


def shares(router: KvRouter, requests: int = 600, in_flight: int = 12) -> Counter[int]:
    """How many requests each worker gets, of traffic with common prefixes."""
    rng, got, running = random.Random(7), Counter[int](), []
    for number in range(requests):
        prefix = [rng.randrange(6)] * 64
        request_id = f"r{number}"
        worker_id, _, _ = router.best_worker([*prefix, rng.randrange(10**6)] * 2, request_id)
        got[worker_id] += 1
        running.append(request_id)
        if len(running) > in_flight:
            router.free(running.pop(rng.randrange(in_flight)))
    for request_id in running:
        router.free(request_id)
    return got


@pytest.mark.parametrize(("mode", "policy"), MODES)
def test_a_worker_gets_the_share_of_its_weight_in_every_mode(mode: str, policy: str | None) -> None:
    with router_of(mode, policy, [1.0, 1.0, 0.5, 0.1]) as router:
        got = shares(router)
    others = (got[1] + got[2]) / 2
    # A policy may prefer a worker less than its weight allows, never more.
    assert got[3] <= 0.5 * others + MOST_CREDIT and got[4] <= 0.1 * others + MOST_CREDIT
    if mode != "kv":
        assert got[3] >= 0.45 * others and got[4] >= 0.08 * others


@pytest.mark.parametrize(("mode", "policy"), MODES)
def test_equal_weights_change_nothing(mode: str, policy: str | None) -> None:
    with router_of(mode, policy, [1.0] * 3) as plain, router_of(mode, policy, [0.5] * 3) as half:
        assert shares(plain, 200) == shares(half, 200)


def test_a_request_that_may_go_nowhere_else_goes_there_and_is_counted() -> None:
    with router_of("round-robin", None, [1.0, 0.1]) as router:
        for number in range(3):
            assert router.best_worker([1], f"a{number}", allowed_workers=[2])[0] == 2
        for number in range(3):
            assert router.best_worker([1], f"p{number}", pinned_worker=2)[0] == 2
        assert shares(router, 40)[2] == 0  # it has had its share of those, and more


def test_without_the_others_it_gets_everything_and_a_new_weight_counts_at_once() -> None:
    with router_of("round-robin", None, [1.0, 0.1]) as router:
        router.registry.remove(1)
        assert shares(router, 20) == {2: 20}
        router.add_worker(3)
        assert shares(router, 200)[2] <= 22
        router.registry.set_weight(2, 1.0)
        assert shares(router, 200)[2] == 100
        with pytest.raises(ValueError, match="weight 0 is not above 0 and at most 1"):
            router.registry.set_weight(2, 0)


def test_an_explanation_says_who_has_had_the_share_of_its_weight() -> None:
    with router_of("kv", "dynamo", [1.0, 0.01]) as router:
        router.best_worker([1], "r", pinned_worker=2)
        rows = {row.worker.worker_id: row for row in router.explain([1]).candidates}
        assert (rows[2].eligible, rows[2].reason) == (False, "has had the share of its weight")
        assert rows[1].eligible


@given(
    weights=st.lists(st.floats(0.001, 1.0), min_size=1, max_size=6),
    wants=st.lists(st.integers(0, 5), min_size=1, max_size=300),
)
def test_whatever_a_policy_wants_nobody_exceeds_its_share(
    weights: list[float], wants: list[int]
) -> None:
    """The law: given[n] <= share[n] + what can be saved up, and somebody may always be chosen."""
    registry = WorkerRegistry()
    for worker_id, weight in enumerate(weights):
        registry.add(worker_id, weight=weight)
    bucket, eligible = WeightedShares(registry), np.ones(len(weights), dtype=np.bool_)
    got, top = np.zeros(len(weights)), max(weights)
    reference = np.array(weights) == top
    for want in wants:
        spent = bucket.spent(eligible)
        free = eligible if spent is None else eligible & ~spent
        assert free.any() and free[reference].all()
        number = want % len(weights)
        number = number if free[number] else int(np.flatnonzero(reference)[0])
        bucket.on_given(number, eligible)
        got[number] += 1
    average = got[reference].sum() / reference.sum()
    for number in np.flatnonzero(~reference):
        assert got[number] <= weights[number] / top * average + 1.0 + 1e-6
