"""The span of a request over HTTP: OpenTelemetry's names of HTTP servers and of generative AI."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

from opentelemetry.context import Context
from opentelemetry.trace import Span, SpanKind, Status, Tracer, set_span_in_context
from opentelemetry.trace import StatusCode as SpanStatus
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from opentelemetry.util.types import AttributeValue

from ...base.request_record import RequestRecord

W3C = TraceContextTextMapPropagator()
OPERATIONS = {
    "/v1/chat/completions": "chat",
    "/v1/responses": "chat",
    "/v1/messages": "chat",
    "/v1/completions": "text_completion",
    "/v1/embeddings": "embeddings",
}
"""What a model does, by route."""
METHODS = ("CONNECT", "DELETE", "GET", "HEAD", "OPTIONS", "PATCH", "POST", "PUT", "TRACE")
MOST_CHARACTERS = 200


class HttpSpan:
    """Of one request. Spans of its requests to engines are under it."""

    def __init__(self, tracer: Tracer, record: RequestRecord) -> None:
        began = time.time_ns() - int((time.monotonic() - record.began) * 1e9)
        self._tracer, self._method = tracer, _method_of(record)
        self.span: Span = tracer.start_span(
            self._method,
            context=_caller_of(record),
            kind=SpanKind.SERVER,
            attributes=_connection_of(record, self._method),
            start_time=began,
        )
        self.context = set_span_in_context(self.span, Context())

    @property
    def trace_id(self) -> str:
        return f"{self.span.get_span_context().trace_id:032x}"

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        """A child span, until the end of the block."""
        span = self._tracer.start_span(name, context=self.context)
        try:
            yield
        finally:
            span.end()

    def ended(self, record: RequestRecord) -> None:
        span, status = self.span, record.status
        if span.is_recording():
            span.update_name(f"{self._method} {record.route}")
            span.set_attribute("http.route", record.route)
            span.set_attribute("http.response.status_code", status)
            span.set_attribute("dynamo.request_id", record.request_id)
            failure = record.failure or status
            if failure >= 500:  # what a client did wrong is no error of a server
                span.set_attribute("error.type", str(failure))
                span.set_status(Status(SpanStatus.ERROR, record.error[:MOST_CHARACTERS]))
            operation = OPERATIONS.get(record.route)
            if operation is not None:
                for name, value in _generation_of(record).items():
                    span.set_attribute(f"gen_ai.{name}", value)
                span.set_attribute("gen_ai.operation.name", operation)
        span.end()


def _generation_of(record: RequestRecord) -> dict[str, AttributeValue]:
    found: dict[str, AttributeValue] = {}
    if record.asked_model:
        found["request.model"] = record.asked_model[:MOST_CHARACTERS]
    if record.model:
        found["response.model"] = record.model
    if record.generation is not None:
        made = record.generation()
        found["usage.input_tokens"] = made.prompt_tokens
        found["usage.output_tokens"] = made.output_tokens
        found["usage.cache_read.input_tokens"] = made.cached_tokens
        if made.finish_reasons:
            found["response.finish_reasons"] = made.finish_reasons
    return found


def _method_of(record: RequestRecord) -> str:
    method = record.scope.get("method", "")
    return method if method in METHODS else "HTTP"


def _connection_of(record: RequestRecord, method: str) -> dict[str, AttributeValue]:
    scope = record.scope
    found: dict[str, AttributeValue] = {
        "http.request.method": "_OTHER" if method == "HTTP" else method,
        "url.scheme": scope.get("scheme", "http"),
        "network.protocol.version": scope.get("http_version", "1.1"),
    }
    if "path" in scope:
        found["url.path"] = scope["path"][:MOST_CHARACTERS]
    if (server := scope.get("server")) is not None:
        found["server.address"], found["server.port"] = server
    if (client := scope.get("client")) is not None:
        found["client.address"] = client[0]
    return found


def _caller_of(record: RequestRecord) -> Context:
    """The trace context of who sent it; none if it has none."""
    found: dict[str, str] = {}
    for name, value in record.scope.get("headers", ()):
        if name == b"traceparent":
            found.setdefault("traceparent", value.decode("latin-1"))
        elif name == b"tracestate":
            states = found.get("tracestate")
            text = value.decode("latin-1")
            found["tracestate"] = text if states is None else f"{states},{text}"
    return W3C.extract(found, Context()) if found else Context()
