"""Routers in step that are asked at the same moment choose different workers."""

from collections.abc import Sequence

import numpy as np
import pytest

from dynamo_router.base.clock import ManualClock
from dynamo_router.router.config import KvRouterConfig
from dynamo_router.router.kv_router import KvRouter
from dynamo_router.router.replicas import Replica
from dynamo_router.router.replicas.first_choice import ALWAYS, HEAR_S, LOOK_S, FirstChoice
from dynamo_router.workers.registry import WorkerRegistry

BLOCK = 16


def registry_of(workers: Sequence[int]) -> WorkerRegistry:
    registry = WorkerRegistry()
    for worker in workers:
        registry.add(worker)
    return registry


def routers_in_step(count: int, workers: int) -> tuple[list[KvRouter], ManualClock]:
    made, clock = [], ManualClock(0.0)
    for number in range(count):
        config = KvRouterConfig(
            block_size=BLOCK, seed=1, use_kv_events=False, router_replica_sync=True
        )
        router = KvRouter(config, clock=clock)
        for worker in range(workers):
            router.add_worker(worker)
        made.append((router, Replica(router.count_peers(), number + 1)))
    for _ in range(8):
        clock.advance(0.05)
        said = [(own, each) for _, own in made for each in own.tick(clock.now())]
        for _, replica in made:
            for own, message in said:
                if own is not replica:
                    replica.hear(message, clock.now())
    return [router for router, _ in made], clock


def prompt(first: int, blocks: int = 4) -> list[int]:
    return list(range(first, first + blocks * BLOCK))


def test_requests_of_one_moment_go_to_different_workers() -> None:
    routers, _ = routers_in_step(2, workers=6)
    chosen = [
        routers[turn % 2].decide(prompt(9000 * turn, 400), str(turn)).number for turn in range(6)
    ]
    assert sorted(chosen) == list(range(6))


def test_a_long_cached_prefix_is_followed_to_a_worker_of_another_router() -> None:
    (one, _), clock = routers_in_step(2, workers=2)
    one.decide(prompt(0, 1200), "first", pinned_worker=1)
    one.mark_prefill_complete("first")
    one.free("first")
    clock.advance(0.1)
    assert one.decide(prompt(0, 1200), "again").worker.worker_id == 1
    assert one.decide(prompt(90_000, 1), "other").worker.worker_id == 0


def test_explanations_tell_it_and_the_cost_has_it() -> None:
    (one, _), _ = routers_in_step(2, workers=2)
    mine, other = one.explain(prompt(0)).candidates
    assert mine.policy_terms["unheard_s"] == 0.0
    assert other.policy_terms["unheard_s"] > 0.0
    assert other.policy_terms["cost"] - mine.policy_terms["cost"] == pytest.approx(
        other.policy_terms["unheard_s"]
    )


def test_who_is_alone_expects_nothing() -> None:
    choice = FirstChoice(registry_of(range(4)))
    choice.on_booked(0.0)
    assert choice.unheard(7, [], 0.0) is None


@pytest.mark.parametrize("count", [2, 3, 4])
def test_every_worker_is_the_first_choice_of_one_router(count: int) -> None:
    """However differently the routers have numbered the workers."""
    ids = [30, 10, 40, 20][:count]
    owners: dict[int, list[int]] = {worker: [] for worker in range(9)}
    for place, own in enumerate(ids):
        order = np.random.default_rng(place).permutation(9).tolist()
        registry = registry_of(order)
        found = FirstChoice(registry).unheard(own, [each for each in ids if each != own], 0.0)
        assert found is not None
        for number, worker in registry.numbered():
            if found[number] == 0.0:
                owners[worker.worker_id].append(own)
    assert all(len(each) == 1 for each in owners.values())
    shares = [sum(each == [own] for each in owners.values()) for own in ids]
    assert max(shares) - min(shares) <= 1


def test_as_many_as_this_router_booked_of_late_are_expected() -> None:
    choice = FirstChoice(registry_of(range(4)))
    for _ in range(3):
        choice.on_booked(1.0)
    soon = choice.unheard(1, [2], 1.0 + HEAR_S / 2)
    late = choice.unheard(1, [2], 1.0 + 2 * HEAR_S)
    assert soon is not None and late is not None
    assert soon.tolist() == [0.0, ALWAYS + 1.5, 0.0, ALWAYS + 1.5]
    assert late.tolist() == [0.0, ALWAYS, 0.0, ALWAYS]


def test_what_is_expected_is_shared_by_the_workers_that_are_there() -> None:
    """Numbers of workers that left are kept for others."""
    registry = registry_of(range(10))
    for worker in range(2, 10):
        registry.remove(worker)
    choice = FirstChoice(registry)
    choice.on_booked(0.0)
    found = choice.unheard(1, [2], 0.0)
    assert found is not None and found.tolist() == [0.0, ALWAYS + 1.0] + [0.0] * 8


def test_workers_that_come_and_go_are_divided_anew() -> None:
    registry = registry_of([1, 2])
    choice = FirstChoice(registry)
    choice.unheard(1, [2], 0.0)
    registry.remove(1)
    registry.add(3)
    later = choice.unheard(1, [2], LOOK_S)
    assert later is not None and later.tolist() == [ALWAYS, 0.0]  # 3 has the number that 1 had
    registry.add(4)
    found = choice.unheard(1, [2], LOOK_S)  # at once: arrays are as long as there are numbers
    assert found is not None
    by_worker = {worker.worker_id: found[number] for number, worker in registry.numbered()}
    assert by_worker == {2: 0.0, 3: ALWAYS, 4: 0.0}
