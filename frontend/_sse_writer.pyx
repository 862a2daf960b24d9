"""Kernel: where server-sent events are written. The face: sse_writer.py."""

cimport cython

import asyncio

from ..transport.http1 import encoded

cdef bytes LINES = (
    b"content-type: text/event-stream; charset=utf-8\r\n"
    b"cache-control: no-store\r\n"
    b"x-accel-buffering: no\r\n"  # nginx would collect the tokens
)
cdef object running_loop = asyncio.get_running_loop

UNNAMED_SHAPE = b"data: %b\n\n", b": keep-alive\n\n"


@cython.final
cdef class SseWriter:
    cdef bytes _before          # what is put
    cdef bytes _behind          # behind it
    cdef bytes _keep_alive      # what goes out in silence
    cdef object _send
    cdef object _client
    cdef object _headers
    cdef double _keep_alive_s
    cdef object _loop
    cdef double _last           # when something went out, by the loop's clock
    cdef object _timer
    cdef object _beat           # the task that writes a comment
    cdef bint _begun
    cdef readonly list waiting
    cdef public bint ending
    cdef public bint started

    def __init__(self, send, client, headers, double keep_alive_s, shape=UNNAMED_SHAPE):
        event, self._keep_alive = shape
        self._before, self._behind = event.split(b"%b")
        self._send, self._client, self._headers = send, client, headers
        self.waiting = []
        self._keep_alive_s = keep_alive_s
        self._loop = running_loop()
        self._last = self._loop.time()
        self._timer = self._loop.call_later(keep_alive_s, self._on_silence)

    def put(self, bytes data not None, *, bint last=False):
        if not self.waiting:
            self.schedule()
        self.waiting.append(self._before + data + self._behind)
        self.started, self.ending = True, last

    async def write(self, data):
        await self._client.drained()
        self.put(data)

    def schedule(self):
        self._client.in_next_turn(self._flush)

    def around(self, events):
        return events.within(self._before, self._behind)

    def _flush(self):
        if not self.waiting:
            return
        if self.ending:
            self.ending = False
            self.schedule()
            return
        self._send_now(self._joined())
        self.waiting.clear()  # not before: what could not be sent goes with the end

    cdef bytes _joined(self):
        """What waits."""
        return self.waiting[0] if len(self.waiting) == 1 else b"".join(self.waiting)

    cdef int _send_now(self, bytes written) except -1:
        self._last = self._loop.time()
        self.started = True
        self._begin()
        self._client.write_part(written)
        return 0

    async def end(self, bytes data not None):
        cdef bytes body
        self._begin()
        body = self._joined() + self._before + data + self._behind
        self.waiting.clear()
        client = self._client
        if client.reads and client.output is not None:
            client.output.write(body, more=False)
        else:
            await self._send({"type": "http.response.body", "body": body})

    async def close(self):
        self._timer.cancel()
        if self._beat is not None:
            self._beat.cancel()
            await asyncio.gather(self._beat, return_exceptions=True)

    def _on_silence(self):
        """The timer's: `keep_alive_s` after the start, the last look or the last event."""
        cdef double left = self._last + self._keep_alive_s - <double>self._loop.time()
        if left <= 0:
            left = self._keep_alive_s
            if self._beat is None or self._beat.done():
                self._beat = self._loop.create_task(self._write_comment())
        self._timer = self._loop.call_later(left, self._on_silence)

    async def _write_comment(self):
        await self._client.drained()
        if not self.waiting:  # else something goes out anyway
            self._send_now(self._keep_alive)

    cdef int _begin(self) except -1:
        if not self._begun:
            self._client.begin(200, encoded(self._headers), LINES)
            self._begun = True
        return 0
