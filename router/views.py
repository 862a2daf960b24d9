"""What KvRouter shows of the fleet: plain records for doors and frontends."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import NamedTuple

from ..base.identity import WorkerWithDpRank
from ..indexer.approximate import ApproximateIndex
from ..indexer.prefix_index import PrefixIndex
from ..indexer.source import SourceState, SourceStatus
from ..slots.table import SlotTable
from ..workers.registry import PREDICTED, WorkerRegistry
from .affinity import SessionAffinity

VIEWS_IN_A_STEP = 64


class WorkerView(NamedTuple):
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
    dialect: str | None = None
    origin: str | None = None  # where the registered worker is from
    event_source: str = ""  # nats, grpc or predicted; empty: not known yet
    event_error: str = ""  # why its cache is predicted, though it may have events
    sessions: int = 0  # bound to it
    own_requests: int = 0  # of the active ones, those that this router has booked itself


@dataclass(frozen=True, slots=True)
class PotentialLoad:
    """What one rank's load would be with the request on it."""

    worker: WorkerWithDpRank
    potential_decode_blocks: int
    potential_prefill_tokens: int


def views_in_steps(
    registry: WorkerRegistry,
    slots: SlotTable,
    index: PrefixIndex,
    lock: AbstractContextManager[object],
    sessions: SessionAffinity,
) -> Iterator[list[WorkerView]]:
    """Every registered rank, then those that only publish events: a few at a time, or none yet.

    Each step is read at a moment of its own, under the lock.
    """
    sources: dict[WorkerWithDpRank, SourceStatus] = {}
    steps = index.sources_in_steps()
    while True:
        with lock:
            step = next(steps, None)
        if step is None:
            break
        sources.update((source.worker, source) for source in step)
        yield []
    ranks = registry.numbered()
    usual = PREDICTED if isinstance(index, ApproximateIndex) else ""
    for begin in range(0, len(ranks), VIEWS_IN_A_STEP):
        some = ranks[begin : begin + VIEWS_IN_A_STEP]
        with lock:
            views = _registered(registry, slots, some, sources, usual, sessions)
        for _, worker in some:
            sources.pop(worker, None)
        yield views
    for source in sources.values():
        yield [_unregistered(source)]


def _registered(
    registry: WorkerRegistry,
    slots: SlotTable,
    ranks: Sequence[tuple[int, WorkerWithDpRank]],
    statuses: Mapping[WorkerWithDpRank, SourceStatus],
    event_source: str,
    sessions: SessionAffinity,
) -> list[WorkerView]:
    """Of these (number, worker), those that are registered; `statuses`: the states of sources.
    `event_source` is that of workers without a status."""
    blocks, tokens = slots.active_blocks(), slots.active_prefill_tokens()
    requests, own = slots.active_requests(), slots.own_requests()
    views = []
    for number, worker in ranks:
        entry = registry.entry(worker.worker_id)
        if entry is None or number not in entry.numbers:
            continue  # it left
        source = statuses.get(worker)
        views.append(
            WorkerView(
                worker=worker,
                address=entry.address,
                state=entry.state.value,
                reason=entry.reason,
                indexed_blocks=source.blocks if source else 0,
                active_blocks=int(blocks[number]),
                active_prefill_tokens=int(tokens[number]),
                active_requests=int(requests[number]),
                event_source_state=(source.state if source else SourceState.SILENT).value,
                lower_tier_blocks=source.lower_blocks if source else (0, 0, 0),
                unindexed_blocks=source.unindexed if source else 0,
                weight=entry.weight,
                dialect=entry.dialect,
                origin=entry.origin,
                event_source=entry.event_source or event_source,
                event_error=entry.event_error,
                own_requests=int(own[number]),
                sessions=sessions.count_on(worker),
            )
        )
    return views


def _unregistered(source: SourceStatus) -> WorkerView:
    """A worker that only publishes events."""
    return WorkerView(
        worker=source.worker,
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
