"""What a router that lies about its bookings can do to another one: no policy lets it stop service,
and what engines refute is not counted."""

import numpy as np
import pytest

from dynamo_router.base.clock import ManualClock
from dynamo_router.base.errors import NoWorkersError
from dynamo_router.router.admission import AdmissionConfig
from dynamo_router.router.config import KvRouterConfig
from dynamo_router.router.kv_router import KvRouter
from dynamo_router.router.replicas import Replica
from dynamo_router.router.replicas.peer_evidence import DOUBT_S, LATE_S, MANY
from dynamo_router.router.replicas.peer_load import (
    BUSY_PROBE_S,
    MOST_BUSY_PROBE_S,
    PROBE_S,
)
from dynamo_router.slots.peers import Batch, Beat, Booked, Ended, Event, Picture, Prefilled

WORKERS = 3
KV_BLOCKS = 1000
SEQS = 32
HOLDS: dict[str, dict[str, str | float | bool]] = {
    "forecast": {},
    "threshold": {"policy": "dynamo", "queue_threshold": 0.5},
    "cap": {"policy": "dynamo", "max_requests_per_worker": "engine"},
    "busy by prompts": {"policy": "dynamo", "active_prefill_tokens_threshold": 4096},
    "busy by blocks": {"policy": "dynamo", "active_decode_blocks_threshold": 0.8},
    "shed": {"shed": True},
}


class Site:
    """One router, and others that say what they like."""

    def __init__(self, policy: str = "forecast", **admission: object) -> None:
        self.clock = ManualClock(1000.0)
        settings = KvRouterConfig(
            block_size=16,
            seed=1,
            use_kv_events=False,
            router_replica_sync=True,
            policy=policy,
            admission=AdmissionConfig(**admission),  # type: ignore[arg-type]
        )
        self.router = KvRouter(settings, clock=self.clock)
        for worker in range(WORKERS):
            self.router.add_worker(
                worker, max_num_seqs=SEQS, total_kv_blocks=KV_BLOCKS, max_num_batched_tokens=8192
            )
        self.load = self.router.count_peers()
        self.replica = Replica(self.load, 1)
        self.sequences: dict[int, int] = {}
        self.served = 0

    def say(self, router_id: int, events: list[Event]) -> None:
        """A peer says this, and that it has said no more."""
        now = self.clock.now()
        if router_id not in self.sequences:
            self.sequences[router_id] = 0
            self.replica.hear(Picture(router_id, 0, 0, 1, []), now)
        for begin in range(0, len(events), 256):
            batch = Batch(router_id, self.sequences[router_id], events[begin : begin + 256])
            self.replica.hear(batch, now)
            self.sequences[router_id] += 1
        self.replica.hear(Beat(router_id, "false", self.sequences[router_id]), now)

    def wait(self, seconds: float, peers: list[int]) -> None:
        end = self.clock.now() + seconds
        while self.clock.now() < end:
            self.clock.advance(0.25)
            for router_id in peers:
                self.replica.hear(
                    Beat(router_id, "false", self.sequences[router_id]), self.clock.now()
                )
            self.replica.tick(self.clock.now())

    def serve(self, worker: int | None = None) -> bool:
        """One request that comes now is answered at once by its engine, unless it must wait."""
        if self.router.seconds_until_free(worker) > 0:
            return False
        name = f"own-{self.served}"
        try:
            prompt = np.arange(40) + 1000 * self.served
            self.router.best_worker(prompt, name, pinned_worker=worker)
        except NoWorkersError:
            return False
        self.served += 1
        self.clock.advance(0.02)
        self.router.mark_prefill_complete(name)
        self.router.free(name, output_tokens=1)
        return True

    def claimed(self) -> int:
        return sum(view.active_requests - view.own_requests for view in self.router.workers())


def claims(
    count: int, *, blocks: int = 2, prefilled: bool = False, tokens: int = 4096, mark: str = "f"
) -> list[Event]:
    numbers = np.arange(count * blocks, dtype=np.uint64).reshape(count, blocks)
    return [
        Booked(f"{mark}{n}", n % WORKERS, 0, numbers[n].tobytes(), tokens, tokens, 100, prefilled)
        for n in range(count)
    ]


@pytest.mark.parametrize("hold", HOLDS)
@pytest.mark.parametrize("prefilled", [False, True], ids=["waiting", "running"])
@pytest.mark.parametrize("blocks", [2, 40])
def test_10_000_false_bookings_stop_no_service(hold: str, prefilled: bool, blocks: int) -> None:
    site = Site(**HOLDS[hold])  # type: ignore[arg-type]
    site.say(2, claims(10_000, prefilled=prefilled, blocks=blocks))
    assert site.claimed() == 10_000
    if not site.serve():
        site.wait(PROBE_S + 0.25, [2])
        assert site.serve()
    asked = 0
    while site.claimed():  # each engine that is asked refutes what is claimed of it
        site.wait(PROBE_S + 0.25, [2])
        assert site.serve()
        asked += 1
    assert asked <= WORKERS + 1
    site.say(2, claims(10_000, mark="again", prefilled=prefilled))
    assert site.claimed() == 0 and site.serve()
    site.wait(DOUBT_S, [2])
    site.say(2, claims(3, mark="honest"))
    assert site.claimed() == 3


def test_new_false_routers_each_second_are_doubted_from_the_start() -> None:
    site = Site()
    site.say(2, claims(10_000))
    assert not site.serve()
    site.wait(PROBE_S + 0.25, [2])
    assert site.serve()
    site.replica.hear(Beat(2, "false", 0, leaving=True), site.clock.now())
    assert site.claimed() == 0
    for router_id in range(3, 20):
        site.say(router_id, claims(5_000, mark=f"{router_id}-"))
        assert site.claimed() == 0 and site.serve()
        site.wait(1.0, [router_id])


def test_a_doubt_lasts_longer_each_time() -> None:
    site = Site()
    doubts = []
    for turn in range(3):
        site.say(2, claims(1000, mark=f"{turn}-"))
        assert not site.serve()
        site.wait(PROBE_S + 0.25, [2])
        assert site.serve()
        site.wait(1.0, [2])
        assert site.claimed() == 0
        began = site.clock.now()
        while not site.claimed():
            site.say(2, claims(1, mark=f"look {site.clock.now()} "))
            site.wait(1.0, [2])
        doubts.append(site.clock.now() - began)
    assert doubts[0] < DOUBT_S + 3 and doubts[2] > 3 * doubts[0]


def test_claims_that_engines_bear_out_count_however_many_they_are() -> None:
    site = Site()
    events = claims(300, tokens=64)
    site.say(2, events)
    site.say(2, [Prefilled(event.request_id) for event in events[:290]])
    site.wait(PROBE_S, [2])
    site.serve()  # those that are left are computed just after it
    site.say(2, [Prefilled(event.request_id) for event in events[290:]])
    site.wait(LATE_S + 1, [2])
    assert site.claimed() == 300 and not site.load.evidence.doubted


def test_a_few_that_never_begin_are_left_out_and_their_router_is_believed() -> None:
    site = Site()
    site.say(2, claims(MANY - 2, tokens=16))
    site.wait(PROBE_S + 0.25, [2])
    for worker in range(WORKERS):
        assert site.serve(worker)
        site.wait(1.0, [2])
    assert site.claimed() == 0
    site.say(2, claims(3, mark="later"))
    assert site.claimed() == 3


def test_a_prompt_that_was_overtaken_counts_from_its_first_token_on() -> None:
    """A long prompt in pieces, or an engine that takes short ones first."""
    site = Site()
    site.say(2, claims(3, mark="long"))
    for worker in range(WORKERS):
        site.wait(1.0, [2])
        assert site.serve(worker)
    site.wait(LATE_S, [2])
    assert site.claimed() == 0 and site.load.evidence.refuted == 3
    site.say(2, [Prefilled(f"long{n}", 0) for n in range(2)])
    assert [view.active_requests for view in site.router.workers()] == [1, 1, 0]
    assert [view.active_prefill_tokens for view in site.router.workers()] == [0, 0, 0]
    site.serve(0)
    site.wait(LATE_S, [2])
    assert site.claimed() == 2  # as answers that run, which nobody overtakes
    site.say(2, [Ended(f"long{n}", 9) for n in range(3)])
    assert site.claimed() == 0 and not len(site.load.evidence)


def test_first_tokens_that_a_doubted_router_reports_are_not_counted() -> None:
    site = Site()
    site.say(2, claims(WORKERS * MANY))
    site.wait(PROBE_S + 0.25, [2])
    for worker in range(WORKERS):
        assert site.serve(worker)
        site.wait(PROBE_S, [2])
    site.wait(LATE_S, [2])
    assert site.claimed() == 0 and site.load.evidence.doubted == 1
    site.say(2, [Prefilled(f"f{n}", 0) for n in range(WORKERS * MANY)])
    assert site.claimed() == 0


def test_a_story_that_moves_holds_others_for_a_time_at_most() -> None:
    site = Site()
    site.router.best_worker(np.arange(40), "streams")
    site.router.mark_prefill_complete("streams")
    site.say(2, claims(500))
    waited = 0.0
    while not site.serve():
        site.say(2, [Ended(f"f{int(waited)}", 1)])
        site.wait(1.0, [2])
        waited += 1
    assert BUSY_PROBE_S < waited <= MOST_BUSY_PROBE_S + 1


def test_a_router_alone_or_with_idle_others_holds_as_ever() -> None:
    site = Site(policy="dynamo", max_requests_per_worker="1")
    for n in range(WORKERS):
        site.router.best_worker(np.arange(40) + 1000 * n, f"own-{n}")
    site.say(2, [])
    site.wait(10 * MOST_BUSY_PROBE_S, [2])
    assert site.router.seconds_until_free() == float("inf")
