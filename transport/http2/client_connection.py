"""One connection to a peer that serves gRPC, as asyncio and uvloop drive it."""

import asyncio
from collections.abc import Callable
from typing import Any

from ._session import Session
from ._streams import END, GOAWAY, MESSAGE, SETTINGS, Stream
from .client_call import ClientCall
from .connection import Connection
from .keepalive import Keepalive


class ClientConnection(Connection):
    """Calls are `request`ed once `ready` is done. `on_leaving` is called when it takes no more,
    because the peer said so or it is lost; calls under way go on, or hear that it is lost.
    """

    def __init__(
        self,
        session: Session,
        keepalive: Keepalive,
        on_leaving: Callable[["ClientConnection"], None],
    ) -> None:
        super().__init__(session, keepalive)
        self._on_leaving = on_leaving
        self.is_leaving = False
        self.ready: asyncio.Future[None] = self.loop.create_future()
        """ends with the peer's settings; ConnectionError if it is lost before"""

    # Calls

    def request(self, call: ClientCall) -> None:
        """Begin a call. SessionError if it is too late."""
        stream = self._session.request(call.headers, call.more, call.message)
        stream.owner = call
        call.on_begun(self, stream)
        if self._look_timer is None:
            self._heard = self.loop.time()
            self._look_after(self._keepalive.after_s)
        self.flush()

    def drop(self, stream: Stream) -> None:
        """End a stream; its call hears nothing more."""
        stream.owner = None
        self._session.drop(stream)
        self.flush()

    def leave(self) -> None:
        """Close once the calls under way have ended."""
        self.is_leaving = True
        self._session.goaway()
        self.flush()

    def abort(self, why: str) -> None:
        """Close at once; calls under way hear why."""
        self._leaves()
        super().abort(why)

    def discard(self) -> None:
        """Close at once; calls under way are cancelled. `closed` says when it is."""
        self.ready.cancel()
        for stream in self._session.close():
            call, stream.owner = stream.owner, None
            call.on_discarded()
        self.abort("closed by this side")
        if self._transport is None and not self.closed.done():
            self.closed.set_result(None)

    # The connection's side

    def eof_received(self) -> bool:
        self._leaves()
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self._leaves()
        super().connection_lost(exc)

    def _on_lost(self, why: str) -> None:
        for stream in self._session.close():
            call, stream.owner = stream.owner, None
            call.on_lost(why)
        if not self.ready.done():
            self.ready.set_exception(ConnectionError(why))

    def _on_events(self, events: list[tuple[Any, int, Any]]) -> bool:
        concerns_calls = False
        for stream, kind, value in events:
            if stream is None:
                self._on_connection_event(kind, value)
                continue
            concerns_calls = True
            call = stream.owner
            if call is None:
                continue
            if kind == MESSAGE:
                call.on_message(value)
            elif kind == END:
                stream.owner = None
                call.on_end(value)
        return concerns_calls

    def _on_connection_event(self, kind: int, value: Any) -> None:
        if kind == SETTINGS:
            if not self.ready.done():
                self.ready.set_result(None)
        elif kind == GOAWAY:
            self._leaves()
        else:
            super()._on_connection_event(kind, value)

    def _leaves(self) -> None:
        if not self.is_leaving:
            self.is_leaving = True
            self._on_leaving(self)

    def _look(self) -> None:
        if len(self._session) and self._transport is not None:
            super()._look()
        else:
            self._look_timer = None
            self._keepalive.answered()
