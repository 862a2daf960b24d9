"""Spans of requests, from the door to the worker, and how trace context travels."""

import asyncio
import re
import threading
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest
from grpc import aio
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider, sampling
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from support.calls import messages_of
from support.fake_engine import FakeEngine, answer, fail, hang, prompt
from support.free_port import free_port
from support.observability.collector import collecting
from support.places import ROOT
from support.polling import until
from support.rig import Rig
from support.serving import serving

from dynamo_router.base.errors import ConfigError, StatusCode
from dynamo_router.server import tracing
from dynamo_router.server.observability import ObservabilityConfig
from dynamo_router.server.tracing import span_export_of
from dynamo_router.server.tracing.request_spans import NAME, RequestSpans
from dynamo_router.workers.trtllm_proto import SERVICE

Code = grpc.StatusCode
TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
CALLER = (("traceparent", f"00-{TRACE}-{PARENT}-01"), ("tracestate", "congo=t61rcWkgMzE"))


class Spans:
    """What was exported, and a tracing that exports to it."""

    def __init__(self, sampler: sampling.Sampler = sampling.DEFAULT_ON) -> None:
        self._kept = InMemorySpanExporter()
        provider = TracerProvider(sampler=sampler, shutdown_on_exit=False)
        provider.add_span_processor(SimpleSpanProcessor(self._kept))
        self.tracing = RequestSpans(provider)

    def all(self) -> list[ReadableSpan]:
        return list(self._kept.get_finished_spans())

    def named(self, name: str) -> list[ReadableSpan]:
        return [span for span in self.all() if span.name == name]

    async def server(self) -> ReadableSpan:
        """The one of the request, once it ended."""
        await until(lambda: self.named(NAME))
        (span,) = self.named(NAME)
        return span


def hex_of(span: ReadableSpan) -> tuple[str, str]:
    """(trace id, span id) as they are written."""
    assert span.context is not None
    return f"{span.context.trace_id:032x}", f"{span.context.span_id:016x}"


def attributes(span: ReadableSpan) -> dict[str, Any]:
    return dict(span.attributes or {})


async def test_a_request_is_a_tree_of_spans_under_its_callers() -> None:
    spans = Spans()
    async with Rig(FakeEngine(worker_id=2**64 - 1), tracing=spans.tracing) as rig:
        (engine,) = rig.engines
        await rig.answers(prompt("r1", 12), metadata=(*CALLER, ("baggage", "k=v")))
        server = await spans.server()
    trace_id, parent = hex_of(server)
    assert trace_id == TRACE and server.parent is not None
    assert f"{server.parent.span_id:016x}" == PARENT
    children = {span.name: span for span in spans.all() if span is not server}
    assert sorted(children) == ["attempt", "decide", "queue"]
    for span in children.values():
        assert span.parent is not None and f"{span.parent.span_id:016x}" == parent
        assert server.start_time <= span.start_time + 10_000_000  # two clocks
        assert span.start_time <= span.end_time <= server.end_time + 10_000_000
    assert (server.kind.name, children["attempt"].kind.name) == ("SERVER", "CLIENT")
    said = attributes(server)
    assert said["dynamo.worker_id"] == str(2**64 - 1)
    assert (said["rpc.grpc.status_code"], said["dynamo.prompt_tokens"]) == (0, 12)
    assert (said["dynamo.request_id"], said["dynamo.messages"]) == ("r1", 3)
    assert {"dynamo.worker_id", "dynamo.dp_rank", "dynamo.overlap_blocks"} <= set(
        attributes(children["decide"])
    )
    assert attributes(children["attempt"])["server.address"] == engine.address
    # What the worker was told: our span is its parent.
    (told,) = engine.metadata
    assert told["traceparent"] == f"00-{TRACE}-{hex_of(children['attempt'])[1]}-01"
    assert (told["tracestate"], told["baggage"]) == ("congo=t61rcWkgMzE", "k=v")


async def test_each_attempt_is_a_span_with_its_cause() -> None:
    spans = Spans()
    engines = [FakeEngine(fail(Code.UNAVAILABLE, "full of cats"), worker_id=n) for n in (1, 2)]
    async with Rig(*engines, tracing=spans.tracing) as rig:
        engines[1].script = answer
        for _ in range(2):
            await rig.answers(prompt("r1"))
            await rig.settled()
    attempts = spans.named("attempt")
    causes = [attributes(span).get("dynamo.cause") for span in attempts]
    assert "unavailable" in causes and None in causes
    failed = attempts[causes.index("unavailable")]
    assert (failed.status.status_code.name, failed.status.description) == ("ERROR", "full of cats")
    ports = spans.named(NAME)
    assert [span.status.status_code.name for span in ports] == ["UNSET"] * 2
    tried = [attributes(span).get("dynamo.failed_attempts") for span in ports]
    assert ("1:unavailable",) in tried
    parents = [e.metadata[-1]["traceparent"].split("-")[2] for e in engines]
    assert set(parents) <= {hex_of(span)[1] for span in attempts}


async def test_a_request_that_nobody_could_serve_is_an_error() -> None:
    spans = Spans()
    async with Rig(tracing=spans.tracing) as rig:
        code, said = await rig.refusal(prompt("r1"))
        server = await spans.server()
        assert (await rig.refusal(b"junk"))[0] is Code.INVALID_ARGUMENT
        await until(lambda: len(spans.named(NAME)) == 2)
    assert code is Code.UNAVAILABLE
    assert (server.status.status_code.name, server.status.description) == ("ERROR", said)
    assert [span.name for span in spans.all()] == ["queue", NAME, NAME]


def offers_all(engine: FakeEngine) -> list[dict[str, Any]]:
    """Have an engine embed and give its tokenizer away; the metadata of each such call."""
    told: list[dict[str, Any]] = []

    async def embed(request: bytes, context: Any) -> bytes:
        told.append(dict(context.invocation_metadata()))
        return b"vector"

    async def tokenizer(request: bytes, context: Any) -> AsyncIterator[bytes]:
        told.append(dict(context.invocation_metadata()))
        for piece in (b"a", b"b"):
            yield piece

    engine.embed, engine.tokenizer = embed, tokenizer
    return told


async def embed_and_tokenizer(rig: Rig, metadata: Any = (), times: int = 1) -> None:
    """Ask so many times for each, and be answered."""
    embed = rig.channel.unary_unary(f"/{SERVICE}/Embed", None, None)
    tokenizer = rig.channel.unary_stream(f"/{SERVICE}/GetTokenizer", None, None)
    for _ in range(times):
        assert await embed(b"", metadata=metadata) == b"vector"
    for _ in range(times):
        assert await messages_of(tokenizer(b"", metadata=metadata)) == [b"a", b"b"]


async def test_embed_and_get_tokenizer_are_spans_under_their_callers_too() -> None:
    spans, engine = Spans(), FakeEngine(worker_id=2**64 - 1)
    told = offers_all(engine)
    async with Rig(engine, tracing=spans.tracing) as rig:
        await embed_and_tokenizer(rig, (*CALLER, ("baggage", "k=v"), ("x-other", "1")))
        await until(lambda: len(spans.all()) == 4)
    attempts = spans.named("attempt")
    for method, messages, attempt, metadata in zip(
        ("Embed", "GetTokenizer"), (1, 2), attempts, told, strict=True
    ):
        (server,) = spans.named(f"{SERVICE}/{method}")
        assert hex_of(server)[0] == TRACE and server.parent is not None
        assert f"{server.parent.span_id:016x}" == PARENT
        assert (server.kind.name, attempt.kind.name) == ("SERVER", "CLIENT")
        assert attempt.parent is not None and attempt.parent == server.context
        said = attributes(server)
        assert (said["rpc.method"], said["rpc.grpc.status_code"]) == (method, 0)
        assert said["dynamo.worker_id"] == str(2**64 - 1)
        assert said["dynamo.messages"] == attributes(attempt)["dynamo.messages"] == messages
        assert metadata["traceparent"] == f"00-{TRACE}-{hex_of(attempt)[1]}-01"
        assert (metadata["tracestate"], metadata["baggage"]) == ("congo=t61rcWkgMzE", "k=v")
        assert "x-other" not in metadata


async def test_an_embed_that_failed_somewhere_says_where_and_why() -> None:
    spans, good, bad = Spans(), FakeEngine(worker_id=1), FakeEngine(worker_id=2)
    offers_all(good)

    async def broken(request: bytes, context: Any) -> bytes:
        await context.abort(Code.UNAVAILABLE, "full of cats")
        raise AssertionError

    bad.embed = broken
    async with Rig(good, bad, tracing=spans.tracing) as rig:
        embed = rig.channel.unary_unary(f"/{SERVICE}/Embed", None, None)
        for _ in range(4):
            assert await embed(b"") == b"vector"
        await until(lambda: len(spans.named(f"{SERVICE}/Embed")) == 4)
        await good.stop()
        with pytest.raises(aio.AioRpcError):
            await embed(b"")
        await until(lambda: len(spans.named(f"{SERVICE}/Embed")) == 5)
    *fine, failed = spans.named(f"{SERVICE}/Embed")
    assert [span.status.status_code.name for span in fine] == ["UNSET"] * 4
    tried = [attributes(span).get("dynamo.failed_attempts") for span in fine]
    # Each of the two is every second call's first.
    assert sorted(tried, key=str) == [("2:unavailable",)] * 2 + [None] * 2
    assert failed.status.status_code.name == "ERROR"
    causes = [attributes(span).get("dynamo.cause") for span in spans.named("attempt")]
    assert causes.count(None) == 4 and causes.count("unavailable") >= 1
    cats = [s.status for s in spans.named("attempt") if s.status.description == "full of cats"]
    assert cats and cats[0].status_code.name == "ERROR"


async def test_spans_and_attributes_are_those_that_are_documented() -> None:
    spans = Spans()
    engines = [FakeEngine(fail(Code.UNAVAILABLE, "full"), worker_id=1), FakeEngine(worker_id=2)]
    offers_all(engines[1])
    async with Rig(*engines, tracing=spans.tracing) as rig:
        await embed_and_tokenizer(rig, times=2)  # the engines take turns
        for number in range(2):
            await rig.answers(prompt(f"r{number}"))
            await rig.settled()
    doc = (ROOT / "docs" / "observability.md").read_text().split("## Spans")[1].split("\n## ")[0]
    rows = [line.split("|")[1:5] for line in doc.splitlines() if line.startswith("| `")]
    documented = {
        name.strip(" `"): set(re.findall("`([\\w.]+)`", what)) for name, _, _, what in rows
    }
    seen: dict[str, set[str]] = {}
    for span in spans.all():
        seen.setdefault(span.name, set()).update(attributes(span))
    assert {name: what - {"worker_id"} for name, what in documented.items()} == seen


async def test_a_client_that_leaves_is_no_error_and_leaves_no_span_open() -> None:
    spans = Spans()
    async with Rig(FakeEngine(hang), tracing=spans.tracing) as rig:
        call = rig.call(prompt("r1"))
        await rig.running(rig.engines[0])
        call.cancel()
        await rig.settled()
        server = await spans.server()
    assert server.status.status_code.name == "UNSET"
    assert attributes(server)["rpc.grpc.status_code"] == Code.CANCELLED.value[0]
    assert sorted(span.name for span in spans.all()) == sorted([NAME, "attempt", "decide", "queue"])


async def test_what_is_not_sampled_makes_no_span_and_says_so_on() -> None:
    spans = Spans()
    async with Rig(FakeEngine(), tracing=spans.tracing) as rig:
        unsampled = (("traceparent", f"00-{TRACE}-{PARENT}-00"),)
        await rig.answers(prompt("r1"), metadata=unsampled)
        await rig.settled()
        (told,) = rig.engines[0].metadata
    assert spans.all() == []
    assert told["traceparent"].startswith(f"00-{TRACE}-") and told["traceparent"].endswith("-00")


@pytest.mark.parametrize("given", [(), (("traceparent", "junk"),), CALLER[1:]])
async def test_without_a_caller_that_can_be_believed_a_trace_begins_here(given: Any) -> None:
    spans = Spans()
    async with Rig(FakeEngine(), tracing=spans.tracing) as rig:
        await rig.answers(prompt("r1"), metadata=given)
        server = await spans.server()
        (told,) = rig.engines[0].metadata
    assert server.parent is None
    assert told["traceparent"].split("-")[1] == hex_of(server)[0] != TRACE


async def test_untraced_the_context_goes_through_as_it_came() -> None:
    async with Rig(FakeEngine()) as rig:
        await rig.answers(prompt("r1"), metadata=CALLER)
        (told,) = rig.engines[0].metadata
    assert (told["traceparent"], told["tracestate"]) == (CALLER[0][1], CALLER[1][1])


async def test_a_served_router_sends_its_spans_to_a_collector() -> None:
    async with collecting() as (collector, endpoint):
        seen = ObservabilityConfig(otel_endpoint=endpoint)
        async with serving(FakeEngine(worker_id=7), observability=seen) as ports:
            await ports.answers(prompt("r1"))
        # Closed: what was there has been sent.
        names = sorted(span.name for span in collector.spans)
        assert names == sorted([NAME, "queue", "decide", "attempt"])
        assert len({span.trace_id for span in collector.spans}) == 1
        assert collector.services == {"dynamo-router"}


async def test_a_collector_that_is_away_holds_nobody_up() -> None:
    seen = ObservabilityConfig(otel_endpoint=f"http://127.0.0.1:{free_port()}")
    async with serving(FakeEngine(), observability=seen) as ports:
        for number in range(5):
            assert await ports.answers(prompt(f"r{number}"))
        async with asyncio.timeout(30):
            await ports.server.close()


async def test_a_collector_that_hangs_keeps_nobody_from_ending() -> None:
    async with collecting() as (collector, endpoint):
        collector.go.clear()
        export = span_export_of(endpoint)
        assert export is not None
        export.tracing.begin(()).ended(None, StatusCode.OK, "")
        closing = asyncio.create_task(export.close(timeout_s=0.2))
        await until(lambda: collector.asked)
        async with asyncio.timeout(30):
            await closing
        wait_over = [t for t in threading.enumerate() if t.name == "last spans"]
        await until(lambda: not any(thread.is_alive() for thread in wait_over))
        assert not collector.spans


def test_nobody_traces_unless_asked() -> None:
    assert span_export_of(None, {}) is None
    endpoint = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1"}
    assert span_export_of(None, {**endpoint, "OTEL_TRACES_EXPORTER": "none"}) is None
    assert span_export_of(None, {**endpoint, "OTEL_SDK_DISABLED": "true"}) is None


async def test_the_standard_variables_are_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    async with collecting() as (collector, endpoint):
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", endpoint)
        monkeypatch.setenv("OTEL_SERVICE_NAME", "router-7")
        async with serving(FakeEngine()) as ports:
            await ports.answers(prompt("r1"))
        assert collector.services == {"router-7"} and collector.spans


def test_without_the_packages_a_flag_is_refused_and_a_variable_is_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tracing, "_PACKAGES", ("opentelemetry.no_such_package",))
    with pytest.raises(ConfigError, match=r"dynamo-router\[otel\]"):
        span_export_of("http://127.0.0.1:1", {})
    assert span_export_of(None, {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1"}) is None
