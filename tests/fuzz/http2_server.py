"""A connection of the gRPC server whose client sends any bytes."""

import asyncio
from collections import Counter
from collections.abc import Sequence
from typing import Any

from support.servers import http2_frames as raw
from support.servers.http2_client import echo, hang, head_of

from dynamo_router.transport.http2 import Http2Server, ServerLimits, load_library

MOST_STREAMS, MOST_BYTES, SEND_BYTES = 4, 1000, 2000
METHODS = {"/a.B/echo": echo, "/a.B/hang": hang}
LIMITS = ServerLimits(
    max_streams=MOST_STREAMS,
    max_message_bytes=MOST_BYTES,
    max_header_bytes=2000,
    max_frames=20,
    window_bytes=1 << 16,
    send_buffer_bytes=SEND_BYTES,
)
COUNTED = frozenset(
    ("client_floods", "client_violations", "max_message_bytes", "max_metadata_bytes")
    + ("max_streams", "message_timeout_s")
)


class _Bound:
    """What waits, and never less than nothing."""

    def __init__(self) -> None:
        self.used = 0

    def take(self, caller: str, amount: int) -> str | None:
        self.used += amount
        return None

    def give_back(self, caller: str, amount: int) -> None:
        self.used -= amount
        assert self.used >= 0


class _Transport(asyncio.Transport):
    """Takes everything."""

    def __init__(self) -> None:
        super().__init__({"peername": ("127.0.0.1", 1)})
        self.sent = bytearray()
        self.closing = self.paused = False

    def write(self, data: Any) -> None:
        self.sent += data

    def is_closing(self) -> bool:
        return self.closing

    def close(self) -> None:
        self.closing = True

    abort = close

    def pause_reading(self) -> None:
        self.paused = True

    def resume_reading(self) -> None:
        self.paused = False


def check_http2_server(data: bytes) -> None:
    """The first byte says in what pieces the others arrive."""
    if data and load_library().version is not None:
        asyncio.run(_serve(1 + data[0] * 8, data[1:]))


async def _serve(size: int, data: bytes) -> None:
    counted: Counter[str] = Counter()
    requests, answers = _Bound(), _Bound()
    server = Http2Server(
        LIMITS, None, None, lambda limit: counted.update([limit]), requests, answers
    )
    await server.start(METHODS)
    loop, failed = asyncio.get_running_loop(), list[dict[str, Any]]()
    loop.set_exception_handler(lambda _, context: failed.append(context))
    connection, transport = server._connection(), _Transport()
    connection.connection_made(transport)
    while data and not transport.closing:
        piece, data = data[:size], data[size:]
        connection.get_buffer(-1)[: len(piece)] = piece
        connection.buffer_updated(len(piece))
        for _ in range(len(piece) + 10):
            await asyncio.sleep(0)
            if not transport.paused or transport.closing:
                break
        else:
            raise AssertionError("it reads no more")
        assert server.calls_open <= 2 * MOST_STREAMS  # those that ended a moment ago, too
        most = MOST_STREAMS * (SEND_BYTES + 2 * MOST_BYTES)
        assert connection.session.queued <= most, connection.session.queued
        assert connection.session.held <= MOST_STREAMS * (1 << 17)
    connection.connection_lost(None)
    for _ in range(10):
        await asyncio.sleep(0)
    assert not server.calls_open and connection.closed.done()
    assert requests.used == answers.used == 0
    assert counted.keys() <= COUNTED, counted
    assert not failed, failed
    ends = Counter(f.stream for f in raw.parse(bytes(transport.sent)) if _ends(f))
    assert max(ends.values(), default=0) <= 1, ends


def _ends(frame: raw.Frame) -> bool:
    return frame.kind in (raw.DATA, raw.HEADERS) and bool(frame.flags & raw.END_STREAM)


def http2_server_seeds() -> Sequence[bytes]:
    """Calls that go well, that wait, that are given up, and floods."""
    greeting = raw.PREFACE + raw.settings((raw.INITIAL_WINDOW_SIZE, 1000))
    asks, waits = head_of("/a.B/echo"), head_of("/a.B/hang", (b"grpc-timeout", b"1H"))
    call = raw.headers(1, asks) + raw.data(1, raw.message(b"a") + raw.message(b"b" * 900))
    end = raw.data(1, raw.message(b"c"), end=True)
    calm = raw.window_update(1, 10_000) + raw.frame(raw.PING, 0, bytes(8))
    reset = raw.frame(raw.RST_STREAM, 3, (8).to_bytes(4, "big"))
    half = raw.headers(5, asks, ends_headers=False)
    whole, small, one = bytes((255,)), bytes((3,)), bytes((0,))
    return [
        whole + greeting + call + calm + end,
        small + greeting + call + raw.headers(3, waits) + end + reset,
        one + greeting + call + end,
        whole + greeting + b"".join(raw.headers(n, waits) for n in range(1, 15, 2)),
        whole + greeting + call + half + raw.frame(raw.CONTINUATION, 5, b"", raw.END_HEADERS),
        whole + greeting + call + raw.data(1, b"") * 300 + raw.frame(2, 1, bytes(5)) * 300,
        whole + greeting + call * 1 + raw.data(1, raw.message(b"x" * 1001)),
        whole + greeting + raw.headers(1, head_of("/no/where")) + raw.headers(3, asks, end=True),
        small + b"GET / HTTP/1.1\r\n\r\n",
    ]
