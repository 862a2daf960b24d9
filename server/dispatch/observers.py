"""Observers of requests on their way: the protocol, and what implements it here."""

from typing import NamedTuple, Protocol

from ...base.errors import StatusCode
from ...router.kv_router import KvRouter
from .request import Attempt, Request

MOST_GAPS = 1024


class OtherCall(NamedTuple):
    """A call of another method, or a request that was refused before it was in flight."""

    route: str
    """of HTTP or gRPC"""
    request_id: str = ""
    """where it is known"""
    details: str = ""
    """why it failed"""


class DispatchObserver(Protocol):
    """Observer of requests. Called on the event loop, for each of them: be quick."""

    gaps_s: list[float] | None
    """where seconds between two messages of a stream for one answer are put, in place of a call for
    each message but the first; None: there are only calls. It is emptied at MOST_GAPS in it, and at
    a request's end."""

    def on_message(
        self, request: Request, attempt: Attempt, message: bytes, generated: int, now: float
    ) -> None:
        """A message came from the worker. Request and attempt still show the state before it.
        `generated`: tokens that are out in all by it; 0: not reported."""

    def on_retry(self, request: Request, error: BaseException) -> None:
        """Another worker is tried, because the one before failed with this error."""

    def on_end(
        self, request: Request | None, code: StatusCode, other: OtherCall | None = None
    ) -> None:
        """The request ended; None if there was none: see `other`."""


class NoObserver:
    """Observes nothing."""

    gaps_s: list[float] | None = None

    def on_message(
        self, request: Request, attempt: Attempt, message: bytes, generated: int, now: float
    ) -> None: ...

    def on_retry(self, request: Request, error: BaseException) -> None: ...

    def on_end(
        self, request: Request | None, code: StatusCode, other: OtherCall | None = None
    ) -> None: ...


class OutputTracking:
    """A DispatchObserver before another one: counts the tokens of each message.

    A request for several answers counts as long as the longest of them.
    """

    gaps_s: list[float] | None = None

    def __init__(self, router: KvRouter, inner: DispatchObserver) -> None:
        self._router = router
        self._inner = inner

    def on_message(
        self, request: Request, attempt: Attempt, message: bytes, generated: int, now: float
    ) -> None:
        if generated:
            self._router.add_output_tokens(attempt.booking_id, generated)
        self._inner.on_message(request, attempt, message, generated, now)

    def on_retry(self, request: Request, error: BaseException) -> None:
        self._inner.on_retry(request, error)

    def on_end(
        self, request: Request | None, code: StatusCode, other: OtherCall | None = None
    ) -> None:
        self._inner.on_end(request, code, other)
