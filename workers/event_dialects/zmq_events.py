"""ZmqEvents: subscribes to the events that vLLM or SGLang publishes over ZMQ, with its replay.

Messages are numbered from 0 by the engine's process. A subscriber hears what is published from then
on; what came before, or got lost, the replay socket tells as far back as the engine keeps it.
"""

import asyncio
import importlib
import struct
from collections import deque
from typing import Any

from ...runtime.errors import ConfigError
from ...runtime.supervised import stopped, supervise
from .pulled_call import EventsEnded, PulledCall
from .zmq_payload import ZmqPayload

REPLAY_WAIT_S = 1.0
"""How long the engine may take for each further message of a replay."""
MOST_HELD = 100_000
"""Messages that ZMQ keeps for us while we are busy, and of a replay; engines keep as many."""
POLL_MS = 250
UNREADABLE = b"\xff"
"""In place of a batch that cannot be read: the reader takes it for damaged, and begins anew."""
_END = b"\xff" * 8
_NUMBER = struct.Struct(">Q")

Message = tuple[int, bytes]
"""A number and a payload."""


class ZmqEvents:
    """A Subscriber. Its socket stays open from the first call to `close`, so that nothing gets lost
    between two calls.

    Numbers told are the engine's plus one: the first one is 1.
    """

    event_source = "zmq"

    def __init__(self, address: str, replay: str | None, block_size: int) -> None:
        """`address` and `replay` are tcp://HOST:PORT or ipc://PATH. ConfigError without pyzmq."""
        try:
            self._zmq: Any = importlib.import_module("zmq")
            self._asyncio: Any = importlib.import_module("zmq.asyncio")
            self._monitoring: Any = importlib.import_module("zmq.utils.monitor")
        except ImportError:
            text = "events over ZMQ need pyzmq: pip install 'dynamo-router[zmq]'"
            raise ConfigError(text, key="workers") from None
        self._address, self._replay_address = address, replay
        self._payload = ZmqPayload(block_size)
        self._context: Any = None
        self._live: Any = None
        self._watching: asyncio.Task[None] | None = None
        self._connected = asyncio.Event()
        self._lost = False  # the connection was, since the last call began
        self._heard = -1  # the number of the last message that was published
        self._replayed: dict[int, int] = {}  # hashes of what may still be heard, by number
        self._last: Message = (-1, b"")  # the last one that was told, perhaps in vain
        self._restarted = False  # another numbering has begun, and was not told from its beginning
        self._held: Message | None = None  # its first message that was heard
        self.short_replays = 0
        """replays that ended without their end"""

    def subscribe_kv_events(self, start: int) -> PulledCall:
        """Batches from the one that is numbered `start` on, 0: from the first that there is."""
        replayed: deque[Message] = deque()
        told = start - 2  # below 0: nothing that goes before

        async def open() -> None:
            nonlocal told
            await self._connect()
            if self._lost:
                self._lost = False
                self._restarted = self._restarted or not await self._goes_on()
            if start == 0 or self._restarted:
                self._payload.forget()
                told = -1
            replayed.extend(await self._replay(max(told + 1, 0)))
            self._replayed = {number: hash(payload) for number, payload in replayed}

        async def pull() -> bytes:
            nonlocal told
            while True:
                number, payload = replayed.popleft() if replayed else await self._hear(start)
                if number > told:
                    break
            told, self._last = number, (number, payload)
            if start == 0:
                self._restarted = False
            batch = self._payload.batch(payload, number + 1)
            return UNREADABLE if batch is None else batch

        return PulledCall(open, pull)

    async def close(self) -> None:
        """Let go of the sockets. Idempotent."""
        task, self._watching = self._watching, None
        await stopped(task)
        if self._context is not None:
            self._context.destroy(0)  # with its sockets
            self._context = self._live = None
            self._connected.clear()
            self._lost, self._held = True, None

    async def _connect(self) -> None:
        """Wait until the engine is connected."""
        zmq = self._zmq
        if self._context is None:
            self._context = self._asyncio.Context()
            self._live = self._context.socket(zmq.SUB)
            for option, value in (
                (zmq.RCVHWM, MOST_HELD),
                (zmq.IPV6, 1),
                (zmq.RECONNECT_IVL, 100),
                (zmq.RECONNECT_IVL_MAX, 2000),
            ):
                self._live.setsockopt(option, value)
            self._live.subscribe(b"")
            events = zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_DISCONNECTED
            monitor = self._live.get_monitor_socket(events)
            self._watching = supervise("zmq monitor", lambda: self._watch(monitor))
            self._live.connect(self._address)
        await self._connected.wait()

    async def _watch(self, monitor: Any) -> None:
        while True:
            told = await self._monitoring.recv_monitor_message(monitor)
            if told["event"] == self._zmq.EVENT_DISCONNECTED:
                self._lost = True
                self._connected.clear()
            elif told["event"] == self._zmq.EVENT_HANDSHAKE_SUCCEEDED:
                self._connected.set()
            else:
                return

    async def _goes_on(self) -> bool:
        """Whether the engine is the one that told the last message."""
        number, payload = self._last
        return number >= 0 and (await self._replay(number, most=1)) == [(number, payload)]

    async def _hear(self, start: int) -> Message:
        """The next message that is published, or the first of an engine that was started anew."""
        if self._held is not None:
            held = self._held
            if start == 0:
                self._held = None
            return held
        zmq = self._zmq
        while True:
            if self._lost:
                raise EventsEnded("the connection was lost")
            try:
                frames = await self._live.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                await self._live.poll(POLL_MS)
                continue
            if len(frames) != 3 or len(frames[1]) != 8:
                continue
            number = _NUMBER.unpack(frames[1])[0]
            again = self._replayed.pop(number, None)
            begins = number <= self._heard or again not in (None, hash(frames[2]))
            self._heard = number
            if begins:
                self._replayed.clear()
                self._restarted, self._held = True, (number, frames[2])
                raise EventsEnded("the engine was started anew")
            return number, frames[2]

    async def _replay(self, begin: int, most: int = MOST_HELD) -> list[Message]:
        """What the engine still has from `begin` on; less if it stops in the midst of that."""
        found: list[Message] = []
        if self._replay_address is None:
            return found
        zmq = self._zmq
        socket = self._context.socket(zmq.DEALER)
        try:
            socket.setsockopt(zmq.IPV6, 1)
            socket.connect(self._replay_address)
            await socket.send_multipart([b"", _NUMBER.pack(begin)])
            async with asyncio.timeout(REPLAY_WAIT_S) as waiting:
                while len(found) < most:
                    frames = await socket.recv_multipart()
                    waiting.reschedule(asyncio.get_running_loop().time() + REPLAY_WAIT_S)
                    # Older engines leave the topic out.
                    if len(frames) not in (3, 4) or len(frames[-2]) != 8:
                        continue
                    if frames[-2] == _END and not frames[-1]:
                        break
                    found.append((_NUMBER.unpack(frames[-2])[0], frames[-1]))
        except TimeoutError:
            self.short_replays += 1
        finally:
            socket.close(0)
        return found
