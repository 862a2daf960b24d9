"""Kernel: one request and its answer. The face: exchange.py."""

cimport cython
from libc.stdint cimport int64_t

import asyncio
import time
from email.utils import formatdate
from http import HTTPStatus

cdef dict PHRASES = {int(status): status.phrase for status in HTTPStatus}
cdef tuple STATUS_LINES = tuple(
    f"HTTP/1.1 {status} {PHRASES.get(status, '')}\r\n".encode() for status in range(600)
)
cdef bytes CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
cdef object now = time.time
cdef int64_t dated = -1     # the second of `date`
cdef bytes date = b""

cdef enum:
    NO_LENGTH = -1
    FIRST_STATUS = 100
    MOST_JOINED = 1 << 20   # bytes of a body, in one step


cdef bytes date_line():
    global dated, date
    cdef int64_t second = <int64_t>(<double>now())
    if second != dated:
        date = f"date: {formatdate(second, usegmt=True)}\r\n".encode()
        dated = second
    return date


cdef bytes status_line(int status):
    if not FIRST_STATUS <= status < len(STATUS_LINES):
        raise KeyError(status)
    return STATUS_LINES[status]


@cython.final
cdef class Exchange:
    cdef object _carrier
    cdef object _transport
    cdef bint _chunked
    cdef bint _expects
    cdef bytes _head            # that is to go with the first of the body
    cdef int64_t _left          # of a body whose length is known
    cdef list _parts            # of the request's body, that are not read yet
    cdef int _status
    cdef bint _taken            # all of the body
    cdef object _waiter
    cdef readonly object scope
    cdef readonly object record
    cdef public bint keep_alive
    cdef readonly Py_ssize_t unread
    cdef readonly bint body_ended
    cdef readonly bint started
    cdef readonly bint sent
    cdef readonly bint ended
    cdef readonly bint gone

    def __init__(
        self, carrier, transport, dict scope not None, record, *, bint keep_alive,
        bint expects=False, bytes body=None,
    ):
        self._carrier, self._transport = carrier, transport
        self.scope, self.record = scope, record
        self._expects, self.keep_alive = expects, keep_alive
        self._left = NO_LENGTH
        self._head = b""
        self._parts = [body] if body else []
        self.unread = len(body) if body else 0
        self.body_ended = body is not None

    # The connection's side

    def on_body(self, bytes data not None):
        self._parts.append(data)
        self.unread += len(data)
        self._wake()

    def on_body_end(self):
        self.body_ended = True
        self._wake()

    def on_gone(self):
        self.gone = True
        self._wake()

    @property
    def is_lost(self):
        return self.gone and not self.sent

    # The application's side

    async def receive(self):
        while not (
            self._parts or (self.body_ended and not self._taken) or self.gone or self.ended
        ):
            if self._expects and not self.started:
                self._expects = False
                self._transport.write(CONTINUE)
            self._carrier.want_body()
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        if self.gone or self.ended:
            return {"type": "http.disconnect"}
        body = self._take_parts()
        if self.body_ended:
            self._taken = True
            self._carrier.want_body()  # more of the client: what comes next, or that it left
        return {"type": "http.request", "body": body, "more_body": not self.body_ended}

    def whole_body(self):
        cdef bytes body
        if not self.body_ended or self._taken or self.gone or self.ended:
            return None
        if len(self._parts) > 1 and self.unread > MOST_JOINED:
            return None
        body = self._take_parts()
        self._taken = True
        self._carrier.want_body()
        return body

    cdef bytes _take_parts(self):
        cdef list parts = self._parts
        cdef bytes body = parts[0] if len(parts) == 1 else b"".join(parts)
        self._parts, self.unread = [], 0
        return body

    async def send(self, message):
        if message["type"] == "http.response.start":
            self.begin(message["status"], message["headers"])
            return
        await self._carrier.drained()
        self.write(message.get("body", b""), more=message.get("more_body", False))

    def write(self, data, *, bint more=True):
        cdef bint lost
        cdef Py_ssize_t size = len(data)
        if self.ended or not self.started:
            raise RuntimeError("an answer has a head, and one end")
        if self._left != NO_LENGTH:
            if size > self._left or (size < self._left and not more):
                raise RuntimeError("an answer differs in length from its content-length")
            self._left -= size
        if <str>self.scope["method"] == "HEAD":
            data = b""
        elif self._chunked:
            if size:
                data = b"%x\r\n%b\r\n" % (size, data)
            if not more:
                data += b"0\r\n\r\n"
        lost = self.gone or self._transport.is_closing()
        if self._head:
            data, self._head = self._head + data, b""
            if not lost:
                self.record.status, self.sent = self._status, True
        if not lost and len(data):
            self._transport.write(data)
        if not more:
            self.ended = True
            self._wake()
            self._carrier.on_answered(self)

    def begin(self, int status, headers, bytes lines=b""):
        cdef bytes name, value, given, framing = b""
        cdef list own = []
        cdef str version = self.scope["http_version"]
        if self.started:
            raise RuntimeError("an answer has one head")
        if self._expects and not self.body_ended:
            # Whether its body still comes is the client's choice: what follows may be either.
            self.keep_alive = False
        for name, value in headers:
            if name == b"content-length":
                self._left = int(value)
                if self._left < 0:
                    raise ValueError("an answer has a content-length below 0")
            elif name == b"connection" and value.lower() == b"close":
                self.keep_alive = False
                continue
            own.append(name + b": " + value + b"\r\n")
        given = own[0] if len(own) == 1 else b"".join(own)
        if given.count(b"\n") != len(own) or given.count(b"\r") != len(own):
            self.keep_alive = False
            raise RuntimeError("a header of the answer has a line break")
        if self._left == NO_LENGTH:
            if version == "1.1":
                self._chunked = True
                framing = b"transfer-encoding: chunked\r\n"
            else:
                self.keep_alive = False
        if not self.keep_alive:
            framing += b"connection: close\r\n"
        elif version == "1.0":
            framing += b"connection: keep-alive\r\n"
        self._head = b"".join([status_line(status), date_line(), lines, given, framing, b"\r\n"])
        self.started, self._status = True, status

    cdef int _wake(self) except -1:
        waiter, self._waiter = self._waiter, None
        if waiter is not None and not waiter.done():
            waiter.set_result(None)
        return 0


def refusal(int status, bytes body not None):
    return b"".join(
        [
            status_line(status),
            date_line(),
            b"content-type: application/json\r\n",
            b"content-length: %d\r\nconnection: close\r\n\r\n" % len(body),
            body,
        ]
    )
