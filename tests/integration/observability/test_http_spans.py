"""The span of a request over HTTP: OpenTelemetry's attributes, and the parts of its work below."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest
from support.fake_engine import FakeEngine, chunk, hang
from support.observability.collector import Collector, collecting
from support.polling import until
from support.servers.openai_serving import Served, openai_serving

from dynamo_router.server.observability import ObservabilityConfig

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
CALLER = {"traceparent": f"00-{TRACE}-{PARENT}-01", "tracestate": "congo=t61rcWkgMzE"}
TURNS = [{"role": "user", "content": "Hello"}]
SERVER, CLIENT, INTERNAL = 2, 3, 1
"""Kinds of spans, as OTLP numbers them."""
PARTS = {"template": INTERNAL, "tokenizing": INTERNAL, "queue": INTERNAL, "decide": INTERNAL,
         "attempt": CLIENT}  # fmt: skip


async def spans_of(*sent: tuple[str, Any], engine: FakeEngine | None = None) -> tuple[Any, ...]:
    """(collector, engine, statuses) once the router that answered these has closed."""
    engine = engine or FakeEngine(worker_id=7)
    async with collecting() as (collector, endpoint):
        seen = ObservabilityConfig(otel_endpoint=endpoint)
        async with openai_serving(engine, observability=seen) as served:
            statuses = [await ask(served, path, body) for path, body in sent]
            await until(lambda: served.server.dispatcher.in_flight == 0)
        return collector, engine, statuses


async def ask(served: Served, path: str, body: Any) -> int:
    if body is None:
        async with served.session.get(served.url + path, headers=CALLER) as answer:
            return answer.status
    async with served.session.post(served.url + path, json=body, headers=CALLER) as answer:
        await answer.read()
        return answer.status


def attributes(span: Any) -> dict[str, Any]:
    """By name; a list as a tuple."""
    found = {}
    for each in span.attributes:
        value = getattr(each.value, kind := each.value.WhichOneof("value"))
        is_list = kind == "array_value"
        found[each.key] = tuple(v.string_value for v in value.values) if is_list else value
    return found


def of_http(collector: Collector) -> list[Any]:
    return [span for span in collector.spans if span.kind == SERVER]


@pytest.mark.parametrize("path, operation, body, parts", [
    ("/v1/chat/completions", "chat", {"messages": TURNS, "max_tokens": 2}, set(PARTS)),
    ("/v1/completions", "text_completion", {"prompt": "Hello", "max_tokens": 2},
     set(PARTS) - {"template"}),
    ("/v1/responses", "chat", {"input": "Hello", "max_output_tokens": 2}, set(PARTS)),
    ("/v1/messages", "chat", {"messages": TURNS, "max_tokens": 2}, set(PARTS)),
])  # fmt: skip
@pytest.mark.parametrize("stream", [False, True])
async def test_a_request_is_a_span_with_the_parts_of_its_work(
    path: str, operation: str, body: Any, parts: set[str], stream: bool
) -> None:
    sent = {"model": "tiny", "stream": stream, **body}
    collector, engine, statuses = await spans_of((path, sent))
    assert statuses == [200]
    (server,) = of_http(collector)
    assert server.name == f"POST {path}"
    assert (server.trace_id.hex(), server.parent_span_id.hex()) == (TRACE, PARENT)
    found = attributes(server)
    (asked,) = engine.requests
    length = len(asked.tokenized.input_token_ids)
    assert {name: found.get(name) for name in (
        "http.request.method", "http.route", "http.response.status_code", "url.path", "url.scheme",
        "gen_ai.operation.name", "gen_ai.request.model", "gen_ai.response.model",
        "gen_ai.usage.input_tokens", "gen_ai.usage.output_tokens",
        "gen_ai.usage.cache_read.input_tokens", "gen_ai.response.finish_reasons",
        "client.address", "error.type",
    )} == {
        "http.request.method": "POST", "http.route": path, "http.response.status_code": 200,
        "url.path": path, "url.scheme": "http", "gen_ai.operation.name": operation,
        "gen_ai.request.model": "tiny", "gen_ai.response.model": "tiny",
        "gen_ai.usage.input_tokens": length, "gen_ai.usage.output_tokens": 2,
        "gen_ai.usage.cache_read.input_tokens": 0, "gen_ai.response.finish_reasons": ("length",),
        "client.address": "127.0.0.1", "error.type": None,
    }  # fmt: skip
    children = {span.name: span for span in collector.spans if span is not server}
    assert {name: span.kind for name, span in children.items()} == {n: PARTS[n] for n in parts}
    for name, span in children.items():
        assert (span.trace_id, span.parent_span_id) == (server.trace_id, server.span_id), name
        assert span.start_time_unix_nano <= span.end_time_unix_nano
    attempt = children["attempt"]
    assert attributes(attempt)["dynamo.worker_id"] == "7"
    assert engine.metadata[0]["traceparent"] == f"00-{TRACE}-{attempt.span_id.hex()}-01"


async def test_several_answers_are_parts_of_one_span() -> None:
    body = {"model": "tiny", "messages": TURNS, "max_tokens": 2, "n": 3}
    collector, _, _ = await spans_of(("/v1/chat/completions", body))
    (server,) = of_http(collector)
    found = attributes(server)
    assert found["gen_ai.usage.output_tokens"] == 6
    assert found["gen_ai.response.finish_reasons"] == ("length",) * 3
    attempts = [span for span in collector.spans if span.name == "attempt"]
    assert len(attempts) == 3 and {span.parent_span_id for span in attempts} == {server.span_id}


async def test_a_refused_request_is_a_span_that_is_no_error() -> None:
    completions = "/v1/completions"
    asked: list[tuple[str, Any]] = [
        (completions, {"model": "none", "prompt": "a"}),
        (completions, {"model": "tiny", "prompt": "a", "max_tokens": -1}),
        ("/secret/path", None),
        (completions, None),
    ]
    collector, _, statuses = await spans_of(*asked)
    assert statuses == [404, 400, 404, 405]
    spans = of_http(collector)
    found = [attributes(span) for span in spans]
    assert [each["http.response.status_code"] for each in found] == statuses
    names = [f"POST {completions}"] * 2 + ["GET unknown", f"GET {completions}"]
    assert [span.name for span in spans] == names
    assert not any("error.type" in each for each in found)
    assert found[0]["gen_ai.request.model"] == "none"
    assert "gen_ai.response.model" not in found[0]


async def test_failures_are_errors_of_the_span_with_their_cause() -> None:
    """Of the answer's head, or where a stream breaks after it."""

    async def breaks(engine: FakeEngine, request: Any, context: Any) -> AsyncIterator[Any]:
        if request.max_tokens > 1:
            yield chunk(request, 11)
        await context.abort(grpc.StatusCode.INTERNAL, "full of cats")

    body = {"model": "tiny", "prompt": "a", "stream": True}
    sent = [("/v1/completions", {**body, "max_tokens": n}) for n in (1, 2)]
    collector, _, statuses = await spans_of(*sent, engine=FakeEngine(breaks))
    assert statuses == [500, 200]
    refused, broken = of_http(collector)
    for span, status in zip((refused, broken), statuses, strict=True):
        found = attributes(span)
        assert found["http.response.status_code"] == status
        assert found["error.type"] == "500" and "full of cats" in span.status.message
    assert attributes(broken)["gen_ai.usage.output_tokens"] == 1


async def test_a_client_that_leaves_ends_its_spans() -> None:
    engine = FakeEngine(hang)
    async with collecting() as (collector, endpoint):
        seen = ObservabilityConfig(otel_endpoint=endpoint)
        async with openai_serving(engine, observability=seen) as served:
            body = {"model": "tiny", "prompt": "a", "max_tokens": 2}
            asked = asyncio.create_task(served.post("/v1/completions", body))
            await until(lambda: engine.requests)
            asked.cancel()
            await asyncio.wait([asked])
            await until(lambda: served.server.dispatcher.in_flight == 0)
    (server,) = of_http(collector)
    found = attributes(server)
    assert found["http.response.status_code"] == 499 and "error.type" not in found
    parts = sorted(span.name for span in collector.spans if span is not server)
    assert parts == ["attempt", "decide", "queue", "tokenizing"]
