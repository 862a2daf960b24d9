"""What is watched of HTTP answers where nothing traces them, and where something does."""

from typing import Any, cast

from support.polling import closed_after

from dynamo_router.base.request_record import RequestRecord
from dynamo_router.server.answer_watch import AnswerWatch
from dynamo_router.server.config import ServeConfig
from dynamo_router.server.dispatch import NO_TRACE
from dynamo_router.server.metrics import HttpAnswers
from dynamo_router.server.server_parts import ServerParts


class Tracer:
    """Counts the spans that begin and end."""

    def __init__(self) -> None:
        self.begun = self.ends = 0

    def begin_http(self, record: RequestRecord) -> Any:
        self.begun += 1
        return self

    def ended(self, record: RequestRecord) -> None:
        self.ends += 1


def watch(tracing: Any) -> AnswerWatch:
    return AnswerWatch(HttpAnswers(), cast(Any, tracing), access_log=False)


def counted(watched: AnswerWatch) -> float:
    (table,) = watched.counts.collect()
    return sum(table.values)


async def test_without_an_exporter_nothing_traces() -> None:
    async with closed_after(ServerParts(ServeConfig())) as parts:
        assert parts.tracing is NO_TRACE  # by which those that would call it know


def test_without_tracing_an_answer_is_counted_alone(monkeypatch: Any) -> None:
    monkeypatch.setattr(type(NO_TRACE), "begin_http", None)  # to be called by nobody
    watched, record = watch(NO_TRACE), RequestRecord(route="/x", status=200)
    watched.on_request(record)
    watched.on_end(record)
    assert record.trace is None
    assert counted(watched) == 1


def test_each_request_has_one_span() -> None:
    tracer = Tracer()
    watched, record, refused = watch(tracer), RequestRecord(), RequestRecord()
    watched.on_request(record)
    watched.on_end(record)
    assert (tracer.begun, tracer.ends) == (1, 1)
    watched.on_end(refused)  # its turn never came
    assert (tracer.begun, tracer.ends) == (2, 2)
