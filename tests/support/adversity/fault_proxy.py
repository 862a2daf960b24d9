"""A TCP proxy that mistreats the connections through it, as a test tells it to.

Directions: "up" is from who connected towards the target, "down" is the way back.
"""

import asyncio
import contextlib
import time
from collections.abc import Callable
from random import Random
from typing import Literal

from support.free_port import free_port

Direction = Literal["up", "down"]
DIRECTIONS: tuple[Direction, ...] = ("up", "down")
CHUNK_BYTES = 1 << 16
CHUNKS_UNDER_WAY = 64
"""What a connection holds on its way before its sender must wait."""
Filter = Callable[[bytes], bytes]


class FaultProxy:
    """Listens on `port` from `start` to `close` and passes bytes to and from a port of loopback.

    Faults are states: `latency_s`, `bytes_per_s`, `stalled` directions (nothing is
    read there, connections stay open), `refuse`; or events: `cut`, `inject`. `heal` ends them.
    """

    def __init__(
        self, target_port: int, filters: dict[Direction, Callable[[], Filter]] | None = None
    ) -> None:
        """`filters` make, for each connection, what its bytes in a direction go through."""
        self.port = free_port()
        self.connections = 0
        """accepted, ever"""
        self.latency_s = 0.0
        self.bytes_per_s: float | None = None
        self._target_port = target_port
        self._filters = filters or {}
        self._flowing = {direction: asyncio.Event() for direction in DIRECTIONS}
        self._server: asyncio.Server | None = None
        self._writers: dict[asyncio.StreamWriter, Direction] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self.stall()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", self.port)

    async def close(self) -> None:
        """Break every connection and listen no more."""
        await self.refuse()
        self.cut()
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)

    def stall(self, *directions: Direction) -> None:
        """From now on forward nothing in these directions, and everything in the others."""
        for direction, flowing in self._flowing.items():
            if direction in directions:
                flowing.clear()
            else:
                flowing.set()

    def cut(self) -> None:
        """Break every connection, as a reset of the network does."""
        for writer in self._writers:
            writer.transport.abort()

    async def refuse(self) -> None:
        """Accept no connection from now on. Those that are open stay."""
        server, self._server = self._server, None
        if server is not None:
            server.close()

    def inject(self, direction: Direction, garbage: bytes) -> None:
        """Put bytes of our own into every connection."""
        for writer, towards in self._writers.items():
            if towards == direction and not writer.is_closing():
                writer.write(garbage)

    async def heal(self) -> None:
        """No fault any more. Bytes that were held back arrive; connections that broke stay so."""
        self.latency_s, self.bytes_per_s = 0.0, None
        self.stall()
        if self._server is None:
            await self.start()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self._writers[writer] = "down"
        far: asyncio.StreamWriter | None = None
        try:
            await self._flowing["up"].wait()  # a half-open peer accepts and does no more
            far_reader, far = await asyncio.open_connection("127.0.0.1", self._target_port)
            self._writers[far] = "up"
            pumps = [
                asyncio.create_task(self._pump(reader, far, "up")),
                asyncio.create_task(self._pump(far_reader, writer, "down")),
            ]
            try:
                await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for pump in pumps:
                    pump.cancel()
                await asyncio.wait(pumps)
        except OSError:
            pass  # nobody listens at the target
        except asyncio.CancelledError:
            pass  # by close; raised again, it would be logged as an error of the server's
        finally:
            for each in (writer, far):
                if each is not None:
                    self._writers.pop(each, None)
                    each.transport.abort()
            self._tasks.discard(task)

    async def _pump(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, direction: Direction
    ) -> None:
        make = self._filters.get(direction)
        through = make() if make is not None else None
        under_way: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(CHUNKS_UNDER_WAY)
        async with asyncio.TaskGroup() as group:
            delivering = group.create_task(self._deliver(under_way, writer, direction))
            with contextlib.suppress(OSError):
                while data := await reader.read(CHUNK_BYTES):
                    due = time.monotonic() + self.latency_s
                    await under_way.put((due, data if through is None else through(data)))
            await under_way.put((0.0, b""))
            await delivering

    async def _deliver(
        self,
        under_way: asyncio.Queue[tuple[float, bytes]],
        writer: asyncio.StreamWriter,
        direction: Direction,
    ) -> None:
        with contextlib.suppress(OSError):
            while True:
                due, data = await under_way.get()
                await asyncio.sleep(due - time.monotonic())
                if self.bytes_per_s is not None:
                    await asyncio.sleep(len(data) / self.bytes_per_s)
                await self._flowing[direction].wait()
                if not due:
                    return
                writer.write(data)
                await writer.drain()


def garbage(seed: int, size: int = 64) -> bytes:
    """Bytes that mean nothing."""
    return Random(seed).randbytes(size)
