"""Sight: engines and requests by all routers together; what is missing is no zero."""

from typing import Any

import msgspec
import pytest

from dynamo_router.planner import Fleet
from dynamo_router.planner.live.router_client import RecordedRequest, RouterLook, WorkerRow
from dynamo_router.planner.live.sight import Sight
from dynamo_router.planner.live.transaction import EngineState
from dynamo_router.workers.records import ModelCard

CARD = ModelCard("tiny", 16, total_kv_blocks=64)
ENGINES = {1: (CARD, 5.0), 2: (CARD, 5.0)}


def look(states: dict[int, str], *requests: RecordedRequest, **more: Any) -> RouterLook:
    fields: dict[str, Any] = {"queued": 0.0, "missed": 0, "block_size": 64, "record": "r", **more}
    rows = {id: WorkerRow(id, state, 1, 3) for id, state in states.items()}
    return RouterLook(rows, requests=fields.pop("requests", requests), **fields)


READY = {1: "ready", 2: "ready"}
READY_STATE, STARTING, DRAINING = EngineState.READY, EngineState.STARTING, EngineState.DRAINING


@pytest.mark.parametrize(
    ("one", "other", "state"),
    [
        ("ready", "ready", READY_STATE),
        ("ready", "connecting", STARTING),
        ("ready", "unhealthy", STARTING),
        ("draining", "ready", DRAINING),
    ],
)
def test_an_engine_is_ready_where_every_router_has_it_so(
    one: str, other: str, state: EngineState
) -> None:
    seen = Sight(60.0).look(0.0, {1: (CARD, 5.0)}, [look({1: one}), look({1: other})])
    assert seen.engines[0].state is state
    assert (seen.engines[0].in_flight, seen.engines[0].active_blocks) == (2, 6)


def test_a_router_that_does_not_know_it_yet_keeps_it_starting() -> None:
    seen = Sight(60.0).look(0.0, {1: (CARD, 5.0)}, [look({1: "ready"}), look({})])
    assert seen.engines[0].state is STARTING


def test_without_one_router_s_answer_nothing_is_known_of_load() -> None:
    seen = Sight(60.0).look(0.0, ENGINES, [look(READY), None])
    assert [each.in_flight for each in seen.engines] == [None, None]
    assert (seen.in_flight, seen.queued) == (None, None)
    assert seen.trouble == "1 of 2 routers give no answer"
    assert seen.observation(0.0, 60.0, Fleet(2), 300.0).requests is None


def test_silence_has_to_be_without_a_gap() -> None:
    sight = Sight(60.0)
    idle = RouterLook({}, 0.0, (), 0, 64, "r")
    assert sight.look(0.0, {}, [idle]).idle_s == 0.0
    assert sight.look(50.0, {}, [idle]).idle_s == 50.0
    for gap in (None, RouterLook({}, 0.0, (), 3, 64, "r"), RouterLook({}, None, (), 0, 64, "r")):
        assert sight.look(60.0, {}, [gap]).idle_s == 0.0
        assert sight.look(61.0, {}, [idle]).idle_s == 0.0
        assert sight.look(71.0, {}, [idle]).idle_s == 10.0


def test_times_of_a_record_become_ours() -> None:
    sight = Sight(600.0)
    first = RecordedRequest(1_000_000.0, 10, 5, e2e_ms=2000.0, worker="1/3")
    later = RecordedRequest(1_001_000.0, 10, 5, e2e_ms=500.0, worker="2")
    sight.look(0.0, ENGINES, [look(READY)])
    seen = sight.look(100.0, ENGINES, [look(READY, later, first)])
    assert seen.requests is not None
    assert [(each.at, each.request) for each in seen.requests] == [(98.0, first), (99.0, later)]
    assert [each.served for each in seen.engines] == [
        2,
        2,
    ]  # a request in flight, and one that ended
    delayed = RecordedRequest(1_010_000.0, 10, 5, e2e_ms=0.0)
    seen = sight.look(117.0, ENGINES, [look(READY, delayed)])
    assert seen.requests is not None and seen.requests[-1].at == 108.0
    assert sight.look(900.0, ENGINES, [look(READY)]).requests == ()


@pytest.mark.parametrize(
    "absurd",
    [
        {"timestamp": 1e300},
        {"timestamp": -5.0},
        {"e2e_ms": 1e18},
        {"input_length": 0},
        {"ttft_ms": -1.0},
        {"itl_ms": 1e12},
        {"input_length": 10**12},  # of which a plan would make 2^31 blocks
        {"output_length": 10**12},
        {"cached_tokens": 10**12},
        {"worker": "9" * 5000},
    ],
)
def test_a_record_that_makes_no_sense_is_left_out_and_counted(absurd: dict[str, Any]) -> None:
    """The other requests of its look have the times that they would have without it."""
    sight = Sight(600.0)
    sight.look(0.0, ENGINES, [look(READY)])
    good = RecordedRequest(1_000_000.0, 10, 5, e2e_ms=500.0)
    bad = msgspec.structs.replace(good, **absurd)
    seen = sight.look(100.0, ENGINES, [look(READY, good, bad)])
    assert seen.requests is not None
    assert [(each.at, each.request) for each in seen.requests] == [(99.5, good)]
    found = seen.observation(100.0, 60.0, Fleet(2), 300.0)
    assert found.requests and found.senseless == 1
    later = sight.look(105.0, ENGINES, [look(READY, bad)])
    assert later.senseless == 1 and later.requests == seen.requests


def test_a_record_whose_clock_goes_both_ways_dates_its_requests_by_now() -> None:
    """Forwards by an hour, and back by one: all are of the last seconds."""
    sight = Sight(600.0)
    for now, clock_s in ((0.0, 5000.0), (5.0, 8605.0), (10.0, 5010.0), (15.0, 5015.0)):
        request = RecordedRequest(1e3 * clock_s - 500.0, 10, 5, e2e_ms=500.0)
        seen = sight.look(now, ENGINES, [look(READY, request)])
        assert seen.requests is not None
        assert [each.at for each in seen.requests if each.request is request] == [now - 0.5]


@pytest.mark.parametrize(("ahead_s", "is_known"), [(3600.0, True), (3e8, True), (3e8, False)])
def test_a_record_that_is_stamped_ahead_does_not_date_the_others(
    ahead_s: float, is_known: bool
) -> None:
    """An hour tells only where the record's clock is known: a first look may be of hours."""
    sight = Sight(600.0)
    if is_known:
        sight.look(0.0, ENGINES, [look(READY, RecordedRequest(1e9, 10, 5, e2e_ms=0.0))])
    good = RecordedRequest(1e9 + 3500.0, 10, 5, e2e_ms=500.0)
    bad = RecordedRequest(1e9 + 3500.0 + 1e3 * ahead_s, 10, 5, e2e_ms=500.0)
    seen = sight.look(5.0, ENGINES, [look(READY, bad, good)])
    assert seen.requests is not None and seen.senseless == 1
    assert [each.at for each in seen.requests if each.request is good] == [3.5 if is_known else 4.5]
    assert bad not in [each.request for each in seen.requests]
    seen = sight.look(10.0, ENGINES, [look(READY, bad)])
    assert seen.senseless == 0, "all of a look: its clock was set"
    assert seen.requests is not None and seen.requests[-1].at == 9.5


def test_a_record_from_the_past_puts_no_others_ahead() -> None:
    sight = Sight(600.0)
    sight.look(0.0, ENGINES, [look(READY, RecordedRequest(1e9, 10, 5, e2e_ms=0.0))])
    good, old = RecordedRequest(1e9 + 4500.0, 10, 5, e2e_ms=500.0), RecordedRequest(0.0, 10, 5)
    seen = sight.look(5.0, ENGINES, [look(READY, old, good)])
    assert seen.requests is not None and seen.senseless == 0
    assert [each.at for each in seen.requests if each.request is good] == [4.5]


def test_what_was_missed_for_a_while_is_no_other_clock() -> None:
    sight = Sight(600.0)
    sight.look(0.0, ENGINES, [look(READY, RecordedRequest(9500.0, 10, 5, e2e_ms=500.0))])
    old = RecordedRequest(49_500.0, 10, 5, e2e_ms=500.0)  # ended at 40 s, and is seen at 90 s
    seen = sight.look(90.0, ENGINES, [look(READY, old)])
    assert seen.requests is not None and seen.requests[-1].at == 39.5


def test_no_record_is_said() -> None:
    seen = Sight(60.0).look(0.0, ENGINES, [look(READY, requests=None)])
    assert seen.requests is None
    assert seen.trouble == "a router records no requests (--record)"


def test_what_was_asked_for_and_is_not_there_is_starting() -> None:
    sight = Sight(60.0)
    sight.look(0.0, ENGINES, [look(READY)])
    stuck = {**ENGINES, 3: (CARD, 400.0)}
    seen = sight.look(10.0, stuck, [look(READY)])
    observation = seen.observation(10.0, 60.0, Fleet(5), 300.0)
    assert observation.fleet("serving") == Fleet(2)
    assert observation.fleet("failed") == Fleet(1)
    assert observation.fleet("starting") == Fleet(2)
    assert len({each.worker_id for each in observation.workers}) == 5
    assert observation.window_s == 10.0  # no longer than it was watched


def test_workers_that_the_store_has_not_are_reported() -> None:
    seen = Sight(60.0).look(0.0, {1: (CARD, 5.0)}, [look({1: "ready", 9: "ready"})])
    assert seen.unmatched == 1
    assert [each.engine_id for each in seen.engines] == [1]


def test_an_engine_that_comes_back_is_a_new_one() -> None:
    sight = Sight(60.0)
    sight.look(0.0, {1: (CARD, 5.0)}, [look({1: "ready"})])
    sight.look(20.0, {}, [look({})])
    (engine,) = sight.look(30.0, {1: (CARD, 0.0)}, [look({1: "connecting"})]).engines
    assert (engine.served, engine.ready_s) == (0, 0.0)
