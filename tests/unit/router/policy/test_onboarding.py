"""What loading a block of a lower tier takes is learnt, and weighed in place of fixed weights."""

import numpy as np
import pytest
from support.kv_events.messages import prompt_message

from dynamo_router import KvRouter, KvRouterConfig
from dynamo_router.base.clock import ManualClock
from dynamo_router.base.identity import WorkerWithDpRank
from dynamo_router.router.policy.onboarding import Load, Onboarding

COMPUTING_S = 0.001  # of a block


def blocks(*values: int) -> np.ndarray:
    return np.array(values, np.uint32)


def test_before_anything_was_learnt_the_fixed_weights_hold() -> None:
    onboarding = Onboarding()
    assert onboarding.weights(0, COMPUTING_S) == pytest.approx((0.75, 0.25))
    saved = onboarding.saved(blocks(4, 0), blocks(8, 0), blocks(0, 8), COMPUTING_S)
    assert saved.tolist() == [10, 2]


def test_each_worker_and_tier_comes_to_what_its_loads_take() -> None:
    onboarding = Onboarding()
    rng = np.random.default_rng(3)
    true_s = {0: (0.0001, 0.0008), 1: (0.0004, 0.003)}
    for _ in range(400):
        number = int(rng.integers(0, 2))
        loaded = int(rng.integers(0, 60)), int(rng.integers(0, 60))
        took_s = float(np.dot(loaded, true_s[number]) + rng.normal(0, 0.002))
        onboarding.learn(number, loaded, max(0.0, took_s), COMPUTING_S)
    for number, expected in true_s.items():
        assert onboarding.block_s(number, COMPUTING_S) == pytest.approx(expected, abs=1e-4)
    saved = onboarding.saved(blocks(100, 100), blocks(50, 50), blocks(50, 50), COMPUTING_S)
    assert saved[0] == pytest.approx(100 + 45 + 10, abs=5)
    assert saved[1] == pytest.approx(100 + 30 - 100, abs=12), "to load takes longer than to compute"


def test_a_worker_that_comes_begins_with_what_the_fleet_takes() -> None:
    onboarding = Onboarding()
    for _ in range(50):
        onboarding.learn(0, (40, 0), 40 * 0.0005, 1e-3)
    fleet = onboarding.block_s(7, COMPUTING_S)
    assert fleet[0] == pytest.approx(0.0005, rel=0.1)
    onboarding.forget(0)
    assert onboarding.block_s(0, COMPUTING_S) == fleet
    many = onboarding.saved(blocks(*[0] * 9), blocks(*[10] * 9), blocks(*[0] * 9), COMPUTING_S)
    assert set(many.tolist()) == {5}


def test_what_was_loaded_is_what_the_engine_found_beyond_its_device() -> None:
    load = Load(3, 2, (4, 5), 16, (0.5, -1.0))
    assert load.loaded(0) == load.loaded(32) == (0, 0)
    assert load.loaded(32 + 3 * 16) == (3, 0)
    assert load.loaded(32 + 7 * 16) == (4, 3)
    assert load.loaded(99 * 16) == (4, 5)
    assert load.unsaved_tokens((4, 0)) == 32
    assert load.unsaved_tokens((0, 3)) == 5 * 16, "more than was cached no prompt is longer"


def test_without_blocks_in_lower_tiers_nothing_is_learnt() -> None:
    onboarding = Onboarding()
    onboarding.learn(0, (0, 0), 5.0, COMPUTING_S)
    assert onboarding.weights(0, COMPUTING_S) == pytest.approx((0.75, 0.25))


@pytest.mark.parametrize("full", [False, True])
def test_a_router_learns_it_from_first_tokens_unless_they_wait_for_room(full: bool) -> None:
    clock = ManualClock()
    held, fresh_s, load_s = 200, 1e-5, 0.004  # computing a block takes 64 times 1e-5
    config = KvRouterConfig(router_predicted_ttl_secs=0.0)  # nobody tells of the device
    with KvRouter(config, clock=clock, seed=1) as router:
        router.add_worker(0, total_kv_blocks=220 if full else None)
        block = router.block_size
        known = list(range(1, 1 + held * block))
        message = prompt_message(WorkerWithDpRank(0), known, block, tier="host_pinned")
        router.apply_event(message)

        def onboard_s() -> float:
            (candidate,) = router.explain(known).candidates
            return candidate.policy_terms["onboard_s"]

        before = onboard_s()
        for number in range(80):
            clock.advance(2.0)
            loads = number >= 40 and number % 2
            own = 50_000 + 7000 * number
            tokens = [*known, 7] if loads else [*range(own, own + 6400)]
            router.decide(tokens, str(number))
            clock.advance(0.02 + (held * load_s if loads else 6400 * fresh_s))
            router.mark_prefill_complete(str(number), cached_tokens=held * block if loads else 0)
            clock.advance(0.1)
            router.free(str(number), output_tokens=10)
        if full:
            assert onboard_s() <= before < held * load_s / 2
        else:
            assert onboard_s() == pytest.approx(held * load_s, rel=0.1) and onboard_s() > 2 * before
