"""Two routers in front of the same workers: each counts what the other has booked."""

import msgspec
import numpy as np
import pytest

from dynamo_router.base.clock import ManualClock
from dynamo_router.base.envelope import EventEnvelope, decode_envelope, encode_envelope
from dynamo_router.base.errors import ConfigError, EventError
from dynamo_router.router.config import KvRouterConfig
from dynamo_router.router.kv_router import KvRouter
from dynamo_router.router.policy import HeardBooking
from dynamo_router.router.replicas import Replica
from dynamo_router.router.replicas.dynamo_replicas import (
    ACTIVE_SEQUENCES,
    EXPIRY_S,
    DynamoReplicas,
)
from dynamo_router.slots.peers import Message, decode_message, encode_message

BLOCK = 16


class Site:
    """A router with its replica. Its clock is its own."""

    def __init__(self, router_id: int, *, start: float = 0.0, workers: int = 3, **config: object):
        self.clock = ManualClock(start)
        settings = KvRouterConfig(
            block_size=BLOCK,
            seed=1,
            use_kv_events=False,
            router_replica_sync=True,
            **config,  # type: ignore[arg-type]
        )
        self.router = KvRouter(settings, clock=self.clock)
        for worker in range(workers):
            self.router.add_worker(worker)
        self.load = self.router.count_peers()
        self.namesakes: list[tuple[str, int]] = []
        self.replica = Replica(
            self.load,
            router_id,
            "router",
            on_namesake=lambda beat: self.namesakes.append((beat.name, beat.router_id)),
        )

    def requests(self) -> list[int]:
        return [view.active_requests for view in self.router.workers()]

    def own(self) -> list[int]:
        return [view.own_requests for view in self.router.workers()]

    def loads(self) -> list[tuple[int, int, int]]:
        return [
            (view.active_blocks, view.active_prefill_tokens, view.active_requests)
            for view in self.router.workers()
        ]


def pass_on(sites: list[Site], seconds: float = 0.05) -> None:
    """What each has to say reaches the others, until nobody has anything more."""
    for site in sites:
        site.clock.advance(seconds)
    for _ in range(4):
        for site in sites:
            said: list[Message] = [*site.replica.batches(), *site.replica.tick(site.clock.now())]
            for other in sites:
                for message in said:
                    if other is not site:
                        decoded = decode_message(encode_message(message))
                        other.replica.hear(decoded, other.clock.now())


@pytest.fixture
def sites() -> list[Site]:
    made = [Site(1), Site(2, start=60.0)]
    for _ in range(8):
        pass_on(made)
    return made


def prompt(first: int, blocks: int = 4) -> list[int]:
    return list(range(first, first + blocks * BLOCK))


def test_each_counts_what_the_other_has_booked(sites: list[Site]) -> None:
    one, two = sites
    one.router.decide(prompt(0), "a", pinned_worker=1)
    two.router.decide(prompt(0), "a", pinned_worker=1)
    two.router.decide(prompt(500), "b", pinned_worker=2)
    pass_on(sites)
    assert one.requests() == two.requests() == [0, 2, 1]
    assert (one.own(), two.own()) == ([0, 1, 0], [0, 1, 1])
    assert one.loads() == two.loads()
    assert one.loads()[1] == (4, 128, 2)  # the prompt's blocks once, though both have it
    two.router.mark_prefill_complete("b", cached_tokens=16)
    one.router.free("a", output_tokens=9)
    pass_on(sites)
    assert one.loads() == two.loads() == [(0, 0, 0), (4, 64, 1), (4, 0, 1)]
    for site in sites:
        site.router.slots.check_integrity()
        assert site.router.requests_of(1) == site.own()[1]


def test_decisions_keep_clear_of_what_others_booked() -> None:
    one, two = sites = [Site(1, policy="dynamo"), Site(2, policy="dynamo")]
    for _ in range(8):
        pass_on(sites)
    chosen = set()
    for turn in range(6):
        site = sites[turn % 2]
        chosen.add(site.router.decide(prompt(1000 * turn, 30), str(turn)).number)
        pass_on(sites)
        if turn == 2:
            assert len(chosen) == 3
    assert one.requests() == two.requests() == [2, 2, 2]


def test_the_forecast_counts_the_others_requests(sites: list[Site]) -> None:
    one, two = sites
    two.router.decide(prompt(0, 200), "a", pinned_worker=0)
    terms = {term.worker.worker_id: term.cost for term in one.router.explain(prompt(0)).candidates}
    assert terms[0] == terms[2]  # both are this router's first choice
    pass_on(sites)
    terms = {term.worker.worker_id: term.cost for term in one.router.explain(prompt(0)).candidates}
    assert terms[0] > terms[2]
    two.router.mark_prefill_complete("a")
    two.router.free("a", output_tokens=12)
    pass_on(sites)
    policy = one.router._policy
    assert len(policy._forecast) == 0  # type: ignore[attr-defined]
    policy.check_integrity()  # type: ignore[attr-defined]


def test_a_policy_is_told_what_a_heard_request_weighs_where_it_is(sites: list[Site]) -> None:
    """What it asks of the one worker is what it would find among all of them."""
    one, two = sites
    weights: list[tuple[float, float, float]] = []
    learner = two.load._learner

    def told(heard: HeardBooking) -> None:
        candidates, number = heard.candidates(), heard.number
        there = candidates.blocks_with(number), candidates.potential_blocks[number]
        weights.append((heard.blocks(), *there))

    learner.on_heard = told  # type: ignore[method-assign]
    one.router.decide(prompt(0, 8), "a", pinned_worker=1)
    one.router.decide(prompt(0, 20), "b", pinned_worker=1)
    two.router.decide(prompt(500, 3), "c", pinned_worker=2)
    one.router.decide(prompt(500, 5), "d", pinned_worker=2)
    weights.clear()
    pass_on(sites)
    assert weights == [(8, 8, 8), (20, 20, 20), (5, 5, 5)]


def test_a_late_joiner_gets_the_picture_and_learns_nothing_from_old_first_tokens() -> None:
    one = Site(1)
    one.router.decide(prompt(0), "a", pinned_worker=0)
    one.router.mark_prefill_complete("a")
    one.router.decide(prompt(500), "b", pinned_worker=1)
    one.clock.advance(5)
    two = Site(2, start=1e6)
    before = two.router._policy.learnt()  # type: ignore[attr-defined]
    for _ in range(8):
        pass_on([one, two])
    assert two.loads() == one.loads() == [(4, 0, 1), (4, 64, 1), (0, 0, 0)]
    one.router.free("a", output_tokens=5)
    pass_on([one, two])
    assert two.loads() == one.loads()
    assert two.router._policy.learnt() == before  # type: ignore[attr-defined]


def test_bookings_on_a_worker_that_is_not_registered_yet_count_when_it_is(
    sites: list[Site],
) -> None:
    one, two = sites
    two.router.add_worker(9)
    two.router.decide(prompt(0), "a", pinned_worker=9)
    pass_on(sites)
    assert one.requests() == [0, 0, 0]
    one.router.add_worker(9)
    assert one.requests() == [0, 0, 0, 1]
    one.router.add_worker(9)  # renewed: still once
    assert one.loads() == two.loads()
    assert one.router.remove_worker(9) == []  # no request of its own
    one.router.add_worker(9)
    assert one.requests() == [0, 0, 0, 1]
    two.router.free("a")
    pass_on(sites)
    assert one.requests() == [0, 0, 0, 0]
    assert two.router.remove_worker(9) == []


def test_what_expires_or_goes_with_its_worker_is_told(sites: list[Site]) -> None:
    one, two = sites
    one.router.decide(prompt(0), "a", pinned_worker=0)
    one.router.decide(prompt(0), "b", pinned_worker=1)
    pass_on(sites)
    assert two.requests() == [1, 1, 0]
    assert one.router.remove_worker(1) == ["b"]
    pass_on(sites)
    assert two.requests() == [1, 0, 0]
    for _ in range(301):
        pass_on(sites, 1.0)
    assert one.requests() == [0, 0]  # nobody touched it
    pass_on(sites)
    assert two.requests() == [0, 0, 0]


def test_the_others_bookings_live_as_long_as_they_are_there(sites: list[Site]) -> None:
    one, two = sites
    one.router.decide(prompt(0), "a", pinned_worker=0)
    for _ in range(400):
        one.router.touch("a")
        pass_on(sites, 1.0)
    assert two.requests() == [1, 0, 0]
    for _ in range(4):  # the other one died
        two.clock.advance(1.0)
        two.replica.tick(two.clock.now())
    assert two.requests() == [0, 0, 0]


def test_an_end_forgets_everybody(sites: list[Site]) -> None:
    one, two = sites
    one.router.decide(prompt(0), "a", pinned_worker=0)
    pass_on(sites)
    leaving = one.replica.close()
    for message in leaving:
        two.replica.hear(message, two.clock.now())
    assert two.requests() == [0, 0, 0]
    one.router.free("a")  # nobody is told
    assert one.replica.own.pending == 0


def test_without_reuse_no_blocks_are_shared() -> None:
    sites = [Site(1, router_assume_kv_reuse=False), Site(2, router_assume_kv_reuse=False)]
    for _ in range(8):
        pass_on(sites)
    for site in sites:
        site.router.decide(prompt(0), "a", pinned_worker=0)
    pass_on(sites)
    assert sites[0].loads()[0] == sites[1].loads()[0] == (8, 128, 2)


def test_two_routers_with_one_name_are_told_apart_and_named_once(sites: list[Site]) -> None:
    """Their ids differ; what the name is for are people, who are told."""
    made = [Site(4), Site(5)]
    for _ in range(12):
        pass_on(made)
    assert [site.namesakes for site in made] == [[("router", 5)], [("router", 4)]]
    made[0].router.decide(prompt(0), "a", pinned_worker=1)
    made[1].router.decide(prompt(0), "a", pinned_worker=1)
    pass_on(made)
    assert made[0].requests() == made[1].requests() == [0, 2, 0]


def test_a_router_that_shares_nothing_counts_nobody() -> None:
    with KvRouter(KvRouterConfig(use_kv_events=False)) as router, pytest.raises(ConfigError):
        router.count_peers()


# Dynamo's routers


def wrapped(payload: object) -> bytes:
    return encode_envelope(
        EventEnvelope(77, 0, 0, ACTIVE_SEQUENCES, msgspec.msgpack.encode(payload))
    )


def dynamo_event(data: object, router_id: int = 77, worker_id: int = 1) -> dict[str, object]:
    worker = {"worker_id": worker_id, "dp_rank": 0}
    return {
        "request_id": "a",
        "worker": worker,
        "data": data,
        "router_id": router_id,
        "lora_name": None,
    }


ADD = {
    "AddRequest": {
        "token_sequence": [1, 2**64 - 1],
        "track_prefill_tokens": True,
        "expected_output_tokens": 10,
        "prefill_load_hint": {
            "initial_effective_prefill_tokens": 20,
            "expected_prefill_duration": None,
        },
    }
}


def test_a_router_of_dynamos_is_counted() -> None:
    site = Site(1)
    dynamo = DynamoReplicas(site.load, 1)
    assert not dynamo.listens(0.0)
    assert not dynamo.hear(wrapped(dynamo_event(ADD)), 0.0, ())
    assert site.loads()[1] == (2, 20, 1) and dynamo.listens(1.0)
    assert dynamo.hear(wrapped({"events": [dynamo_event("MarkPrefillCompleted", 1000)]}), 0.0, ())
    assert site.loads()[1] == (2, 0, 1)
    assert dynamo.hear(wrapped(dynamo_event("Free")), 0.0, ())
    assert site.loads()[1] == (0, 0, 0)
    assert not dynamo.hear(wrapped(dynamo_event("Free")), 0.0, ())
    for ours in (1, 5):  # told already, or by ourselves
        dynamo.hear(wrapped(dynamo_event(ADD, router_id=ours)), 0.0, {5})
        assert len(dynamo) == 0
    dynamo.hear(wrapped(dynamo_event(ADD)), 0.0, ())
    dynamo.tick(EXPIRY_S)
    assert site.loads()[1] == (0, 0, 0) and not dynamo.listens(EXPIRY_S)


def test_what_dynamos_routers_booked_on_workers_of_another_set_is_passed_over() -> None:
    site = Site(1)
    dynamo = DynamoReplicas(site.load, 1, lambda: {1})
    assert not dynamo.hear(wrapped(dynamo_event(ADD)), 0.0, ())
    assert len(dynamo) == 0 and not dynamo.listens(0.0)


def test_dynamos_routers_are_told_in_their_words() -> None:
    site = Site(3)
    dynamo = DynamoReplicas(site.load, 3)
    decision = site.router.decide(prompt(0), "a", pinned_worker=2)
    site.router.mark_prefill_complete("a")
    site.router.free("a")
    site.router.free("unknown")
    [batch] = site.replica.batches()
    told = [decode_envelope(message) for message in dynamo.singly(batch.events)]
    assert [envelope.sequence for envelope in told] == [0, 1, 2]
    assert {envelope.topic for envelope in told} == {ACTIVE_SEQUENCES}
    add, prefilled, free = (msgspec.msgpack.decode(envelope.payload) for envelope in told)
    hashes = site.router.prompt(prompt(0)).hashed().sequence_hashes
    assert add == dynamo_event(
        {
            "AddRequest": {
                "token_sequence": np.asarray(hashes).tolist(),
                "track_prefill_tokens": True,
                "expected_output_tokens": None,
                "prefill_load_hint": {
                    "initial_effective_prefill_tokens": 64,
                    "expected_prefill_duration": None,
                },
            }
        },
        router_id=3,
        worker_id=decision.worker.worker_id,
    )
    assert prefilled["data"] == "MarkPrefillCompleted" and free["data"] == "Free"
    assert list(dynamo.singly(batch.events[1:])) == []  # of a request they were not told of


@pytest.mark.parametrize(
    "payload", [[1], {"request_id": "a"}, {"events": 5}, dynamo_event("Nothing")]
)
def test_what_is_none_of_dynamos_events_is_refused(payload: object) -> None:
    with pytest.raises(EventError):
        DynamoReplicas(Site(1).load, 1).hear(wrapped(payload), 0.0, ())


def test_hashes_out_of_range_are_refused() -> None:
    event = dynamo_event({"AddRequest": {"token_sequence": [-1]}})
    with pytest.raises(EventError):
        DynamoReplicas(Site(1).load, 1).hear(wrapped(event), 0.0, ())
