"""KvRouter as a library: it finds the cached prefix, books once, releases once, explains itself."""

import json
from collections.abc import Iterator

import numpy as np
import pytest
from support.kv_events.messages import prompt_message
from support.policy.routers import router_among

from dynamo_router import KvRouter, KvRouterConfig
from dynamo_router.base.clock import ManualClock
from dynamo_router.base.errors import InvalidRequestError, NoWorkersError
from dynamo_router.base.identity import WorkerWithDpRank
from dynamo_router.indexer.hashing import compute_block_hash_for_seq, compute_seq_hash_for_block
from dynamo_router.workers.registry import WorkerRegistry, WorkerState

BLOCK = 16
PROMPT = list(range(1, 1 + 4 * BLOCK))


def cache_event(prompt: list[int]) -> bytes:
    """What an engine that just cached `prompt` says, in Dynamo's JSON."""
    local = compute_block_hash_for_seq(prompt, BLOCK)
    blocks = [
        {"block_hash": s, "tokens_hash": t}
        for s, t in zip(compute_seq_hash_for_block(local), local, strict=True)
    ]
    data = {"stored": {"parent_hash": None, "blocks": blocks}}
    return json.dumps({"event_id": 0, "data": data}).encode()


@pytest.fixture
def router(clock: ManualClock) -> Iterator[KvRouter]:
    with router_among(10, 11, 12, clock=clock, block_size=BLOCK) as made:
        yield made


def loads(router: KvRouter) -> dict[int, tuple[int, int, int]]:
    return {
        view.worker.worker_id: (
            view.active_blocks,
            view.active_prefill_tokens,
            view.active_requests,
        )
        for view in router.workers()
    }


def test_the_worker_that_holds_the_prefix_is_chosen(router: KvRouter) -> None:
    router.apply_event(cache_event(PROMPT[: 3 * BLOCK]), worker_id=11)
    assert router.best_worker(PROMPT) == (11, 0, 3)
    assert router.overlaps(PROMPT) == {(11, 0): 3}
    assert router.best_worker(np.array(PROMPT, dtype=np.uint32)) == (11, 0, 3)


def test_events_from_the_plane_count_too_even_of_strangers(router: KvRouter) -> None:
    router.apply_event(prompt_message(WorkerWithDpRank(99, 1), PROMPT, BLOCK))
    assert router.overlaps(PROMPT) == {(99, 1): 4}
    assert router.best_worker(PROMPT)[2] == 0


def test_a_booking_is_made_once_and_released_once(router: KvRouter) -> None:
    worker_id, _, overlap = router.best_worker(PROMPT, "r1")
    assert overlap == 0 and loads(router)[worker_id] == (4, 64, 1)
    assert router.mark_prefill_complete("r1") and loads(router)[worker_id] == (4, 0, 1)
    assert router.free("r1") and loads(router)[worker_id] == (0, 0, 0)
    assert not router.free("r1") and not router.mark_prefill_complete("r1")


def test_without_a_request_id_nothing_is_booked(router: KvRouter) -> None:
    router.best_worker(PROMPT)
    assert set(loads(router).values()) == {(0, 0, 0)}


def test_a_request_id_in_use_is_refused(router: KvRouter) -> None:
    router.best_worker(PROMPT, "r1")
    with pytest.raises(InvalidRequestError, match="request id 'r1' is in use"):
        router.best_worker(PROMPT, "r1")
    assert sum(requests for _, _, requests in loads(router).values()) == 1


def test_load_spreads_requests_without_a_common_prefix(
    router: KvRouter, clock: ManualClock
) -> None:
    chosen = []
    for i in range(3):
        clock.advance(0.001)  # what comes at the same moment may better share a step
        chosen.append(router.best_worker([7 * i] * 64, f"r{i}")[0])
    assert sorted(chosen) == [10, 11, 12]


def test_explain_shows_every_candidate_and_books_nothing(router: KvRouter) -> None:
    router.apply_event(cache_event(PROMPT), worker_id=12)
    explanation = router.explain(PROMPT)
    assert len(explanation.candidates) == 3
    told = explanation.to_dict()
    json.dumps(told)
    best = min(explanation.candidates, key=lambda c: c.cost)
    assert best.worker == (12, 0) and best.overlap_blocks == 4
    assert set(loads(router).values()) == {(0, 0, 0)}


def test_pins_and_limits_are_kept(router: KvRouter) -> None:
    router.apply_event(cache_event(PROMPT), worker_id=12)
    assert router.best_worker(PROMPT, pinned_worker=(10, 0))[0] == 10
    assert router.best_worker(PROMPT, allowed_workers=[10, 11])[0] in (10, 11)
    with pytest.raises(NoWorkersError):
        router.best_worker(PROMPT, allowed_workers=[404])
    with pytest.raises((NoWorkersError, InvalidRequestError)):
        router.best_worker(PROMPT, pinned_worker=(404, 0))


def test_a_pinned_request_goes_to_a_worker_that_is_spared_and_to_none_that_is_not_well(
    router: KvRouter, clock: ManualClock
) -> None:
    for worker_id in (10, 11, 12):
        router.registry.inhibit(worker_id, clock.now() + 10.0)
    with pytest.raises(NoWorkersError):
        router.best_worker(PROMPT)
    assert router.best_worker(PROMPT, pinned_worker=(10, 0))[0] == 10
    with pytest.raises(NoWorkersError):
        router.decide(PROMPT, pinned_worker=10, excluded_workers=[10])
    router.registry.set_state(10, WorkerState.UNHEALTHY)
    with pytest.raises(NoWorkersError):
        router.best_worker(PROMPT, pinned_worker=(10, 0))


def test_one_that_is_inhibited_is_taken_where_nobody_else_is_left_and_that_is_asked_for(
    router: KvRouter, clock: ManualClock
) -> None:
    router.registry.inhibit(11, clock.now() + 10.0)
    assert router.best_worker(PROMPT, excluded_workers=[10], even_inhibited=True)[0] == 12
    assert router.best_worker(PROMPT, excluded_workers=[10, 12], even_inhibited=True)[0] == 11
    for how in ({"excluded_workers": [10, 12]}, {"excluded_workers": [10, 11, 12]}):
        with pytest.raises(NoWorkersError):
            router.best_worker(PROMPT, even_inhibited=len(how["excluded_workers"]) == 3, **how)
    router.registry.set_state(11, WorkerState.UNHEALTHY)
    with pytest.raises(NoWorkersError):
        router.best_worker(PROMPT, excluded_workers=[10, 12], even_inhibited=True)


def test_salts_and_adapters_do_not_share_a_cache(router: KvRouter) -> None:
    router.apply_event(cache_event(PROMPT), worker_id=12)
    assert router.best_worker(PROMPT, lora_name="a")[2] == 0
    assert router.best_worker(PROMPT, cache_namespace="tenant")[2] == 0


def test_unready_and_removed_workers_get_nothing(router: KvRouter, clock: ManualClock) -> None:
    router.apply_event(cache_event(PROMPT), worker_id=12)
    router.registry.set_state(12, WorkerState.UNHEALTHY)
    assert router.best_worker(PROMPT, "r1")[0] in (10, 11)
    held = router.registry.entry(10)
    assert held is not None
    router.registry.set_state(12, WorkerState.READY)
    clock.advance(0.001)
    assert router.best_worker(PROMPT, "r2") == (12, 0, 4)
    assert router.remove_worker(12) == ["r2"] and not router.free("r2")
    assert router.overlaps(PROMPT) == {}
    for worker_id in (10, 11):
        router.remove_worker(worker_id)
    with pytest.raises(NoWorkersError, match="no worker"):
        router.best_worker(PROMPT)


def test_a_forgotten_booking_expires(router: KvRouter, clock: ManualClock) -> None:
    worker_id = router.best_worker(PROMPT, "lost")[0]
    clock.advance(301.0)
    router.best_worker(PROMPT)
    assert loads(router)[worker_id] == (0, 0, 0) and not router.free("lost")


def test_a_booking_that_expired_is_no_load_to_whoever_looks(
    router: KvRouter, clock: ManualClock
) -> None:
    router.best_worker(PROMPT, "lost")
    clock.advance(301.0)
    assert not any(view.active_requests for view in router.workers())


@pytest.mark.parametrize(
    ("tokens", "message"),
    [
        ([], "empty prompt"),
        ([1, -1], "out of range"),
        ([2**32], "out of range"),
        (["a"], "token"),
        ([1.5], "token"),
    ],
)
def test_impossible_prompts_are_refused(router: KvRouter, tokens: list[int], message: str) -> None:
    with pytest.raises(InvalidRequestError, match=message):
        router.best_worker(tokens)


def test_without_events_the_router_predicts_what_it_caused(clock: ManualClock) -> None:
    config = KvRouterConfig(block_size=BLOCK, use_kv_events=False, router_ttl_secs=10.0)
    router = KvRouter(config, clock=clock, seed=3)
    for worker_id in (1, 2, 3):
        router.add_worker(worker_id)
    first = router.best_worker(PROMPT, "r1")[0]
    router.free("r1")
    assert router.best_worker(PROMPT) == (first, 0, 4)
    assert {v.event_source_state for v in router.workers()} == {"approximate"}
    clock.advance(11.0)
    assert router.best_worker(PROMPT)[2] == 0
    router.close()


@pytest.mark.parametrize("mode", ["round-robin", "random", "least-loaded", "power-of-two"])
def test_other_modes_use_every_worker(mode: str) -> None:
    router = KvRouter(KvRouterConfig(mode=mode, block_size=BLOCK), seed=5)  # type: ignore[arg-type]  # parametrised
    for worker_id in (1, 2, 3):
        router.add_worker(worker_id)
    chosen = [router.best_worker(PROMPT, f"r{i}")[0] for i in range(60)]
    assert set(chosen) == {1, 2, 3}
    if mode in ("round-robin", "least-loaded"):
        assert [chosen.count(w) for w in (1, 2, 3)] == [20, 20, 20]
    router.close()


def test_direct_mode_wants_to_be_told() -> None:
    router = KvRouter(KvRouterConfig(mode="direct", block_size=BLOCK))
    router.add_worker(1)
    router.add_worker(2)
    assert router.best_worker(PROMPT, pinned_worker=(2, 0))[0] == 2
    with pytest.raises(InvalidRequestError, match="direct"):
        router.best_worker(PROMPT)
    router.close()


def test_two_routers_with_one_seed_decide_alike() -> None:
    def run() -> list[int]:
        router = KvRouter(KvRouterConfig(block_size=BLOCK), clock=ManualClock(), seed=42)
        for worker_id in range(8):
            router.add_worker(worker_id)
        chosen = [router.best_worker([i] * 40, f"r{i}")[0] for i in range(40)]
        router.close()
        return chosen

    assert run() == run()


def test_potential_loads_tell_what_a_request_would_add(router: KvRouter) -> None:
    router.apply_event(cache_event(PROMPT[: 2 * BLOCK]), worker_id=11)
    router.best_worker(PROMPT, "r1", pinned_worker=(10, 0))
    by_worker = {load.worker.worker_id: load for load in router.potential_loads(PROMPT)}
    assert by_worker[10].potential_decode_blocks == 4
    assert by_worker[10].potential_prefill_tokens == 128
    assert by_worker[11].potential_prefill_tokens == 32
    assert by_worker[12].potential_decode_blocks == 4


@pytest.mark.parametrize("policy", ["forecast", "dynamo:4"])
def test_a_shared_registry_may_have_had_more_workers_before(policy: str) -> None:
    registry = WorkerRegistry()
    for worker_id in range(3):
        registry.add(worker_id)
        registry.set_state(worker_id, WorkerState.READY)
    registry.remove(2)
    config = KvRouterConfig(policy=policy, use_kv_events=False)
    with KvRouter(config, registry=registry) as router:
        assert router.seconds_until_free() == 0
        assert router.decide([1] * 100, "a").worker.worker_id in (0, 1)
        router.add_worker(7)
        assert router.decide([2] * 100, "b", pinned_worker=7).worker.worker_id == 7
