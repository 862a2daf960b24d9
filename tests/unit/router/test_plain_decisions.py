"""Requests that are decided in one step go where all steps send them, and are booked as they do."""

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dynamo_router.base.clock import ManualClock
from dynamo_router.base.errors import NoWorkersError, RouterError
from dynamo_router.base.identity import WorkerWithDpRank
from dynamo_router.indexer.hashing import block_hashes, sequence_hashes
from dynamo_router.router.admission import Objectives
from dynamo_router.router.config import KvRouterConfig
from dynamo_router.router.kv_router import KvRouter
from dynamo_router.router.placement import Computed, Placement
from dynamo_router.router.policy import Decision

WORKERS = 3
BLOCK_SIZE = 4


def new_router(**settings: Any) -> tuple[KvRouter, ManualClock]:
    clock = ManualClock()
    router = KvRouter(KvRouterConfig(block_size=BLOCK_SIZE, **settings), clock=clock, seed=1)
    for worker in range(WORKERS):
        router.add_worker(worker, total_kv_blocks=64 if worker else None, max_num_batched_tokens=32)
    return router, clock


def stored(worker: int, tokens: list[int], event: int) -> bytes:
    local = block_hashes(tokens, BLOCK_SIZE)
    blocks = [
        {"block_hash": int(own), "tokens_hash": int(each)}
        for own, each in zip(sequence_hashes(local), local, strict=True)
    ]
    data = {"stored": {"parent_hash": None, "blocks": blocks}}
    return json.dumps({"event_id": event, "data": data}).encode()


TOKENS = st.lists(st.integers(0, 3), min_size=1, max_size=24)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("place"), TOKENS, st.sampled_from([None, 1, 40])),
        st.tuples(st.just("place"), TOKENS, st.sampled_from([None, 1, 40])),
        st.tuples(st.just("store"), st.integers(0, WORKERS - 1), TOKENS),
        st.tuples(st.just("first"), st.integers(0, 9), st.sampled_from([None, 0, 3])),
        st.tuples(st.just("free"), st.integers(0, 9), st.sampled_from([None, 5])),
        st.tuples(st.just("wait"), st.floats(0, 3), st.none()),
        st.tuples(st.just("weigh"), st.integers(0, WORKERS - 1), st.sampled_from([0.5, 1.0])),
        st.tuples(st.just("inhibit"), st.integers(0, WORKERS - 1), st.none()),
    ),
    max_size=30,
)


def walked(steps: list[Any], *, plain: bool) -> tuple[list[Any], list[Any]]:
    """What came of each step, and the loads after it."""
    router, clock = new_router()
    if not plain:
        router._plain = None
    told: list[Any] = []
    loads: list[Any] = []
    placed = 0
    with router:
        for number, (what, first, second) in enumerate(steps):
            found: Any = None
            if what == "place":
                placement = Placement(
                    router.prompt(first), f"r{placed}", clock.now(), expected_output_tokens=second
                )
                placed += 1
                try:
                    found = router.place(placement)
                except RouterError as error:
                    found = type(error), str(error)
            elif what == "store":
                router.apply_event(stored(first, second, number), first)
            elif what == "first":
                found = router.mark_prefill_complete(f"r{first}", cached_tokens=second)
            elif what == "free":
                found = router.free(f"r{first}", output_tokens=second)
            elif what == "wait":
                clock.advance(first)
            elif what == "weigh":
                router.registry.set_weight(first, second)
            else:
                router.registry.inhibit(first, clock.now() + 0.5)
            told.append((found, router.seconds_until_free()))
            slots = router.slots
            arrays = slots.active_blocks(), slots.active_prefill_tokens(), slots.active_requests()
            loads.append([each.tolist() for each in arrays])
        told.append(router.residuals)
        policy: Any = router._policy
        policy.check_integrity()
        told.append(policy.learnt())
    return told, loads


@settings(max_examples=150, deadline=None)
@given(STEPS)
def test_both_ways_decide_and_book_the_same(steps: list[Any]) -> None:
    assert walked(steps, plain=True) == walked(steps, plain=False)


def placed(router: KvRouter, **how: Any) -> Decision | None:
    """What is decided in one step, if it is."""
    assert router._plain is not None
    given = {"request_id": "r", **how}
    return router._plain.place(Placement(router.prompt([1, 2, 3, 4, 5]), **given))


async def test_a_usual_request_is_decided_in_one_step() -> None:
    router, _ = new_router()
    with router:
        found = placed(router, expected_output_tokens=4)
        assert found is not None and found.request_id == "r"
        assert router.slots.active_requests().sum() == 1
        assert placed(router) is None  # its id is in use
        with pytest.raises(RouterError, match="in use"):
            router.place(Placement(router.prompt([1]), "r"))


@pytest.mark.parametrize(
    "how",
    [
        {"request_id": ""},
        {"pinned": WorkerWithDpRank(1, 0)},
        {"excluded": {1}},
        {"allowed": (1,)},
        {"tenant": "a"},
        {"runners_up": 1},
        {"retried": True},
        {"computed": Computed(WorkerWithDpRank(1, 0), 1)},
        {"owner": "a"},
        {"objectives": Objectives(ttft_ms=5.0)},
    ],
    ids=str,
)
def test_what_asks_for_more_takes_all_steps(how: dict[str, Any]) -> None:
    router, _ = new_router()
    with router:
        assert placed(router, **how) is None
        assert router.slots.active_requests().sum() == 0


def weighted(router: KvRouter) -> None:
    router.registry.set_weight(1, 0.5)


def distrusted(router: KvRouter) -> None:
    policy: Any = router._policy
    policy.parts[1].trusted = False


def hot(router: KvRouter) -> None:
    policy: Any = router._policy
    policy.temperature = 0.5


@pytest.mark.parametrize("change", [weighted, distrusted, hot])
def test_where_more_has_a_say_all_steps_are_taken(change: Callable[[KvRouter], None]) -> None:
    router, _ = new_router()
    with router:
        change(router)
        assert placed(router) is None
        assert router.place(Placement(router.prompt([1]), "r")).request_id == "r"


def test_where_caches_are_predicted_all_steps_are_taken() -> None:
    router, _ = new_router(router_predicted_ttl_secs=5.0)
    with router:
        assert placed(router) is None
        assert router.place(Placement(router.prompt([1, 2, 3, 4]), "r")).overlap_blocks == 0
        router.free("r")  # else another worker has computed it as soon
        assert router.place(Placement(router.prompt([1, 2, 3, 4]), "s")).overlap_blocks == 1


@pytest.mark.parametrize(
    "settings",
    [
        {"policy": "dynamo"},
        {"use_kv_events": False},
        {"router_track_active_blocks": False},
        {"router_track_prefill_tokens": False},
        {"router_assume_kv_reuse": False},
        {"shadow_policy": "dynamo"},
    ],
    ids=str,
)
def test_settings_that_give_others_a_say_leave_no_short_way(settings: dict[str, Any]) -> None:
    router, _ = new_router(**settings)
    with router:
        assert router._plain is None
        assert router.place(Placement(router.prompt([1]), "r")).request_id == "r"


def test_without_workers_the_request_is_refused_by_all_steps() -> None:
    with KvRouter(KvRouterConfig(block_size=4)) as router:
        with pytest.raises(NoWorkersError):
            router.place(Placement(router.prompt(np.arange(5)), "r"))
