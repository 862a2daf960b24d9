"""What was decided, and why: results of the router, ready for JSON."""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple

import msgspec
from msgspec import structs

from ...base.identity import WorkerWithDpRank
from .residuals import ResidualState


class Decision(msgspec.Struct, frozen=True):
    """Where a request goes. `request_id` is None if no slot was booked for it.

    A struct of msgspec, as one is made for every request: a tuple with names takes four times as
    long, a frozen dataclass more.
    """

    worker: WorkerWithDpRank
    number: int  # dense number of the worker while it is registered
    overlap_blocks: int  # leading blocks of the prompt that the worker has cached on its device
    request_blocks: int  # blocks of the prompt, rounded up
    cached_tokens: int  # prompt tokens in the overlap
    request_id: str | None = None
    host_overlap_blocks: int = 0  # blocks after those that it has in host memory
    disk_overlap_blocks: int = 0  # and after those, on disk or in external storage
    runners_up: tuple[int, ...] = ()  # ids of other workers, the best one first, if asked for

    def to_dict(self) -> dict[str, Any]:
        shown = _plain(self.worker, structs.asdict(self))
        if not self.runners_up:
            del shown["runners_up"]
        return shown


class CandidateTerms(NamedTuple):
    """What one candidate would cost, and what that is made of; lower costs are better.

    `cost` is what the policy compares, in its own unit: seconds for `forecast`, blocks for Dynamo's
    cost, requests in flight for least-loaded. Lengths are in blocks, and are the terms of

    dynamo_cost = prefill_load_scale * max(0, raw_prefill - effective_overlap) + decode
                  + decode_active_request_weight * active_requests
    """

    worker: WorkerWithDpRank
    number: int
    eligible: bool
    reason: str  # why it is not eligible, else empty
    overlap_blocks: int  # leading blocks cached on its device
    raw_prefill_blocks: float  # prefill queued there and this prompt's, as if nothing were cached
    credit: float  # what each of the overlap blocks takes off
    effective_overlap_blocks: float  # what all tiers together take off
    decode_blocks: float  # blocks in use there if it got the request
    active_requests: int
    cost: float  # inf where the policy rules it out; if not eligible, as if all workers were
    dynamo_cost: float
    host_overlap_blocks: int = 0  # blocks after those of the overlap that it has in host memory
    disk_overlap_blocks: int = 0  # and after those, on disk or in external storage
    index_state: str = ""  # state of its event source: how far the overlap can be trusted
    policy_terms: Mapping[str, float] | None = None  # of the cost, if the policy has any

    def to_dict(self) -> dict[str, Any]:
        shown = _plain(self.worker, self._asdict()) | {"cost": _finite(self.cost)}
        if self.policy_terms is not None:
            shown["policy_terms"] = {key: _finite(term) for key, term in self.policy_terms.items()}
        return shown


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """Every candidate of a request that was asked about, not booked.

    The candidates' costs are those of `policy`, a mode's name where the mode is not kv.
    """

    mode: str
    policy: str = ""
    isl: int  # prompt tokens
    block_size: int
    request_blocks: int  # blocks of the prompt, rounded up
    temperature: float
    params: Mapping[str, float] = field(default_factory=dict)  # weights of Dynamo's cost
    candidates: tuple[CandidateTerms, ...] = ()
    residuals: ResidualState | None = None  # of what the policy foresees, if it does
    objectives: Mapping[str, float | None] = field(default_factory=dict)  # ttft_ms, itl_ms
    session: Mapping[str, Any] | None = None  # the worker its session is bound to, and how

    @property
    def cheapest(self) -> tuple[WorkerWithDpRank, ...]:
        """The eligible workers that tie for the lowest cost; at temperature 0 one of them wins."""
        costs = {e.worker: e.cost for e in self.candidates if e.eligible and math.isfinite(e.cost)}
        lowest = min(costs.values(), default=0.0)
        return tuple(worker for worker, cost in costs.items() if cost == lowest)

    def to_dict(self, rows: list[dict[str, Any]] | None = None) -> dict[str, Any]:
        """`rows`: the candidates as dicts, if they were made already."""
        return {
            "mode": self.mode,
            "policy": self.policy,
            "isl": self.isl,
            "block_size": self.block_size,
            "request_blocks": self.request_blocks,
            "temperature": self.temperature,
            "params": dict(self.params),
            "objectives": dict(self.objectives),
            "residuals": None if self.residuals is None else asdict(self.residuals),
            "session": None if self.session is None else dict(self.session),
            "cheapest": [_pair(worker) for worker in self.cheapest],
            "candidates": [e.to_dict() for e in self.candidates] if rows is None else rows,
        }


def _finite(value: float) -> float | None:
    """JSON has no infinity: null stands for it."""
    return value if math.isfinite(value) else None


def _pair(worker: WorkerWithDpRank) -> dict[str, int]:
    return {"worker_id": worker.worker_id, "dp_rank": worker.dp_rank}


def _plain(worker: WorkerWithDpRank, fields: dict[str, Any]) -> dict[str, Any]:
    """The fields, with the worker's two in place of the worker."""
    del fields["worker"]
    return _pair(worker) | fields
