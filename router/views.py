"""What KvRouter tells of the fleet: plain records for doors and frontends."""

from collections.abc import Iterable
from dataclasses import dataclass

from ..indexer.source import SourceState, SourceStatus
from ..runtime.identity import WorkerWithDpRank
from ..slots.table import SlotTable
from ..workers.registry import WorkerRegistry


@dataclass(frozen=True, slots=True)
class WorkerView:
    """One rank at this moment. `state` is "unregistered" for one that only publishes events."""

    worker: WorkerWithDpRank
    address: str | None
    state: str
    reason: str
    indexed_blocks: int  # blocks it is believed to have cached on its device
    active_blocks: int  # distinct blocks held by requests in flight
    active_prefill_tokens: int  # prompt tokens of those still to be prefilled
    active_requests: int
    event_source_state: str  # see indexer/source.py: SourceState
    lower_tier_blocks: tuple[int, int, int] = (0, 0, 0)  # in host memory, on disk, external
    unindexed_blocks: int = 0  # more on its device, for which the index had no room
    weight: float = 1.0


@dataclass(frozen=True, slots=True)
class PotentialLoad:
    """What one rank's load would be with the request on it."""

    worker: WorkerWithDpRank
    potential_decode_blocks: int
    potential_prefill_tokens: int


def worker_views(
    registry: WorkerRegistry, slots: SlotTable, sources: Iterable[SourceStatus]
) -> list[WorkerView]:
    """Every registered rank by number, then those that only publish events."""
    heard = {source.worker: source for source in sources}
    blocks = slots.active_blocks().tolist()
    tokens = slots.active_prefill_tokens().tolist()
    requests = slots.active_requests().tolist()
    views = []
    for number, worker in registry.numbered():
        entry = registry.entry(worker.worker_id)
        assert entry is not None  # a numbered rank belongs to an entry
        source = heard.pop(worker, None)
        views.append(
            WorkerView(
                worker=worker,
                address=entry.address,
                state=entry.state.value,
                reason=entry.reason,
                indexed_blocks=source.blocks if source else 0,
                active_blocks=blocks[number],
                active_prefill_tokens=tokens[number],
                active_requests=requests[number],
                event_source_state=(source.state if source else SourceState.SILENT).value,
                lower_tier_blocks=source.lower_blocks if source else (0, 0, 0),
                unindexed_blocks=source.unindexed if source else 0,
                weight=entry.weight,
            )
        )
    for worker, source in heard.items():
        views.append(
            WorkerView(
                worker=worker,
                address=None,
                state="unregistered",
                reason="",
                indexed_blocks=source.blocks,
                active_blocks=0,
                active_prefill_tokens=0,
                active_requests=0,
                event_source_state=source.state.value,
                lower_tier_blocks=source.lower_blocks,
                unindexed_blocks=source.unindexed,
            )
        )
    return views
