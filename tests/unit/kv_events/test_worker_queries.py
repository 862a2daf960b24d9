"""What Dynamo's recovery endpoints answered, recorded, as the index takes it in."""

import asyncio
import gc
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from support.places import ROOT
from support.polling import until

from dynamo_router.base.identity import WorkerWithDpRank
from dynamo_router.indexer.event_index import EventIndex
from dynamo_router.indexer.source import SourceState
from dynamo_router.kv_events import WorkerQueries
from dynamo_router.kv_events.resync_wire import ResyncRequest
from dynamo_router.runtime.components import EndpointName, Instance
from dynamo_router.runtime.request_planes import Fault, RequestError
from dynamo_router.workers.records import PublisherRecord

CASES = json.loads((ROOT / "tests/vectors/request_plane/worker_kv_query.json").read_text())["cases"]


def answer_of(case: str) -> Any:
    frames = CASES[case]["response_connection"]
    bodies = [frame["body"] for frame in frames if frame.get("body")]
    return next(body["data"] for body in bodies if body.get("data") is not None)


DUMP = answer_of("recovery_dump")["TreeDump"]
WORKER = WorkerWithDpRank(DUMP["events"][0]["worker_id"], 0)


class Plane:
    """Answers with what it is told to."""

    transports = frozenset({"tcp"})

    def __init__(self, *answers: Any) -> None:
        self._answers = list(answers)
        self.asked: list[Any] = []

    async def stream(self, address: str, body: Any, **more: Any) -> AsyncIterator[Any]:
        self.asked.append(body["start_event_id"])
        answer = self._answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        yield answer


@pytest.fixture
def index() -> Any:
    found = EventIndex()
    found.await_replays()
    yield found
    found.close()


def queries_of(index: EventIndex, plane: Plane) -> WorkerQueries:
    name = EndpointName("dynamo", "backend", "worker_kv_query_source_63")
    target = Instance(name, WORKER.worker_id, "tcp", "127.0.0.1:1/x", "msgpack")
    sources = {WORKER: PublisherRecord(WORKER, 99, target)}
    return WorkerQueries(index, plane, lambda: sources)  # type: ignore[arg-type]


async def ask(queries: WorkerQueries, first: int | None = None) -> None:
    publisher = None if first is None else 99
    assert queries.ask(ResyncRequest(*WORKER, publisher, first))
    await until(lambda: not queries._running)


async def test_a_recorded_dump_is_all_that_is_cached(index: EventIndex) -> None:
    await ask(queries_of(index, Plane({"TreeDump": DUMP})))
    (status,) = index.sources()
    stored = [event["event"]["data"]["stored"] for event in DUMP["events"]]
    assert status.state is SourceState.EXACT and status.last_event_id == DUMP["last_event_id"]
    assert status.blocks == sum(len(each["blocks"]) for each in stored) > 0


async def test_too_new_says_that_nothing_was_missed(index: EventIndex) -> None:
    too_new = {"TooNew": {"newest_available": DUMP["last_event_id"]}}
    plane = Plane({"TreeDump": DUMP}, too_new)
    queries = queries_of(index, plane)
    await ask(queries)
    index.mark_suspect()
    assert index.sources()[0].state is SourceState.RECOVERING
    await ask(queries, DUMP["last_event_id"] + 1)
    assert index.sources()[0].state is SourceState.EXACT
    assert plane.asked == [None, DUMP["last_event_id"] + 1]


async def test_events_that_do_not_help_are_followed_by_all(index: EventIndex) -> None:
    events = answer_of("recovery_from_1")["Events"]
    plane = Plane({"Events": events}, {"TreeDump": DUMP})
    await ask(queries_of(index, plane), 1)
    assert plane.asked == [1, None]
    assert index.sources()[0].state is SourceState.EXACT


DEEP: Any = []
for _ in range(3000):
    DEEP = [DEEP]


@pytest.mark.parametrize(
    "answer",
    [{"Error": "worker mismatch"}, {"InvalidRange": {}}, None, [], {"Events": {}}, {"TreeDump": 3},
     {"TreeDump": {"events": [{"x": 1}], "last_event_id": 4}}, "x", {5: DUMP},
     *({"TreeDump": {"events": [], "last_event_id": each}}
       for each in (2**64, -1, float("inf"), float("nan"), "9" * 5000, None)),
     *({"TreeDump": {"events": each, "last_event_id": 4}}
       for each in (None, {"a": 1}, [2**64], [DEEP], b"x")),
     RequestError(Fault.UNREACHABLE, "nobody"), {"TooNew": {"newest_available": -1}}],
)  # fmt: skip
async def test_a_bad_answer_changes_nothing(index: EventIndex, answer: Any) -> None:
    """Nor does it end the task, whose traceback would be logged."""
    failed: list[Any] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: failed.append(context))
    await ask(queries_of(index, Plane(answer, answer)))
    gc.collect()
    assert not failed
    assert all(status.blocks == 0 for status in index.sources())
    assert all(status.state is not SourceState.EXACT for status in index.sources())


async def test_others_are_asked_over_the_plane(index: EventIndex) -> None:
    queries = queries_of(index, Plane())
    assert not queries.ask(ResyncRequest(12345, 0))
    assert not queries.ask(ResyncRequest(None))
    await asyncio.wait_for(queries.close(), 60)
