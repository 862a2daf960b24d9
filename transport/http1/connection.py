"""HttpConnection: an HTTP/1.1 connection of a server, from bytes to an ASGI application and back.

llhttp (httptools) parses, or a kernel where the head of a request of the usual kind comes whole.
One request is answered after another, in their order; what a client sends ahead of that waits,
within bounds, and then is not read.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any, NoReturn, TypeAlias, cast
from urllib.parse import unquote

import httptools
import structlog

from ...base.account import network_of, set_account
from ...base.request_record import CLIENT_LEFT, LEFT, RequestRecord, set_record
from ._whole_request import AT_MOST_ONCE, read_whole_request
from .asgi import Client, Receive, Scope, Send
from .errors import ErrorForm, HttpError, fault_of, plain_error
from .exchange import Exchange, refusal
from .limits import has_left
from .open_connections import OpenConnections, address_of
from .target import split_url

App: TypeAlias = Callable[[Scope, Receive, Send], Awaitable[None]]
NewApp: TypeAlias = Callable[[asyncio.Transport, Client], App]
"""What answers a connection's requests."""

READ_S = 0.00005
"""What a piece of what a client sends takes to be read, about, with the beginning of a request."""
_SPOKEN = ("1.0", "1.1")
_UNSPOKEN = HttpError(505, "only HTTP/1.1 and HTTP/1.0 are spoken here")

log = structlog.get_logger(__name__)


class _RefusedError(Exception):
    """The bytes that come are no request of ours."""


class HttpConnection(asyncio.Protocol):
    """Also what its parser calls back, and what its exchanges write to."""

    def __init__(
        self, new_app: NewApp, connections: OpenConnections, form: ErrorForm = plain_error
    ) -> None:
        """`form`: the answer to a client that sends no valid request."""
        self._new_app, self._form = new_app, form
        self._connections, self._limits = connections, connections.limits
        self._loop = asyncio.get_running_loop()
        self._parser: Any = httptools.HttpRequestParser(self)
        self._transport: asyncio.Transport
        self._app: App
        self.client = Client(connections.next_turn)
        self._scope: Scope = {}  # what all requests of this connection have
        self._peer = ""  # its address, or the network that counts as one
        self._came_in: list[bytes] = []  # and waits for its turn
        self._held = False  # nothing more is taken meanwhile
        # Of the request that is being read
        self._url = b""
        self._headers: list[tuple[bytes, bytes]] = []
        self._expects = False
        self._arriving: Exchange | None = None
        self._record: RequestRecord | None = None  # of one that has no exchange
        self._reading = self._in_head = False
        self._missing = 0  # bytes of its body, where the kernel has read its head
        self._silent_bytes = 0  # that made no head or body yet
        self._began = self._last_read = 0.0
        self._came = 0
        self._slow: asyncio.TimerHandle | None = None
        self._look: asyncio.TimerHandle | None = None
        # Of those that were read
        self._exchange: Exchange | None = None
        self._waiting: deque[Exchange] = deque()
        self._task: asyncio.Task[None] | None = None  # of the last that was begun
        self._rest: asyncio.Future[None] | None = None  # while that waits for the next one
        self._found: HttpError | None = None  # what a callback of the parser has against it
        self._refusal: BaseException | None = None  # after which nothing is read
        self._closing = self._paused = False
        self._why = CLIENT_LEFT  # an answer is not sent
        self.answered_at = 0.0
        """when its last answer ended, by the loop's clock"""

    # asyncio's side

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        tls = transport.get_extra_info("sslcontext") is not None
        self._scope = {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": "1.1",
            "server": address_of(transport.get_extra_info("sockname")),
            "client": address_of(transport.get_extra_info("peername")),
            "scheme": "https" if tls else "http",
            "root_path": "",
        }
        self._peer = network_of((self._scope["client"] or ("",))[0])
        self._app = self._new_app(self._transport, self.client)
        self._connections.open.add(self)

    def data_received(self, data: bytes) -> None:
        if self._closing or self._refusal is not None:
            return  # of a client that lingers
        if self._came_in:
            self._came_in.append(data)
        elif self._connections.turns.begins_now(READ_S):
            self._read(data)
        else:
            self._came_in.append(data)
            self._connections.turns.put(READ_S, self._read_in_turn, self._peer)
            if not self._paused:
                self._held = True
                self._transport.pause_reading()

    def _read_in_turn(self) -> None:
        pieces, self._came_in = self._came_in, []
        if pieces and not self._closing and self._refusal is None:
            self._read(pieces[0] if len(pieces) == 1 else b"".join(pieces))
        if self._held:
            self._held = False
            if not (self._paused or self._transport.is_closing()):
                self._transport.resume_reading()

    def _read(self, data: bytes) -> None:
        try:
            if self._missing:
                self._read_body(data)
                return
            begun = self._reading or self._silent_bytes or self._waiting
            if self._exchange is None and not begun:
                limits = self._limits
                whole = read_whole_request(data, limits.head_bytes, limits.headers)
                if whole is not None:
                    self._take(*whole)
                    return
            self._came += len(data)
            self._last_read = self._loop.time()
            self._silent_bytes += len(data)
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            self._pass_over_upgrade(data[upgrade.args[0] :])
        except httptools.HttpParserCallbackError as error:
            if self._found is not None:
                self._refuse(self._found)
            else:
                self._fail(error.__context__ or error)
        except httptools.HttpParserError as error:
            self._refuse(self._no_request(error))
        except Exception as error:
            self._fail(error)
        else:
            if self._silent_bytes > self._limits.head_bytes:
                self._refuse(self._too_long())
        self._watch()

    def _read_body(self, data: bytes) -> None:
        """More of one whose head the kernel has read."""
        data, rest = data[: self._missing], data[self._missing :]
        self._came += len(data)
        self._last_read = self._loop.time()
        self._missing -= len(data)
        self.on_body(data)
        if not self._missing:
            self.on_message_complete()
            if rest and not self._closing:
                self._read(rest)

    def _watch(self) -> None:
        """Not for longer than a request may take to come."""
        if self._reading and self._slow is None and self._refusal is None:
            self._slow = self._loop.call_later(self._seconds_left(), self._on_slow)

    def pause_writing(self) -> None:
        self.client.on_full()

    def resume_writing(self) -> None:
        self.client.on_drained()

    def connection_lost(self, exc: Exception | None) -> None:
        self._closing = True
        self._connections.open.discard(self)
        self._stop_watching()
        self._stop_looking()
        if self._exchange is not None:
            self._exchange.on_gone()
        for exchange in self._waiting:
            exchange.on_gone()
            self._report(exchange.record)
        self._waiting.clear()
        if self._record is not None or (self._came_in and not self._reading):
            self._report(self._taken_record())
        self._came_in.clear()
        self.client.on_gone()
        self._parser = None  # it holds us
        if self._rest is not None and not self._rest.done():
            self._rest.set_result(None)

    # The server's side

    @property
    def busy(self) -> bool:
        """Whether the client has sent all of a request and reads its answer: it need not say
        anything. Also whether it sent what we have not read yet."""
        if self._came_in:
            return True
        current = self._exchange
        return current is not None and current.body_ended and self.client.reads

    def shut_down(self) -> None:
        """Take no new request, and end after those that came."""
        self._read_in_turn()
        last = self._waiting[-1] if self._waiting else self._exchange
        if last is None:
            self._transport.close()
        else:
            last.keep_alive = False

    def abort(self) -> None:
        """End it at once."""
        self._close()
        self._transport.abort()

    def end_unanswered(self) -> None:
        """End what no task answers any more: one that was cancelled early has reported nothing."""
        exchange, self._exchange = self._exchange, None
        self.abort()
        if exchange is not None:
            self._report(exchange.record)

    # Its exchanges' side

    async def drained(self) -> None:
        """Returns once the client has read enough of what it was sent."""
        await self.client.drained()

    def want_body(self) -> None:
        if self._paused and (self._exchange is self._arriving or not self._is_full()):
            self._read_on()

    def on_answered(self, exchange: Exchange) -> None:
        self._exchange, self.answered_at = None, self._loop.time()
        if exchange.is_lost and self._refusal is not None:
            pass  # `_answer` sends the refusal in its place
        elif not exchange.keep_alive:
            self._linger() if self._reading and self._arriving is exchange else self._end()
        elif self._waiting:
            self._start(self._waiting.popleft())
            if not self._is_full():
                self._read_on()
        elif self._refusal is not None:
            self._send_refusal(self._taken_record())
        elif self._paused:
            self._read_on()

    def _take(
        self,
        method: str,
        path: bytes,
        query: bytes,
        headers: list[tuple[bytes, bytes]],
        body: bytes,
        missing: int,
    ) -> None:
        """A request that came but for `missing` bytes: what the parser's callbacks do in all."""
        scope = {
            **self._scope,
            "method": method,
            "path": path.decode("ascii"),
            "raw_path": path,
            "query_string": query,
            "headers": headers,
        }
        record = self._record = RequestRecord(scope)
        keep_alive, whole = not self._connections.are_ending, None if missing else body
        exchange = Exchange(self, self._transport, scope, record, keep_alive=keep_alive, body=whole)
        self._arriving = exchange
        if missing and body:
            exchange.on_body(body)
        if missing:
            self._missing, self._reading, self._came = missing, True, len(body)
            self._began = self._last_read = self._loop.time()
            self._watch()
        self._start(exchange)
        if exchange.unread > self._limits.unread_bytes:
            self._read_no_more()

    # The parser's side

    def on_message_begin(self) -> None:
        if self._record is None:  # else its head is read again
            self._record = RequestRecord(self._scope)
        if len(self._waiting) >= self._limits.pipelined:
            text = f"more than {self._limits.pipelined} requests were sent ahead"
            self._stop(HttpError(429, text))
        self._url, self._headers, self._expects = b"", [], False
        self._arriving = None
        self._reading = self._in_head = True
        self._began, self._came = self._loop.time(), 0

    def on_url(self, url: bytes) -> None:
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self._in_head:
            return  # behind the body: a proxy that guards us by headers does not see these
        if len(self._headers) >= self._limits.headers:
            self._stop(self._too_long())
        name = name.lower()
        self._headers.append((name, value))
        if name == b"expect" and value.lower() == b"100-continue":
            self._expects = True

    def on_headers_complete(self) -> None:
        parser = self._parser
        if parser.should_upgrade():
            return  # see _pass_over_upgrade
        if self._silent_bytes > self._limits.head_bytes:  # or it is much more than the head
            size = len(self._url) + sum(len(name) + len(value) for name, value in self._headers)
            if size > self._limits.head_bytes:
                self._stop(self._too_long())
        target = split_url(self._url)
        if target is None:
            self._stop(HttpError(400, "the request's line has no path"))
        raw_path, query, host = target
        version = parser.get_http_version()
        scope = {
            **self._scope,
            "http_version": version,
            "method": parser.get_method().decode("ascii"),
            "path": unquote(raw_path.decode("ascii")),
            "raw_path": raw_path,
            "query_string": query,
            "headers": self._headers,
        }
        record = self._record = self._record or RequestRecord()
        record.scope = scope
        if version not in _SPOKEN:
            self._stop(_UNSPOKEN)
        names = [name for name, _ in self._headers]
        hosts = names.count(b"host")
        if hosts > 1 or (version == "1.1" and not hosts):
            self._stop(HttpError(400, "a request needs one Host"))
        if len(set(names)) < len(names):
            for name in AT_MOST_ONCE:
                if names.count(name) > 1:
                    self._stop(HttpError(400, f"a request has {name.decode()} once at most"))
        if host:  # a URL says better than the header which host is meant
            others = (header for header in self._headers if header[0] != b"host")
            self._headers = scope["headers"] = [(b"host", host), *others]
        # HTTP/1.0 has no chunks: who passed this on may have seen another end of the body.
        framed = version == "1.1" or b"transfer-encoding" not in names
        exchange = self._arriving = Exchange(
            self,
            self._transport,
            scope,
            record,
            keep_alive=parser.should_keep_alive() and framed and not self._connections.are_ending,
            expects=self._expects and version == "1.1",
        )
        self._in_head, self._silent_bytes = False, 0
        if self._exchange is None:
            self._start(exchange)
        else:
            self._waiting.append(exchange)
            self._record = None
            if self._is_full():
                self._read_no_more()

    def on_body(self, data: bytes) -> None:
        exchange = self._arriving
        assert exchange is not None
        self._silent_bytes = 0
        exchange.on_body(data)
        if exchange.ended and exchange.unread > self._limits.unread_bytes:
            self._linger()  # the application will not read it
        elif self._is_full():
            self._read_no_more()

    def on_message_complete(self) -> None:
        if self._arriving is None:
            return  # the parser passes over the body of what could be upgraded
        self._reading, self._silent_bytes = False, 0
        if self._slow is not None:
            self._stop_watching()
        self._arriving.on_body_end()

    # Its own parts

    def _pass_over_upgrade(self, rest: bytes) -> None:
        """The head that came offers another protocol, and the parser would take all behind it for
        that. Nothing here is upgraded: it is read again without the offer, then what follows."""
        method = self._parser.get_method()
        if method == b"CONNECT":
            self._refuse(HttpError(405, "this server is no proxy", {"allow": "GET, POST"}))
            return
        kept = [(name, value) for name, value in self._headers if name != b"upgrade"]
        lines = [b"%b: %b" % header for header in kept]
        version = self._parser.get_http_version().encode()
        head = b"\r\n".join((b"%b %b HTTP/%b" % (method, self._url, version), *lines, b"", b""))
        self._parser, self._silent_bytes = httptools.HttpRequestParser(self), 0
        self._read(head + rest)

    def _start(self, exchange: Exchange) -> None:
        task, rest = self._task, self._rest
        if task is not None and rest is not None and not rest.done():
            self._exchange = self.client.output = exchange
            self._rest = None
            rest.set_result(None)
        else:
            task = self._task = self.client.answering = self._loop.create_task(self._answer_each())
            self._exchange = self.client.output = exchange
            task.add_done_callback(self._connections.tasks.discard)
            task.add_done_callback(self._on_task_end)
        self._record = None
        self._connections.tasks.add(task)

    async def _answer_each(self) -> None:
        """Answer one request after another: a task of its own for each takes microseconds."""
        task = self._task
        assert task is not None
        while (exchange := self._exchange) is not None:
            await self._answer(exchange, task)
            ends = self._closing or self._connections.are_ending or task.cancelling()
            if ends or self._task is not task:
                return
            self._connections.tasks.discard(task)
            self._rest = self._loop.create_future()
            await self._rest

    def _on_task_end(self, task: "asyncio.Task[None]") -> None:
        if self._task is task and self._exchange is not None and not self._closing:
            self.end_unanswered()  # it could not begin

    async def _answer(self, exchange: Exchange, task: "asyncio.Task[None]") -> None:
        record, failed = exchange.record, False
        try:
            set_record(record)
            set_account("")  # not that of the request before, until its access is checked
            self._connections.observer.on_request(record)
            await self._app(exchange.scope, exchange.receive, exchange.send)
        except (Exception, asyncio.CancelledError) as error:
            if isinstance(error, asyncio.CancelledError) and task.cancelling():
                raise
            log.error("a request ended in an error", path=exchange.scope["path"], exc_info=error)
            record.error = record.error or type(error).__name__
            self._refusal, failed = self._refusal or fault_of(error), True
        finally:
            if exchange.ended and not (exchange.is_lost and self._refusal is not None):
                if failed or self._exchange is exchange:
                    self.abort()  # whatever is behind this answer may have no turn
                self._report(record)
            else:
                self._exchange = None
                if self._refusal is not None and not exchange.sent:
                    self._send_refusal(record)
                else:
                    self.abort()  # the client must not take a part for the whole
                    self._report(record)

    def _stop(self, error: HttpError) -> NoReturn:
        """Out of a callback of the parser: it reads no more."""
        self._found = error
        raise _RefusedError

    def _fail(self, error: BaseException) -> None:
        """What reads a request has failed: a fault of ours, and no word on the client's bytes."""
        log.error("a request could not be read", exc_info=error)
        self._reading = self._arriving is not None and not self._arriving.body_ended
        self._refuse(fault_of(error))

    def _refuse(self, error: BaseException) -> None:
        """Read nothing more, and say why once all that came before is answered."""
        self._refusal = error
        self._stop_watching()
        broken = self._arriving if self._reading else None
        if broken is not None and broken.ended:
            self._linger()  # a request has one answer
            return
        if broken is not None and broken in self._waiting:
            self._waiting.remove(broken)
            self._record = broken.record
        elif broken is not None:
            broken.on_gone()
        if self._exchange is None:
            self._send_refusal(self._taken_record())

    def _send_refusal(self, record: RequestRecord) -> None:
        """`record`: of the request that is answered by it."""
        assert self._refusal is not None
        answer = self._form(self._refusal)
        record.error = str(self._refusal) if answer.foreseen else type(self._refusal).__name__
        if not self._transport.is_closing():
            self._transport.write(refusal(answer.status, answer.body))
            record.status = answer.status
        self._report(record)
        self._linger()

    def _taken_record(self) -> RequestRecord:
        """That of the request that has no exchange."""
        record, self._record = self._record, None
        return record or RequestRecord(self._scope)

    def _report(self, record: RequestRecord) -> None:
        if not record.route:
            record.route = self._connections.route_of(record.scope)
        if record.status == LEFT and not record.error:
            record.error = self._why
        self._connections.observer.on_end(record)

    def _linger(self) -> None:
        """Say that nothing more comes; the client has some time to read that, and to close."""
        if self._closing or not self._transport.can_write_eof():
            self._end()
            return
        self._closing = True
        self._stop_watching()
        self._transport.write_eof()
        self._read_on()
        self._slow = self._loop.call_later(self._limits.linger_s, self.abort)

    def _end(self) -> None:
        self._close()
        self._transport.close()

    def _close(self) -> None:
        if not self._closing:
            self._closing, self._why = True, "the connection was ended here"

    def _on_slow(self) -> None:
        """The request that is being read takes long."""
        self._slow = None
        if self._paused:  # it is we who do not read
            self._began = self._last_read = self._loop.time()
        if (left := self._seconds_left()) > 0:
            self._slow = self._loop.call_later(left, self._on_slow)
        else:
            self._connections.on_slow()
            self._refuse(HttpError(408, "the request took too long to come"))

    def _seconds_left(self) -> float:
        """Until the request that is being read takes too long, if nothing more comes of it."""
        limits = self._limits
        in_all = self._began + limits.request_s + self._came / limits.least_bytes_per_s
        return min(in_all, self._last_read + limits.silence_s) - self._loop.time()

    def _stop_watching(self) -> None:
        if self._slow is not None:
            self._slow.cancel()
            self._slow = None

    def _read_no_more(self) -> None:
        if not self._paused:
            self._paused = True
            self._transport.pause_reading()
            self._look = self._loop.call_later(self._limits.look_s, self._on_look)

    def _read_on(self) -> None:
        if self._paused and not self._transport.is_closing():
            self._paused, self._last_read = False, self._loop.time()
            self._stop_looking()
            self._transport.resume_reading()

    def _on_look(self) -> None:
        """Nothing is read, so nothing else says that the client left."""
        if has_left(self._transport):
            self._transport.abort()
        else:
            self._look = self._loop.call_later(self._limits.look_s, self._on_look)

    def _stop_looking(self) -> None:
        if self._look is not None:
            self._look.cancel()
            self._look = None

    def _is_full(self) -> bool:
        """Whether enough was read ahead. Before that, reading goes on while a request is answered:
        a client that leaves is noticed by it."""
        limits, current = self._limits, self._exchange
        unread = sum([each.unread for each in self._waiting]) if self._waiting else 0
        if current is not None:
            unread += current.unread
        return unread > limits.unread_bytes or len(self._waiting) > limits.pipelined // 2

    def _no_request(self, error: Exception) -> HttpError:
        """What the parser makes nothing of; it takes no version but those that it knows."""
        if self._in_head or not self._reading:
            version = self._parser.get_http_version()
            if version not in (*_SPOKEN, "0.0"):
                return _UNSPOKEN
        return HttpError(400, f"this is no HTTP/1.1 request: {error}")

    def _too_long(self) -> HttpError:
        most, count = self._limits.head_bytes, self._limits.headers
        return HttpError(431, f"the headers are more than {most} bytes or {count}")
