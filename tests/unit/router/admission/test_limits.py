"""Busy and saturated workers: who gets requests under load, and that calm returns at once."""

import math
from collections.abc import Iterator

import pytest
from support.policy.routers import router_among

from dynamo_router import KvRouter
from dynamo_router.base.errors import ConfigError, NoWorkersError
from dynamo_router.router.admission.limits import AdmissionConfig
from dynamo_router.workers.registry import WorkerState

BLOCK = 16


def router_with(**admission: object) -> KvRouter:
    return router_among(
        1,
        2,
        facts={"total_kv_blocks": 100, "max_num_batched_tokens": 64},
        block_size=BLOCK,
        use_kv_events=False,
        admission=AdmissionConfig(**admission),  # type: ignore[arg-type]
    )


@pytest.fixture
def queueing() -> Iterator[KvRouter]:
    with router_with(queue_threshold=1.0) as router:
        yield router


def prompt(blocks: int, first: int = 0) -> list[int]:
    return [first] * (blocks * BLOCK)


def test_a_worker_is_free_until_every_one_has_more_than_its_share_queued(
    queueing: KvRouter,
) -> None:
    assert queueing.seconds_until_free() == 0
    queueing.decide(prompt(5, 1), "a", pinned_worker=1)
    assert (
        queueing.seconds_until_free() == 0
        and queueing.seconds_until_free(1) == math.inf
        and queueing.seconds_until_free(2) == 0
    )
    queueing.decide(prompt(4, 2), "b", pinned_worker=2)
    assert queueing.seconds_until_free() == 0  # exactly the budget is not above it
    queueing.decide(prompt(1, 3), "c", pinned_worker=2)
    assert queueing.seconds_until_free() == math.inf
    queueing.mark_prefill_complete("a")
    assert queueing.seconds_until_free() == 0


def test_there_is_nothing_to_wait_for_where_nobody_serves(queueing: KvRouter) -> None:
    queueing.decide(prompt(9), "a", pinned_worker=1)
    queueing.decide(prompt(9), "b", pinned_worker=2)
    assert queueing.seconds_until_free() == math.inf
    for worker_id in (1, 2):
        queueing.registry.set_state(worker_id, WorkerState.UNHEALTHY)
    assert queueing.seconds_until_free() == 0
    assert queueing.seconds_until_free(77) == 0  # not registered: deciding says so


def test_without_a_threshold_a_worker_is_always_free() -> None:
    with router_with() as router:
        router.decide(prompt(90), "a", pinned_worker=1)
        router.decide(prompt(90), "b", pinned_worker=1)
        assert router.seconds_until_free() == 0


def test_an_unknown_budget_is_taken_for_endless() -> None:
    with router_with(queue_threshold=1.0) as router:
        router.add_worker(3)
        for worker_id in (1, 2, 3):
            router.decide(prompt(50), f"on {worker_id}", pinned_worker=worker_id)
        assert router.seconds_until_free() == 0


@pytest.mark.parametrize(
    "thresholds",
    [
        {"active_prefill_tokens_threshold": 64},
        {"active_prefill_tokens_threshold_frac": 1.0},
        {"active_decode_blocks_threshold": 0.04},
    ],
)
def test_a_busy_worker_gets_nothing_until_its_load_is_gone(thresholds: dict[str, float]) -> None:
    with router_with(**thresholds) as router:
        router.decide(prompt(5, 1), "big", pinned_worker=1)
        assert [router.decide(prompt(1, 9)).worker.worker_id for _ in range(5)] == [2] * 5
        with pytest.raises(NoWorkersError, match="the pinned worker is busy") as pinned:
            router.decide(prompt(1), "x", pinned_worker=1)
        router.decide(prompt(5, 2), "big too")
        with pytest.raises(NoWorkersError, match="every worker is busy") as busy:
            router.decide(prompt(1), "y")
        assert pinned.value.overloaded and busy.value.overloaded
        router.free("big")
        assert router.decide(prompt(1), "z").worker.worker_id == 1
        router.free("big too")
        assert router.decide(prompt(1), "w").worker.worker_id in (1, 2)


def test_no_workers_is_not_overload() -> None:
    with router_with(active_prefill_tokens_threshold=1) as router:
        for worker_id in (1, 2):
            router.remove_worker(worker_id)
        with pytest.raises(NoWorkersError) as error:
            router.decide(prompt(1))
        assert not error.value.overloaded


def test_the_ranks_of_an_engine_are_busy_together() -> None:
    with router_with(active_prefill_tokens_threshold=64) as router:
        router.add_worker(3, dp_size=2)
        router.decide(prompt(5, 1), "a", pinned_worker=(3, 0))
        assert router.decide(prompt(1), pinned_worker=(3, 0)).worker == (3, 0)
        router.decide(prompt(5, 2), "b", pinned_worker=(3, 1))
        with pytest.raises(NoWorkersError, match="busy"):
            router.decide(prompt(1), pinned_worker=(3, 0))


def test_thresholds_can_be_changed_while_it_runs() -> None:
    with router_with() as router:
        router.decide(prompt(5), "a", pinned_worker=1)
        router.limits.change(active_prefill_tokens_threshold=10)
        assert router.decide(prompt(1, 5)).worker.worker_id == 2
        with pytest.raises(ConfigError, match="active_decode_blocks_threshold"):
            router.limits.change(active_decode_blocks_threshold=2.0)
        assert router.limits.config.active_prefill_tokens_threshold == 10


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"queue_threshold": -1.0}, "queue_threshold: -1.0 must be finite and at least 0"),
        ({"queue_threshold": float("nan")}, "queue_threshold: nan must be finite"),
        ({"queue_policy": "sjf"}, "queue_policy: 'sjf' is not one of fcfs, lcfs, wspt"),
        ({"queue_limit": 0}, "queue_limit: 0 must be at least 1"),
        ({"active_decode_blocks_threshold": 1.5}, "active_decode_blocks_threshold: 1.5 must be"),
        ({"active_prefill_tokens_threshold": -1}, "active_prefill_tokens_threshold: -1 must be"),
        ({"active_prefill_tokens_threshold_frac": float("inf")}, "threshold_frac: inf must be"),
    ],
)
def test_bad_settings_are_named(setting: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        AdmissionConfig(**setting)  # type: ignore[arg-type]


def test_uncached_tokens_go_by_the_best_worker() -> None:
    with router_with() as router:
        assert router.uncached_tokens(prompt(3)) == 48
        router.decide(prompt(3), "a")
        assert router.uncached_tokens([*prompt(3), 1, 2, 3]) == 3
