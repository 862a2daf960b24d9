"""How many files of ours run for one event over ZMQ, from the socket until the index has it."""

from instruments.code_trace import CodeTrace, files_of
from support.kv_events.engine_events import stored
from support.kv_events.zmq_publisher import ZmqPublisher  # noqa: E402 it needs the package
from support.polling import until

from dynamo_router.base.identity import WorkerWithDpRank
from dynamo_router.indexer.event_index import EventIndex
from dynamo_router.kv_events import EngineStream, EventSubscribers, StreamCounts
from dynamo_router.workers.worker_url import WorkerUrl

MOST_FILES = 12
SIZE = 4


class Listener:
    def on_stream(self, worker_id: int, up: bool, *, lasting: bool = False) -> None: ...

    def on_refused(self, worker_id: int, reason: str) -> None: ...


async def test_an_event_over_zmq_passes_few_files() -> None:
    index, worker = EventIndex(), WorkerWithDpRank(7)
    hashes = iter(range(2, 100))

    async def publish() -> None:
        number = next(hashes)
        await publisher.publish(stored([number], [number] * SIZE, SIZE, parent=number - 1))
        await until(lambda: index.tier_counters()["device"]["stored"] == number)

    with CodeTrace() as trace:
        async with ZmqPublisher() as publisher:
            url = WorkerUrl("127.0.0.1:1", events=publisher.url, replay=publisher.replay_url)
            stream = EngineStream(
                7,
                [0],
                index,
                Listener(),
                StreamCounts(),
                block_size=SIZE,
                subscribers=EventSubscribers(lambda _: None, lambda _: url, SIZE),
            )
            index.announce_publisher(worker, stream.publisher_id(0))
            stream.believe(True)
            stream.open()
            try:
                await publisher.publish(stored([1], [1] * SIZE, SIZE))
                await until(lambda: index.tier_counters()["device"]["stored"] == 1)
                files = files_of(await trace.calls_of(publish))
            finally:
                await stream.close()
                index.close()
    assert "kv_events/dialects/zmq_events.py" in files
    assert "indexer/event_index/actor.py" in files
    assert len(files) <= MOST_FILES, files
