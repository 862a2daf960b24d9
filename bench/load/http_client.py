"""A lean client of HTTP: what it costs stands beside what it measures."""

import asyncio
import socket
import time
from collections import deque
from collections.abc import Callable
from typing import Any, cast

from ...base.errors import RouterError
from .way import Timing

IDLE_S = 1.0
"""How long a connection is kept without a request."""
_QUICK = getattr(socket, "TCP_QUICKACK", None)


class HttpClient:
    """Posts JSON over kept connections, one request at a time on each. Close it in the end.

    `ends`: what a whole answer has near its end.
    """

    def __init__(self, address: str, ends: bytes = b"") -> None:
        from httptools import HttpResponseParser  # not for a command that only prints its help

        self._new_parser = HttpResponseParser
        self._host, _, port = address.rpartition(":")
        self._port = int(port)
        self._ends = ends
        self._free: deque[_Connection] = deque()
        self._all: set[_Connection] = set()

    def request(self, path: str, body: bytes) -> bytes:
        """The bytes of a request, to be sent."""
        head = (
            f"POST {path} HTTP/1.1\r\nHost: {self._host}:{self._port}\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        return head.encode() + body

    async def send(self, request: bytes) -> Timing:
        """Send a request and read its answer; RouterError if that is not a good and whole one."""
        connection = self._idle() or await self._connect()
        timing = await connection.send(request)
        self._free.append(connection)
        return timing

    def close(self) -> None:
        for connection in self._all:
            connection.close()

    def _idle(self) -> "_Connection | None":
        """A connection that its server has certainly not given up meanwhile."""
        while self._free:
            connection = self._free.pop()
            if time.perf_counter() - connection.used_at < IDLE_S:
                return connection
            connection.close()
            self._all.discard(connection)
        return None

    async def _connect(self) -> "_Connection":
        loop = asyncio.get_running_loop()
        _, connection = await loop.create_connection(self._new_connection, self._host, self._port)
        self._all.add(connection)
        return connection

    def _new_connection(self) -> "_Connection":
        return _Connection(self._new_parser, self._ends)


class _Connection(asyncio.Protocol):
    """One connection; also what its parser calls back."""

    def __init__(self, new_parser: Callable[["_Connection"], Any], ends: bytes) -> None:
        self._new_parser = new_parser
        self._ends = ends
        self._transport: asyncio.Transport | None = None
        self._socket: socket.socket | None = None
        self._answer: asyncio.Future[Timing] | None = None
        self.used_at = 0.0

    async def send(self, request: bytes) -> Timing:
        assert self._transport is not None
        self._answer = asyncio.get_running_loop().create_future()
        self._parser = self._new_parser(self)
        self._first_us, self._text = 0.0, b""
        self._began = time.perf_counter_ns()
        self._transport.write(request)
        self._acknowledge_at_once()
        timing = await self._answer
        self.used_at = time.perf_counter()
        return timing

    def close(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    # asyncio's side

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        connected: socket.socket = transport.get_extra_info("socket")
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket = connected

    def data_received(self, data: bytes) -> None:
        self._acknowledge_at_once()
        self._parser.feed_data(data)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(exc or RouterError("the connection was closed"))

    def _acknowledge_at_once(self) -> None:
        """A server that does not send at once would wait for our delayed acknowledgement: 40 ms
        that say nothing of what it costs. The kernel goes back to delaying now and then."""
        if _QUICK is not None and self._socket is not None:
            self._socket.setsockopt(socket.IPPROTO_TCP, _QUICK, 1)

    # The parser's side

    def on_body(self, body: bytes) -> None:
        self._first_us = self._first_us or (time.perf_counter_ns() - self._began) / 1e3
        self._text = (self._text + body)[-4096:]

    def on_message_complete(self) -> None:
        assert self._answer is not None
        if self._answer.done():
            return
        status = self._parser.get_status_code()
        if status // 100 != 2 or self._ends not in self._text[-64:]:
            ending = self._text[-200:].decode(errors="replace")
            self._answer.set_exception(RouterError(f"the answer is {status}: {ending}"))
            return
        self._answer.set_result(
            Timing(self._first_us, (time.perf_counter_ns() - self._began) / 1e3)
        )
