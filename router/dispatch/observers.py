"""Who is told what happens to requests on their way: the protocol, and two that implement it."""

from typing import Protocol

import grpc

from .generate_answer import told_output_tokens
from .request import Flight


class DispatchObserver(Protocol):
    """Hears what happens to requests, on the event loop, for each of them: be quick."""

    def on_message(self, flight: Flight, message: bytes, now: float) -> None:
        """A message came from the worker. `flight` still shows the state before it."""

    def on_retry(self, flight: Flight, error: BaseException) -> None:
        """Another worker is tried, because the one before failed with this error."""

    def on_end(self, flight: Flight | None, code: grpc.StatusCode) -> None:
        """The request ended; None if it was refused before it became a flight."""


class NoObserver:
    """Hears nothing."""

    def on_message(self, flight: Flight, message: bytes, now: float) -> None: ...

    def on_retry(self, flight: Flight, error: BaseException) -> None: ...

    def on_end(self, flight: Flight | None, code: grpc.StatusCode) -> None: ...


class OutputLedger(Protocol):
    """What it needs of a KvRouter."""

    def add_output_tokens(self, request_id: str, generated: int) -> None: ...


class OutputTracking:
    """A DispatchObserver before another one. Reads every message, which costs a microsecond.

    A request for several answers counts as long as the longest of them.
    """

    def __init__(self, router: OutputLedger, inner: DispatchObserver) -> None:
        self._router = router
        self._inner = inner

    def on_message(self, flight: Flight, message: bytes, now: float) -> None:
        if generated := told_output_tokens(message):
            self._router.add_output_tokens(flight.booking_id, generated)
        self._inner.on_message(flight, message, now)

    def on_retry(self, flight: Flight, error: BaseException) -> None:
        self._inner.on_retry(flight, error)

    def on_end(self, flight: Flight | None, code: grpc.StatusCode) -> None:
        self._inner.on_end(flight, code)
