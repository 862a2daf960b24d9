"""Predict-on-route: until the engine tells, the router believes its own decisions."""

import json
from collections.abc import Iterator

import numpy as np
import pytest
from support.policy.routers import router_among

from dynamo_router import KvRouter, KvRouterConfig
from dynamo_router.base.clock import ManualClock
from dynamo_router.base.errors import ConfigError
from dynamo_router.indexer.event_index.actor import EventIndex
from dynamo_router.indexer.hashing import block_hashes, sequence_hashes

BLOCK = 16
PROMPT = list(range(4 * BLOCK))


def cached(prompt: list[int]) -> bytes:
    local = block_hashes(np.array(prompt, dtype=np.uint32), BLOCK)
    blocks = [
        {"block_hash": s, "tokens_hash": t}
        for s, t in zip(sequence_hashes(local).tolist(), local.tolist(), strict=True)
    ]
    data = {"stored": {"parent_hash": None, "blocks": blocks}}
    return json.dumps({"event_id": 0, "data": data}).encode()


@pytest.fixture
def router(clock: ManualClock) -> Iterator[KvRouter]:
    settings = {"block_size": BLOCK, "router_predicted_ttl_secs": 5.0}
    with router_among(1, 2, clock=clock, **settings) as made:
        yield made


def test_a_decision_is_believed_until_its_time_is_over(
    router: KvRouter, clock: ManualClock
) -> None:
    first = router.decide(PROMPT, "a").worker
    assert router.overlaps(PROMPT) == {first: 4}
    router.free("a")
    assert router.decide([*PROMPT, 7]).worker == first
    clock.advance(5.2)
    assert router.overlaps(PROMPT) == {}


def test_the_larger_belief_counts(router: KvRouter) -> None:
    router.apply_event(cached(PROMPT[: 2 * BLOCK]), worker_id=1)
    router.apply_event(cached(PROMPT), worker_id=2)
    router.decide(PROMPT[: 3 * BLOCK], "a", pinned_worker=1)
    router.decide(PROMPT[:BLOCK], "b", pinned_worker=2)
    assert router.overlaps(PROMPT) == {(1, 0): 3, (2, 0): 4}
    decision = router.decide(PROMPT, pinned_worker=1)
    assert decision.overlap_blocks == 3 and decision.cached_tokens == 3 * BLOCK


def test_asking_without_booking_predicts_nothing(router: KvRouter) -> None:
    router.decide(PROMPT)
    assert router.overlaps(PROMPT) == {}


def test_a_worker_that_leaves_takes_its_predictions_along(router: KvRouter) -> None:
    router.decide(PROMPT, "a", pinned_worker=1)
    router.remove_worker(1)
    router.add_worker(1)
    assert router.overlaps(PROMPT) == {}


def test_without_the_knob_only_events_count() -> None:
    config = KvRouterConfig(block_size=BLOCK)
    with KvRouter(config, clock=ManualClock()) as router:
        router.add_worker(1)
        router.decide(PROMPT, "a")
        assert router.overlaps(PROMPT) == {}
        assert isinstance(router.index, EventIndex) and not router.index.predicts


def test_predictions_are_counted(router: KvRouter, clock: ManualClock) -> None:
    router.decide(PROMPT, "a")
    assert isinstance(router.index, EventIndex)
    assert router.index.predictions == (4, 0, 0)
    router.free("a")
    clock.advance(5.2)
    assert router.overlaps(PROMPT) == {}
    assert router.index.predictions == (0, 4, 0)


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"router_predicted_ttl_secs": -1.0}, "router_predicted_ttl_secs: -1.0 must be finite"),
        (
            {"router_predicted_ttl_secs": 5.0, "use_kv_events": False},
            "router_predicted_ttl_secs: needs use_kv_events",
        ),
    ],
)
def test_bad_settings_are_named(setting: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        KvRouterConfig(**setting)  # type: ignore[arg-type]
