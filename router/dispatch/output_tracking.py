"""Tells the router how long each answer is by now, for `router_track_output_blocks`."""

from typing import Protocol

import grpc
from google.protobuf.message import DecodeError

from ...workers.trtllm_proto import pb
from .request import DispatchObserver, Flight


class OutputLedger(Protocol):
    """What it needs of a KvRouter."""

    def add_output_tokens(self, request_id: str, generated: int) -> None: ...


class OutputTracking:
    """A DispatchObserver before another one. Reads every message, which costs a few microseconds.

    A request for several answers counts as long as the longest of them.
    """

    def __init__(self, router: OutputLedger, inner: DispatchObserver) -> None:
        self._router = router
        self._inner = inner

    def on_message(self, flight: Flight, message: bytes, now: float) -> None:
        try:
            generated = pb.GenerateResponse.FromString(message).chunk.completion_tokens
        except DecodeError:  # an affair of the engine and its client
            generated = 0
        if generated:
            self._router.add_output_tokens(flight.request_id, generated)
        self._inner.on_message(flight, message, now)

    def on_retry(self, flight: Flight, error: BaseException) -> None:
        self._inner.on_retry(flight, error)

    def on_end(self, flight: Flight | None, code: grpc.StatusCode) -> None:
        self._inner.on_end(flight, code)
