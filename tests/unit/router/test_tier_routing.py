"""Routing by storage tier, and prompts that must never share a cache."""

import json
import math
from collections.abc import Iterator

import pytest
from support.kv_events.messages import message_of, prompt_blocks
from support.policy.routers import router_among

from dynamo_router import KvRouter, KvRouterConfig
from dynamo_router.base.errors import ConfigError
from dynamo_router.base.identity import WorkerWithDpRank
from dynamo_router.indexer.hashing import compute_block_hash_for_seq, compute_seq_hash_for_block
from dynamo_router.indexer.wire.events import StorageTier, Stored, StoredBlock

BLOCK = 16
PROMPT = list(range(1, 1 + 10 * BLOCK))


@pytest.fixture
def router() -> Iterator[KvRouter]:
    with router_among(10, 11, 12, block_size=BLOCK) as made:
        yield made


def cache(
    router: KvRouter, worker_id: int, event_id: int, tier: StorageTier, first: int, end: int
) -> None:
    """A worker says that it has blocks [first, end) of PROMPT in a tier."""
    blocks = prompt_blocks(PROMPT, BLOCK)
    data = Stored(blocks[first - 1].block_hash if first else None, blocks[first:end])
    worker = WorkerWithDpRank(worker_id)
    router.apply_event(message_of(worker, event_id, data, worker_id, tier))


def test_host_memory_beats_disk_and_the_device_beats_both(router: KvRouter) -> None:
    cache(router, 10, 1, "disk", 0, 6)
    assert router.best_worker(PROMPT)[0] == 10
    cache(router, 11, 1, "host_pinned", 0, 6)
    assert router.best_worker(PROMPT)[0] == 11
    cache(router, 12, 1, "device", 0, 5)
    assert router.best_worker(PROMPT)[0] == 12


def test_weights_can_be_given_per_router_and_per_request(router: KvRouter) -> None:
    cache(router, 10, 1, "external", 0, 6)
    cache(router, 11, 1, "host_pinned", 0, 4)
    assert router.best_worker(PROMPT)[0] == 11
    weights = {"host_cache_hit_weight": 0.25, "disk_cache_hit_weight": 0.5}
    assert router.best_worker(PROMPT, overrides=weights)[0] == 10
    config = KvRouterConfig(block_size=BLOCK, **weights)
    assert config.cost_params.host_cache_hit_weight == 0.25
    assert config.cost_params.disk_cache_hit_weight == 0.5


def test_a_decision_tells_the_tiers_apart_and_books_what_they_save(router: KvRouter) -> None:
    cache(router, 11, 1, "device", 0, 2)
    cache(router, 11, 2, "host_pinned", 2, 5)
    cache(router, 11, 3, "disk", 5, 7)
    cache(router, 11, 4, "external", 7, 9)
    found = router.decide(PROMPT, "r1")
    assert found.worker == (11, 0)
    blocks = (found.overlap_blocks, found.host_overlap_blocks, found.disk_overlap_blocks)
    assert blocks == (2, 3, 4) and found.cached_tokens == 2 * BLOCK
    # 2 blocks, and of the 3 + 4 others 0.75 * 3 + 0.25 * 4 = 3.25: three whole ones.
    view = {view.worker: view for view in router.workers()}[found.worker]
    assert view.active_prefill_tokens == (10 - 2 - 3) * BLOCK
    assert view.indexed_blocks == 2 and view.lower_tier_blocks == (3, 2, 2)
    router.free("r1")
    loads = {load.worker: load.potential_prefill_tokens for load in router.potential_loads(PROMPT)}
    assert loads == {(10, 0): 10 * BLOCK, (11, 0): 5 * BLOCK, (12, 0): 10 * BLOCK}
    assert router.overlaps(PROMPT) == {(11, 0): 2}
    assert router.tier_overlaps(PROMPT) == {(11, 0): (2, 3, 2, 2)}


def test_an_explanation_tells_the_tiers_apart(router: KvRouter) -> None:
    cache(router, 11, 1, "device", 0, 2)
    cache(router, 11, 2, "host_pinned", 2, 6)
    cache(router, 11, 3, "disk", 6, 8)
    told = json.loads(json.dumps(router.explain(PROMPT).to_dict()))
    assert told["params"]["host_cache_hit_weight"] == 0.75
    assert told["params"]["disk_cache_hit_weight"] == 0.25
    by_id = {each["worker_id"]: each for each in told["candidates"]}
    assert (by_id[11]["overlap_blocks"], by_id[11]["host_overlap_blocks"]) == (2, 4)
    assert by_id[11]["disk_overlap_blocks"] == 2
    assert by_id[11]["effective_overlap_blocks"] == 2 + 0.75 * 4 + 0.25 * 2
    assert (
        by_id[10]["dynamo_cost"] - by_id[11]["dynamo_cost"] == by_id[11]["effective_overlap_blocks"]
    )


def test_a_router_that_predicts_caches_knows_one_tier() -> None:
    with KvRouter(KvRouterConfig(block_size=BLOCK, use_kv_events=False)) as router:
        router.add_worker(10)
        router.decide(PROMPT, "r1")
        assert router.tier_overlaps(PROMPT) == {(10, 0): (10, 0, 0, 0)}
        assert not router.index.lower_tiers


@pytest.mark.parametrize("key", ["host_cache_hit_weight", "disk_cache_hit_weight"])
@pytest.mark.parametrize("value", [-0.01, 1.01, math.nan, math.inf])
def test_weights_out_of_range_are_refused_by_name(router: KvRouter, key: str, value: float) -> None:
    with pytest.raises(ConfigError, match=f"{key}: .* is not in 0..1") as caught:
        KvRouterConfig(**{key: value})
    assert caught.value.key == key
    with pytest.raises(ConfigError, match=key):
        router.best_worker(PROMPT, overrides={key: value})


KINDS: list[dict[str, str]] = [
    {},
    {"cache_namespace": "a"},
    {"cache_namespace": "b"},
    {"lora_name": "a"},
    {"lora_name": "b"},
    {"cache_namespace": "a", "lora_name": "b"},
    {"cache_namespace": "b", "lora_name": "a"},
]


def test_prompts_of_another_tenant_or_adapter_never_match(router: KvRouter) -> None:
    for n, kind in enumerate(KINDS):
        local = compute_block_hash_for_seq(PROMPT, BLOCK, **kind)
        keys = compute_seq_hash_for_block(local)
        for tier in ("device", "host_pinned"):
            worker = WorkerWithDpRank(100 + n, tier == "device")
            blocks = tuple(map(StoredBlock, keys, local))
            router.apply_event(message_of(worker, 1, Stored(None, blocks), tier=tier))
    for n, kind in enumerate(KINDS):
        assert router.tier_overlaps(PROMPT, **kind) == {
            (100 + n, 0): (0, 10, 0, 0),
            (100 + n, 1): (10, 0, 0, 0),
        }


def test_prompts_of_another_tenant_or_adapter_share_no_active_blocks(router: KvRouter) -> None:
    for n, kind in enumerate(KINDS):
        router.decide(PROMPT, f"r{n}", pinned_worker=10, **kind)
        router.decide(PROMPT, f"again{n}", pinned_worker=10, **kind)
    (view,) = [view for view in router.workers() if view.worker.worker_id == 10]
    assert view.active_blocks == 10 * len(KINDS)


def test_routers_of_two_models_have_indexes_of_their_own() -> None:
    with (
        KvRouter(KvRouterConfig(block_size=BLOCK)) as one,
        KvRouter(KvRouterConfig(block_size=BLOCK)) as other,
    ):
        for router in (one, other):
            router.add_worker(10)
        cache(one, 10, 1, "device", 0, 4)
        assert one.best_worker(PROMPT)[2] == 4 and other.best_worker(PROMPT)[2] == 0


def test_a_prediction_moves_the_place_where_the_lower_tiers_go_on() -> None:
    config = KvRouterConfig(block_size=BLOCK, router_predicted_ttl_secs=60.0)
    with KvRouter(config) as router:
        router.add_worker(10)
        cache(router, 10, 1, "device", 0, 1)
        cache(router, 10, 2, "host_pinned", 1, 6)
        assert router.tier_overlaps(PROMPT) == {(10, 0): (1, 5, 0, 0)}
        router.decide(PROMPT[: 4 * BLOCK], "r1")
        found = router.decide(PROMPT)
        assert (found.overlap_blocks, found.host_overlap_blocks) == (4, 2)
        assert router.tier_overlaps(PROMPT) == {(10, 0): (4, 2, 0, 0)}


def test_what_lower_tiers_save_need_not_be_computed(router: KvRouter) -> None:
    cache(router, 10, 1, "device", 0, 2)
    cache(router, 10, 2, "host_pinned", 2, 6)
    assert router.uncached_tokens(PROMPT) == (10 - 2 - 3) * BLOCK
