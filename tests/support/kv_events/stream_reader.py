"""An engine's stream of KV events into an index of its own, and what the stream reports."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from dynamo_router.base.identity import WorkerWithDpRank
from dynamo_router.indexer.event_index import EventIndex
from dynamo_router.indexer.hashing import block_hashes
from dynamo_router.kv_events.engine_stream import EngineStream, StreamCounts
from dynamo_router.kv_events.event_subscribers import EventSubscribers
from dynamo_router.kv_events.source_choice import STREAMS, EventSource
from dynamo_router.workers.worker_url import WorkerUrl

SIZE = 4
WORKER_ID = 7


def block(number: int) -> list[int]:
    """Tokens of a block."""
    return list(range(SIZE * number, SIZE * (number + 1)))


class StreamReader:
    """Of the worker 7."""

    def __init__(
        self, url: WorkerUrl, ranks: int = 1, allowed: tuple[EventSource, ...] = STREAMS
    ) -> None:
        self.index = EventIndex()
        self.counts = StreamCounts()
        self.up: list[bool] = []
        self.refused: list[str] = []
        self.subscribers = EventSubscribers(lambda _: None, lambda _: url, SIZE, allowed)
        self.stream = EngineStream(
            WORKER_ID,
            range(ranks),
            self.index,
            self,
            self.counts,
            block_size=SIZE,
            subscribers=self.subscribers,
        )
        for rank in range(ranks):
            worker = WorkerWithDpRank(WORKER_ID, rank)
            self.index.announce_publisher(worker, self.stream.publisher_id(rank))
        self.stream.believe(True)

    def on_stream(self, worker_id: int, up: bool, *, lasting: bool = False) -> None:
        self.up.append(up)

    def on_refused(self, worker_id: int, reason: str) -> None:
        self.refused.append(reason)

    def holds(self, *numbers: int, rank: int = 0) -> Callable[[], bool]:
        """Whether it knows exactly these single blocks of 0..19."""
        worker = WorkerWithDpRank(WORKER_ID, rank)

        def look() -> bool:
            scores = [self.index.scores(block_hashes(block(n), SIZE)) for n in range(20)]
            return {n for n in range(20) if scores[n].get(worker)} == set(numbers)

        return look


@asynccontextmanager
async def reading_stream(
    url: WorkerUrl, ranks: int = 1, allowed: tuple[EventSource, ...] = STREAMS
) -> AsyncIterator[StreamReader]:
    reader = StreamReader(url, ranks, allowed)
    reader.stream.open()
    try:
        yield reader
    finally:
        await reader.stream.close()
        reader.index.close()
