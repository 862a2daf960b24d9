"""A server of ours on loopback, and a client of it that writes its frames by hand."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

from support.servers import http2_frames as raw

from dynamo_router.transport.http2 import AtOnce, Http2Server, ServerCall, ServerLimits
from dynamo_router.transport.http2.library import make_session


async def echo(call: ServerCall) -> None:
    """Each message as it came."""
    while (message := await call.read()) is not None:
        await call.write(message)


async def hang(call: ServerCall) -> None:
    await asyncio.Event().wait()


@asynccontextmanager
async def listening(
    methods: Mapping[str, Any] | None = None,
    limits: ServerLimits | None = None,
    at_once: Mapping[str, AtOnce] | None = None,
    **more: Any,
) -> AsyncIterator[tuple[Http2Server, int]]:
    """A server with its port; stopped, with nothing left over, when the block ends."""
    methods = {"/a.B/echo": echo, "/a.B/hang": hang} if methods is None else methods
    server = Http2Server(limits, **more)
    port = server.bind("127.0.0.1", 0)
    await server.start(methods, at_once)
    try:
        yield server, port
    finally:
        await server.stop(0.0)
        assert len(server) == 0


def head_of(path: str, *more: tuple[bytes, bytes]) -> tuple[tuple[bytes, bytes], ...]:
    """The headers of a call."""
    return (
        (b":method", b"POST"),
        (b":scheme", b"http"),
        (b":path", path.encode()),
        (b":authority", b"here"),
        (b"te", b"trailers"),
        (b"content-type", b"application/grpc"),
        *more,
    )


class RawClient:
    """One connection. What came is in `got`."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self.got = b""

    def send(self, *parts: bytes) -> None:
        for part in parts:
            self._writer.write(part)

    def greet(self, *settings: tuple[int, int]) -> None:
        self.send(raw.PREFACE + raw.settings(*settings))

    @property
    def frames(self) -> list[raw.Frame]:
        return list(raw.parse(self.got))

    def kinds(self, stream: int) -> list[int]:
        return [frame.kind for frame in self.frames if frame.stream == stream]

    async def until(self, *kinds: int, stream: int | None = None) -> raw.Frame:
        """Read until a frame of one of these kinds has come: the first."""
        async with asyncio.timeout(60):
            while True:
                for frame in self.frames:
                    if frame.kind in kinds and stream in (None, frame.stream):
                        return frame
                await self.read()

    async def read(self) -> None:
        """Whatever comes next."""
        async with asyncio.timeout(60):
            data = await self._reader.read(1 << 16)
        assert data, f"closed after {self.frames}"
        self.got += data

    async def until_closed(self) -> bytes:
        """All that comes until the server closes."""
        async with asyncio.timeout(60):
            try:
                while data := await self._reader.read(1 << 16):
                    self.got += data
            except ConnectionError:
                pass
        return self.got

    def answer(self, stream: int) -> dict[bytes, bytes]:
        """The headers and trailers of what a stream was answered."""
        session = make_session(server=False)
        calls = [session.request(head_of("/"), (), b"") for _ in range(1, stream + 1, 2)]
        session.send(1 << 20)
        session.receive(self.got, len(self.got))
        return dict((*calls[-1].headers, *calls[-1].trailers))

    def status(self, stream: int) -> tuple[bytes, bytes]:
        """The grpc-status and grpc-message that a stream ended with."""
        said = self.answer(stream)
        return said.get(b"grpc-status", b""), said.get(b"grpc-message", b"")

    def goaways(self) -> list[int]:
        """The codes of all GOAWAYs that came."""
        return [
            int.from_bytes(frame.payload[4:8], "big")
            for frame in self.frames
            if frame.kind == raw.GOAWAY
        ]


@asynccontextmanager
async def raw_client(port: int) -> AsyncIterator[RawClient]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        yield RawClient(reader, writer)
    finally:
        writer.close()
        try:
            await writer.wait_closed()
        except ConnectionError:
            pass
