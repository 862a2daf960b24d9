"""How good routing was, by figures that can be counted by hand."""

import math
from typing import Any

import pytest

from dynamo_router.bench.traces import Record, RecordedRequest
from dynamo_router.bench.traffic_report.routing import fleet_of, judge_routing
from dynamo_router.server.record_format import FORMAT, VERSION, Fleet, Header


def record(*requests: RecordedRequest, workers: tuple[Fleet, ...] = ()) -> Record:
    header = Header(FORMAT, VERSION, 64, "r", "2026-01-01T00:00:00+00:00", 16, workers=workers)
    return Record({"a.jsonl": header}, list(requests))


def request(at: float, *ids: int, worker: str = "1", **more: Any) -> RecordedRequest:
    usual: dict[str, Any] = {"status": "ok", "overlap_tokens": 0, "cached_tokens": 0}
    return RecordedRequest(at, 64 * len(ids), 5, ids, worker=worker, **{**usual, **more})


def judged(*requests: RecordedRequest, workers: tuple[Fleet, ...] = ()) -> Any:
    found = record(*requests, workers=workers)
    return judge_routing(found, fleet_of(found))


def test_the_fleet_is_what_lines_and_headers_name() -> None:
    fleets = (Fleet("1", 100, 2048), Fleet("2", 300, 2048), Fleet("3", 200))
    fleet = fleet_of(record(request(0, 1), workers=fleets))
    assert (fleet.workers, fleet.blocks, fleet.batched_tokens, fleet.block_size) == (
        3, 200, 2048, 16,
    )  # fmt: skip
    unknown = fleet_of(record(request(0, 1), request(1, 1, worker="2")))
    assert (unknown.workers, unknown.blocks, unknown.batched_tokens) == (2, None, None)


def test_avoidable_prefill_is_what_one_cache_would_have_had() -> None:
    """Two equal prompts of 640 tokens on two workers: the second computes 624 in vain, all but
    the block of its last token."""
    ids = tuple(range(1, 11))
    found = judged(request(0, *ids), request(1, *ids, worker="2"))
    assert found.cached_share == 0 and found.infinite_share == pytest.approx(624 / 1280)
    assert found.avoidable_prefill == pytest.approx(624 / 1280)
    better = judged(request(0, *ids), request(1, *ids, cached_tokens=624))
    assert better.avoidable_prefill == pytest.approx(0)


def test_a_small_fleet_is_held_to_what_it_can_keep() -> None:
    first, second = tuple(range(1, 11)), tuple(range(11, 21))
    turns = [request(at, *ids) for at, ids in enumerate((first, second, first, second))]
    small = judged(*turns, workers=(Fleet("1", 40),))
    assert small.pooled_share == 0 and small.avoidable_prefill == 0
    large = judged(*turns, workers=(Fleet("1", 80),))
    assert large.pooled_share == large.infinite_share == pytest.approx(2 * 624 / 2560)


def test_sooner_counts_by_enough_to_matter() -> None:
    pairs = ((100.0, 100.0), (100.0, 96.0), (100.0, 40.0), (8.0, 4.0))
    found = judged(
        *(
            request(at, 1, foreseen_ttft_ms=own, soonest_ttft_ms=best)
            for at, (own, best) in enumerate(pairs)
        ),
        request(9, 1, foreseen_ttft_ms=50.0),
    )
    assert (found.compared, found.sooner, found.sooner_ms) == (4, 0.25, 60.0)


def test_predictions_are_compared_with_what_came() -> None:
    times = ((100.0, 50.0), (100.0, 100.0), (100.0, 400.0))
    requests = [
        request(at, 1, foreseen_ttft_ms=own, engine_ttft_ms=real)
        for at, (own, real) in enumerate(times)
    ]
    retried = request(5, 1, foreseen_ttft_ms=1.0, engine_ttft_ms=999.0, attempts=2)
    found = judged(*requests, retried)
    assert (found.predicted, found.ratio_p50, found.retried) == (3, 1.0, 1)
    assert found.ratio_p10 == pytest.approx(0.6) and found.ratio_p90 == pytest.approx(3.4)


def test_overlaps_are_right_within_a_block() -> None:
    cached = ((64, 64), (64, 48), (64, 0), (0, 64))
    found = judged(
        *(
            request(at, 1, overlap_tokens=expected, cached_tokens=real)
            for at, (expected, real) in enumerate(cached)
        )
    )
    assert (found.overlap_exact, found.overlap_over, found.overlap_under) == (0.5, 0.25, 0.25)


def test_goodput_counts_those_that_failed() -> None:
    asked: dict[str, Any] = {"ttft_objective_ms": 100.0, "itl_objective_ms": 10.0}
    found = judged(
        request(0, 1, ttft_ms=90.0, itl_ms=9.0, **asked),
        request(1, 1, ttft_ms=90.0, itl_ms=11.0, **asked),
        request(2, 1, ttft_ms=110.0, **asked),
        request(3, 1, status="unavailable", **asked),
        request(4, 1, status="cancelled", **asked),  # its client's doing
        request(5, 1, **asked),  # not streamed: its TTFT is not known
    )
    assert found.goodput == 0.25 and found.failed == 1
    assert found.statuses == {"ok": 4, "unavailable": 1, "cancelled": 1}
    assert judged(request(0, 1)).goodput is None


def test_turns_of_a_session_that_move_are_counted() -> None:
    workers = ("1", "1", "2", "2")
    turns = [request(at, 1, session_id="s", worker=w) for at, w in enumerate(workers)]
    found = judged(*turns, request(9, 1, worker="3"))
    assert (found.moved_turns, found.named_sessions) == (pytest.approx(1 / 3), 1)
    shares = [(each.worker, each.requests) for each in found.workers]
    assert sorted(shares) == [("1", 2), ("2", 2), ("3", 1)]


def test_a_record_that_knows_nothing_is_judged_all_the_same() -> None:
    unknown = RecordedRequest(0, 64, 0, (1,), status="unavailable")
    found = judged(unknown)
    assert found.cached_share is None and found.avoidable_prefill is None
    assert (found.sooner, found.ratio_p50, found.overlap_exact) == (None, None, None)
    assert found.ttft_ms.mean is None and not math.isnan(found.infinite_share)
