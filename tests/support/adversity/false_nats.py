"""A NATS server that says what a test likes: in its INFO, its errors, and JetStream's answers."""

import asyncio
import json
from collections.abc import Callable
from typing import Any


class FalseNats:
    """Listens while entered. `info` is added to its INFO; `error`, once given, is its -ERR to each
    connection; `answer` makes the JSON that answers a request, by its subject, None for none."""

    def __init__(self) -> None:
        self.info: dict[str, Any] = {}
        self.raw_info: bytes | None = None
        self.error = ""
        self.answer: Callable[[str], object | None] = lambda subject: None
        self.connections = 0
        self.asked: list[str] = []
        """subjects of requests"""
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()

    @property
    def address(self) -> str:
        assert self._server is not None
        return f"127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def __aenter__(self) -> "FalseNats":
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, limit=4 << 20)
        return self

    async def __aexit__(self, *error: object) -> None:
        assert self._server is not None
        self._server.close()
        self.cut()
        await asyncio.sleep(0)

    def cut(self) -> None:
        """Lose all connections."""
        for writer in list(self._writers):
            writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self._writers.add(writer)
        try:
            info = {"server_id": "X", "version": "2.15.0", "proto": 1, "headers": True,
                    "max_payload": 1 << 20, "jetstream": True, **self.info}  # fmt: skip
            line = self.raw_info or json.dumps(info, ensure_ascii=False).encode()
            writer.write(b"INFO " + line + b"\r\n")
            if self.error:
                writer.write(b"-ERR '" + self.error.encode() + b"'\r\n")
            subscribed: dict[str, str] = {}
            while line := (await reader.readuntil(b"\r\n")).decode().strip():
                verb, *words = line.split(" ")
                if verb == "PING":
                    writer.write(b"PONG\r\n")
                elif verb == "SUB":
                    subscribed[words[0]] = words[-1]
                elif verb in ("PUB", "HPUB"):
                    await reader.readexactly(int(words[-1]) + 2)
                    self._reply(words, verb, subscribed, writer)
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            self._writers.discard(writer)
            writer.close()

    def _reply(
        self, words: list[str], verb: str, subscribed: dict[str, str], writer: asyncio.StreamWriter
    ) -> None:
        subject, sizes = words[0], 1 if verb == "PUB" else 2
        if len(words) == 1 + sizes:
            return
        self.asked.append(subject)
        inbox, answer = words[1], self.answer(subject)
        if answer is None:
            return
        data = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
        for pattern, sid in subscribed.items():
            if pattern == inbox or (pattern.endswith("*") and inbox.startswith(pattern[:-1])):
                writer.write(f"MSG {inbox} {sid} {len(data)}\r\n".encode() + data + b"\r\n")
