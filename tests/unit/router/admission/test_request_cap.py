"""A cap on the requests of each worker: held in the router beyond it, in every mode."""

import math
from typing import Any

import pytest

from dynamo_router.base.clock import ManualClock
from dynamo_router.base.errors import ConfigError
from dynamo_router.base.identity import WorkerWithDpRank
from dynamo_router.router.admission import AdmissionConfig, Ticket
from dynamo_router.router.config import KvRouterConfig
from dynamo_router.router.decider import new_queue
from dynamo_router.router.kv_router import KvRouter

MODES = ["kv", "round-robin", "random", "least-loaded", "power-of-two", "direct"]


def router_of(cap: str | None, mode: str = "kv", **more: Any) -> KvRouter:
    config = KvRouterConfig(
        mode=mode,
        use_kv_events=False,
        block_size=16,
        seed=1,
        admission=AdmissionConfig(max_requests_per_worker=cap, hold=False),
        **more,
    )
    return KvRouter(config, clock=ManualClock())


@pytest.mark.parametrize("mode", MODES)
def test_requests_wait_while_every_worker_has_as_many_as_it_may(mode: str) -> None:
    with router_of("2", mode) as router:
        router.add_worker(1)
        router.add_worker(2)
        queue, went = new_queue(router), dict[str, int]()
        assert router.limits.any_wait

        def lane(number: int) -> WorkerWithDpRank | None:
            return WorkerWithDpRank(number % 2 + 1, 0) if mode == "direct" else None

        def book(request_id: str, to: WorkerWithDpRank | None) -> None:
            went[request_id] = router.best_worker([5] * 40, request_id, pinned_worker=to)[0]

        for number in range(4):
            assert queue.is_open(lane(number))
            book(f"r{number}", lane(number))
        assert sorted(went.values()) == [1, 1, 2, 2]
        assert not queue.is_open(lane(4)) and queue.ask_again_s == math.inf
        queue.enter(lambda: Ticket("r4", 0.0, lane=lane(4)))
        assert queue.next() is None
        ended = next(name for name, worker in went.items() if worker == 1)
        router.free(ended)
        ticket = queue.next()
        assert ticket is not None and ticket.request_id == "r4"
        book("r4", ticket.lane)
        assert went["r4"] == 1 and router.requests_of(1) == 2


def test_a_pinned_request_waits_for_its_worker_while_others_are_free() -> None:
    with router_of("1") as router:
        router.add_worker(1)
        router.add_worker(2)
        router.best_worker([1], "a", pinned_worker=1)
        assert router.seconds_until_free() == 0.0
        assert router.seconds_until_free(1) == math.inf and router.seconds_until_free(2) == 0.0
        assert router.best_worker([1], "b")[0] == 2


def test_engine_is_what_each_engine_says_and_nothing_where_it_does_not() -> None:
    with router_of("engine", "round-robin") as router:
        router.add_worker(1, max_num_seqs=1)
        router.add_worker(2, max_num_seqs=3)
        got = [router.best_worker([1], f"r{n}")[0] for n in range(4)]
        assert sorted(got) == [1, 2, 2, 2] and router.seconds_until_free() == math.inf
        router.add_worker(3)  # tells nothing
        assert [router.best_worker([1], f"s{n}")[0] for n in range(5)] == [3] * 5
        assert router.seconds_until_free() == 0.0
        rows = {row.worker.worker_id: row for row in router.explain([1]).candidates}
        assert rows[1].reason == rows[2].reason == "has as many requests as it may"
        assert rows[3].eligible


def test_whoever_does_not_wait_is_not_refused() -> None:
    """A selection, or a further attempt of a request that has waited: the queue is not asked."""
    with router_of("1", "round-robin") as router:
        router.add_worker(1)
        assert [router.best_worker([1], f"r{n}")[0] for n in range(3)] == [1, 1, 1]


def test_each_rank_counts_for_itself() -> None:
    with router_of("1") as router:
        router.add_worker(1, dp_size=2)
        ranks = {router.best_worker([1], f"r{n}")[1] for n in range(2)}
        assert ranks == {0, 1} and router.seconds_until_free() == math.inf


def test_with_weights_the_one_that_is_not_full_goes_on() -> None:
    with router_of("4", "round-robin") as router:
        router.add_worker(1)
        router.add_worker(2, weight=0.25)
        got = [router.best_worker([1], f"r{n}")[0] for n in range(8)]
        assert got.count(1) == got.count(2) == 4 and router.seconds_until_free() == math.inf


@pytest.mark.parametrize("bad", ["0", "-1", "many", "", "1.5", "9" * 400])
def test_a_cap_that_is_none_is_refused(bad: str) -> None:
    with pytest.raises(ConfigError, match="is not none, engine or a number from 1 on") as caught:
        AdmissionConfig(max_requests_per_worker=bad)
    assert caught.value.key == "max_requests_per_worker"


def test_without_a_cap_nobody_waits() -> None:
    with router_of(None, "round-robin") as router:
        router.add_worker(1, max_num_seqs=1)
        assert not router.limits.any_wait and router.limits.full() is None
        for number in range(5):
            assert router.best_worker([1], f"r{number}")[0] == 1
        assert router.seconds_until_free() == 0.0
