"""How good routing was, by a record alone: hits against one cache for all, predictions, workers."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from ..results import Summary, summarise
from ..simulation import pooled_hit_rate
from ..traces import Record, RecordedRequest

SERVED = "ok"
SOONER_MS, SOONER_SHARE = 5.0, 0.05
"""Another worker counts as sooner if it is so by this much, and by this share of the TTFT."""

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class FleetFacts:
    """What the record says of its engines: ranks, and the usual engine."""

    workers: int
    blocks: int | None
    """of an engine's cache; None: no engine reported it"""
    batched_tokens: int | None
    block_size: int


@dataclass(frozen=True)
class WorkerShare:
    """What one worker was sent."""

    worker: str
    requests: int
    prompt_tokens: int
    cached_share: float | None
    ttft_ms: float | None


@dataclass(frozen=True)
class RoutingFigures:
    """Shares are of 1; None where no request says enough.

    `avoidable_prefill` is the share of computed prompt tokens that one cache for the whole fleet
    would have had. `sooner` is the share of requests, of those compared, that another worker was
    predicted to answer sooner, and `sooner_ms` by how much in the median. Prediction ratios are
    real over predicted TTFT, both from when the request was sent. `moved_turns` is the share of a
    session's later requests that went to another worker than the one before.
    """

    requests: int
    statuses: dict[str, int]
    cached_share: float | None
    pooled_share: float | None
    infinite_share: float
    avoidable_prefill: float | None
    ttft_ms: Summary
    itl_ms: Summary
    e2e_ms: Summary
    queue_ms: Summary
    goodput: float | None
    """within their objectives, of all requests that have one"""
    compared: int
    sooner: float | None
    sooner_ms: float | None
    predicted: int
    ratio_p10: float | None
    ratio_p50: float | None
    ratio_p90: float | None
    overlap_exact: float | None
    """within a block of the engine's"""
    overlap_over: float | None
    """expected more than was there"""
    overlap_under: float | None
    retried: int
    moved_turns: float | None
    named_sessions: int
    workers: list[WorkerShare] = field(default_factory=list)

    @property
    def failed(self) -> int:
        """Requests that ended otherwise than well or by their client."""
        mine = (SERVED, "cancelled", "invalid_argument")
        return sum(count for status, count in self.statuses.items() if status not in mine)


def fleet_of(record: Record) -> FleetFacts:
    """The workers by the requests' lines and the newest headers, and their median engine."""
    header = max(record.headers.values(), key=lambda each: len(each.workers))
    seen = {request.worker for request in record.requests if request.worker}
    blocks = [each.blocks for each in header.workers if each.blocks]
    batched = [each.batched_tokens for each in header.workers if each.batched_tokens]
    return FleetFacts(
        workers=max(1, len(seen), len(header.workers)),
        blocks=int(np.median(blocks)) if blocks else None,
        batched_tokens=int(np.median(batched)) if batched else None,
        block_size=header.engine_block_size,
    )


def judge_routing(record: Record, fleet: FleetFacts) -> RoutingFigures:
    """The figures of all requests of a record."""
    requests = record.requests
    served = [each for each in requests if each.status == SERVED]
    reported = [each for each in requests if each.cached_tokens is not None]
    prompt = sum(each.input_length for each in reported)
    cached = sum(each.cached_tokens or 0 for each in reported)
    infinite = _pooled(requests, record, fleet, None)
    pooled = None
    if fleet.blocks is not None:
        pooled = _pooled(requests, record, fleet, fleet.workers * fleet.blocks)
    bound = infinite if pooled is None else pooled
    cached_share = cached / prompt if prompt else None
    avoidable = None
    if cached_share is not None and cached_share < 1:
        avoidable = max(0.0, bound - cached_share) / (1 - cached_share)
    ratios = _ratios(requests)
    compared = [each for each in requests if _both_foreseen(each)]
    gains = [gain for each in compared if (gain := _gain_ms(each)) > 0]
    known = [
        each
        for each in served
        if each.overlap_tokens is not None and each.cached_tokens is not None
    ]
    off = np.array([(each.overlap_tokens or 0) - (each.cached_tokens or 0) for each in known])
    near = fleet.block_size
    statuses: dict[str, int] = {}
    for each in requests:
        statuses[each.status] = statuses.get(each.status, 0) + 1
    moved, sessions = _moved_turns(requests)
    p10, p50, p90 = np.percentile(ratios, [10, 50, 90]).tolist() if len(ratios) else (None,) * 3
    return RoutingFigures(
        requests=len(requests),
        statuses=dict(sorted(statuses.items(), key=lambda each: -each[1])),
        cached_share=cached_share,
        pooled_share=pooled,
        infinite_share=infinite,
        avoidable_prefill=avoidable,
        ttft_ms=summarise(of(served, "ttft_ms")),
        itl_ms=summarise(of(served, "itl_ms")),
        e2e_ms=summarise(of(served, "e2e_ms")),
        queue_ms=summarise(of(served, "queue_ms")),
        goodput=_goodput(requests),
        compared=len(compared),
        sooner=len(gains) / len(compared) if compared else None,
        sooner_ms=float(np.median(gains)) if gains else None,
        predicted=len(ratios),
        ratio_p10=p10,
        ratio_p50=p50,
        ratio_p90=p90,
        overlap_exact=float((np.abs(off) <= near).mean()) if len(off) else None,
        overlap_over=float((off > near).mean()) if len(off) else None,
        overlap_under=float((off < -near).mean()) if len(off) else None,
        retried=sum(each.attempts > 1 for each in requests),
        moved_turns=moved,
        named_sessions=sessions,
        workers=_workers(requests),
    )


def of(requests: Sequence[RecordedRequest], name: str) -> Floats:
    """A field of those requests that have it."""
    found = [value for each in requests if (value := getattr(each, name)) is not None]
    return np.array(found, np.float64)


def predictions(requests: Sequence[RecordedRequest]) -> list[tuple[float, float]]:
    """(predicted, real) TTFT in ms from when a request was sent, of those that have both."""
    return [
        (each.foreseen_ttft_ms, each.engine_ttft_ms)
        for each in requests
        if each.foreseen_ttft_ms and each.engine_ttft_ms and each.attempts == 1
    ]


def _ratios(requests: Sequence[RecordedRequest]) -> Floats:
    return np.array([real / predicted for predicted, real in predictions(requests)])


def _pooled(
    requests: Sequence[RecordedRequest], record: Record, fleet: FleetFacts, blocks: int | None
) -> float:
    return pooled_hit_rate(
        requests,
        block_size=fleet.block_size,
        capacity_blocks=blocks,
        trace_block_size=record.header.block_size,
    )


def _both_foreseen(request: RecordedRequest) -> bool:
    return request.foreseen_ttft_ms is not None and request.soonest_ttft_ms is not None


def _gain_ms(request: RecordedRequest) -> float:
    """By how much another worker was predicted to be sooner; 0 if not by enough to count."""
    own, best = request.foreseen_ttft_ms or 0.0, request.soonest_ttft_ms or 0.0
    gain = own - best
    return gain if gain > max(SOONER_MS, SOONER_SHARE * own) else 0.0


def _goodput(requests: Sequence[RecordedRequest]) -> float | None:
    asked = [
        each
        for each in requests
        if each.ttft_objective_ms is not None
        and (
            each.ttft_ms is not None or each.status not in (SERVED, "cancelled", "invalid_argument")
        )
    ]
    if not asked:
        return None
    return sum(map(_is_good, asked)) / len(asked)


def _is_good(request: RecordedRequest) -> bool:
    if request.status != SERVED or request.ttft_ms is None or request.ttft_objective_ms is None:
        return False
    itl, bound = request.itl_ms, request.itl_objective_ms
    return request.ttft_ms <= request.ttft_objective_ms and (
        itl is None or bound is None or itl <= bound
    )


def _moved_turns(requests: Sequence[RecordedRequest]) -> tuple[float | None, int]:
    last: dict[str, str] = {}
    turns = moved = 0
    for each in requests:
        if not (each.session_id and each.worker):
            continue
        if each.session_id in last:
            turns += 1
            moved += last[each.session_id] != each.worker
        last[each.session_id] = each.worker
    return (moved / turns if turns else None), len(last)


def _workers(requests: Sequence[RecordedRequest]) -> list[WorkerShare]:
    by_worker: dict[str, list[RecordedRequest]] = {}
    for each in requests:
        if each.worker:
            by_worker.setdefault(each.worker, []).append(each)
    found = []
    for worker, mine in by_worker.items():
        reported = [each for each in mine if each.cached_tokens is not None]
        prompt = sum(each.input_length for each in reported)
        cached = sum(each.cached_tokens or 0 for each in reported)
        ttft = of(mine, "ttft_ms")
        found.append(
            WorkerShare(
                worker,
                len(mine),
                sum(each.input_length for each in mine),
                cached / prompt if prompt else None,
                float(ttft.mean()) if len(ttft) else None,
            )
        )
    return sorted(found, key=lambda each: -each.prompt_tokens)
