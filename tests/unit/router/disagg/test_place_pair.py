"""KvRouter.place_pair: both legs are chosen and booked in one step, and released once each."""

import math
from collections.abc import Iterator

import pytest
from support.kv_events.messages import prompt_message
from support.policy.routers import router_among

from dynamo_router import KvRouter
from dynamo_router.base.clock import ManualClock
from dynamo_router.base.errors import InvalidRequestError, NoWorkersError
from dynamo_router.base.identity import WorkerWithDpRank
from dynamo_router.router.affinity import AffinityConfig, Session
from dynamo_router.router.disagg import DisaggConfig, PairRule
from dynamo_router.router.placement import Placement

BLOCK = 16
PREFILL, DECODE = (1, 2), (11, 12)
LONG = list(range(1, 1 + 400 * BLOCK))
SHORT = LONG[:BLOCK]


@pytest.fixture
def prefill(clock: ManualClock) -> Iterator[KvRouter]:
    with router_among(*PREFILL, clock=clock, block_size=BLOCK) as made:
        yield made


@pytest.fixture
def decode(clock: ManualClock) -> Iterator[KvRouter]:
    with router_among(*DECODE, clock=clock, block_size=BLOCK) as made:
        for worker in DECODE:
            made.add_worker(worker, total_kv_blocks=1000, max_num_batched_tokens=8192)
        yield made


def placement(router: KvRouter, request_id: str, tokens: list[int] = LONG) -> Placement:
    return Placement(router.prompt(tokens), request_id)


def booked(*routers: KvRouter) -> list[int]:
    return [router.slots.total_requests for router in routers]


ALWAYS = DisaggConfig(disagg="always")


def test_both_legs_are_booked_at_once_and_released_once_each(
    prefill: KvRouter, decode: KvRouter
) -> None:
    rule = PairRule(ALWAYS)
    pair = decode.place_pair(placement(decode, "a"), prefill, rule)
    assert pair.prefill is not None and pair.prefill.worker.worker_id in PREFILL
    assert pair.decode.worker.worker_id in DECODE
    assert booked(prefill, decode) == [1, 1]
    assert prefill.slots.active_prefill_tokens().sum() == len(LONG)
    assert decode.slots.active_prefill_tokens().sum() == 0, "its prompt is computed elsewhere"
    assert decode.slots.active_blocks().sum() == len(LONG) // BLOCK, "room is reserved"
    assert prefill.mark_prefill_complete("a") and prefill.free("a", output_tokens=1)
    assert decode.mark_prefill_complete("a") and decode.free("a", output_tokens=9)
    assert not prefill.free("a") and not decode.free("a")
    assert booked(prefill, decode) == [0, 0]
    assert rule.decisions == {"remote_always": 1}
    assert pair.to_dict()["prefill"]["worker_id"] == pair.prefill.worker.worker_id


def test_a_short_prompt_is_computed_where_it_is_decoded(
    prefill: KvRouter, decode: KvRouter
) -> None:
    pair = decode.place_pair(placement(decode, "a", SHORT), prefill, PairRule(DisaggConfig()))
    assert pair.prefill is None and pair.reason == "not_faster"
    assert pair.local_s is not None and pair.remote_s is not None
    assert booked(prefill, decode) == [0, 1]
    assert decode.slots.active_prefill_tokens().sum() == len(SHORT)


def test_long_prompts_go_to_prefill_workers_once_answers_would_stand_still(
    prefill: KvRouter, decode: KvRouter
) -> None:
    rule = PairRule(DisaggConfig())
    for i in range(40):  # answers under way
        decode.place(placement(decode, f"old{i}", SHORT))
        decode.mark_prefill_complete(f"old{i}")
    assert decode.place_pair(placement(decode, "a"), prefill, rule).prefill is not None


def test_decisions_see_those_before_them(prefill: KvRouter, decode: KvRouter) -> None:
    """A burst in one moment: what is booked counts at once, so that it does not all go one way."""
    rule = PairRule(DisaggConfig())
    for i in range(10):
        decode.place(placement(decode, f"old{i}", SHORT))
        decode.mark_prefill_complete(f"old{i}")
    ways = [
        decode.place_pair(
            Placement(decode.prompt([i + 1, *LONG[: 60 * BLOCK]]), f"r{i}"), prefill, rule
        ).prefill
        for i in range(30)
    ]
    workers = {None if each is None else each.worker.worker_id for each in ways}
    assert workers == {None, *PREFILL}


def test_no_prefill_is_begun_for_which_no_decode_worker_has_room(
    prefill: KvRouter, decode: KvRouter
) -> None:
    rule = PairRule(ALWAYS)
    ids = iter(range(10))
    with pytest.raises(NoWorkersError) as caught:
        for i in ids:
            prompt = decode.prompt([i + 1, *LONG[:-1]])
            decode.place_pair(Placement(prompt, f"r{i}"), prefill, rule)
    assert caught.value.overloaded
    assert next(ids) == 5, "two of 400 blocks have room in each of 1000"
    assert booked(prefill, decode) == [4, 4]
    decode.free("r0")
    decode.place_pair(Placement(decode.prompt([5, *LONG[:-1]]), "r4"), prefill, rule)


def test_without_prefill_workers_the_decode_worker_computes(decode: KvRouter) -> None:
    with router_among(block_size=BLOCK) as nobody:
        pair = decode.place_pair(placement(decode, "a"), nobody, PairRule(ALWAYS))
    assert pair.prefill is None and pair.reason == "no_pair"


def test_what_is_aggregated_gets_no_hand_off(prefill: KvRouter, decode: KvRouter) -> None:
    rule = PairRule(ALWAYS, aggregated={11})
    ways = [
        decode.place_pair(Placement(decode.prompt([i + 1, *LONG[:-1]]), f"r{i}"), prefill, rule)
        for i in range(3)
    ]
    assert {way.decode.worker.worker_id for way in ways if way.prefill is not None} <= {12}
    assert {way.decode.worker.worker_id for way in ways if way.prefill is None} <= {11}


def test_the_prefill_worker_that_has_the_prompt_is_chosen(
    prefill: KvRouter, decode: KvRouter
) -> None:
    prefill.apply_event(prompt_message(WorkerWithDpRank(2, 0), LONG, BLOCK))
    prefill.index.flush()
    for i in range(3):
        pair = decode.place_pair(placement(decode, f"r{i}"), prefill, PairRule(ALWAYS))
        assert pair.prefill is not None and pair.prefill.worker.worker_id == 2
        assert pair.prefill.cached_tokens == len(LONG)
        prefill.free(f"r{i}")
        decode.free(f"r{i}")


def test_an_id_in_use_books_nothing(prefill: KvRouter, decode: KvRouter) -> None:
    prefill.place(placement(prefill, "a"))
    with pytest.raises(InvalidRequestError):
        decode.place_pair(placement(decode, "a"), prefill, PairRule(ALWAYS))
    assert booked(prefill, decode) == [1, 0]


def test_a_router_is_no_partner_of_itself(decode: KvRouter) -> None:
    with pytest.raises(ValueError, match="router of their own"):
        decode.place_pair(placement(decode, "a"), decode, PairRule(ALWAYS))


@pytest.mark.parametrize("policy", ["isl_bounding", "noncached"])
def test_thresholds_decide_by_what_is_cached_on_the_decode_worker(
    policy: str, prefill: KvRouter, decode: KvRouter
) -> None:
    config = DisaggConfig(disagg_policy=policy, disagg_noncached_tokens=2048)
    first = decode.place_pair(placement(decode, "a"), prefill, PairRule(config))
    assert first.prefill is not None
    decode.free("a")
    decode.apply_event(prompt_message(WorkerWithDpRank(11, 0), LONG, BLOCK))
    decode.index.flush()
    again = decode.place_pair(placement(decode, "b"), prefill, PairRule(config))
    assert again.prefill is None and again.decode.worker.worker_id == 11


def test_a_sessions_worker_that_is_not_allowed_is_left(
    prefill: KvRouter, clock: ManualClock
) -> None:
    sessions = AffinityConfig(session_affinity_ttl_secs=60.0, session_affinity_mode="hard")
    with router_among(*DECODE, clock=clock, block_size=BLOCK, affinity=sessions) as decode:
        decode.sessions.bind(Session("s"), WorkerWithDpRank(11, 0))
        asked = Placement(decode.prompt(LONG), "a", session=Session("s"), allowed=(12,))
        pair = decode.place_pair(asked, prefill, PairRule(ALWAYS))
        assert pair.decode.worker.worker_id == 12


def test_a_prompt_is_on_its_way_until_the_rule_hears_that_it_landed(
    prefill: KvRouter, decode: KvRouter
) -> None:
    rule = PairRule(ALWAYS)
    pair = decode.place_pair(placement(decode, "a"), prefill, rule)
    assert pair.landing is not None and pair.prefill is not None
    assert pair.landing[:2] == (pair.prefill.worker.worker_id, pair.decode.worker)
    assert pair.landing.size == pair.landing.shared == rule.handoff_bytes(len(LONG))
    other = decode.place_pair(placement(decode, "b"), prefill, rule)
    assert other.landing is not None and "landing" not in other.to_dict()
    for each in (pair, other):
        assert each.landing is not None
        rule.on_landed(each.landing)
    assert not rule._sent and not rule._landing


def test_prompts_that_nobody_says_have_landed_expire_as_bookings_do(
    prefill: KvRouter, decode: KvRouter, clock: ManualClock
) -> None:
    rule = PairRule(ALWAYS)
    landings = []
    for at in range(40):
        pair = decode.place_pair(placement(decode, f"{at}"), prefill, rule)
        landings.append(pair.landing)
        decode.free(f"{at}")
        prefill.free(f"{at}")
        clock.advance(100.0)
    size = rule.handoff_bytes(len(LONG))
    most = math.ceil(decode.config.active_request_expiry_secs / 100.0)
    assert sum(rule._sent.values()) == sum(rule._landing.values()) == most * size
    for landing in landings:
        assert landing is not None
        rule.on_landed(landing)  # of the first ones nothing is left to take away
    assert not rule._sent and not rule._landing and not rule._on_way
