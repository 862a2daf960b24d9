"""What KvRouter tells of the fleet: plain records for doors and frontends."""

from dataclasses import dataclass

from ..runtime.identity import WorkerWithDpRank


@dataclass(frozen=True, slots=True)
class WorkerView:
    """One rank at this moment. `state` is "unregistered" for one that only publishes events."""

    worker: WorkerWithDpRank
    address: str | None
    state: str
    reason: str
    indexed_blocks: int  # blocks it is believed to have cached
    active_blocks: int  # distinct blocks held by requests in flight
    active_prefill_tokens: int  # prompt tokens of those still to be prefilled
    active_requests: int
    event_source_state: str  # see indexer/actor.py: SourceState


@dataclass(frozen=True, slots=True)
class PotentialLoad:
    """What one rank's load would be with the request on it."""

    worker: WorkerWithDpRank
    potential_decode_blocks: int
    potential_prefill_tokens: int
