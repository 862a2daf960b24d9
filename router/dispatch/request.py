"""A request on its way through the router, from its arrival to its end."""

import math
from dataclasses import dataclass
from typing import Protocol

import grpc
from grpc import aio

from ...runtime.identity import WorkerWithDpRank
from ...workers.trtllm_client import TrtllmClient
from ..admission import NORMAL, Urgency
from ..policy import Decision
from .generate_request import GenerateFacts


@dataclass(slots=True)
class Flight:
    """One request in flight. Times are seconds of the dispatcher's clock."""

    request_id: str
    body: bytes
    facts: GenerateFacts
    arrived: float
    pinned: WorkerWithDpRank | None = None
    urgency: Urgency = NORMAL
    decision: Decision | None = None
    """of the current attempt"""
    decision_s: float = 0.0
    """how long that decision took"""
    client: TrtllmClient | None = None
    call: "aio.UnaryStreamCall[bytes, bytes] | None" = None
    messages: int = 0
    """begun to be passed to the client; from the first one on there is no second attempt"""
    last_message: bytes = b""
    last_message_at: float = 0.0
    waiting_since: float = math.inf
    """since when the worker owes us a message; infinite while it does not"""
    silent: bool = False
    """the worker was given up because it owed a message for too long"""
    aborted: bool = False
    """somebody asked to abort it"""


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
