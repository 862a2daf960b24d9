"""A server of HTTP/1.1 connections with any application, and what is sent to it."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

from support.polling import until

from dynamo_router.transport.http1 import (
    AnswerObserver,
    App,
    Client,
    ErrorForm,
    HttpConnection,
    HttpLimits,
    OpenConnections,
    Receive,
    Scope,
    Send,
    plain_error,
)

LIMITS = HttpLimits(
    head_bytes=2000, headers=10, pipelined=3, unread_bytes=4000, turn_bytes=4000, linger_s=0.2
)
TEXT = (b"content-type", b"text/plain")
Answering = Callable[[Scope, Receive, Send, Client], Any]


class Rig:
    """A server, whose application notes what it is asked."""

    def __init__(self, port: int, connections: OpenConnections) -> None:
        self.port, self.connections = port, connections

    async def open(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection("127.0.0.1", self.port)

    async def send(self, data: bytes) -> bytes:
        """All that comes back until the server closes."""
        reader, writer = await self.open()
        try:
            writer.write(data)
            async with asyncio.timeout(60):
                return await reader.read()
        finally:
            writer.close()


async def echo(scope: Scope, receive: Receive, send: Send, client: Client) -> None:
    """Method, path and body come back."""
    body = b""
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            return
        body += message["body"]
        if not message["more_body"]:
            break
    said = b"%b %b?%b " % (scope["method"].encode(), scope["path"].encode(), scope["query_string"])
    await answer(send, said + body)


async def answer(send: Send, body: bytes, *headers: tuple[bytes, bytes]) -> None:
    told = [TEXT, (b"content-length", b"%d" % len(body)), *headers]
    await send({"type": "http.response.start", "status": 200, "headers": told})
    await send({"type": "http.response.body", "body": body})


async def stream(scope: Scope, receive: Receive, send: Send, client: Client) -> None:
    client.begin(200, [TEXT])
    client.write_part(b"one,")
    client.write_part(b"two,")
    await send({"type": "http.response.body", "body": b"three"})


@asynccontextmanager
async def serving(
    answering: Answering = echo,
    limits: HttpLimits = LIMITS,
    form: ErrorForm = plain_error,
    observer: AnswerObserver | None = None,
) -> AsyncIterator[Rig]:
    connections = OpenConnections(limits)
    if observer is not None:
        connections.observer = observer

    def new_app(transport: asyncio.Transport, client: Client) -> App:
        return partial(_with_client, answering, client)

    loop = asyncio.get_running_loop()
    server = await loop.create_server(
        lambda: HttpConnection(new_app, connections, form), "127.0.0.1", 0
    )
    try:
        yield Rig(server.sockets[0].getsockname()[1], connections)
    finally:
        server.close()
        for connection in list(connections.open):
            connection.abort()
        await until(lambda: not connections.open and not connections.tasks)


async def _with_client(
    answering: Answering, client: Client, scope: Scope, receive: Receive, send: Send
) -> None:
    await answering(scope, receive, send, client)


def post(body: bytes, path: str = "/a", *headers: str, version: str = "1.1") -> bytes:
    lines = [f"POST {path} HTTP/{version}", "host: x", f"content-length: {len(body)}", *headers]
    return "\r\n".join([*lines, "", ""]).encode() + body


CLOSE = "connection: close"
CHUNKED = b"POST /a HTTP/1.1\r\nhost: x\r\nconnection: close\r\ntransfer-encoding: chunked\r\n\r\n"


def bodies(answers: bytes) -> list[bytes]:
    """Of answers that have lengths, one after another."""
    found = []
    while answers:
        head, _, answers = answers.partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 "), head
        length = int(head.lower().partition(b"content-length: ")[2].split(b"\r\n")[0])
        found.append(answers[:length])
        answers = answers[length:]
    return found
