"""Requests over gRPC, from the caller's side: a call for each, over one connection to a worker.

A call's messages to us are the acknowledgement and then the frames of the answer, as over TCP. The
connection is looked after by HTTP/2: flow control, cancellation, and pings that notice a peer
which stands still.
"""

import asyncio
from typing import Any

import grpc
from structlog import get_logger

from ...transport.security import ClientTls
from .answer import Answer
from .faults import Fault, RequestError, fault_of_status
from .frames import MAX_HEADER_BYTES, MAX_PAYLOAD_BYTES, FrameError, decode_two_part

METHOD = "/dynamo_router.RequestPlane/Call"
GRPC_TLS = "grpcs"
"""The transport of instances that are called like this over TLS alone."""
PATH_KEY = "x-endpoint-path"
CONNECT_TIMEOUT_S = 3.0
ACK_TIMEOUT_S = 5.0
MAX_MESSAGE_BYTES = MAX_PAYLOAD_BYTES + MAX_HEADER_BYTES + 64
PING_MS, PING_TIMEOUT_MS = 10_000, 5_000
"""A worker that stands still in the middle of an answer is noticed after both, 15 s."""
_OPTIONS: tuple[tuple[str, Any], ...] = (
    ("grpc.initial_reconnect_backoff_ms", 50),
    ("grpc.max_reconnect_backoff_ms", 1000),
    ("grpc.min_reconnect_backoff_ms", int(1000 * CONNECT_TIMEOUT_S)),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.enable_http_proxy", 0),
)

log = get_logger(__name__)


class GrpcCarrier:
    """Brings requests to HOST:PORT/PATH."""

    def __init__(
        self,
        ping_ms: int = PING_MS,
        ping_timeout_ms: int = PING_TIMEOUT_MS,
        *,
        tls: ClientTls | None = None,
    ) -> None:
        """With `tls` workers are called over TLS alone. Its files are its owner's to watch."""
        self._tls = tls
        if tls is not None:
            tls.files.listeners.append(self._on_new_files)
        self._options = (
            *_OPTIONS,
            *(() if tls is None else tls.channel_options()),
            ("grpc.keepalive_time_ms", ping_ms),
            ("grpc.keepalive_timeout_ms", ping_timeout_ms),
            # For pings of gRPC's own that are under way, which keep back those of keepalive.
            ("grpc.http2.ping_timeout_ms", ping_timeout_ms),
        )
        self._lines: dict[str, _Line] = {}
        self._old: set[_Line] = set()  # with credentials that were replaced, while calls are on it
        self._reading: set[asyncio.Task[None]] = set()

    @property
    def connections(self) -> int:
        return len(self._lines)

    async def send(self, address: str, id: str, payload: bytes, answer: Answer) -> None:
        """Bring it away, and tell the answer of the acknowledgement. RequestError without one."""
        place, _, path = address.partition("/")
        if len(payload) > MAX_PAYLOAD_BYTES:
            text = f"a request of {len(payload)} bytes is too large for a frame"
            raise RequestError(Fault.TOO_LARGE, text)
        line = self._lines.get(place)
        if line is None:
            credentials = None if self._tls is None else self._tls.credentials
            line = self._lines[place] = _Line(place, self._options, credentials)
        call = line.call(payload, ((PATH_KEY, path), ("request-id", id)))
        try:
            async with asyncio.timeout(ACK_TIMEOUT_S):
                ack = await call.read()
                if ack is grpc.aio.EOF:
                    raise RequestError(Fault.BROKEN, "no acknowledgement")
        except TimeoutError:
            await self._give_up(line, call)
            raise RequestError(Fault.SILENT, "no acknowledgement in time") from None
        except grpc.aio.AioRpcError as error:
            await self._give_up(line, call)
            fault = fault_of_status(error.code().name, error.details() or "")
            raise RequestError(fault, error.details() or "") from None
        except BaseException:
            await self._give_up(line, call)
            raise
        if ack:
            await self._give_up(line, call, sound=True)
            answer.on_ack(bytes(ack).decode(errors="replace"))
            return
        home = _GrpcAnswer(call)
        reading = asyncio.create_task(self._read(line, home, answer), name=f"answer of {address}")
        home.reading = reading
        self._reading.add(reading)
        reading.add_done_callback(self._reading.discard)
        answer.attach(home, begun=False)
        answer.on_ack("")

    async def close(self) -> None:
        reading = list(self._reading)
        for task in reading:
            task.cancel()
        if reading:
            await asyncio.wait(reading)
        if self._tls is not None and self._on_new_files in self._tls.files.listeners:
            self._tls.files.listeners.remove(self._on_new_files)
        lines, self._lines = list(self._lines.values()), {}
        for line in (*lines, *self._old):
            await line.channel.close()
        self._old.clear()

    def _on_new_files(self, material: object) -> None:
        """Call over new connections from now on: a channel keeps the credentials that it had."""
        for line in self._lines.values():
            line.failed = True
            self._old.add(line)
        self._lines.clear()

    async def _read(self, line: "_Line", home: "_GrpcAnswer", answer: Answer) -> None:
        """Bring the answer's frames to their reader, as fast as it reads."""
        sound = False
        try:
            while not home.over:
                await home.wanted.wait()
                message = await home.call.read()
                sound = True
                if message is grpc.aio.EOF:
                    break
                answer.on_frames([decode_two_part(message)])
        except FrameError as error:
            answer.fail(Fault.PROTOCOL, str(error))
        except grpc.aio.AioRpcError as error:
            sound = error.code() is grpc.StatusCode.CANCELLED
        finally:
            answer.on_eof()
            await self._give_up(line, home.call, sound=sound)

    async def _give_up(self, line: "_Line", call: Any, *, sound: bool = False) -> None:
        """Be done with a call. A connection that failed is closed once no other call is on it."""
        call.cancel()
        line.calls -= 1
        line.failed |= not sound
        if line.failed and not line.calls:
            if self._lines.get(line.place) is line:
                del self._lines[line.place]
            self._old.discard(line)
            await line.channel.close()


class _Line:
    """A channel to one worker, and how many calls are on it."""

    def __init__(
        self,
        place: str,
        options: tuple[tuple[str, Any], ...],
        credentials: grpc.ChannelCredentials | None,
    ) -> None:
        self.place = place
        if credentials is None:
            self.channel = grpc.aio.insecure_channel(place, options=options)
        else:
            self.channel = grpc.aio.secure_channel(place, credentials, options=options)
        self._call: Any = self.channel.unary_stream(METHOD)
        self.calls = 0
        self.failed = False

    def call(self, payload: bytes, metadata: tuple[tuple[str, str], ...]) -> Any:
        self.calls += 1
        return self._call(payload, metadata=metadata)


class _GrpcAnswer:
    """One call, as what an Answer comes over. It is read while `wanted`."""

    def __init__(self, call: Any) -> None:
        self.call = call
        self.reading: asyncio.Task[None] | None = None
        self.over = False
        self.wanted = asyncio.Event()
        self.wanted.set()

    def pause(self) -> None:
        self.wanted.clear()

    def resume(self) -> None:
        self.wanted.set()

    def end(self, *, cancel: bool) -> None:
        self.over = True
        self.call.cancel()
        if self.reading is not None and self.reading is not asyncio.current_task():
            self.reading.cancel()
