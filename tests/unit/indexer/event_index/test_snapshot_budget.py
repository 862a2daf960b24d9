"""Snapshots of and for indexes with a budget: what fits is known again, the rest counts as lost."""

import numpy as np
import pytest

from dynamo_router.base.identity import WorkerWithDpRank
from dynamo_router.indexer.event_index import EventIndex, SnapshotHead
from dynamo_router.indexer.event_index.snapshot import dump_index, restore_index
from dynamo_router.indexer.source import SourceState
from dynamo_router.indexer.wire import (
    EventWriter,
    encode_heartbeat,
)

HEAD = SnapshotHead(block_size=16, subject="s")
A = WorkerWithDpRank(1)


def stored(event_id: int, *blocks: int, parent: int | None = None) -> bytes:
    writer = EventWriter()
    writer.stored(*A, event_id, parent, list(blocks), local(*blocks))
    return writer.message(9, event_id - 1, 0)


def local(*blocks: int) -> np.ndarray:
    return np.array([10 * b for b in blocks], dtype=np.uint64)


def branches(index: EventIndex, count: int) -> None:
    """A worker with `count` chains of four blocks that begin alike."""
    index.apply(stored(1, 1, 2))
    for n in range(count):
        index.apply(stored(n + 2, 100 + 2 * n, 101 + 2 * n, parent=2))


@pytest.mark.parametrize("max_blocks", [1, 7, 20, 41])
def test_a_snapshot_larger_than_the_budget_is_restored_as_far_as_it_fits(
    index: EventIndex, max_blocks: int
) -> None:
    branches(index, 20)
    small = EventIndex(max_blocks=max_blocks)
    assert restore_index(small, dump_index(index, HEAD), HEAD) == 1
    (source,) = small.sources()
    assert 0 < source.blocks <= max_blocks and source.unindexed == 42 - source.blocks
    for n in range(20):
        chain = local(1, 2, 100 + 2 * n, 101 + 2 * n)
        assert small.scores(chain).get(A, 0) <= index.scores(chain)[A]
    small.apply(encode_heartbeat(A, 21, 9, 20, 0))
    assert small.sources()[0].state is SourceState.TRIMMED
    small.close()


def test_a_trimmed_source_is_saved_with_what_it_lost(index: EventIndex) -> None:
    full = EventIndex(max_blocks=20)
    branches(full, 20)
    (before,) = full.sources()
    assert before.state is SourceState.TRIMMED
    assert restore_index(index, dump_index(full, HEAD), HEAD) == 1
    (after,) = index.sources()
    assert (after.blocks, after.unindexed) == (before.blocks, before.unindexed)
    # Children of what was dropped are no sign of lost events, before or after.
    for each in (full, index):
        each.apply(stored(22, 900, parent=101))
        assert each.sources()[0].state is SourceState.TRIMMED
    full.close()
