"""ZmqEvents: subscribes to the events that vLLM or SGLang publishes over ZMQ, with its replay.

The engine's process numbers its messages from 0. A subscriber receives what is published from then
on; the replay socket has what came before, or got lost, as far back as the engine keeps it.
"""

import asyncio
import importlib
import struct
from collections import deque
from typing import Any, NamedTuple

from ...base.backoff import Backoff
from ...base.clock import SystemClock
from ...runtime.event_planes.zmq import RENEW_S, Connection, ConnectionMonitor
from .pulled_call import EventsEnded, EventsLost, PulledCall
from .zmq_address import why_unheard

REPLAY_WAIT_S = 1.0
"""How long the engine may take for each further message of a replay,"""
REPLAY_S = 30.0
"""and for all that is taken of one, as what is published waits; then the rest is asked for."""
REPLAY_BYTES = 256 << 20
"""As much is taken of one replay, and a message more."""
LARGEST_NUMBER = (1 << 63) - 1
"""Of a message, for engines count from 0: behind a larger one none could follow."""
MOST_HELD = 100_000
"""Messages that ZMQ keeps for us while we are busy, and of a replay; engines keep as many."""
ASK_AGAIN_S = (0.25, 30.0)
"""Until a replay that ended in its midst is asked for the rest: the first wait, and the longest."""
QUIET_S = 2.0
"""After so long without a message the replay is asked for one that got lost as the last."""
PING_MS, PONG_MS = 2000, 5000
"""How often the engine is pinged, and how long it may take to answer, or for one message."""
MOST_BYTES = 64 << 20
"""Of a frame. Who sends a longer one is connected anew."""
LONGEST_WAIT_S = 1.0
"""For a message, before the connection is looked at again."""
MESSAGES_A_TURN = 64
"""Before other tasks on the loop get their turn."""
_END = b"\xff" * 8  # ends a replay, so that no message has this number
_NUMBER = struct.Struct(">Q")


class ZmqMessage(NamedTuple):
    """One message of an engine: its number plus one, and its events as the engine packed them."""

    sequence: int
    payload: bytes


NOTHING_YET = ZmqMessage(0, b"\x92\x00\x90")
"""The message 0, without events, before all that an engine publishes."""

Message = tuple[int, bytes]
"""The engine's number, and a payload."""


class ZmqEvents:
    """A Subscriber. Its socket stays open from the first call to `close`, so that nothing gets lost
    between two calls."""

    def __init__(self, address: str, replay: str | None) -> None:
        """`address` and `replay` are tcp://HOST:PORT or ipc://PATH."""
        self._zmq: Any = importlib.import_module("zmq")
        self._asyncio: Any = importlib.import_module("zmq.asyncio")
        self._noblock = int(self._zmq.NOBLOCK)  # an enum takes longer
        self.address, self._replay_address = address, replay
        self.clock = SystemClock()
        self._context: Any = None
        self._live: Any = None
        self._monitor: ConnectionMonitor | None = None
        self._read: deque[list[bytes]] = deque()  # before the connection was last looked at
        self.turn = 0  # messages since other tasks ran
        self._connected = False
        self._lost = False  # the connection was, since the engine was last identified
        self._newest = -1  # the number of the last message that was published
        self._replayed: dict[int, int] = {}  # hashes of what may still come, by number
        self._covered = range(0)  # the numbers that the last replay was to have
        self._last: Message = (-1, b"")  # the last one that was delivered, perhaps in vain
        self._held: Message | None = None  # the first message of an engine started anew
        self.short_replays = 0
        """replays that ended without their end"""

    def subscribe_kv_events(self, start: int) -> "ZmqSubscription":
        """Messages from the one whose sequence is `start` on, 0: from the first that there is."""
        return ZmqSubscription(self, start)

    @property
    def has_replay(self) -> bool:
        return self._replay_address is not None

    async def connect(self, resumes: bool) -> None:
        """Wait until the engine is connected. EventsLost if a subscription that `resumes` may now
        be answered by another engine."""
        await self._connect()
        if self._lost and not await self._goes_on():
            # What is queued may be of another engine than the one that is there now.
            self._disconnect()
            await self._connect()
            self._lost = False
            if resumes:
                raise EventsLost("another engine may have answered since the connection broke")
        self._lost = False

    async def replay(self, begin: int) -> tuple[list[Message], bool]:
        """See `_replay`; what it gives may come again as a message that is published."""
        found, complete = await self._replay(begin)
        if found:  # else what an earlier one gave may still come
            left = {n: each for n, each in self._replayed.items() if n > self._newest}
            self._replayed = left if len(left) <= MOST_HELD else {}
            self._replayed |= {number: hash(payload) for number, payload in found}
            # Engines keep some: what comes before the first may have been published, and not kept.
            self._covered = range(found[0][0], found[-1][0])
        return found, complete

    def deliver(self, number: int, payload: bytes) -> ZmqMessage:
        """A message for the reader, noted as the last one."""
        self._last = number, payload
        return ZmqMessage(number + 1, payload)

    async def close(self) -> None:
        """Let go of the sockets. Idempotent."""
        self._disconnect()
        context, self._context = self._context, None
        if context is not None:
            context.destroy(0)

    async def _connect(self) -> None:
        """Wait until the engine is connected."""
        while True:
            if self._live is None:
                self._open_socket()
            if self._look():
                return
            assert self._monitor is not None
            if not await _readable(RENEW_S, self._monitor.fd) and not self._look():
                # ZMQ does not try again where it got something else than ZMQ. Nothing came.
                self._let_go()

    def _open_socket(self) -> None:
        """EventsEnded if there can be no socket now, or none to such an address."""
        if self._context is None:
            self._context = self._asyncio.Context()
        try:
            self._live = self._zmq.Socket(self._context, self._zmq.SUB)
            self._set_up(self._live)
        except self._zmq.ZMQError as error:
            self._let_go()
            raise EventsEnded(f"{self.address} cannot be connected: {error}") from None

    def _set_up(self, live: Any) -> None:
        zmq = self._zmq
        for option, value in (
            (zmq.RCVHWM, MOST_HELD),
            (zmq.IPV6, 1),
            (zmq.RECONNECT_IVL, 100),
            (zmq.RECONNECT_IVL_MAX, 2000),
            (zmq.HEARTBEAT_IVL, PING_MS),
            (zmq.HEARTBEAT_TIMEOUT, PONG_MS),
            (zmq.MAXMSGSIZE, MOST_BYTES),
        ):
            live.setsockopt(option, value)
        live.subscribe(b"")
        self._monitor = ConnectionMonitor(self._context, live)
        live.connect(self.address)

    def _disconnect(self) -> None:
        """From an engine that sent something: who is there next may be another."""
        self._let_go()
        self._lost = True

    def _let_go(self) -> None:
        """Of the sockets, and of what is queued, too."""
        monitor, self._monitor = self._monitor, None
        live, self._live = self._live, None
        if monitor is not None:
            monitor.close()
        if live is not None:
            live.close(0)
        self._connected = False
        self._newest, self._held = -1, None
        self._replayed.clear()
        self._covered = range(0)
        self._read.clear()

    def _look(self) -> bool:
        """Take in what became of the connection until now; whether it is there."""
        assert self._monitor is not None
        for news in self._monitor.news():
            self._connected = news is Connection.MADE
            self._lost = self._lost or news is Connection.LOST
        return self._connected

    async def _goes_on(self) -> bool:
        """Whether the engine is the one whose message was the last."""
        number, payload = self._last
        return number >= 0 and (await self._replay(number, most=1))[0] == [(number, payload)]

    def next(self) -> Message | None:
        """The next message that is here, or the first of an engine that was started anew; None if
        there is none."""
        held, self._held = self._held, None
        if held is not None:
            return held
        while self.turn < MESSAGES_A_TURN:
            if not self._read and not self._drain():
                return None
            frames = self._read.popleft()
            if len(frames) != 3 or len(frames[1]) != 8 or frames[1] == _END:
                self.turn += 1
                continue  # no message; a connection that is out of step answers no ping
            number, payload = _NUMBER.unpack(frames[1])[0], frames[2]
            if number > LARGEST_NUMBER:
                self.turn += 1
                continue
            again = self._replayed.pop(number, None)
            seen = (number, payload) == self._last
            if seen or (again is not None and again == hash(payload)):
                self.turn += 1
                continue  # twice, or late: it was delivered
            # One that the replay has left out: it was another engine's, or it has lied.
            begins = number <= self._newest or again is not None or number in self._covered
            self._newest = number
            if begins:
                self._replayed.clear()
                self._covered = range(0)
                self._held = number, payload
                raise EventsLost("the engine was started anew")
            return number, payload
        return None

    def _drain(self) -> bool:
        """Read what is here, or much of it; whether there was something. EventsEnded if the
        connection was lost meanwhile: another engine may have published what came after that.
        """
        receive, read = self._live.recv, self._read
        try:
            while len(read) < MESSAGES_A_TURN:
                frame = receive(self._noblock, False)
                frames = [frame.bytes]
                while frame.more:
                    frame = receive(self._noblock, False)
                    frames.append(frame.bytes)
                read.append(frames)
        except self._zmq.Again:
            pass
        self._look()
        if self._lost:
            self._disconnect()  # the library does not always try again
            raise EventsEnded("the connection was lost")
        return bool(read)

    async def give_turn(self) -> None:
        """Let other tasks run."""
        self.turn = 0
        await asyncio.sleep(0)

    async def wait(self, until: float | None) -> bool:
        """Wait for a message, or until that time; False if it has come and no message has."""
        left_s = LONGEST_WAIT_S if until is None else until - self.clock.now()
        if left_s <= 0:
            return False
        self.turn = 0
        assert self._monitor is not None
        live = self._live.getsockopt(self._zmq.FD)
        await _readable(min(left_s, LONGEST_WAIT_S), live, self._monitor.fd)
        return True

    async def _replay(self, begin: int, most: int = MOST_HELD) -> tuple[list[Message], bool]:
        """What the engine still has from `begin` on; less if it stops in the midst of that, or has
        more than is taken at once; and whether that is all. Its numbers grow: what goes back is
        passed over, so the next question is for something else."""
        found: list[Message] = []
        read = size = 0
        newest = begin - 1
        if self._replay_address is None:
            return found, False
        zmq = self._zmq
        socket = self._context.socket(zmq.DEALER)
        try:
            socket.setsockopt(zmq.IPV6, 1)
            socket.setsockopt(zmq.MAXMSGSIZE, MOST_BYTES)
            socket.connect(self._replay_address)
            await socket.send_multipart([b"", _NUMBER.pack(begin)])
            end = asyncio.get_running_loop().time() + REPLAY_S
            async with asyncio.timeout(REPLAY_WAIT_S) as waiting:
                while len(found) < most and size < REPLAY_BYTES:
                    frames = await socket.recv_multipart()
                    read += 1
                    if read % MESSAGES_A_TURN == 0:
                        await asyncio.sleep(0)
                    # Older engines leave the topic out.
                    if len(frames) not in (3, 4) or len(frames[-2]) != 8:
                        continue
                    if frames[-2] == _END:
                        return found, not frames[-1]
                    number = _NUMBER.unpack(frames[-2])[0]
                    if not newest < number <= LARGEST_NUMBER:
                        continue
                    now = asyncio.get_running_loop().time()
                    waiting.reschedule(min(end, now + REPLAY_WAIT_S))
                    newest, size = number, size + len(frames[-1])
                    found.append((number, frames[-1]))
        except TimeoutError:
            self.short_replays += 1
        finally:
            socket.close(0)
        return found, False


class ZmqSubscription(PulledCall[ZmqMessage]):
    """One subscription: what the replay still has, then what the engine publishes."""

    def __init__(self, events: ZmqEvents, start: int) -> None:
        super().__init__()
        self._events, self._start = events, start
        self._replayed: deque[Message] = deque()  # not delivered yet
        self._delivered = start - 2  # the last number; below 0: none goes before
        self._idle = False  # the engine has published nothing yet
        self._replay_ended = True  # else it is asked again, from what came
        self._asks = Backoff(*ASK_AGAIN_S)
        self._ask_at = 0.0

    async def initial_metadata(self) -> None:
        """Connect, and ask the replay. EventsLost if another engine may have answered."""
        await self._events.connect(bool(self._start))
        await self._ask_replay()
        self._idle = self._delivered < 0 and self._replay_ended and not self._replayed

    async def why_silent(self) -> str:
        return await why_unheard(self._events.address)

    async def _pull(self) -> ZmqMessage:
        if self._idle:
            self._idle = False
            return NOTHING_YET
        events = self._events
        while True:
            if events.turn >= MESSAGES_A_TURN:
                await events.give_turn()
            if (message := self._pull_now()) is not None:
                return message
            if events.turn < MESSAGES_A_TURN and not await events.wait(
                self._ask_at if events.has_replay else None
            ):
                await self._ask_replay()

    def _pull_now(self) -> ZmqMessage | None:
        if self._idle:
            return None
        events = self._events
        number, payload = self._delivered, b""
        while number <= self._delivered:
            if events.turn >= MESSAGES_A_TURN:
                return None
            if self._replayed:
                number, payload = self._replayed.popleft()
            elif message := events.next():
                number, payload = message
                if self._replay_ended:
                    self._ask_at = events.clock.now() + QUIET_S
            else:
                return None
            events.turn += 1
        self._delivered = number
        return events.deliver(number, payload)

    async def _ask_replay(self) -> None:
        found, self._replay_ended = await self._events.replay(max(self._delivered + 1, 0))
        self._replayed.extend(found)
        if found or self._replay_ended:
            self._asks.reset()
        wait_s = QUIET_S if self._replay_ended else self._asks.next()
        self._ask_at = self._events.clock.now() + wait_s


async def _readable(timeout_s: float, *fds: int) -> bool:
    """Whether one of the sockets, from which all was read, may have something by then."""
    loop = asyncio.get_running_loop()
    ready: asyncio.Future[bool] = loop.create_future()

    def finish(readable: bool) -> None:
        if not ready.done():
            ready.set_result(readable)

    timer = loop.call_later(timeout_s, finish, False)
    for fd in fds:
        loop.add_reader(fd, finish, True)
    try:
        return await ready
    finally:
        timer.cancel()
        for fd in fds:
            loop.remove_reader(fd)
