"""Exchange: one request and its answer, as ASGI's `receive` and `send`."""

import asyncio
import time
from email.utils import formatdate
from functools import lru_cache
from http import HTTPStatus
from typing import Protocol

from ...base.request_record import RequestRecord
from .asgi import Headers, Message, Scope

_PHRASES = {int(status): status.phrase for status in HTTPStatus}
_STATUS_LINES = {
    status: f"HTTP/1.1 {status} {_PHRASES.get(status, '')}\r\n".encode()
    for status in range(100, 600)
}
_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"


class Carrier(Protocol):
    """What an exchange needs of its connection."""

    async def drained(self) -> None: ...

    def want_body(self) -> None: ...

    def on_answered(self, exchange: "Exchange") -> None: ...


class Exchange:
    """From the end of a request's head to the end of its answer.

    An answer of no length goes in chunks; to a client of HTTP/1.0, which knows none, until the
    connection ends. Its head goes with the first of its body. RuntimeError for an answer that is
    none: headers with line breaks, or a body of another length than they give.
    """

    __slots__ = (
        "_carrier",
        "_chunked",
        "_expects",
        "_head",
        "_left",
        "_parts",
        "_status",
        "_taken",
        "_transport",
        "_waiter",
        "body_ended",
        "ended",
        "gone",
        "keep_alive",
        "record",
        "scope",
        "sent",
        "started",
        "unread",
    )

    def __init__(
        self,
        carrier: Carrier,
        transport: asyncio.Transport,
        scope: Scope,
        record: RequestRecord,
        *,
        keep_alive: bool,
        expects: bool = False,
        body: bytes | None = None,
    ) -> None:
        """`record` gets the status of a head that is sent. `expects`: the client sends no body
        before a 100 Continue. `body`: all of it, where it has come."""
        self._carrier, self._transport = carrier, transport
        self._chunked = False
        self._expects = expects
        self._head = b""
        self._left: int | None = None  # of a body whose length is known
        self._parts = [body] if body else []
        self._status = 0
        self._taken = False  # all of the body
        self._waiter: asyncio.Future[None] | None = None
        self.scope, self.record = scope, record
        self.keep_alive = keep_alive
        self.unread = len(body) if body else 0
        """bytes of the body that came and are not read yet"""
        self.body_ended = body is not None
        self.started = False
        self.sent = False
        """its head was, to a client that was there"""
        self.ended = False
        self.gone = False

    # The connection's side

    def on_body(self, data: bytes) -> None:
        self._parts.append(data)
        self.unread += len(data)
        if self._waiter is not None:
            self._wake()

    def on_body_end(self) -> None:
        self.body_ended = True
        if self._waiter is not None:
            self._wake()

    def on_gone(self) -> None:
        """The connection is lost; what is still sent goes nowhere."""
        self.gone = True
        self._wake()

    @property
    def is_lost(self) -> bool:
        """Whether nothing of it went to a client: it was gone, or what came was no request."""
        return self.gone and not self.sent

    @property
    def _has_more(self) -> bool:
        """Whether there is a part of the body for the application."""
        return bool(self._parts) or (self.body_ended and not self._taken)

    # The application's side

    async def receive(self) -> Message:
        """The next part of the body; after the last one, and at once if the client left or was
        answered, http.disconnect."""
        while not (self._has_more or self.gone or self.ended):
            if self._expects and not self.started:
                self._expects = False
                self._transport.write(_CONTINUE)
            self._carrier.want_body()
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        if self.gone or self.ended:
            return {"type": "http.disconnect"}
        parts, self._parts, self.unread = self._parts, [], 0
        body = parts[0] if len(parts) == 1 else b"".join(parts)
        if self.body_ended:
            self._taken = True
            self._carrier.want_body()  # more of the client: what comes next, or that it left
        return {"type": "http.request", "body": body, "more_body": not self.body_ended}

    def whole_body(self) -> bytes | None:
        """The body, if it has come in one piece and none of it was read; None: see `receive`."""
        if not self.body_ended or self._taken or self.gone or self.ended or len(self._parts) > 1:
            return None
        parts, self._parts, self.unread = self._parts, [], 0
        self._taken = True
        self._carrier.want_body()
        return parts[0] if parts else b""

    async def send(self, message: Message) -> None:
        """Waits while the client does not read."""
        if message["type"] == "http.response.start":
            self.begin(message["status"], message["headers"])
            return
        await self._carrier.drained()
        self.write(message.get("body", b""), more=message.get("more_body", False))

    def write(self, data: bytes, *, more: bool = True) -> None:
        """A part of the body, or with `more` false the last of it; nothing to a client that is
        gone."""
        if self.ended or not self.started:
            raise RuntimeError("an answer has a head, and one end")
        if self._left is not None:
            self._left -= len(data)
            if self._left < 0 or (self._left and not more):
                raise RuntimeError("an answer differs in length from its content-length")
        if self.scope["method"] == "HEAD":
            data = b""
        elif self._chunked:
            if data:
                data = b"%x\r\n%b\r\n" % (len(data), data)
            if not more:
                data += b"0\r\n\r\n"
        lost = self.gone or self._transport.is_closing()
        if self._head:
            data, self._head = self._head + data, b""
            if not lost:
                self.record.status, self.sent = self._status, True
        if data and not lost:
            self._transport.write(data)
        if not more:
            self.ended = True
            if self._waiter is not None:
                self._wake()
            self._carrier.on_answered(self)

    def begin(self, status: int, headers: Headers, lines: bytes = b"") -> None:
        """The answer's head; `lines`: headers as they are sent, of which none says how long the
        answer is or whether the connection stays."""
        if self.started:
            raise RuntimeError("an answer has one head")
        if self._expects and not self.body_ended:
            # Whether its body still comes is the client's choice: what follows may be either.
            self.keep_alive = False
        own: list[bytes] = []
        for name, value in headers:
            if name == b"content-length":
                self._left = int(value)
            elif name == b"connection" and value.lower() == b"close":
                self.keep_alive = False
                continue
            own.append(b"%b: %b\r\n" % (name, value))
        given = own[0] if len(own) == 1 else b"".join(own)
        if given.count(b"\n") != len(own) or given.count(b"\r") != len(own):
            self.keep_alive = False
            raise RuntimeError("a header of the answer has a line break")
        framing = b""
        if self._left is None:
            if self.scope["http_version"] == "1.1":
                self._chunked = True
                framing = b"transfer-encoding: chunked\r\n"
            else:
                self.keep_alive = False
        if not self.keep_alive:
            framing += b"connection: close\r\n"
        elif self.scope["http_version"] == "1.0":
            framing += b"connection: keep-alive\r\n"
        date = _date_line(int(time.time()))
        self._head = b"%b%b%b%b%b\r\n" % (_STATUS_LINES[status], date, lines, given, framing)
        self.started, self._status = True, status

    def _wake(self) -> None:
        waiter, self._waiter = self._waiter, None
        if waiter is not None and not waiter.done():
            waiter.set_result(None)


@lru_cache(maxsize=1)
def _date_line(second: int) -> bytes:
    return f"date: {formatdate(second, usegmt=True)}\r\n".encode()


def refusal(status: int, body: bytes) -> bytes:
    """An answer in JSON after which the connection ends, of a request that no application saw."""
    lines = (
        _STATUS_LINES[status],
        _date_line(int(time.time())),
        b"content-type: application/json\r\n",
        b"content-length: %d\r\nconnection: close\r\n\r\n" % len(body),
        body,
    )
    return b"".join(lines)
