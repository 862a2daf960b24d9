"""A worker's side of the request plane: one port for all endpoints, answers by call-home."""

import asyncio
import contextlib
from typing import cast

from structlog import get_logger

from ...transport.acceptor import BACKLOG
from .answer_writer import Handler, RequestContext, write_answer
from .faults import OVERLOADED, UNAVAILABLE
from .frames import FrameError, RequestDecoder, TwoPartDecoder, encode_ack
from .messages import RequestMessage, decode_request_message, handshake

DIAL_TIMEOUT_S = 5.0
MAX_CALLERS = 1024
"""Connections of callers at a time: each may hold a request that is not all there."""
MAX_UNREAD_ACK_BYTES = 1 << 20
"""Acknowledgements that a caller may leave unread, beside those that its system holds."""
_MAX_WORD_BYTES = 4096
LINGER_S = 10.0
"""How long the caller has to close an answer that is complete."""

log = get_logger(__name__)


class RequestServer:
    """Listens from `start` to `close`. Requests beyond `capacity` at a time are refused."""

    def __init__(self, capacity: int = 1024) -> None:
        self._capacity = capacity
        self._handlers: dict[str, Handler] = {}
        self._server: asyncio.Server | None = None
        self._callers: set[_Caller] = set()
        self._answers: set[asyncio.Task[None]] = set()
        self.unread_callers = 0
        """connections that were closed because their callers read no acknowledgements"""

    @property
    def in_flight(self) -> int:
        return len(self._answers)

    @property
    def port(self) -> int:
        """RuntimeError before `start`."""
        if self._server is None:
            raise RuntimeError("the server was not started")
        port: int = self._server.sockets[0].getsockname()[1]
        return port

    async def start(self, host: str = "127.0.0.1", port: int = 0) -> None:
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: _Caller(self), host, port, backlog=BACKLOG)

    def add(self, path: str, handler: Handler) -> None:
        """Serve a path. ValueError if it is served."""
        if path in self._handlers:
            raise ValueError(f"{path} is served already")
        self._handlers[path] = handler

    def remove(self, path: str) -> None:
        """Refuse what comes for a path from now on; what runs goes on."""
        self._handlers.pop(path, None)

    async def drain(self, timeout_s: float) -> bool:
        """Wait until all answers are out; False if some are not after `timeout_s`."""
        if self._answers:
            await asyncio.wait(self._answers, timeout=timeout_s)
        return not self._answers

    async def close(self) -> None:
        """Stop listening and give up what still runs. Idempotent."""
        self._handlers.clear()
        server, self._server = self._server, None
        if server is not None:
            # Not waited for: since Python 3.12 that waits for all connections, which peers hold.
            server.close()
        for caller in list(self._callers):
            caller.close()
        answers = list(self._answers)
        for answer in answers:
            answer.cancel()
        if answers:
            await asyncio.wait(answers)
        for caller in list(self._callers):
            caller.abort()  # it does not read

    def take(self, path: str, payload: bytes) -> str:
        """Begin to answer a request by call-home; the acknowledgement: empty, or why not."""
        handler = self._handlers.get(path)
        if handler is None:
            return f"{UNAVAILABLE}unknown endpoint {path}"
        if len(self._answers) >= self._capacity:
            return f"{OVERLOADED}worker at capacity"
        try:
            message = decode_request_message(payload)
        except FrameError as error:
            log.warning("a request cannot be answered", path=path, error=str(error)[:200])
            return f"{UNAVAILABLE}{error}"
        task = asyncio.create_task(_answer(handler, message, path), name=f"answer {path}")
        self._answers.add(task)
        task.add_done_callback(self._answers.discard)
        return ""

    def on_caller(self, caller: "_Caller") -> bool:
        """Whether there is room for one more."""
        if self._server is None:  # it was accepted before the server closed
            return False
        if len(self._callers) >= MAX_CALLERS:
            log.warning("a caller is turned away: there are too many", callers=MAX_CALLERS)
            return False
        self._callers.add(caller)
        return True

    def on_unread(self) -> None:
        """A caller is dropped that does not read."""
        self.unread_callers += 1
        log.warning("a caller's connection is closed", error="it reads no acknowledgements")

    def on_caller_gone(self, caller: "_Caller") -> None:
        self._callers.discard(caller)


class _Caller(asyncio.Protocol):
    """A caller's connection: requests in, acknowledgements out in their order."""

    def __init__(self, server: RequestServer) -> None:
        self._server = server
        self._decoder = RequestDecoder()
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is none by class
        self._transport.set_write_buffer_limits(high=MAX_UNREAD_ACK_BYTES)
        if not self._server.on_caller(self):
            self._transport.abort()

    def pause_writing(self) -> None:
        self._server.on_unread()
        self.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._server.on_caller_gone(self)

    def data_received(self, data: bytes) -> None:
        assert self._transport is not None
        take = self._server.take
        acks = [encode_ack(take(each.path, each.payload)) for each in self._decoder.feed(data)]
        if acks:  # in one piece: since Python 3.12 each write looks at all that still wait
            self._transport.write(b"".join(acks))
        if (failure := self._decoder.failure) is not None:
            log.warning("a caller's connection is closed", error=str(failure)[:200])
            self.close()

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()


class _CallHome(asyncio.Protocol):
    """The connection of one answer. `over` is set when the caller wants no more of it."""

    def __init__(self, over: asyncio.Event) -> None:
        self.over = over
        self._decoder = TwoPartDecoder(max_body=_MAX_WORD_BYTES)
        self._transport: asyncio.Transport | None = None
        self._writable = asyncio.Event()
        self._writable.set()
        self.done = asyncio.Event()
        """the caller has nothing more to say; it may still read"""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is none by class

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()

    def data_received(self, data: bytes) -> None:
        words = self._decoder.feed(data)
        if words or self._decoder.failure is not None or self._decoder.partial > _MAX_WORD_BYTES:
            self.over.set()  # stop and kill are the only words a caller has

    def eof_received(self) -> bool:
        self.done.set()
        return True  # so far it may be half closed: if it is not, the next write shows that

    def connection_lost(self, exc: Exception | None) -> None:
        self.over.set()
        self.done.set()
        self._writable.set()

    def write(self, frame: bytes) -> None:
        assert self._transport is not None
        self._transport.write(frame)

    async def drain(self) -> None:
        await self._writable.wait()

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()


async def _answer(handler: Handler, message: RequestMessage, path: str) -> None:
    context = RequestContext(message.id, path, message.metadata)
    address = message.call_home.address
    host, _, port = address.rpartition(":")
    try:
        async with asyncio.timeout(DIAL_TIMEOUT_S):
            _, line = await asyncio.get_running_loop().create_connection(
                lambda: _CallHome(context.cancelled), host.strip("[]"), int(port)
            )
    except (OSError, TimeoutError, ValueError) as error:
        log.warning("a caller cannot be reached", address=address[:100], error=str(error))
        return
    try:
        line.write(handshake(message.call_home.subject))
        if await write_answer(handler, message, context, line):
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LINGER_S):
                    await line.done.wait()
    finally:
        line.close()
