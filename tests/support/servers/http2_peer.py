"""A peer of HTTP/2 that is written by hand: it keeps no rule that its test does not want kept."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from support.servers import http2_frames as raw


class Peer:
    """Sends what a test tells it to, and remembers what it was sent."""

    def __init__(self) -> None:
        self.connections: list[asyncio.StreamWriter] = []
        self.got: list[bytearray] = []
        self.on_data: Callable[[int, bytes], bytes] = lambda n, data: b""
        self.is_silent = False

    def frames(self, n: int) -> list[raw.Frame]:
        return list(raw.parse(bytes(self.got[n])))

    def streams(self, n: int) -> list[int]:
        return [frame.stream for frame in self.frames(n) if frame.kind == raw.HEADERS]

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        n = len(self.connections)
        self.connections.append(writer)
        self.got.append(bytearray())
        if not self.is_silent:
            writer.write(raw.settings())
        try:
            while data := await reader.read(1 << 16):
                self.got[n] += data
                writer.write(self.on_data(n, data))
        except ConnectionError:
            pass
        finally:
            writer.close()


@asynccontextmanager
async def peer() -> AsyncIterator[tuple[Peer, str]]:
    script = Peer()
    server = await asyncio.start_server(script, "127.0.0.1", 0)
    try:
        yield script, f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()
        for writer in script.connections:
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()
        await server.wait_closed()


def answers_well(n: int, data: bytes) -> bytes:
    """An answer for each request in what was received."""
    out = b""
    for frame in raw.parse(data):
        if frame.kind == raw.HEADERS:
            out += answer_to(frame.stream)
    return out


def answer_to(stream: int) -> bytes:
    trailers = raw.headers(stream, ((b"grpc-status", b"0"),), end=True)
    return raw.headers(stream) + raw.data(stream, raw.message(b"yes")) + trailers
