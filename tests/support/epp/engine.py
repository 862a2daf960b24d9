"""An engine behind the gateway: an HTTP server of OpenAI's API whose every byte a test knows."""

import asyncio
import hashlib
import json
from collections.abc import Callable
from typing import Any, NamedTuple

MODEL = "tiny"


class Got(NamedTuple):
    """A request as it came to an engine."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes


class Engine:
    """Listens from `start` to `stop`; `port` 0 takes a free one, which it keeps.

    A stream has `chunks` events, and waits before each for `step` if that is set.
    """

    def __init__(self, *, model: str = MODEL, chunks: int = 4, host: str = "127.0.0.1") -> None:
        self.model, self.chunks, self.host = model, chunks, host
        self.port = 0
        self.got: list[Got] = []
        self.status = 200
        self.trailers = ""
        self.step: Callable[[], Any] | None = None
        self.cut_after: int | None = None
        """events of a stream after which the connection breaks"""
        self.gone = 0
        """clients that left before their answer was whole"""
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def address(self) -> str:
        return f"{self.host}:{self.port}"

    @property
    def prompts(self) -> list[Got]:
        """The requests that were for an answer."""
        return [got for got in self.got if got.method == "POST"]

    async def start(self) -> None:
        self._server = await asyncio.start_server(
            self._serve, self.host, self.port, limit=1 << 20, backlog=4096
        )
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        if self._server is None:
            return
        self._server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._server.wait_closed()
        self._server = None

    async def __aenter__(self) -> "Engine":
        await self.start()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.stop()

    # What it says

    def events(self, body: bytes) -> list[bytes]:
        """The events of the stream that answers this body."""
        deltas = [{"content": f"w{number}"} for number in range(self.chunks)]
        parts = [{"choices": [{"index": 0, "delta": delta}]} for delta in deltas]
        usage = {"prompt_tokens": 7, "completion_tokens": self.chunks}
        last = {"choices": [], "usage": usage, "digest": digest(body)}
        told = [json.dumps({"model": self.model, **part}).encode() for part in [*parts, last]]
        return [b"data: " + each + b"\n\n" for each in [*told, b"[DONE]"]]

    def whole(self, body: bytes) -> bytes:
        """The answer to this body in one piece."""
        usage = {"prompt_tokens": 7, "completion_tokens": self.chunks}
        return json.dumps({"model": self.model, "usage": usage, "digest": digest(body)}).encode()

    async def take(self, got: Got) -> None:
        """A request for an answer has come."""

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            while await self._answer(await _read(reader), writer):
                pass
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        except asyncio.CancelledError:  # the test is over; asyncio's streams would complain
            pass
        finally:
            self._tasks.discard(task)
            writer.close()

    async def _answer(self, got: Got, writer: asyncio.StreamWriter) -> bool:
        """Whether the connection goes on."""
        if got.path == "/health":
            await _send(writer, 200, b"{}")
        elif got.path == "/v1/models":
            models = {"data": [{"id": self.model, "owned_by": "vllm", "max_model_len": 1 << 20}]}
            await _send(writer, 200, json.dumps(models).encode())
        elif got.path == "/metrics":
            await _send(writer, 404, b"{}")
        else:
            self.got.append(got)
            if got.method == "POST":
                await self.take(got)
            if self.status != 200:
                await _send(writer, self.status, b'{"error": {"message": "no"}}')
            elif b'"stream": true' in got.body or b'"stream":true' in got.body:
                return await self._stream(got, writer)
            else:
                if self.step is not None:
                    await self.step()
                await _send(writer, 200, self.whole(got.body))
        return True

    async def _stream(self, got: Got, writer: asyncio.StreamWriter) -> bool:
        writer.write(
            b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n"
            b"transfer-encoding: chunked\r\n\r\n"
        )
        try:
            for number, event in enumerate(self.events(got.body)):
                if self.step is not None:
                    await self.step()
                if self.cut_after == number:
                    writer.transport.abort()
                    return False
                writer.write(b"%x\r\n%b\r\n" % (len(event), event))
                await writer.drain()
            writer.write(b"0\r\n" + self.trailers.encode() + b"\r\n")
            await writer.drain()
        except ConnectionError:
            self.gone += 1
            raise
        return True


def digest(body: bytes) -> str:
    return hashlib.md5(body, usedforsecurity=False).hexdigest()


async def _read(reader: asyncio.StreamReader) -> Got:
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
    method, path, _ = head[0].split(" ", 2)
    pairs = (line.split(":", 1) for line in head[1:] if line)
    headers = {name.lower(): value.strip() for name, value in pairs}
    if headers.get("transfer-encoding") != "chunked":
        body = await reader.readexactly(int(headers.get("content-length", 0)))
        return Got(method, path, headers, body)
    body, trailers = await read_chunks(reader)
    return Got(method, path, headers | trailers, body)


async def read_chunks(reader: asyncio.StreamReader) -> tuple[bytes, dict[str, str]]:
    """A chunked body, and its trailers, each as `trailer NAME`."""
    parts, trailers = [], {}
    while size := int(await reader.readline(), 16):
        parts.append((await reader.readexactly(size + 2))[:-2])
    while line := (await reader.readline()).strip():
        name, _, value = line.decode().partition(":")
        trailers[f"trailer {name.lower()}"] = value.strip()
    return b"".join(parts), trailers


async def _send(writer: asyncio.StreamWriter, status: int, body: bytes) -> None:
    head = f"HTTP/1.1 {status} X\r\ncontent-type: application/json\r\ncontent-length: {len(body)}"
    writer.write(head.encode() + b"\r\n\r\n" + body)
    await writer.drain()
