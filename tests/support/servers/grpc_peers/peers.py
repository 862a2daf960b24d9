"""What independent implementations of gRPC have in common for tests, and grpclib, on h2."""

import asyncio
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias

import pytest
from support.free_port import free_port

Pairs: TypeAlias = Iterable[tuple[str, str]]


@dataclass
class Answer:
    """What a call came to."""

    messages: list[bytes] = field(default_factory=list)
    code: int = -1
    details: str = ""
    initial: dict[str, str] = field(default_factory=dict)
    trailing: dict[str, str] = field(default_factory=dict)


class Client(Protocol):
    """Makes calls of whatever bytes."""

    async def call(
        self,
        path: str,
        messages: Sequence[bytes],
        *,
        deadline_s: float = 0.0,
        cancel_after: int = -1,
        metadata: Pairs = (),
    ) -> Answer:
        """`cancel_after` so many messages of the answer; -1: never."""
        ...


class _Bytes:
    """grpclib's codec for messages that are bytes."""

    __content_subtype__ = "proto"

    def encode(self, message: Any, message_type: Any) -> bytes:
        return bytes(message)

    def decode(self, data: bytes, message_type: Any) -> bytes:
        return data


class GrpclibClient:
    """All calls over one connection, in this process."""

    def __init__(self, address: str) -> None:
        from grpclib.client import Channel

        host, _, port = address.rpartition(":")
        self._channel = Channel(host, int(port), codec=_Bytes())

    def close(self) -> None:
        self._channel.close()

    async def call(
        self,
        path: str,
        messages: Sequence[bytes],
        *,
        deadline_s: float = 0.0,
        cancel_after: int = -1,
        metadata: Pairs = (),
    ) -> Answer:
        from grpclib.const import Cardinality
        from grpclib.exceptions import GRPCError

        answer = Answer()
        stream = self._channel.request(
            path,
            Cardinality.STREAM_STREAM,
            bytes,
            bytes,
            timeout=deadline_s or None,
            metadata=list(metadata),
        )
        try:
            async with stream:
                await stream.send_request()
                for n, message in enumerate(messages, 1):
                    await stream.send_message(message, end=n == len(messages))
                while len(answer.messages) != cancel_after:
                    message = await stream.recv_message()
                    if message is None:
                        break
                    answer.messages.append(message)
                else:
                    await stream.cancel()
                    answer.code = 1
                    return answer
                await stream.recv_trailing_metadata()
            answer.code = 0
        except GRPCError as error:
            answer.code, answer.details = error.status.value, error.message or ""
        except TimeoutError:
            answer.code = 4
        answer.initial = {k: str(v) for k, v in (stream.initial_metadata or {}).items()}
        answer.trailing = {k: str(v) for k, v in (stream.trailing_metadata or {}).items()}
        return answer


@asynccontextmanager
async def grpclib_client(address: str) -> AsyncIterator[GrpclibClient]:
    """The test is skipped without grpclib."""
    pytest.importorskip("grpclib")
    with closing(GrpclibClient(address)) as client:
        yield client


@asynccontextmanager
async def grpclib_server() -> AsyncIterator[str]:
    """The address of a server with the methods of cpp.cc's."""
    pytest.importorskip("grpclib")
    from grpclib.const import Status
    from grpclib.exceptions import GRPCError
    from grpclib.server import Server

    async def introduce(stream: Any) -> None:
        said = {k: v for k, v in stream.metadata.items() if k.startswith("x-")}
        await stream.send_initial_metadata(metadata=said)

    async def finish(stream: Any) -> None:
        said = {f"trailing-{k}": v for k, v in stream.metadata.items() if k.startswith("x-")}
        await stream.send_trailing_metadata(metadata=said)

    async def echo(stream: Any) -> None:
        await introduce(stream)
        async for message in stream:
            await stream.send_message(message)
        await finish(stream)

    async def many(stream: Any) -> None:
        for n in range(int(await stream.recv_message()), 0, -1):
            await stream.send_message(b"%d" % n)

    async def size(stream: Any) -> None:
        await stream.send_message(b"x" * int(await stream.recv_message()))

    async def fail(stream: Any) -> None:
        raise GRPCError(Status.NOT_FOUND, (await stream.recv_message()).decode())

    async def hang(stream: Any) -> None:
        await asyncio.Event().wait()

    server = Server([_Service((echo, many, size, fail, hang))], codec=_Bytes())
    port = free_port()
    await server.start("127.0.0.1", port)
    try:
        yield f"127.0.0.1:{port}"
    finally:
        server.close()
        await server.wait_closed()


class _Service:
    """Methods by the names of their functions."""

    def __init__(self, methods: Iterable[Any]) -> None:
        self._methods = methods

    def __mapping__(self) -> dict[str, Any]:
        from grpclib.const import Cardinality, Handler

        kind = Cardinality.STREAM_STREAM
        return {f"/{each.__name__}": Handler(each, kind, bytes, bytes) for each in self._methods}
