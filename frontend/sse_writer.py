"""SseWriter: where server-sent events are written."""

import asyncio
from collections.abc import Mapping
from typing import NamedTuple

import msgspec

from ..transport.http1 import Client, Send, encoded

_LINES = (
    b"content-type: text/event-stream; charset=utf-8\r\n"
    b"cache-control: no-store\r\n"
    b"x-accel-buffering: no\r\n"  # nginx would collect the tokens
)


class SseShape(NamedTuple):
    """How a stream is written."""

    event: bytes
    """the bytes around what is put"""
    keep_alive: bytes
    """what goes out in silence"""


UNNAMED = SseShape(b"data: %b\n\n", b": keep-alive\n\n")
"""Events without names: some clients crash on named ones."""
NAMED = UNNAMED._replace(event=b"%b")
"""What is put are whole events, by `named_event`."""


def named_event(name: bytes, data: bytes) -> bytes:
    """An event of a stream that is NAMED."""
    return b"event: %b\ndata: %b\n\n" % (name, data)


class PlainEvents(msgspec.Struct, frozen=True):
    """The chunks of a choice of which only text comes, and in the end a finish reason: what they
    have around the JSON of both."""

    begun: set[int]
    """the choices of which something was written"""
    first: bytes
    """before the first text"""
    before: bytes
    """before each other text"""
    nothing: bytes
    """where the last chunk has none"""
    behind: bytes
    """behind it, before the finish reason"""
    end: bytes


class SseWriter:
    """One answer in server-sent events, until `close`. Its headers go with the first event, so that
    what fails before is answered by its own status. After `keep_alive_s` of silence a comment or a
    ping goes out, so that proxies keep the stream."""

    def __init__(
        self,
        send: Send,
        client: Client,
        headers: Mapping[str, str],
        keep_alive_s: float,
        shape: SseShape = UNNAMED,
    ) -> None:
        self._event, self._keep_alive = shape
        self._send, self._client = send, client
        self._in_next_turn = client.in_next_turn
        self.waiting: list[bytes] = []
        """events that go out together, in this list as long as there is a stream"""
        self._headers = headers
        self._keep_alive_s = keep_alive_s
        self._loop = asyncio.get_running_loop()
        self._last = self._loop.time()
        self._timer = self._loop.call_later(keep_alive_s, self._on_silence)
        self._beat: asyncio.Task[None] | None = None
        self._begun = False
        self.ending = False
        """the last event was put: the end of the stream is to go with it"""
        self.started = False
        """whether anything was put: it goes out even if nothing follows"""

    def put(self, data: bytes, *, last: bool = False) -> None:
        """Write an event. Events of one turn of the event loop go out together; after the `last`
        one, one more turn passes, so that the end of the stream goes with it."""
        if not self.waiting:
            self.schedule()
        self.waiting.append(self._event % data)
        self.started = True
        self.ending = last

    async def write(self, data: bytes) -> None:
        """The same once the client keeps up."""
        await self._client.drained()
        self.put(data)

    def schedule(self) -> None:
        """Have what waits go out after this turn of the event loop. Call it with the first event
        that is put into `waiting`."""
        self._in_next_turn(self._flush)

    def around(self, events: PlainEvents) -> PlainEvents:
        """The same with what stands around what is put, as it is written."""
        before, behind = self._event.split(b"%b")
        return PlainEvents(
            events.begun,
            before + events.first,
            before + events.before,
            before + events.nothing,
            events.behind,
            events.end + behind,
        )

    def _flush(self) -> None:
        if not self.waiting:
            return
        if self.ending:
            self.ending = False
            self.schedule()
            return
        self._send_now(self._joined())
        self.waiting.clear()  # not before: what could not be sent goes with the end

    def _joined(self) -> bytes:
        """What waits."""
        waiting = self.waiting
        return waiting[0] if len(waiting) == 1 else b"".join(waiting)

    def _send_now(self, written: bytes) -> None:
        self._last = self._loop.time()
        self.started = True
        if not self._begun:
            self._begin()
        self._client.write_part(written)

    async def end(self, data: bytes) -> None:
        """Write the last event, and end the answer."""
        if not self._begun:
            self._begin()
        body, client = self._joined() + self._event % data, self._client
        self.waiting.clear()
        if client.reads and client.output is not None:
            client.output.write(body, more=False)
        else:
            await self._send({"type": "http.response.body", "body": body})

    async def close(self) -> None:
        """Send no more comments. Idempotent."""
        self._timer.cancel()
        if self._beat is not None:
            self._beat.cancel()
            await asyncio.gather(self._beat, return_exceptions=True)

    def _on_silence(self) -> None:
        """The timer's: `keep_alive_s` after the start, the last look or the last event."""
        left = self._last + self._keep_alive_s - self._loop.time()
        if left <= 0:
            left = self._keep_alive_s
            if self._beat is None or self._beat.done():
                self._beat = self._loop.create_task(self._write_comment())
        self._timer = self._loop.call_later(left, self._on_silence)

    async def _write_comment(self) -> None:
        await self._client.drained()
        if not self.waiting:  # else something goes out anyway
            self._send_now(self._keep_alive)

    def _begin(self) -> None:
        self._client.begin(200, encoded(self._headers), _LINES)
        self._begun = True
