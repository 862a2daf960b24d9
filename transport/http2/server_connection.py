"""One connection of a client to a server, as asyncio and uvloop drive it."""

import asyncio
from collections.abc import Mapping
from typing import Any

import structlog

from ...base.account import account_of
from ...base.errors import StatusCode
from ._session import Session, SessionError
from ._streams import (
    DRAINED,
    END,
    GAVE_UP,
    HALF_CLOSED,
    HEADERS,
    HEADERS_TOO_LONG,
    MESSAGE,
    MESSAGE_TOO_LONG,
    PING,
    PONG,
    REFUSED,
    SETTINGS,
    VIOLATION,
    Stream,
)
from .connection import Connection
from .connection_life import ConnectionLife, Step
from .flood_guard import ENHANCE_YOUR_CALM, PROTOCOL_ERROR, FloodGuard, limit_of
from .keepalive import Keepalive
from .request_head import HeadReader, Refusal, http1_refusal
from .server_call import Host, ServerCall
from .server_limits import CountedBytes
from .wire import peer_name

log = structlog.get_logger(__name__)

LAST_WORDS_S = 1.0
"""How long a client has to take the last frames before its connection is closed."""
NOTICE_S = 1.0
"""Between the notice that a connection is left and its last call, if the client answers no ping."""
NEW_CALLS_AT_ONCE = 16
"""Of one connection; then it is the turn of the others. Each may cost some 0.2 ms."""
INPUT_STEP, OUTPUT_STEP = 16 << 10, 64 << 10
"""What waits of requests, and of answers, is counted in steps of this many bytes."""
PREFACE = b"PRI * HTTP/2.0"


class ServerConnection(Connection):
    """Hands calls to its server from the client's first bytes until `closed`."""

    def __init__(self, session: Session, host: Host, spread: float) -> None:
        limits = host.limits
        keepalive = Keepalive(limits.keepalive_s, limits.keepalive_timeout_s, float("inf"))
        super().__init__(session, keepalive)
        self.session, self.limits = session, limits
        self._host = host
        self.guard = FloodGuard(limits.ping_interval_s)
        self._quiet_since = now = self.loop.time()
        self._life = ConnectionLife(limits, now, spread)
        self._peer = ""
        self._begun = False  # bytes came
        self._leaving: asyncio.Future[None] | None = None  # until the last GOAWAY was sent
        self._input = CountedBytes(host.input_bound, INPUT_STEP)
        self._output = CountedBytes(host.output_bound, OUTPUT_STEP)
        self._unfinished = 0  # the stream whose headers have begun to come
        self._header_timer: asyncio.TimerHandle | None = None
        session.most_new, session.most_frames = NEW_CALLS_AT_ONCE, limits.max_frames
        self._flushing = self._answers = False
        self._heads = HeadReader()
        self._timer: asyncio.TimerHandle | None = None

    @property
    def is_made(self) -> bool:
        """Whether its TLS, if any, stands."""
        return self._transport is not None

    @property
    def peer(self) -> str:
        """What gRPC calls the client's address."""
        if not self._peer:
            assert self._transport is not None
            address = self._transport.get_extra_info("peername")
            self._peer = peer_name(*address[:2]) if address else "unix:"
        return self._peer

    @property
    def certificate(self) -> Mapping[str, Any]:
        """The client's, as ssl describes it; empty if it showed none."""
        assert self._transport is not None
        return self._transport.get_extra_info("peercert") or {}

    # The server's side

    @property
    def calls(self) -> list[ServerCall]:
        """Those whose streams have not ended."""
        return [stream.owner for stream in self.session.open_streams if stream.owner is not None]

    def leave(self) -> asyncio.Future[None]:
        """Have the client make no more calls here; close once those under way have ended.

        When the future ends there are no calls but those that have begun.
        """
        if self._leaving is None:
            self._leaving = self.loop.create_future()
            self._life.leave()
            if self._begun:
                self.session.announce_goaway()
                self.session.ping()
                self.flush()
            self._timer = self.loop.call_later(NOTICE_S, self._leave_now)
        return self._leaving

    def close(self, why: str) -> None:
        """Close as soon as the output has left."""
        self._why = self._why or why
        transport = self._transport
        if transport is not None and not transport.is_closing():
            transport.close()
            self._stop_timer()
            self._timer = self.loop.call_later(LAST_WORDS_S, transport.abort)

    def flush_soon(self, *, answers: bool = True) -> None:
        """Send once this turn of the loop is over, with what else is written in it. `answers`: part
        of an answer is."""
        self._answers = self._answers or answers
        if not self._flushing:
            self._flushing = True
            self._turn.call_after(self.loop, self._flush_now)

    # The connection's side

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        tls = transport.get_extra_info("ssl_object")
        if tls is not None and tls.selected_alpn_protocol() != "h2":
            self.close("it does not offer HTTP/2")
        else:
            self._look()

    def buffer_updated(self, nbytes: int) -> None:
        if not self._begun:
            self._begun = True
            first = bytes(self._buffer[: min(nbytes, 4096)])
            if not first.startswith(PREFACE[: len(first)]) and (answer := http1_refusal(first)):
                assert self._transport is not None
                self._transport.write(answer)
                self.on_limit("client_violations")
                self.close("it speaks HTTP/1")
                return
        super().buffer_updated(nbytes)

    def _feed(self, data: memoryview | bytes, size: int) -> int:
        """One connection full of calls does not hold up the others: the rest has its next turn."""
        taken = super()._feed(data, size)
        self._host.settle()
        session = self.session
        if session.held // INPUT_STEP != self._input.steps:
            self._count_input()
            self.flush_soon(answers=False)
        if session.queued // OUTPUT_STEP != self._output.steps:  # a client gave calls up
            self._count_output()
        if session.unfinished_headers != self._unfinished:
            self._watch_headers()
        return taken

    def _watch_headers(self) -> None:
        """Close if a client takes too long to send the rest of a call's headers."""
        if self._header_timer is not None:
            self._header_timer.cancel()
            self._header_timer = None
        self._unfinished = self.session.unfinished_headers
        if self._unfinished:
            late = self.loop.call_later(self.limits.header_s, self._on_late_headers)
            self._header_timer = late

    def _on_late_headers(self) -> None:
        self._header_timer = None
        if self._break("its headers do not end", "message_timeout_s"):
            self.session.goaway(ENHANCE_YOUR_CALM)
            self.flush()
            self.close(self._why)

    @property
    def _may_read(self) -> bool:
        return not self._paused

    def pause_writing(self) -> None:
        super().pause_writing()
        if self._transport is not None:  # nor is more asked of us meanwhile
            self._transport.pause_reading()

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._rest:
            self.loop.call_soon(self._go_on)
        self._read_on()

    def flush(self) -> None:
        if self._begun:  # before that it may be no HTTP/2 at all
            session = self.session
            if session.held // INPUT_STEP != self._input.steps and not self._busy:
                self._count_input()
            super().flush()
            if session.queued // OUTPUT_STEP != self._output.steps:
                self._count_output()

    def take(self, stream: Stream, size: int) -> None:
        session = self.session
        if session.take(stream, size):
            self.flush()
        if session.held // INPUT_STEP != self._input.steps:
            self._count_input()
            self.flush_soon(answers=False)

    def _count_input(self) -> None:
        """Have what waits of its requests counted; one for which there is no room is refused."""
        if not self._input.count(self._client, self.session.held):
            self.session.shed()
            self._deliver_events()

    def _count_output(self) -> None:
        """The same of its answers; where there is no room, the one that holds most is cut short."""
        while not self._output.count(self._client, self.session.queued):
            stream = self.session.fullest()
            if stream is None:
                return
            call: ServerCall | None = stream.owner
            self.session.drop(stream, ENHANCE_YOUR_CALM)
            if call is not None:
                call.give_up()
        if not self._busy:
            self.flush_soon(answers=False)

    @property
    def _client(self) -> str:
        """Whom what it uses is charged to, before it is known who calls."""
        return account_of(self.peer)

    def on_limit(self, limit: str) -> None:
        """Have a limit counted that this client has hit."""
        self._host.on_limit(limit, self._client if self._transport is not None else "")

    def _flush_now(self) -> None:
        self._flushing = False
        if self._answers:
            self._answers = False
            self.guard.on_sent()
        session = self.session
        if session.is_due or session.queued // OUTPUT_STEP != self._output.steps:
            self.flush()

    def _on_events(self, events: list[tuple[Any, int, Any]]) -> bool:
        concerns_calls = False
        for stream, kind, value in events:
            if stream is None:
                self._on_connection_event(kind, value)
                continue
            concerns_calls = True
            try:
                if kind == HEADERS:
                    self._begin(stream)
                elif kind == MESSAGE:
                    if stream.owner is not None:
                        stream.owner.on_message(value)
                elif kind == HALF_CLOSED:
                    if stream.owner is not None:
                        stream.owner.on_half_closed()
                else:
                    self._on_other_event(stream, kind, value)
            except (Exception, asyncio.CancelledError) as error:  # ours: of this call alone
                log.error("a call failed here", exc_info=error)
                if stream.owner is not None:
                    stream.owner.end(StatusCode.INTERNAL, f"internal error: {type(error).__name__}")
        return concerns_calls

    def _on_undelivered(self, call: ServerCall) -> None:
        call.on_end()

    def _on_failed_end(self, call: ServerCall, error: BaseException) -> None:
        if call.task is not None:
            call.task.cancel()

    def _on_other_event(self, stream: Stream, kind: int, value: Any) -> None:
        call: ServerCall | None = stream.owner
        if kind == END:
            stream.owner = None
            answered = call is not None and call.ended
            if stream.violation == HEADERS_TOO_LONG and not answered:  # not read to the end
                self.on_limit("max_metadata_bytes")
                if call is None or not call.taken:
                    why = "RESOURCE_EXHAUSTED", "the call's metadata is too long"
                    self._host.on_refused(_path_of(stream), self._client, *why)
            self._on_stream_end(call, value)
        elif call is None:
            return
        elif kind == DRAINED:
            call.on_drained()
        elif kind == VIOLATION:
            if value == HEADERS_TOO_LONG:
                self.on_limit("max_metadata_bytes")
            elif value == MESSAGE_TOO_LONG:
                self.on_limit("max_message_bytes")
            noted = call.ended or call.taken
            refusal = call.on_violation(value)
            if not noted:
                self._host.on_refused(_path_of(stream), self._client, *refusal)

    def _begin(self, stream: Stream) -> None:
        head = self._heads.read(stream.headers)
        if isinstance(head, Refusal):
            self.session.refuse(stream, head.headers)
            self.on_limit("client_violations")
            self._host.on_refused(_path_of(stream), self._client, head.status, head.why)
            self.on_refused()
            return
        call = stream.owner = ServerCall(self, stream, head)
        self._host.begin(call, head.path)

    def on_refused(self) -> None:
        """A call was refused before anything was done for it."""
        if self.guard.on_refused(self.loop.time()):
            self._on_flood("it makes too many calls that are refused")

    def _on_stream_end(self, call: ServerCall | None, code: int) -> None:
        now = self.loop.time()
        if not len(self.session):
            self._quiet_since = now
        if call is not None:
            call.on_end()
        if code and self.guard.on_reset(now, now if call is None else call.began):
            self._on_flood("it gives up too many calls")

    def _on_connection_event(self, kind: int, value: Any) -> None:
        if kind == SETTINGS:
            self._life.greeted()
            if self.guard.on_settings(self.loop.time()):
                self._on_flood("it changes its settings too often")
        elif kind == PING:
            if self.guard.on_ping(self.loop.time()):
                self._on_flood("too_many_pings")
        elif kind == REFUSED:
            self.on_limit("max_streams")
        elif kind == GAVE_UP:
            why = f"it breaks the rules of HTTP/2: {self.session.complaint}"
            self._break(why, limit_of(value))
        else:
            super()._on_connection_event(kind, value)
            if kind == PONG and self._life.leaving:
                self._leave_now()

    def _on_flood(self, why: str) -> None:
        if self._break(why, "client_floods"):
            self.session.goaway(ENHANCE_YOUR_CALM)

    def _break(self, why: str, limit: str) -> bool:
        """The connection ends for what its client does; counted once, False: it ends already."""
        if self._why:
            return False
        self._why = why
        self.on_limit(limit)
        return True

    def _on_broken(self, error: SessionError) -> None:
        code = ENHANCE_YOUR_CALM if error.flooded else PROTOCOL_ERROR
        self._break(f"it does not speak HTTP/2 as it should: {error}", limit_of(code))
        self.session.goaway(code)

    def _give_up(self) -> None:
        self.close(self._why)

    def _on_lost(self, why: str) -> None:
        self._rest = b""
        self._stop_timer()
        if self._header_timer is not None:
            self._header_timer.cancel()
        if self._leaving is not None and not self._leaving.done():
            self._leaving.set_result(None)
        self._end_calls(ServerCall.on_end)
        for counted in (self._input, self._output):
            if counted.steps:
                counted.count(self._client, 0)

    def _leave_now(self) -> None:
        if self._leaving is not None and not self._leaving.done():
            self._leaving.set_result(None)
            self._stop_timer()
            if self._begun:
                self.session.goaway()
                self.flush()
            else:
                self.close("it is left")

    def _look(self) -> None:
        self._look_timer = None
        now = self.loop.time()
        step, again_s = self._life.look(now, len(self.session), self._quiet_since)
        if step is not Step.STAY and self._life.due:
            self.on_limit(self._life.due)
        if step is Step.CLOSE:
            self.close(self._life.due)
            return
        if step is Step.LEAVE:
            self.leave()
        alive_s = self._keep_alive()
        if alive_s is None:
            self.on_limit("connection_keepalive")
        else:
            self._look_after(min(again_s, alive_s))

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def _path_of(stream: Stream) -> bytes:
    return next((value for name, value in stream.headers if name == b":path"), b"")
