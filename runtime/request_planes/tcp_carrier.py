"""Requests over TCP: one connection to each worker, shared by all requests to it."""

import asyncio
from collections import deque
from typing import cast

from structlog import get_logger

from .answer import Answer
from .faults import Fault, RequestError
from .frames import AckDecoder, FrameError, encode_request

CONNECT_TIMEOUT_S = 3.0

log = get_logger(__name__)


class TcpCarrier:
    """Brings requests to HOST:PORT/PATH."""

    def __init__(self) -> None:
        self._lines: dict[str, WorkerLine] = {}
        self._connecting: dict[str, asyncio.Lock] = {}

    @property
    def connections(self) -> int:
        return len(self._lines)

    def send_at_once(self, address: str, id: str, payload: bytes, answer: Answer) -> bool:
        """As `send`, if there is a connection to the worker and it can be sent; else False."""
        place, _, path = address.partition("/")
        line = self._lines.get(place)
        if line is None or not line.alive:
            return False
        try:
            frame = _frame(path, id, payload)
        except RequestError:
            return False
        line.send(frame, answer)
        return True

    async def send(self, address: str, id: str, payload: bytes, answer: Answer) -> None:
        """Bring it away; the acknowledgement comes to the answer. RequestError if that fails."""
        place, _, path = address.partition("/")
        frame = _frame(path, id, payload)
        (await self._line(place)).send(frame, answer)

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
                text = str(error) or "no connection in time"
                raise RequestError(Fault.UNREACHABLE, text) from None
            self._lines[place] = fresh
            return fresh


class WorkerLine(asyncio.Protocol):
    """A connection to a worker: requests out, acknowledgements in, in the same order."""

    def __init__(self) -> None:
        self._decoder = AckDecoder()
        self._unacknowledged: deque[Answer] = deque()
        self._not_begun: set[Answer] = set()
        self._transport: asyncio.Transport | None = None
        self.alive = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is none by class
        self.alive = True

    def send(self, frame: bytes, answer: Answer) -> None:
        """Pass the acknowledgement to the answer, or that the connection was lost before it."""
        answer.on_sent(self)
        self._unacknowledged.append(answer)
        self._not_begun.add(answer)
        if not self.alive or self._transport is None:
            self.connection_lost(None)
            return
        self._transport.write(frame)

    def forget(self, answer: Answer) -> None:
        """See AckLine."""
        self._not_begun.discard(answer)

    def data_received(self, data: bytes) -> None:
        for text in self._decoder.feed(data):
            if not self._unacknowledged:
                log.warning("a worker acknowledges a request that was not sent")
                self.close()
                return
            self._unacknowledged.popleft().on_ack(text)
        if (failure := self._decoder.failure) is not None:
            log.warning("a worker's connection is closed", error=str(failure))
            self.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self.alive = False
        lost = {*self._unacknowledged, *self._not_begun}
        self._unacknowledged.clear()
        self._not_begun.clear()
        for answer in lost:
            answer.on_line_lost()

    def close(self) -> None:
        """What is not sent yet is dropped: a worker that reads nothing would keep it here."""
        self.alive = False
        if self._transport is not None:
            self._transport.abort()


def _frame(path: str, id: str, payload: bytes) -> bytes:
    try:
        return encode_request(path, {"request-id": id, "x-endpoint-path": path}, payload)
    except FrameError as error:
        raise RequestError(Fault.TOO_LARGE, str(error)) from None
