"""How many files of ours run for one event over ZMQ, from the socket until the index has it."""

import sys
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from support.kv_events.engine_events import stored
from support.polling import until

import dynamo_router
from dynamo_router.base.identity import WorkerWithDpRank
from dynamo_router.indexer.event_index import EventIndex
from dynamo_router.kv_events import EngineStream, EventSubscribers, StreamCounts
from dynamo_router.workers.worker_url import WorkerUrl

pytest.importorskip("zmq")
from support.kv_events.zmq_publisher import ZmqPublisher  # noqa: E402 it needs the package

PACKAGE = Path(dynamo_router.__file__).parent
MOST_FILES = 12
SIZE = 4


class Listener:
    def on_stream(self, worker_id: int, up: bool, *, lasting: bool = False) -> None: ...

    def on_refused(self, worker_id: int, reason: str) -> None: ...


class Trace:
    """The product's Python files whose code runs in this thread meanwhile."""

    def __init__(self) -> None:
        self.files: set[str] = set()

    def __enter__(self) -> "Trace":
        sys.setprofile(self._note)
        return self

    def __exit__(self, *of: object) -> None:
        sys.setprofile(None)

    def _note(self, frame: FrameType, event: str, argument: Any) -> None:
        path = Path(frame.f_code.co_filename)
        if path.suffix == ".py" and path.is_relative_to(PACKAGE):
            relative = path.relative_to(PACKAGE).as_posix()
            if not relative.startswith("tests/"):
                self.files.add(relative)


async def test_an_event_over_zmq_passes_few_files() -> None:
    index, worker = EventIndex(), WorkerWithDpRank(7)
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
            with Trace() as trace:
                await publisher.publish(stored([2], [2] * SIZE, SIZE, parent=1))
                await until(lambda: index.tier_counters()["device"]["stored"] == 2)
        finally:
            await stream.close()
            index.close()
    assert "kv_events/dialects/zmq_events.py" in trace.files
    assert "indexer/event_index/actor.py" in trace.files
    assert len(trace.files) <= MOST_FILES, sorted(trace.files)
