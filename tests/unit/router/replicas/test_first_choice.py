"""Routers in step that are asked at the same moment choose different workers."""

import math
from collections import Counter
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dynamo_router.base.clock import ManualClock
from dynamo_router.router.config import KvRouterConfig
from dynamo_router.router.kv_router import KvRouter
from dynamo_router.router.replicas import Replica
from dynamo_router.router.replicas.first_choice import (
    ARRIVES_S,
    FIRST,
    KEPT,
    LEAST,
    LOOK_S,
    NEAR_S,
    FirstChoice,
)
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


def booking_together(choice: FirstChoice) -> FirstChoice:
    """The same, which has heard of as many bookings of others as it made, each time."""
    for turn in range(50):
        for act in (choice.on_booked, choice.on_peer_booked):
            for _ in range(4):
                act(turn - 99.0)
    assert choice.coincidence == 1.0
    return choice


def prompt(first: int, blocks: int = 4) -> list[int]:
    return list(range(first, first + blocks * BLOCK))


def test_requests_of_one_moment_go_to_different_workers() -> None:
    routers, _ = routers_in_step(2, workers=6)
    chosen = [
        routers[turn % 2].decide(prompt(9000 * turn, 400), str(turn)).number for turn in range(6)
    ]
    assert sorted(chosen) == list(range(6))


@pytest.mark.parametrize("count", [2, 3, 4])
@pytest.mark.parametrize("workers", [4, 8, 32])
def test_a_burst_of_short_prompts_at_one_of_them_spreads_over_all_workers(
    count: int, workers: int
) -> None:
    """From the first one on, whichever router has it, and though others had theirs before."""
    routers, clock = routers_in_step(count, workers)
    rng = np.random.default_rng(workers)
    for turn in range(12):
        router, size = routers[turn % count], int(rng.integers(2, 65))
        sent: Counter[int] = Counter()
        for number in range(size):
            ids = rng.integers(9, 9999, int(rng.integers(30, 61)), np.uint32)
            sent[router.decide(ids, f"{turn}-{number}").number] += 1
            clock.advance(1e-4)
        assert max(sent.values()) <= max(1, math.ceil(1.5 * size / workers)), (turn, size, sent)
        clock.advance(1.0)
        for number in range(size):
            router.mark_prefill_complete(f"{turn}-{number}")
            router.free(f"{turn}-{number}")
        clock.advance(1.0)


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
    choice = booking_together(FirstChoice(registry_of(range(4))))
    for _ in range(3):
        choice.on_booked(1.0)
    soon = choice.unheard(1, [2], 1.0 + ARRIVES_S / 2)
    late = choice.unheard(1, [2], 1.0 + 2 * ARRIVES_S)
    assert soon is not None and late is not None
    assert soon.tolist() == [0.0, FIRST + 1.5, 0.0, FIRST + 1.5]
    assert late.tolist() == [0.0, FIRST, 0.0, FIRST]


def test_what_is_expected_is_shared_by_the_workers_that_are_there() -> None:
    """Numbers of workers that left are kept for others."""
    registry = registry_of(range(10))
    for worker in range(2, 10):
        registry.remove(worker)
    choice = booking_together(FirstChoice(registry))
    choice.on_booked(0.0)
    found = choice.unheard(1, [2], 0.0)
    assert found is not None and found.tolist() == [0.0, FIRST + 1.0] + [0.0] * 8


def test_workers_that_come_and_go_are_divided_anew() -> None:
    registry = registry_of([1, 2])
    choice = FirstChoice(registry)
    choice.unheard(1, [2], 0.0)
    registry.remove(1)
    registry.add(3)
    later = choice.unheard(1, [2], LOOK_S)
    assert later is not None and later.tolist() == [LEAST, 0.0]  # 3 has the number that 1 had
    registry.add(4)
    found = choice.unheard(1, [2], LOOK_S)  # at once: arrays are as long as there are numbers
    assert found is not None
    by_worker = {worker.worker_id: found[number] for number, worker in registry.numbered()}
    assert by_worker == {2: 0.0, 3: LEAST, 4: 0.0}


def test_of_others_that_book_nothing_when_this_one_does_nothing_is_expected() -> None:
    choice = FirstChoice(registry_of(range(4)))
    for _ in range(50):
        choice.on_booked(1.0)
    found = choice.unheard(1, [2], 1.0)
    assert found is not None and found.tolist() == [0.0, LEAST, 0.0, LEAST]
    choice.on_peer_booked(1.0 + 2 * NEAR_S)
    assert choice.coincidence == 0.0


@given(st.lists(st.sampled_from(["booked", "heard", "later", "much later"]), max_size=200))
def test_what_is_expected_is_within_its_bounds(turns: list[str]) -> None:
    choice, now, booked = FirstChoice(registry_of(range(4))), 0.0, 0
    for turn in turns:
        if turn == "booked":
            choice.on_booked(now)
            booked += 1
        elif turn == "heard":
            choice.on_peer_booked(now)
        else:
            now += ARRIVES_S / 3 if turn == "later" else 1.0
        found = choice.unheard(1, [2, 3], now)
        assert found is not None and found[0] == 0.0
        assert LEAST <= found[1] <= FIRST + booked * 3 / 4


def test_that_others_booked_when_this_one_did_fades_as_they_do_not() -> None:
    choice = booking_together(FirstChoice(registry_of(range(4))))
    for turn in range(math.ceil(math.log(0.05) / math.log(KEPT))):
        choice.on_booked(turn // 8)
    assert choice.coincidence < 0.2
