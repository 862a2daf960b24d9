"""Kernel: a call of a client, from its request to its end. The face: client_call.py."""

cimport cython

from ._streams cimport Stream

import asyncio
from collections import deque

from ...base.errors import StatusCode
from ._streams import END, MESSAGE, SOUND
from .outcome import REFUSED_STREAM, Fault, Outcome, outcome_of
from .wire import decode_metadata

MOST_REFUSALS = 10
REFUSAL_PAUSE_S = 0.001
CANCELLED_HERE = Outcome(Fault.STATUS, StatusCode.CANCELLED, "cancelled by this side")

# What mostly ends an answer.
cdef list WELL = [(b"grpc-status", b"0")]
cdef object DONE = Outcome(None, StatusCode.OK)
cdef object running_loop = asyncio.get_running_loop
cdef object new_deque = deque
cdef int IS_SOUND = SOUND, IS_MESSAGE = MESSAGE, IS_END = END


@cython.final
cdef class ClientCall:
    cdef object _channel
    cdef object _loop
    cdef readonly tuple headers
    cdef readonly tuple more
    cdef readonly bytes message
    cdef readonly bint wide
    cdef readonly object outcome    # how it ended; None: it has not
    cdef object _ready              # messages that came and were not taken
    cdef object _waiter
    cdef object _take               # while its waiter waits for what ends that
    cdef Stream _stream
    cdef object _connection
    cdef int _refusals
    cdef object _timer

    def __init__(
        self, channel, tuple headers not None, tuple more not None, bytes message not None,
        timeout, bint wide=False,
    ):
        self._channel, self.wide = channel, wide
        self._loop = running_loop()
        self.headers, self.more, self.message = headers, more, message
        self._ready = new_deque()
        if timeout is not None:
            self._timer = self._loop.call_later(max(timeout, 0.0), self._on_deadline)

    # The reader's side

    def __aiter__(self):
        return self

    def __anext__(self):
        future = self._loop.create_future()
        if self._ready:
            future.set_result(self._next())
        elif self.outcome is not None:
            self._settle(future, self.outcome)
        else:
            self._waiter = future
        return future

    async def deliver(self, take, write):
        while True:
            while self._ready:
                rest = take(self._next())
                if rest is not None:
                    await write(rest)
            try:
                rest = await self._wait(take)
            finally:
                self._waiter = self._take = None
            if rest is None:
                return
            await write(rest)

    cdef bytes _next(self):
        """The next message, which is taken."""
        cdef bytes message = self._ready.popleft()
        if self._connection is not None and self._stream is not None:
            self._connection.take(self._stream, len(message))
        return message

    cdef object _wait(self, take):
        """What `take` leaves to be written; None when all messages have come."""
        waiter = self._loop.create_future()  # no local of a coroutine that it fails: a cycle
        if self.outcome is None:
            self._waiter, self._take = waiter, take
        elif self.outcome.fault is None:
            waiter.set_result(None)
        else:
            self._settle(waiter, self.outcome)
        return waiter

    async def aclose(self):
        self.cancel()

    def cancel(self):
        if self.outcome is not None:
            return False
        self._ready.clear()
        self._give_up(CANCELLED_HERE)
        return True

    @property
    def is_accepted(self):
        return self._stream is not None and len(self._stream.headers) > 0

    @property
    def initial_metadata(self):
        return () if self._stream is None else decode_metadata(self._stream.headers)

    # The channel's and the connection's side

    def on_begun(self, connection, Stream stream not None):
        self._connection, self._stream = connection, stream

    def on_message(self, bytes message not None):
        return self._came(message)

    cdef bint _came(self, bytes message) except -1:
        waiter = self._waiter
        if waiter is None or waiter.done():  # who waited was cancelled, and may come again
            self._ready.append(message)
            return False
        if self._take is None:
            self._waiter = None
            waiter.set_result(message)
            return True
        try:
            rest = self._take(message)
        except Exception as error:
            waiter.set_exception(error)
        else:
            if rest is not None:
                waiter.set_result(rest)
        return True

    def on_end(self, reset):
        self._ended(reset)

    cdef int _ended(self, reset) except -1:
        cdef Stream stream = self._stream
        if stream is None:
            raise AssertionError("a call that has not begun does not end")
        if not stream.headers and (reset == REFUSED_STREAM or not stream.begun):
            self.on_refused()
        elif stream.violation == IS_SOUND and stream.trailers == WELL:
            self._end(DONE)
        else:
            self._end(outcome_of(stream, reset, self._channel.max_message_bytes))
        return 0

    def on_refused(self):
        self._refusals += 1
        self._connection = self._stream = None
        if self._refusals > MOST_REFUSALS:
            text = f"the request was refused {self._refusals} times before it was looked at"
            self._end(Outcome(Fault.STATUS, StatusCode.UNAVAILABLE, text))
        elif self._refusals == 1:
            self._channel.submit(self)
        else:
            pause = REFUSAL_PAUSE_S * 2 ** (self._refusals - 2)
            self._loop.call_later(pause, self._channel.submit, self)

    def on_lost(self, why):
        if self._stream is not None and not self._stream.begun:
            self.on_refused()
        else:
            self._end(Outcome(Fault.BROKEN, StatusCode.UNAVAILABLE, why))

    def on_discarded(self):
        self._ready.clear()
        self._end(CANCELLED_HERE)

    def end(self, outcome):
        self._end(outcome)

    cdef int _end(self, outcome) except -1:
        if self.outcome is not None:
            return 0
        self.outcome = outcome
        if self._connection is None:
            self._channel.forget(self)
        self._connection = None
        self.message = b""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        waiter, self._waiter = self._waiter, None
        if waiter is not None and not waiter.done():
            if self._take is not None and outcome.fault is None:
                waiter.set_result(None)
            else:
                self._settle(waiter, outcome)
        return 0

    def _on_deadline(self):
        self._timer = None
        self._give_up(Outcome(Fault.DEADLINE, StatusCode.DEADLINE_EXCEEDED, "Deadline Exceeded"))

    cdef int _give_up(self, outcome) except -1:
        connection, stream = self._connection, self._stream
        self._end(outcome)
        if connection is not None and stream is not None:
            connection.drop(stream)
        return 0

    cdef int _settle(self, future, outcome) except -1:
        if outcome.fault is None:
            future.set_exception(StopAsyncIteration())
        elif outcome is CANCELLED_HERE:
            future.cancel()
        else:
            future.set_exception(self._channel.error(outcome))
        return 0


def give_events(on_connection not None, list events not None, take not None, fail not None):
    cdef bint concerns_calls = False
    cdef Stream stream
    cdef tuple event
    cdef int kind
    for event in events:
        if event[0] is None:
            on_connection(event[1], event[2])
            continue
        concerns_calls = True
        stream, kind = event[0], event[1]
        call = stream.owner
        if call is None:
            continue
        try:
            if kind == IS_MESSAGE:
                if (<ClientCall?>call)._came(<bytes>event[2]):
                    take(stream, len(<bytes>event[2]))  # what it has to send is sent after these
            elif kind == IS_END:
                stream.owner = None
                (<ClientCall?>call)._ended(event[2])
        except (Exception, asyncio.CancelledError) as error:  # ours: of this call alone
            fail(stream, call, error)
    return concerns_calls
