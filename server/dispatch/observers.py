"""Who is told what happens to requests on their way: the protocol, and what implements it here."""

from typing import Protocol

import structlog

from ...base.clock import Clock
from ...base.errors import StatusCode
from ...process.logs import UNLIMITED
from ...router.kv_router import KvRouter
from .generate_answer import told_output_tokens
from .request import Attempt, Request

log = structlog.get_logger(__name__)


class DispatchObserver(Protocol):
    """Observer of requests. Called on the event loop, for each of them: be quick."""

    def on_message(self, request: Request, attempt: Attempt, message: bytes, now: float) -> None:
        """A message came from the worker. Request and attempt still show the state before it."""

    def on_retry(self, request: Request, error: BaseException) -> None:
        """Another worker is tried, because the one before failed with this error."""

    def on_end(self, request: Request | None, code: StatusCode) -> None:
        """The request ended; None if it was refused before it was in request."""


class NoObserver:
    """Hears nothing."""

    def on_message(
        self, request: Request, attempt: Attempt, message: bytes, now: float
    ) -> None: ...

    def on_retry(self, request: Request, error: BaseException) -> None: ...

    def on_end(self, request: Request | None, code: StatusCode) -> None: ...


class OutputTracking:
    """A DispatchObserver before another one. Reads every message, which costs a microsecond.

    A request for several answers counts as long as the longest of them.
    """

    def __init__(self, router: KvRouter, inner: DispatchObserver) -> None:
        self._router = router
        self._inner = inner

    def on_message(self, request: Request, attempt: Attempt, message: bytes, now: float) -> None:
        if generated := told_output_tokens(message):
            self._router.add_output_tokens(attempt.booking_id, generated)
        self._inner.on_message(request, attempt, message, now)

    def on_retry(self, request: Request, error: BaseException) -> None:
        self._inner.on_retry(request, error)

    def on_end(self, request: Request | None, code: StatusCode) -> None:
        self._inner.on_end(request, code)


class AccessLog:
    """A DispatchObserver before another one, which logs `request ended` for every request, however
    many there are. Costs some 0.1 ms for each.
    """

    def __init__(self, clock: Clock, inner: DispatchObserver) -> None:
        self._now = clock.now
        self._inner = inner
        self.on_message = inner.on_message
        self.on_retry = inner.on_retry

    def on_end(self, request: Request | None, code: StatusCode) -> None:
        self._inner.on_end(request, code)
        fields: dict[str, object] = {UNLIMITED: True, "status": code.name}
        if request is not None:
            fields.update(
                request_id=request.request_id[:200],
                duration_s=round(self._now() - request.arrived, 6),
                prompt_tokens=request.facts.prompt.isl,
                streaming=request.facts.streaming,
                messages=request.messages,
                attempts=request.failures.describe(),
                migrations=request.moves,
            )
            decision = request.decision
            if decision is not None:
                fields.update(
                    worker_id=decision.worker.worker_id,
                    dp_rank=decision.worker.dp_rank,
                    queue_s=round(request.queue_s, 6),
                    overlap_blocks=decision.overlap_blocks,
                )
        log.info("request ended", **fields)
