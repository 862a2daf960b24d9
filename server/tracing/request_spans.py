"""The spans of a request: one at the door, under it queue wait, decision and each attempt."""

import time

from opentelemetry.context import Context
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.trace import Span, SpanKind, Status, set_span_in_context
from opentelemetry.trace import StatusCode as SpanStatus
from opentelemetry.util.types import Attributes

from ...base.errors import StatusCode
from ...base.request_record import HttpTrace, RequestRecord, current_record
from ...workers.channels import Metadata
from ...workers.trtllm_proto import SERVICE
from ..dispatch import Attempt, CallTrace, FailedAttempt, Request, RequestTrace
from .http_spans import W3C, HttpSpan

NAME = f"{SERVICE}/Generate"
_CONTEXT_KEYS = ("traceparent", "tracestate")
_CLIENTS_DOING = (StatusCode.CANCELLED,)


class RequestSpans:
    """Begins the trace of each request: dispatch's Tracing."""

    def __init__(self, provider: TracerProvider) -> None:
        self._tracer = provider.get_tracer("dynamo_router")

    def begin_http(self, record: RequestRecord) -> HttpTrace:
        return HttpSpan(self._tracer, record)

    def begin(self, metadata: Metadata) -> RequestTrace:
        return _RequestTrace(self, *self._span_of("Generate", metadata))

    def begin_call(self, method: str, metadata: Metadata) -> CallTrace:
        return _CallTrace(self, *self._span_of(method, metadata))

    def child(
        self, context: Context, name: str, kind: SpanKind, attributes: Attributes, began: int
    ) -> Span:
        """A span that began at that time, in Unix nanoseconds."""
        return self._tracer.start_span(
            name, context=context, kind=kind, attributes=attributes, start_time=began
        )

    def _span_of(self, method: str, metadata: Metadata) -> tuple[Span, bool]:
        """The span of what came: of a call, or of a request over HTTP, which others end."""
        record = current_record()
        if record is not None and isinstance(record.trace, HttpSpan):
            return record.trace.span, True
        return self._server(method, metadata), False

    def _server(self, method: str, metadata: Metadata) -> Span:
        return self._tracer.start_span(
            f"{SERVICE}/{method}",
            context=_caller_of(metadata),
            kind=SpanKind.SERVER,
            attributes={"rpc.system": "grpc", "rpc.service": SERVICE, "rpc.method": method},
        )


class _ServerSpan:
    """Of one call, and the span of the attempt that goes on. Worker ids are text: they may be
    larger than an attribute's numbers.
    """

    def __init__(self, spans: RequestSpans, span: Span, is_http: bool) -> None:
        self._spans = spans
        self._span, self._is_http = span, is_http
        self._context = set_span_in_context(span, Context())
        self._attempt: Span | None = None

    def _attempt_began(
        self, metadata: Metadata, attributes: dict[str, str | int] | None
    ) -> Metadata:
        """The metadata with our context in place of the caller's; no attributes: no span."""
        context = self._context
        if attributes is not None:
            attributes = {"rpc.system": "grpc", **attributes}
            self._attempt = self._spans.child(
                context, "attempt", SpanKind.CLIENT, attributes, time.time_ns()
            )
            context = set_span_in_context(self._attempt, context)
        ours: dict[str, str] = {}
        W3C.inject(ours, context)
        rest = tuple(pair for pair in metadata if pair[0] not in _CONTEXT_KEYS)
        return (*ours.items(), *rest)

    def _attempt_ended(self, messages: int, failure: FailedAttempt | None) -> None:
        span, self._attempt = self._attempt, None
        if span is None:
            return
        span.set_attribute("dynamo.messages", messages)
        if failure is not None:
            span.set_attribute("dynamo.cause", failure.verdict.cause)
            span.set_status(Status(SpanStatus.ERROR, failure.details[:200]))
        span.end()

    def _ended(self, code: StatusCode, details: str) -> None:
        span = self._span
        if self._is_http:
            return
        if span.is_recording():
            span.set_attribute("rpc.grpc.status_code", int(code))
            if code is not StatusCode.OK and code not in _CLIENTS_DOING:
                span.set_status(Status(SpanStatus.ERROR, details[:200]))
        span.end()


class _CallTrace(_ServerSpan):
    """Of a call that books nothing."""

    def __init__(self, spans: RequestSpans, span: Span, is_http: bool) -> None:
        super().__init__(spans, span, is_http)
        self._failed: list[str] = []

    def sent(self, worker_id: int, address: str, attempt: int, metadata: Metadata) -> Metadata:
        if not self._span.is_recording():
            return self._attempt_began(metadata, None)
        self._span.set_attribute("dynamo.worker_id", str(worker_id))
        return self._attempt_began(
            metadata,
            {
                "dynamo.worker_id": str(worker_id),
                "dynamo.attempt": attempt,
                "server.address": address,
            },
        )

    def attempt_ended(self, messages: int, failure: FailedAttempt | None) -> None:
        self._attempt_ended(messages, failure)
        if failure is not None:
            self._failed.append(f"{failure.worker_id}:{failure.verdict.cause}")
        self._span.set_attribute("dynamo.messages", messages)

    def ended(self, code: StatusCode, details: str) -> None:
        if self._failed:
            self._span.set_attribute("dynamo.failed_attempts", self._failed)
        self._ended(code, details)


class _RequestTrace(_ServerSpan):
    """Of a Generate."""

    def __init__(self, spans: RequestSpans, span: Span, is_http: bool) -> None:
        super().__init__(spans, span, is_http)
        self._began = time.time_ns()
        self._failed = 0  # attempts whose failure has a span

    def decided(self, request: Request, attempt: Attempt) -> None:
        if not self._span.is_recording():
            return
        decision, now = attempt.decision, time.time_ns()
        began = now - int(attempt.decision_s * 1e9)
        if not len(request.failures):
            self._child("queue", {}, began - int(attempt.queue_s * 1e9), began)
        self._child(
            "decide",
            {
                "dynamo.worker_id": str(decision.worker.worker_id),
                "dynamo.dp_rank": decision.worker.dp_rank,
                "dynamo.overlap_blocks": decision.overlap_blocks,
                "dynamo.request_blocks": decision.request_blocks,
                "dynamo.cached_tokens": decision.cached_tokens,
            },
            began,
            now,
        )

    def sent(self, request: Request, attempt: Attempt, metadata: Metadata) -> Metadata:
        attributes: dict[str, str | int] | None = None
        if self._span.is_recording():
            worker = attempt.decision.worker
            attributes = {
                "dynamo.worker_id": str(worker.worker_id),
                "dynamo.dp_rank": worker.dp_rank,
                "dynamo.attempt": len(request.failures) + 1,
            }
            if attempt.client is not None:
                attributes["server.address"] = attempt.client.address
        return self._attempt_began(metadata, attributes)

    def attempt_ended(self, request: Request, attempt: Attempt) -> None:
        failure = None
        if len(request.failures) > self._failed and self._attempt is not None:
            self._failed = len(request.failures)
            failure = request.failures.last
        self._attempt_ended(attempt.messages, failure)

    def ended(self, request: Request | None, code: StatusCode, details: str) -> None:
        if self._span.is_recording() and request is not None:
            self._describe(request)
        self._ended(code, details)

    def _describe(self, request: Request) -> None:
        span, decision = self._span, request.decision
        if decision is None:  # it waited in vain
            self._child("queue", {}, self._began, time.time_ns())
        else:
            span.set_attribute("dynamo.worker_id", str(decision.worker.worker_id))
            span.set_attribute("dynamo.overlap_blocks", decision.overlap_blocks)
        if not self._is_http:
            span.set_attribute("dynamo.request_id", request.request_id[:200])
        span.set_attribute("dynamo.prompt_tokens", request.facts.prompt.isl)
        span.set_attribute("dynamo.messages", request.messages)
        if len(request.failures):
            span.set_attribute("dynamo.failed_attempts", request.failures.describe())

    def _child(self, name: str, attributes: Attributes, began: int, ended: int) -> None:
        span = self._spans.child(self._context, name, SpanKind.INTERNAL, attributes, began)
        span.end(end_time=ended)


def _caller_of(metadata: Metadata) -> Context:
    """The caller's trace context; none if it has none. gRPC has seen to it that there is one."""
    carrier = {key: str(value) for key, value in metadata if key == "traceparent"}
    states = [str(value) for key, value in metadata if key == "tracestate"]
    if states:
        carrier["tracestate"] = ",".join(states)
    return W3C.extract(carrier, Context())
