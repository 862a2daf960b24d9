"""A scripted engine over HTTP: sends the bytes that a test gives it, and sees what comes back."""

import asyncio
import json
import ssl
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

from dynamo_router.workers.trtllm_proto import pb

MODELS = {"data": [{"id": "tiny", "owned_by": "vllm", "max_model_len": 512}]}
LLAMA = {"data": [{"id": "tiny.gguf", "owned_by": "llamacpp", "meta": {"n_vocab": 4096}}]}


class Asked(NamedTuple):
    """A request as it came."""

    method: str
    path: str
    headers: dict[str, str]
    body: Any
    """JSON decoded; None without a body"""


Script = Callable[[Asked, asyncio.StreamWriter], Awaitable[None]]


class HttpEngine:
    """Listens on a port of its own from `start` to `stop`. `answers` are by path: bytes to send and
    to close after, or what to do with the connection."""

    def __init__(
        self, answers: dict[str, bytes | Script] | None = None, tls: ssl.SSLContext | None = None
    ) -> None:
        self._tls = tls
        self.answers: dict[str, bytes | Script] = {
            "/health": reply(b"{}"),
            "/v1/models": reply(json.dumps(MODELS).encode()),
            **(answers or {}),
        }
        self.asked: list[Asked] = []
        self.left = asyncio.Event()
        """a client closed its connection while its request was being answered"""
        self._tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> "HttpEngine":
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, ssl=self._tls)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *error: object) -> None:
        self._server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._server.wait_closed()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def url(self) -> str:
        return f"openai+http{'' if self._tls is None else 's'}://{self.address}"

    @property
    def generations(self) -> list[Any]:
        """The bodies of the generations that it was asked for."""
        return [asked.body for asked in self.asked if asked.path.startswith(("/v1/com", "/comp"))]

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
            method, path, _ = head[0].split(" ", 2)
            pairs = (line.split(":", 1) for line in head[1:] if line)
            headers = {name.lower(): value.strip() for name, value in pairs}
            data = await reader.readexactly(int(headers.get("content-length", 0)))
            asked = Asked(method, path, headers, json.loads(data) if data else None)
            self.asked.append(asked)
            await self._answer(asked, reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError):
            self.left.set()
        except asyncio.CancelledError:  # the test is over; asyncio's streams would complain
            pass
        finally:
            self._tasks.discard(task)
            writer.close()

    async def _answer(
        self, asked: Asked, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        script = self.answers.get(asked.path, reply(b'{"error": "no such route"}', status=404))
        if isinstance(script, bytes):
            writer.write(script)
            await writer.drain()
            return
        doing = asyncio.ensure_future(script(asked, writer))
        gone = asyncio.ensure_future(reader.read())
        try:
            await asyncio.wait([doing, gone], return_when=asyncio.FIRST_COMPLETED)
            if doing.done():
                await doing
            else:
                self.left.set()
        finally:
            for each in (doing, gone):
                each.cancel()
            await asyncio.gather(doing, gone, return_exceptions=True)


def reply(
    body: bytes, *, status: int = 200, kind: str = "application/json", more: str = ""
) -> bytes:
    """A whole HTTP answer."""
    head = f"HTTP/1.1 {status} X\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n{more}"
    return head.encode() + b"Connection: close\r\n\r\n" + body


def stream(*events: object, kind: str = "text/event-stream") -> bytes:
    """A whole answer of server-sent events, each JSON or bytes as they are; no length is told."""
    return stream_head(kind) + b"".join(map(event, events))


def stream_head(kind: str = "text/event-stream") -> bytes:
    return f"HTTP/1.1 200 OK\r\nContent-Type: {kind}\r\nConnection: close\r\n\r\n".encode()


def event(data: object) -> bytes:
    if not isinstance(data, bytes):
        data = json.dumps(data).encode()
    return b"data: " + data + b"\n\n"


def part(*ids: int, reason: str | None = None, **more: Any) -> dict[str, Any]:
    """An event of /v1/completions with these tokens."""
    choice = {"index": 0, "text": "x" * len(ids), "token_ids": list(ids), "finish_reason": reason}
    return {"choices": [{**choice, **more}]}


def usage(cached: int) -> dict[str, Any]:
    """The last event before [DONE]."""
    return {"choices": [], "usage": {"prompt_tokens_details": {"cached_tokens": cached}}}


WHOLE = stream(part(11), part(12, reason="length"), usage(3), b"[DONE]")
"""The ordinary answer: two tokens."""


def answers_of(messages: list[bytes]) -> tuple[list[int], Any]:
    """(tokens of the chunks, the complete message) of what a client was given."""
    *chunks, last = [pb.GenerateResponse.FromString(message) for message in messages]
    assert last.HasField("complete") and all(chunk.HasField("chunk") for chunk in chunks)
    return [token for chunk in chunks for token in chunk.chunk.token_ids], last.complete
