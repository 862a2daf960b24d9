"""How long lanes wait, found for all of them at once: as each would be told by itself."""

import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dynamo_router.base.clock import ManualClock
from dynamo_router.base.identity import WorkerWithDpRank
from dynamo_router.router.admission import AdmissionConfig, AdmissionQueue, Ticket
from dynamo_router.router.config import KvRouterConfig
from dynamo_router.router.kv_router import KvRouter

WORKERS = 4
CONFIGS: list[dict[str, Any]] = [
    {},
    {"queue_threshold": 0.5},
    {"queue_threshold": 0.5, "active_prefill_tokens_threshold": 30},
    {"max_requests_per_worker": "2"},
    {"queue_threshold": 1.0, "max_requests_per_worker": "2"},
]


def router_of(**admission: Any) -> KvRouter:
    config = KvRouterConfig(
        block_size=4, seed=1, use_kv_events=False, admission=AdmissionConfig(**admission)
    )
    router = KvRouter(config, clock=ManualClock())
    for worker_id in range(WORKERS):
        router.add_worker(worker_id, max_num_batched_tokens=32, dp_size=1 + worker_id % 2)
    return router


@settings(max_examples=60)
@given(
    st.sampled_from(CONFIGS), st.lists(st.tuples(st.integers(0, WORKERS - 1), st.integers(1, 40)))
)
def test_they_are_what_each_lane_is_told_by_itself(
    config: dict[str, Any], load: list[tuple[int, int]]
) -> None:
    with router_of(**config) as router:
        for number, (worker_id, tokens) in enumerate(load):
            try:
                router.decide(list(range(tokens)), f"r{number}", pinned_worker=worker_id)
            except Exception:  # it is busy
                continue
        lanes = [None, *(rank for entry in router.registry.entries() for rank in entry.ranks)]
        seconds = router.wait_times()
        for lane in (*lanes, WorkerWithDpRank(99, 0)):
            assert seconds(lane) == router.seconds_until_free(lane), lane


def test_a_queue_asks_for_what_lanes_have_in_common_once() -> None:
    asked, free = 0, WorkerWithDpRank(700, 0)

    def wait_times() -> Any:
        nonlocal asked
        asked += 1
        return lambda lane: 0.0 if lane == free else math.inf

    def by_itself(lane: Any) -> float:
        raise AssertionError("one lane after the other")

    queue = AdmissionQueue(by_itself, wait_times=wait_times)
    for worker_id in range(1000):
        ticket = Ticket(str(worker_id), 0.0, lane=WorkerWithDpRank(worker_id, 0))
        queue.enter(lambda ticket=ticket: ticket)  # type: ignore[misc]
    ticket = queue.next()
    assert ticket is not None and ticket.request_id == "700" and asked == 1
    assert queue.next() is None and asked == 2 and queue.ask_again_s == math.inf


@pytest.mark.parametrize("config", CONFIGS)
def test_a_fleet_with_nothing_to_do_waits_for_nobody(config: dict[str, Any]) -> None:
    with router_of(**config) as router:
        seconds = router.wait_times()
        assert [seconds(None), seconds((1, 1)), seconds((0, 0))] == [0.0, 0.0, 0.0]
