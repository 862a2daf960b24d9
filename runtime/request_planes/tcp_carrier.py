"""Requests over TCP: one connection to each worker, shared by all requests to it."""

import asyncio
import contextlib
from collections import deque
from typing import cast

from structlog import get_logger

from .answer import Answer
from .faults import Fault, RequestError
from .frames import AckDecoder, FrameError, encode_request

CONNECT_TIMEOUT_S = 3.0
ACK_TIMEOUT_S = 5.0

log = get_logger(__name__)


class TcpCarrier:
    """Brings requests to HOST:PORT/PATH."""

    def __init__(self) -> None:
        self._lines: dict[str, WorkerLine] = {}
        self._connecting: dict[str, asyncio.Lock] = {}

    @property
    def connections(self) -> int:
        return len(self._lines)

    async def send(self, address: str, id: str, payload: bytes, answer: Answer) -> str:
        """The worker's acknowledgement: empty, or why it refuses. RequestError without one."""
        place, _, path = address.partition("/")
        try:
            headers = {"request-id": id, "x-endpoint-path": path}
            frame = encode_request(path, headers, payload)
        except FrameError as error:
            raise RequestError(Fault.TOO_LARGE, str(error)) from None
        line = await self._line(place)
        ack = line.send(frame, answer)
        try:
            async with asyncio.timeout(ACK_TIMEOUT_S):
                return await asyncio.shield(ack)
        except TimeoutError:
            line.close()  # acknowledgements have no names: those that follow would be misread
            raise RequestError(Fault.SILENT, f"{address}: no acknowledgement in time") from None
        except ConnectionError as error:
            raise RequestError(Fault.BROKEN, f"{address}: {error}") from None

    async def close(self) -> None:
        for line in self._lines.values():
            line.close()
        self._lines.clear()

    async def _line(self, place: str) -> "WorkerLine":
        async with self._connecting.setdefault(place, asyncio.Lock()):
            line = self._lines.get(place)
            if line is not None and line.alive:
                return line
            self._lines.pop(place, None)
            host, _, port = place.rpartition(":")
            fresh = WorkerLine()
            try:
                async with asyncio.timeout(CONNECT_TIMEOUT_S):
                    await asyncio.get_running_loop().create_connection(
                        lambda: fresh, host.strip("[]"), int(port)
                    )
            except (OSError, TimeoutError, ValueError) as error:
                text = f"{place}: {error or 'no connection in time'}"
                raise RequestError(Fault.UNREACHABLE, text) from None
            self._lines[place] = fresh
            return fresh


class WorkerLine(asyncio.Protocol):
    """A connection to a worker: requests out, acknowledgements in, in the same order."""

    def __init__(self) -> None:
        self._decoder = AckDecoder()
        self._waiting: deque[asyncio.Future[str]] = deque()
        self._answers: set[Answer] = set()
        self._transport: asyncio.Transport | None = None
        self.alive = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is none by class
        self.alive = True

    def send(self, frame: bytes, answer: Answer) -> "asyncio.Future[str]":
        """Its acknowledgement; ConnectionError if the connection is lost before."""
        ack: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        ack.add_done_callback(_retrieve)
        if not self.alive or self._transport is None:
            ack.set_exception(ConnectionError("the connection was lost"))
            return ack
        self._waiting.append(ack)
        self._answers = {known for known in self._answers if not known.begun.is_set()}
        self._answers.add(answer)
        self._transport.write(frame)
        return ack

    def data_received(self, data: bytes) -> None:
        for text in self._decoder.feed(data):
            if not self._waiting:
                log.warning("a worker acknowledges what nobody asked")
                self.close()
                return
            ack = self._waiting.popleft()
            if not ack.done():
                ack.set_result(text)
        if (failure := self._decoder.failure) is not None:
            log.warning("a worker's connection is closed", error=str(failure))
            self.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self.alive = False
        for ack in self._waiting:
            if not ack.done():
                ack.set_exception(ConnectionError("the connection was lost"))
        self._waiting.clear()
        for answer in self._answers:
            if not answer.begun.is_set():
                answer.on_worker_lost()
        self._answers.clear()

    def close(self) -> None:
        self.alive = False
        if self._transport is not None:
            self._transport.close()


def _retrieve(ack: "asyncio.Future[str]") -> None:
    with contextlib.suppress(asyncio.CancelledError):
        ack.exception()  # somebody who gave up waiting need not hear of it
