"""The access log: one line for each request that ended, whatever it came over."""

import re
import time
from typing import Any

import structlog

from ...base.clock import Clock
from ...base.errors import StatusCode
from ...base.request_record import RequestRecord, current_record
from ...process.logs import UNLIMITED
from ..access import current_caller
from .generate_answer import usage_of
from .observers import DispatchObserver, OtherCall
from .request import GENERATE, Request

MOST_ENGINE_REQUESTS = 32
"""Of one request whose attempts are in its line."""
MOST_CHARACTERS = 200
"""Of a field that a peer has written."""
_TRACEPARENT = re.compile(rb"[0-9a-f]{2}-([0-9a-f]{32})-")

log = structlog.get_logger(__name__)


class AccessLog:
    """A DispatchObserver before another one, which logs `request ended` for every gRPC request. One
    that came over HTTP is noted in its record, for the line of `log_answer`. A line costs some 0.1
    ms.
    """

    def __init__(self, clock: Clock, inner: DispatchObserver) -> None:
        self._now = clock.now
        self._inner = inner
        self.on_message, self.gaps_s = inner.on_message, inner.gaps_s
        self.on_retry = inner.on_retry

    def on_end(
        self, request: Request | None, code: StatusCode, other: OtherCall | None = None
    ) -> None:
        self._inner.on_end(request, code, other)
        record = current_record()
        if record is not None:
            if request is not None and len(record.engine_requests) < MOST_ENGINE_REQUESTS:
                record.engine_requests.append(request)
            return
        fields: dict[str, Any] = {"status": code.name}
        if caller := current_caller().name:
            fields["caller"] = caller
        if request is not None:
            fields |= {
                "route": GENERATE,
                "request_id": request.request_id[:MOST_CHARACTERS],
                "duration_s": round(self._now() - request.arrived, 6),
                "prompt_tokens": request.facts.prompt.isl,
                **_tokens_of(request),
                **_way_of([request]),
            }
        elif other is not None:
            fields["route"] = other.route
            if other.request_id:
                fields["request_id"] = other.request_id[:MOST_CHARACTERS]
            if other.details:
                fields["error"] = other.details[:MOST_CHARACTERS]
        log.info("request ended", **fields, **{UNLIMITED: True})


def log_answer(record: RequestRecord) -> None:
    """Log `request ended` of a request that came over HTTP."""
    scope = record.scope
    fields: dict[str, Any] = {
        "status": record.status,
        "route": record.route,
        "method": scope.get("method", ""),
        "request_id": record.request_id,
        "client": (scope.get("client") or ("",))[0],
        "duration_s": round(time.monotonic() - record.began, 6),
    }
    if record.caller:
        fields["caller"] = record.caller
    given = _header(record, b"x-request-id")
    if given and (text := given.decode("latin-1")) != record.request_id:
        fields["client_request_id"] = text[:MOST_CHARACTERS]
    if record.trace is not None:
        fields["trace_id"] = record.trace.trace_id
    elif (parent := _TRACEPARENT.match(_header(record, b"traceparent"))) is not None:
        fields["trace_id"] = parent[1].decode()
    if record.model or record.asked_model:
        fields["model"] = (record.model or record.asked_model)[:MOST_CHARACTERS]
    if record.error:
        fields["error"] = record.error[:MOST_CHARACTERS]
    if record.generation is not None:
        made = record.generation()
        fields |= {
            "prompt_tokens": made.prompt_tokens,
            "output_tokens": made.output_tokens,
            "cached_tokens": made.cached_tokens,
        }
        if made.first_at is not None:
            fields["ttft_ms"] = round((made.first_at - record.began) * 1e3, 3)
    if record.engine_requests:
        fields |= _way_of(record.engine_requests)
    log.info("request ended", **fields, **{UNLIMITED: True})


def _header(record: RequestRecord, wanted: bytes) -> bytes:
    headers = record.scope.get("headers", ())
    return next((value for name, value in headers if name == wanted), b"")


def _tokens_of(request: Request) -> dict[str, Any]:
    """What its worker reports of it."""
    fields: dict[str, Any] = {}
    usage = usage_of(request.last_message) if request.facts.sequences == 1 else None
    if usage is not None:
        fields["output_tokens"], fields["cached_tokens"] = usage
    if request.first_message_at is not None and request.facts.streaming:
        fields["ttft_ms"] = round((request.first_message_at - request.arrived) * 1e3, 3)
    return fields


def _way_of(requests: list[Request]) -> dict[str, Any]:
    """How requests to engines, of one client's request, found their workers: the last one's, and
    the attempts of all of them."""
    last = requests[-1]
    fields: dict[str, Any] = {
        "streaming": last.facts.streaming,
        "messages": sum(each.messages for each in requests),
        "attempts": [each for request in requests for each in request.failures.describe()],
        "migrations": sum(each.moves for each in requests),
    }
    if len(requests) > 1:
        fields["engine_requests"] = len(requests)
    decision = last.decision
    if decision is not None:
        fields |= {
            "worker_id": decision.worker.worker_id,
            "dp_rank": decision.worker.dp_rank,
            "queue_s": round(last.queue_s, 6),
            "overlap_blocks": decision.overlap_blocks,
        }
    if last.attempt is not None and last.attempt.pair.reason:
        pair = last.attempt.pair
        fields["disagg"] = pair.reason
        for name, seconds in (("disagg_local_s", pair.local_s), ("disagg_remote_s", pair.remote_s)):
            if seconds is not None:
                fields[name] = round(seconds, 6)
        if last.prefill is not None:
            fields["prefill_worker_id"] = last.prefill.worker.worker_id
    return fields
