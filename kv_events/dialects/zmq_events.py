"""ZmqEvents: subscribes to the events that vLLM or SGLang publishes over ZMQ, with its replay.

Messages are numbered from 0 by the engine's process. A subscriber hears what is published from then
on; what came before, or got lost, the replay socket tells as far back as the engine keeps it.
"""

import asyncio
import importlib
import struct
from collections import deque
from typing import Any

from ...base.backoff import Backoff
from ...base.clock import Clock, SystemClock
from ...base.errors import ConfigError
from ...runtime.event_planes.zmq import RENEW_S, Connection, ConnectionMonitor
from .pulled_call import EventsEnded, EventsLost, PulledCall
from .zmq_payload import ZmqPayload

REPLAY_WAIT_S = 1.0
"""How long the engine may take for each further message of a replay."""
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
"""Before whatever else is due on the loop gets its turn."""
UNREADABLE = b"\xff"
"""In place of a batch that cannot be read: the reader takes it for damaged, and begins anew."""
NOTHING_YET = b""
"""The batch 0, without events, before all that an engine publishes."""
_END = b"\xff" * 8  # ends a replay, so that no message has this number
_NUMBER = struct.Struct(">Q")

Message = tuple[int, bytes]
"""A number and a payload."""


class ZmqEvents:
    """A Subscriber. Its socket stays open from the first call to `close`, so that nothing gets lost
    between two calls.

    Numbers told are the engine's plus one: the first one is 1.
    """

    event_source = "zmq"

    def __init__(
        self, address: str, replay: str | None, block_size: int, clock: Clock | None = None
    ) -> None:
        """`address` and `replay` are tcp://HOST:PORT or ipc://PATH. ConfigError without pyzmq."""
        try:
            self._zmq: Any = importlib.import_module("zmq")
            self._asyncio: Any = importlib.import_module("zmq.asyncio")
        except ImportError:
            text = "events over ZMQ need pyzmq: pip install 'dynamo-router[zmq]'"
            raise ConfigError(text, key="workers") from None
        self._noblock = int(self._zmq.NOBLOCK)  # an enum takes longer
        self._address, self._replay_address = address, replay
        self._payload = ZmqPayload(block_size)
        self._clock = clock or SystemClock()
        self._context: Any = None
        self._live: Any = None
        self._monitor: ConnectionMonitor | None = None
        self._read: deque[list[bytes]] = deque()  # before the connection was last looked at
        self._turn = 0  # messages since others had theirs
        self._connected = False
        self._lost = False  # the connection was, since it was last made sure who is there
        self._heard = -1  # the number of the last message that was published
        self._replayed: dict[int, int] = {}  # hashes of what may still be heard, by number
        self._last: Message = (-1, b"")  # the last one that was told, perhaps in vain
        self._held: Message | None = None  # the first that was heard of an engine started anew
        self.short_replays = 0
        """replays that ended without their end"""

    def subscribe_kv_events(self, start: int) -> PulledCall:
        """Batches from the one that is numbered `start` on, 0: from the first that there is."""
        replayed: deque[Message] = deque()
        told = start - 2  # below 0: nothing that goes before
        idle = False  # the engine has published nothing yet
        ended = True  # the replay has; else it is asked again, from what came
        again = Backoff(*ASK_AGAIN_S)
        ask_at = 0.0

        async def replay() -> None:
            nonlocal ended, ask_at
            found, ended = await self._replay(max(told + 1, 0))
            replayed.extend(found)
            self._replayed = {number: hash(payload) for number, payload in replayed}
            if found or ended:
                again.reset()
            ask_at = self._clock.now() + (QUIET_S if ended else again.next())

        async def open() -> None:
            nonlocal idle
            await self._connect()
            if self._lost and not await self._goes_on():
                # What is queued may be of another engine than the one that is there now.
                self._disconnect()
                await self._connect()
                self._lost = False
                if start:
                    raise EventsLost("another engine may have answered since the connection broke")
            self._lost = False
            if start == 0:
                self._payload.forget()
            await replay()
            idle = told < 0 and ended and not replayed

        def at_once() -> bytes | None:
            nonlocal told, ask_at
            if idle:
                return None
            number, payload = told, b""
            while number <= told:
                if self._turn >= MESSAGES_A_TURN:
                    return None
                if replayed:
                    number, payload = replayed.popleft()
                elif heard := self._next():
                    number, payload = heard
                    if ended:
                        ask_at = self._clock.now() + QUIET_S
                else:
                    return None
                self._turn += 1
            told, self._last = number, (number, payload)
            batch = self._payload.batch(payload, number + 1)
            return UNREADABLE if batch is None else batch

        async def pull() -> bytes:
            nonlocal idle
            if idle:
                idle = False
                return NOTHING_YET
            while True:
                if self._turn >= MESSAGES_A_TURN:
                    await self._give_turn()
                if (batch := at_once()) is not None:
                    return batch
                if self._turn < MESSAGES_A_TURN and not await self._waited(
                    ask_at if self._replay_address else None
                ):
                    await replay()

        return PulledCall(open, pull, at_once)

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
                # ZMQ does not try again where it got something else than ZMQ. Nothing was heard.
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
            raise EventsEnded(f"{self._address} cannot be connected: {error}") from None

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
        live.connect(self._address)

    def _disconnect(self) -> None:
        """From an engine that was heard: who is there next may be another."""
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
        self._heard, self._held = -1, None
        self._replayed.clear()
        self._read.clear()

    def _look(self) -> bool:
        """Take in what became of the connection until now; whether it is there."""
        assert self._monitor is not None
        for news in self._monitor.news():
            self._connected = news is Connection.MADE
            self._lost = self._lost or news is Connection.LOST
        return self._connected

    async def _goes_on(self) -> bool:
        """Whether the engine is the one that told the last message."""
        number, payload = self._last
        return number >= 0 and (await self._replay(number, most=1))[0] == [(number, payload)]

    def _next(self) -> Message | None:
        """The next message that is here, or the first of an engine that was started anew; None if
        there is none."""
        held, self._held = self._held, None
        if held is not None:
            return held
        while self._turn < MESSAGES_A_TURN:
            if not self._read and not self._drain():
                return None
            frames = self._read.popleft()
            if len(frames) != 3 or len(frames[1]) != 8 or frames[1] == _END:
                self._turn += 1
                continue  # somebody else's; a connection that is out of step answers no ping
            number, payload = _NUMBER.unpack(frames[1])[0], frames[2]
            again = self._replayed.pop(number, None)
            seen = (number, payload) == self._last
            if seen or (again is not None and again == hash(payload)):
                self._turn += 1
                continue  # twice, or late: it was told
            begins = number <= self._heard or again is not None
            self._heard = number
            if begins:
                self._replayed.clear()
                self._held = number, payload
                raise EventsLost("the engine was started anew")
            return number, payload
        return None

    def _drain(self) -> bool:
        """Read what is here, or much of it; whether there was something. EventsEnded if the
        connection was lost meanwhile: of what came behind that nobody knows yet who published it.
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

    async def _give_turn(self) -> None:
        self._turn = 0
        await asyncio.sleep(0)

    async def _waited(self, until: float | None) -> bool:
        """Wait for a message, or until that time; False if it has come and no message has."""
        left_s = LONGEST_WAIT_S if until is None else until - self._clock.now()
        if left_s <= 0:
            return False
        self._turn = 0
        assert self._monitor is not None
        live = self._live.getsockopt(self._zmq.FD)
        await _readable(min(left_s, LONGEST_WAIT_S), live, self._monitor.fd)
        return True

    async def _replay(self, begin: int, most: int = MOST_HELD) -> tuple[list[Message], bool]:
        """What the engine still has from `begin` on; less if it stops in the midst of that; and
        whether that is all."""
        found: list[Message] = []
        read = 0
        if self._replay_address is None:
            return found, False
        zmq = self._zmq
        socket = self._context.socket(zmq.DEALER)
        try:
            socket.setsockopt(zmq.IPV6, 1)
            socket.setsockopt(zmq.MAXMSGSIZE, MOST_BYTES)
            socket.connect(self._replay_address)
            await socket.send_multipart([b"", _NUMBER.pack(begin)])
            async with asyncio.timeout(REPLAY_WAIT_S) as waiting:
                while len(found) < most:
                    frames = await socket.recv_multipart()
                    read += 1
                    if read % MESSAGES_A_TURN == 0:
                        await asyncio.sleep(0)
                    # Older engines leave the topic out.
                    if len(frames) not in (3, 4) or len(frames[-2]) != 8:
                        continue
                    if frames[-2] == _END:
                        return found, not frames[-1]
                    waiting.reschedule(asyncio.get_running_loop().time() + REPLAY_WAIT_S)
                    found.append((_NUMBER.unpack(frames[-2])[0], frames[-1]))
        except TimeoutError:
            self.short_replays += 1
        finally:
            socket.close(0)
        return found, False


async def _readable(timeout_s: float, *fds: int) -> bool:
    """Whether one of the sockets, from which all was read, may have something by then."""
    loop = asyncio.get_running_loop()
    told: asyncio.Future[bool] = loop.create_future()

    def tell(readable: bool) -> None:
        if not told.done():
            told.set_result(readable)

    timer = loop.call_later(timeout_s, tell, False)
    for fd in fds:
        loop.add_reader(fd, tell, True)
    try:
        return await told
    finally:
        timer.cancel()
        for fd in fds:
            loop.remove_reader(fd)
