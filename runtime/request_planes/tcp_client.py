"""A caller's side of the TCP request plane: pipelined requests, answers on one port of ours."""

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncGenerator
from typing import Any
from uuid import uuid4

from structlog import get_logger

from ..errors import WorkerError
from .frames import AckDecoder, FrameError, TwoPartDecoder, encode_request
from .messages import KILL, OVERLOADED, UNAVAILABLE, encode_request_message
from .response_reader import Data, Ended, Event, Fault, ResponseReader, subject_of

CONNECT_TIMEOUT_S = 3.0
ACK_TIMEOUT_S = 5.0
CALL_HOME_TIMEOUT_S = 10.0
"""A worker that cannot read a request accepts it and is silent: hence a limit of our own."""
HANDSHAKE_TIMEOUT_S = 10.0
WAITING_PARTS = 64
"""Parts of an answer that wait for a slow reader before the worker has to."""

log = get_logger(__name__)


class RequestError(WorkerError):
    """A request that did not get its answer, or not to its end. `fault` says whose it is."""

    def __init__(self, fault: Fault, message: str, *, worker_id: int | None = None) -> None:
        super().__init__(message, worker_id=worker_id)
        self.fault = fault


class TcpRequestClient:
    """One per process: connections are shared by all requests to the same address."""

    def __init__(self) -> None:
        self._listener: asyncio.Server | None = None
        self._address = ""
        self._workers: dict[str, _WorkerLine] = {}
        self._answers: dict[str, _Answer] = {}
        self._homes: set[_HomeLine] = set()
        self._connecting: dict[str, asyncio.Lock] = {}

    async def start(self, host: str = "127.0.0.1", port: int = 0) -> None:
        """Listen for answers. `host` has to be one that workers reach."""
        loop = asyncio.get_running_loop()
        self._listener = await loop.create_server(lambda: _HomeLine(self), host, port)
        shown = f"[{host}]" if ":" in host else host
        self._address = f"{shown}:{self._listener.sockets[0].getsockname()[1]}"

    async def close(self) -> None:
        """Give up all answers and close all connections. Idempotent."""
        listener, self._listener = self._listener, None
        for answer in list(self._answers.values()):
            answer.on_event(Ended(Fault.BROKEN, "the client was closed"))
        for line in self._workers.values():
            line.close()
        for home in list(self._homes):
            home.close()
        self._workers.clear()
        if listener is not None:
            listener.close()
            await listener.wait_closed()
        await asyncio.sleep(0)  # closed transports leave the loop one turn later

    async def stream(
        self,
        address: str,
        body: object,
        *,
        codec: str = "msgpack",
        request_id: str | None = None,
        metadata: dict[str, str] | None = None,
    ) -> AsyncGenerator[Any, None]:
        """The parts of the answer of `address` (HOST:PORT/PATH, as an instance has it).

        RequestError if it does not come, or ends too early. Closing the generator cancels the
        request. Whoever got a part must not ask again elsewhere without counting it.
        """
        if self._listener is None:
            raise RuntimeError("the client was not started")
        place, _, path = address.partition("/")
        id, subject = request_id or str(uuid4()), str(uuid4())
        headers = {"request-id": id, "x-endpoint-path": path}
        try:
            payload = encode_request_message(
                id, self._address, subject, body, codec, metadata or {}
            )
            frame = encode_request(path, headers, payload)
        except FrameError as error:
            raise RequestError(Fault.TOO_LARGE, str(error)) from None
        answer = self._answers[subject] = _Answer(codec)
        try:
            line = await self._line(place)
            await self._sent(line, frame, answer, address)
            while True:
                event = await answer.next()
                if isinstance(event, Data):
                    yield event.value
                elif event.fault is None:
                    return
                else:
                    raise RequestError(event.fault, f"{address}: {event.text}")
        finally:
            del self._answers[subject]
            answer.close()

    def answer_for(self, subject: str) -> "_Answer | None":
        return self._answers.get(subject)

    def on_home(self, line: "_HomeLine", here: bool) -> None:
        (self._homes.add if here else self._homes.discard)(line)

    async def _line(self, place: str) -> "_WorkerLine":
        async with self._connecting.setdefault(place, asyncio.Lock()):
            line = self._workers.get(place)
            if line is not None and line.alive:
                return line
            host, _, port = place.rpartition(":")
            try:
                async with asyncio.timeout(CONNECT_TIMEOUT_S):
                    fresh = _WorkerLine()
                    await asyncio.get_running_loop().create_connection(
                        lambda: fresh, host.strip("[]"), int(port)
                    )
            except (OSError, TimeoutError, ValueError) as error:
                self._workers.pop(place, None)
                raise RequestError(
                    Fault.UNREACHABLE, f"{place}: {error or 'no connection in time'}"
                ) from None
            self._workers[place] = fresh
            return fresh

    async def _sent(
        self, line: "_WorkerLine", frame: bytes, answer: "_Answer", address: str
    ) -> None:
        """Send a request and wait for its acknowledgement and the answer's first sign."""
        ack = line.send(frame, answer)
        try:
            async with asyncio.timeout(ACK_TIMEOUT_S):
                refusal = await asyncio.shield(ack)
        except TimeoutError:
            line.close()  # acknowledgements have no names: those that follow would be misread
            raise RequestError(Fault.SILENT, f"{address}: no acknowledgement in time") from None
        except ConnectionError as error:
            raise RequestError(Fault.BROKEN, f"{address}: {error}") from None
        if refusal:
            raise RequestError(_fault_of(refusal), f"{address}: {refusal}")
        try:
            async with asyncio.timeout(CALL_HOME_TIMEOUT_S):
                await answer.begun.wait()
        except TimeoutError:
            text = "it accepted the request and did not answer"
            raise RequestError(Fault.SILENT, f"{address}: {text}") from None


class _Answer:
    """One answer: what has come and is not read yet."""

    def __init__(self, codec: str) -> None:
        self._reader = ResponseReader(codec)
        self._events: deque[Event] = deque()
        self._changed = asyncio.Event()
        self._home: _HomeLine | None = None
        self.begun = asyncio.Event()

    def attach(self, home: "_HomeLine") -> bool:
        """Take what comes on this connection; False if there is one already."""
        if self._home is not None:
            return False
        self._home = home
        self.begun.set()
        return True

    def on_frames(self, frames: list[Any]) -> None:
        for frame in frames:
            self._events.extend(self._reader.on_frame(frame))
        self._changed.set()
        if self._home is not None and len(self._events) > WAITING_PARTS:
            self._home.pause()

    def on_eof(self) -> None:
        self._events.extend(self._reader.on_eof())
        self._changed.set()

    def on_event(self, event: Event) -> None:
        """End it from our side."""
        self._events.append(event)
        self._changed.set()
        self.begun.set()

    def on_worker_lost(self) -> None:
        """The connection that brought the request is gone: without a call-home none will come."""
        if self._home is None:
            self.on_event(Ended(Fault.BROKEN, "the worker went before it answered"))

    async def next(self) -> Event:
        while not self._events:
            self._changed.clear()
            await self._changed.wait()
        event = self._events.popleft()
        if self._home is not None and len(self._events) < WAITING_PARTS // 2:
            self._home.resume()
        return event

    def close(self) -> None:
        if self._home is not None:
            self._home.end(cancel=not self._reader.ended)


class _WorkerLine(asyncio.Protocol):
    """A connection to a worker: requests out, acknowledgements in, in the same order."""

    def __init__(self) -> None:
        self._decoder = AckDecoder()
        self._waiting: deque[asyncio.Future[str]] = deque()
        self._answers: set[_Answer] = set()
        self._transport: asyncio.Transport | None = None
        self.alive = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self.alive = True

    def send(self, frame: bytes, answer: _Answer) -> "asyncio.Future[str]":
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


class _HomeLine(asyncio.Protocol):
    """A worker's connection to us with one answer."""

    def __init__(self, client: TcpRequestClient) -> None:
        self._client = client
        self._decoder = TwoPartDecoder()
        self._transport: asyncio.Transport | None = None
        self._answer: _Answer | None = None
        self._deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._client.on_home(self, True)
        loop = asyncio.get_running_loop()
        self._deadline = loop.call_later(HANDSHAKE_TIMEOUT_S, self.close)

    def data_received(self, data: bytes) -> None:
        frames = self._decoder.feed(data)
        if frames and self._answer is None:
            subject = subject_of(frames.pop(0))
            answer = self._client.answer_for(subject) if subject is not None else None
            if answer is None or not answer.attach(self):
                self.close()  # nobody waits for it, or not any more
                return
            self._answer = answer
            if self._deadline is not None:
                self._deadline.cancel()
        if frames and self._answer is not None:
            self._answer.on_frames(frames)
        if (failure := self._decoder.failure) is not None:
            log.warning("an answer's connection is closed", error=str(failure))
            if self._answer is not None:
                self._answer.on_event(Ended(Fault.PROTOCOL, str(failure)))
            self.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self._client.on_home(self, False)
        if self._deadline is not None:
            self._deadline.cancel()
        if self._answer is not None:
            self._answer.on_eof()

    def pause(self) -> None:
        if self._transport is not None and self._transport.is_reading():
            self._transport.pause_reading()

    def resume(self) -> None:
        transport = self._transport
        if transport is not None and not transport.is_reading() and not transport.is_closing():
            transport.resume_reading()

    def end(self, *, cancel: bool) -> None:
        """Close it first, as the worker expects; with a word if the answer is not complete."""
        if self._transport is not None and not self._transport.is_closing():
            if cancel:
                self._transport.write(KILL)
            self.close()

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()


def _fault_of(refusal: str) -> Fault:
    if refusal.startswith(OVERLOADED.strip()):
        return Fault.OVERLOADED
    return Fault.UNAVAILABLE if refusal.startswith(UNAVAILABLE.strip()) else Fault.REFUSED


def _retrieve(ack: "asyncio.Future[str]") -> None:
    with contextlib.suppress(asyncio.CancelledError):
        ack.exception()  # somebody who gave up waiting need not hear of it
