"""An engine's ZMQ side, from the documented format: a PUB socket, and a ROUTER that replays.

Three frames: topic, number (8 bytes, big-endian), msgpack of [time, events, rank].
"""

import asyncio
import contextlib
import struct
import time
from collections import deque
from typing import Any

import msgspec
import zmq
import zmq.asyncio
from support.free_port import free_port

END = b"\xff" * 8


class ZmqPublisher:
    """Publishes between `start` and `stop`; may be started again, as another process would be."""

    def __init__(self, *, replays: bool = True, kept: int = 10_000) -> None:
        self.port, self.replay_port = free_port(), free_port()
        self.replays = replays
        self.kept: deque[tuple[int, bytes]] = deque(maxlen=kept)
        self.lose = 0  # of the next messages; so are the two below
        self.twice = 0
        self.swap = 0  # comes behind the one after it
        self.cut_after: int | None = None  # replies of a replay, without an end
        self.topic_in_replay = True
        self.asked: list[int] = []
        self.number = 0
        self._context: Any = None
        self._pub: Any = None
        self._router: Any = None
        self._late: list[bytes] | None = None
        self._task: asyncio.Task[None] | None = None

    @property
    def url(self) -> str:
        return f"tcp://127.0.0.1:{self.port}"

    @property
    def replay_url(self) -> str:
        return f"tcp://127.0.0.1:{self.replay_port}"

    async def __aenter__(self) -> "ZmqPublisher":
        self.start()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.stop()

    def begin_anew(self) -> None:
        """As behind a gateway, which keeps the connection."""
        self.number, self._late = 0, None
        self.kept.clear()

    def start(self) -> None:
        self.begin_anew()
        self._context = zmq.asyncio.Context()
        self._pub = self._context.socket(zmq.PUB)
        self._pub.bind(self.url)
        if self.replays:
            self._router = self._context.socket(zmq.ROUTER)
            self._router.bind(self.replay_url)
            self._task = asyncio.create_task(self._replay(self._router))

    async def stop(self) -> None:
        if self._context is None:
            return
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
            self._router.close(0)
        self._pub.close(0)
        self._context.term()
        self._context = self._task = None

    async def publish(self, *events: Any, rank: int | None = 0) -> None:
        batch = [time.time(), list(events)] + ([rank] if rank is not None else [])
        await self.publish_bytes(msgspec.msgpack.encode(batch))

    async def publish_bytes(self, payload: bytes) -> None:
        self.kept.append((self.number, payload))
        frames = [b"kv@w1@m", struct.pack(">Q", self.number), payload]
        self.number += 1
        if self.lose:
            self.lose -= 1
            return
        if self.swap and self._late is None:
            self.swap, self._late = self.swap - 1, frames
            return
        late, self._late = self._late, None
        await self._pub.send_multipart(frames)
        if late is not None:
            await self._pub.send_multipart(late)
        if self.twice:
            self.twice -= 1
            await self._pub.send_multipart(frames)

    async def send(self, frames: list[bytes]) -> None:
        """Whatever these say."""
        await self._pub.send_multipart(frames)

    async def _replay(self, router: Any) -> None:
        while True:
            client, empty, start = await router.recv_multipart()
            first = struct.unpack(">Q", start)[0]
            self.asked.append(first)
            topic = [b"kv@w1@m"] if self.topic_in_replay else []
            sent = 0
            for number, payload in [entry for entry in self.kept if entry[0] >= first]:
                if sent == self.cut_after:
                    break
                reply = [client, empty, *topic, struct.pack(">Q", number), payload]
                await router.send_multipart(reply)
                sent += 1
            if sent != self.cut_after:
                end = [b""] if self.topic_in_replay else []
                await router.send_multipart([client, empty, *end, END, b""])
