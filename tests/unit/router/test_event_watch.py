"""How late events are and how large caches are, from what events show; and what follows from it."""

from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dynamo_router import KvRouter, KvRouterConfig
from dynamo_router.base.clock import ManualClock
from dynamo_router.bench.workbench.index.workload import CacheEvents, Removed, Stored
from dynamo_router.indexer.event_index import EventIndex
from dynamo_router.indexer.hashing import block_hashes, sequence_hashes
from dynamo_router.router.event_watch import MAX_TTL_S, MIN_TTL_S, SAMPLE_EVERY
from dynamo_router.workers.registry import WorkerState

BLOCK = 16


class Fleet:
    """One router and workers that publish what they are sent, as late as they are told to."""

    def __init__(self, config: KvRouterConfig, workers: int = 2) -> None:
        self.clock = ManualClock()
        self.router = KvRouter(config, clock=self.clock, seed=1)
        self.events = CacheEvents()
        self.sent = 0
        for worker_id in range(workers):
            self.router.add_worker(worker_id)

    @property
    def index(self) -> EventIndex:
        assert isinstance(self.router.index, EventIndex)
        return self.router.index

    def prompt(self) -> list[int]:
        self.sent += 1
        return list(range(100 * self.sent, 100 * self.sent + 2 * BLOCK))

    def serve(self, lag_s: float | None) -> None:
        """A request whose first token comes at once, and its event so much later, if ever."""
        self.skip()
        prompt, name = self.prompt(), f"r{self.sent}"
        worker = self.router.decide(prompt, name).worker.worker_id
        self.router.mark_prefill_complete(name)
        if lag_s is not None:
            for _ in range(64 if lag_s else 0):
                self.clock.advance(lag_s / 64)
                self.router.decide([7] * BLOCK)  # somebody has to ask for time to be looked at
            self.store(worker, prompt)
        self.clock.advance(0.5)
        self.router.decide([7] * BLOCK)
        self.router.free(name)

    def skip(self) -> None:
        """Requests after which nobody looks: the next one is one that is looked after."""
        for other in range(SAMPLE_EVERY - 1):
            self.router.decide([7] * BLOCK, f"o{self.sent}-{other}")
            self.router.free(f"o{self.sent}-{other}")

    def store(self, worker: int, prompt: list[int]) -> None:
        local = block_hashes(np.array(prompt, np.uint32), BLOCK)
        where, event = self.events.store(Stored(worker, None, sequence_hashes(local), local))
        self.router.apply_event(event, where)

    def remove(self, worker: int, prompt: list[int]) -> None:
        local = block_hashes(np.array(prompt, np.uint32), BLOCK)
        where, event = self.events.remove(Removed(worker, sequence_hashes(local)[-1:]))
        self.router.apply_event(event, where)


@pytest.fixture
def fleet() -> Iterator[Fleet]:
    made = Fleet(KvRouterConfig(block_size=BLOCK))
    with made.router:
        yield made


def test_events_in_time_are_all_that_is_believed(fleet: Fleet) -> None:
    for _ in range(5):
        fleet.serve(0.0)
    assert fleet.index.predict_ttl_s == 0 and not fleet.index.predicts
    assert fleet.router.overlaps(fleet.prompt()) == {}


@given(lag_s=st.floats(0.5, 200.0))
def test_decisions_are_believed_for_longer_than_events_are_late(lag_s: float) -> None:
    fleet = Fleet(KvRouterConfig(block_size=BLOCK))
    with fleet.router:
        for _ in range(4):
            fleet.serve(lag_s)
        ttl_s = fleet.index.predict_ttl_s
        assert ttl_s is not None
        assert min(MAX_TTL_S, max(MIN_TTL_S, lag_s)) <= ttl_s
        assert ttl_s <= min(MAX_TTL_S, max(MIN_TTL_S, 3 * lag_s + 1e-6))
        fleet.skip()
        prompt = fleet.prompt()
        worker = fleet.router.decide(prompt, "x").worker
        fleet.clock.advance(0.9 * ttl_s)
        assert fleet.router.overlaps(prompt)[worker] == 2
        for _ in range(40):
            fleet.serve(0.0)
        assert fleet.index.predict_ttl_s == 0, "events are in time again"


def test_events_that_never_come_are_late_as_well(fleet: Fleet) -> None:
    for _ in range(20):
        fleet.serve(None)
    assert fleet.index.predict_ttl_s is not None and fleet.index.predict_ttl_s >= MIN_TTL_S


def test_a_worker_that_died_with_its_events_untold_is_not_late(fleet: Fleet) -> None:
    fleet.serve(None)
    for worker_id in range(2):
        fleet.router.registry.set_state(worker_id, WorkerState.UNHEALTHY)
    fleet.clock.advance(0.1)
    fleet.router.workers()
    for worker_id in range(2):
        fleet.router.registry.set_state(worker_id, WorkerState.READY)
    fleet.clock.advance(10.0)
    fleet.router.decide([7] * BLOCK)
    assert fleet.index.predict_ttl_s == 0.0


def test_dynamos_cost_and_a_time_that_was_set_are_left_alone() -> None:
    for config, ttl_s in (
        (KvRouterConfig(block_size=BLOCK, policy="dynamo"), None),
        (KvRouterConfig(block_size=BLOCK, router_predicted_ttl_secs=7.0), 7.0),
    ):
        fleet = Fleet(config)
        with fleet.router:
            for _ in range(4):
                fleet.serve(20.0)
            assert fleet.index.predict_ttl_s == ttl_s


def test_a_cache_that_evicts_was_full(fleet: Fleet) -> None:
    def blocks() -> list[int | None]:
        return [entry.total_kv_blocks for entry in fleet.router.registry.entries()]

    prompts = [fleet.prompt() for _ in range(5)]
    for prompt in prompts:
        fleet.store(0, prompt)
    fleet.clock.advance(3.0)
    fleet.router.decide([7] * BLOCK)
    assert blocks() == [None, None], "it may still grow"
    for prompt in prompts[:2]:
        fleet.remove(0, prompt)
        fleet.clock.advance(3.0)
        fleet.router.decide([7] * BLOCK)
    assert blocks() == [10, None]
    fleet.router.add_worker(0, total_kv_blocks=50)
    fleet.clock.advance(3.0)
    fleet.router.decide([7] * BLOCK)
    assert blocks() == [50, None], "what the engine tells counts"
