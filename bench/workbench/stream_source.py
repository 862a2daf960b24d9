"""Engines that publish KV events and do nothing else: over ZMQ, by SubscribeKvEvents, over NATS.

A process of its own: it takes a `StreamLoad` on stdin, publishes until its messages are sent and
its readers gone, and says on stdout what it `Published`.
"""

import asyncio
import struct
import sys
from collections import deque
from time import monotonic_ns, process_time, sleep
from typing import Any

import msgspec
import numpy as np
import structlog
import uvloop

from ...base.clock import SystemClock
from ...engines.outbox import StoredRun
from ...engines.publisher import KvEventPublisher
from ...runtime.event_planes import NatsPlane, PlaneState
from ...transport.http2 import Http2Server, ServerCall
from ...workers.trtllm_proto import SERVICE, common_pb

RUNS = 64
"""Different prompts of an engine, which come again and again;"""
CACHED_RUNS = 32
"""this many of them are in its cache at a time."""
_AHEAD = 1000  # messages that wait for a reader, of each engine
APPLIED = "bench.applied"
ENDPOINT = ("bench", "engines", "generate")
CONNECT_TIMEOUT_S = 20.0
STALL_S = 30.0  # without a word from the reader: it is gone
IDLE_S = 0.0005
_NUMBER = struct.Struct(">Q")


class StreamLoad(msgspec.Struct, kw_only=True):
    """The load. Each message stores a run of blocks, and removes the oldest one."""

    way: str
    """zmq, grpc or nats"""
    engines: int
    messages: int
    """of each engine; 0: as many as go through in `seconds`"""
    block_size: int
    run_blocks: int
    blocks_per_s: float
    """stored by all engines; 0: as many as the reader takes"""
    seed: int
    cached_runs: int = CACHED_RUNS
    """over NATS: of an engine, before each further run takes the place of the oldest"""
    seconds: float = 0.0
    """over NATS alone, where `messages` says nothing"""
    window_blocks: int = 1 << 18
    """over NATS: that may be on their way before the engines wait for the reader"""
    ports: list[int] = []
    """of loopback, one for each engine; none over NATS"""
    url: str = ""
    """of the nats-server"""

    @property
    def stored_blocks(self) -> int | None:
        """By all engines; None where time ends it."""
        return self.messages * self.engines * self.run_blocks or None

    def due_ns(self, turn: int) -> int:
        """Until all engines' messages of a turn are due, from the beginning on."""
        if not self.blocks_per_s:
            return 0
        return int(turn * self.run_blocks * self.engines / self.blocks_per_s * 1e9)


class Published(msgspec.Struct, kw_only=True):
    """What the engines published, and what that took."""

    stored: int
    messages: int
    events: int
    bytes: int
    """0 over NATS, where the reader counts them"""
    began_ns: int
    """of the machine's monotonic clock"""
    cpu_s: float
    given_up: int = 0
    """times that a publisher gave up changes: the measurement is worth nothing then"""
    late_ms: float = 0.0
    """the most that the engines were behind their own times"""


def _published(load: StreamLoad, size: int, began_ns: int, cpu_s: float) -> Published:
    """Of engines that sent all their messages, a run stored and one removed in each."""
    messages = load.messages * load.engines
    return Published(
        stored=messages * load.run_blocks,
        messages=messages,
        events=2 * messages,
        bytes=size,
        began_ns=began_ns,
        cpu_s=cpu_s,
    )


def payloads(load: StreamLoad, engine: int) -> list[bytes]:
    """An engine's messages, to be sent in turns: each run is removed before it comes again."""
    rng = np.random.default_rng([load.seed, engine])
    hashes = rng.integers(0, 2**63, (RUNS, load.run_blocks)).tolist()
    tokens = rng.integers(0, 128_000, (RUNS, load.run_blocks * load.block_size)).tolist()
    made = []
    for run in range(RUNS):
        removed = {
            "type": "BlockRemoved",
            "block_hashes": hashes[run - CACHED_RUNS],
            "medium": "GPU",
        }
        stored = {
            "type": "BlockStored",
            "block_hashes": hashes[run],
            "parent_block_hash": None,
            "token_ids": tokens[run],
            "block_size": load.block_size,
            "lora_id": None,
            "medium": "GPU",
            "lora_name": None,
        }
        made.append(msgspec.msgpack.encode([1.5, [removed, stored], 0]))
    return made


def publish(load: StreamLoad) -> Published:
    """Wait for a reader of every engine, then send."""
    import zmq

    context = zmq.Context()
    sockets = []
    for port in load.ports:
        socket = context.socket(zmq.XPUB)
        socket.setsockopt(zmq.SNDHWM, _AHEAD)
        socket.setsockopt(zmq.XPUB_NODROP, 1)  # what the reader cannot take has to wait
        socket.bind(f"tcp://127.0.0.1:{port}")
        sockets.append(socket)
    messages_of = [payloads(load, engine) for engine in range(len(sockets))]
    for socket in sockets:
        socket.recv()  # its reader's subscription
    began, cpu = monotonic_ns(), process_time()
    size = 0
    for turn in range(load.messages):
        if load.blocks_per_s:
            sleep(max(0, began + load.due_ns(turn) - monotonic_ns()) / 1e9)
        for socket, messages in zip(sockets, messages_of, strict=True):
            payload = messages[turn % RUNS]
            socket.send_multipart([b"kv", _NUMBER.pack(turn), payload])
            size += len(payload)
    cpu = process_time() - cpu
    for socket in sockets:
        socket.recv()  # its reader goes
    context.destroy(linger=0)
    return _published(load, size, began, cpu)


def grpc_batch(payload: bytes) -> bytes:
    """The same as a KvEventBatch, without its number."""
    batch = common_pb.KvEventBatch()
    removed, stored = msgspec.msgpack.decode(payload)[1]
    batch.events.add().removed.block_hashes.extend(removed["block_hashes"])
    size = stored["block_size"]
    chain = batch.events.add().stored
    for place, block_hash in enumerate(stored["block_hashes"]):
        tokens = stored["token_ids"][place * size : (place + 1) * size]
        chain.blocks.add(block_hash=block_hash, token_ids=tokens, block_size=size)
    return bytes(batch.SerializeToString())


class GrpcEngines:
    """The same by SubscribeKvEvents, each engine on a port of its own."""

    def __init__(self, load: StreamLoad) -> None:
        self._load = load
        self._all_read, self._all_gone = asyncio.Event(), asyncio.Event()
        self._readers = self._gone = self._size = 0
        self._began = 0

    async def publish(self) -> Published:
        """Wait for a reader of every engine, then publish."""
        servers = [Http2Server() for _ in self._load.ports]
        try:
            for number, (server, port) in enumerate(zip(servers, self._load.ports, strict=True)):
                server.bind("127.0.0.1", port)
                await server.start({f"/{SERVICE}/SubscribeKvEvents": self._engine(number)})
            await self._all_read.wait()
            cpu = process_time()
            await self._all_gone.wait()
            return _published(self._load, self._size, self._began, process_time() - cpu)
        finally:
            for server in servers:
                await server.stop(0.0)

    def _engine(self, number: int) -> Any:
        load = self._load
        batches = [grpc_batch(payload) for payload in payloads(load, number)]

        async def stream(call: ServerCall) -> None:
            await call.read()
            await call.write(b"")  # the batch 0: its cache is empty
            self._readers += 1
            if self._readers == len(load.ports):
                self._began = monotonic_ns()
                self._all_read.set()
            await self._all_read.wait()
            try:
                for turn in range(load.messages):
                    wait_ns = self._began + load.due_ns(turn) - monotonic_ns()
                    if load.blocks_per_s and wait_ns > 0:
                        await asyncio.sleep(wait_ns / 1e9)
                    # Fields of a message may follow each other in any order.
                    number = common_pb.KvEventBatch(sequence_number=turn + 1)
                    batch = batches[turn % RUNS] + number.SerializeToString()
                    await call.write(batch)
                    self._size += len(batch)
                await asyncio.Event().wait()  # until its reader goes
            finally:
                self._gone += 1
                if self._gone == len(load.ports):
                    self._all_gone.set()

        return stream


class NatsEngine:
    """The cache of one worker. The first block of a run is named by the time it was published."""

    def __init__(self, plane: NatsPlane, worker_id: int, load: StreamLoad) -> None:
        namespace, component, endpoint = ENDPOINT
        self._rng = np.random.default_rng([load.seed, worker_id])
        self._blocks, self._most_runs = load.run_blocks, load.cached_runs
        self._runs: deque[StoredRun] = deque()
        self.publisher = KvEventPublisher(
            plane,
            worker_id=worker_id,
            namespace=namespace,
            component=component,
            endpoint=endpoint,
            snapshot=lambda: self._runs,
            clock=SystemClock(),
        )

    def prefill(self) -> None:
        """A prompt: a run of blocks is cached, and the oldest gives way."""
        if len(self._runs) == self._most_runs:
            self.publisher.removed(self._runs.popleft().block_hashes)
        hashes = self._rng.integers(1, 2**64, 2 * self._blocks, np.uint64)
        hashes[0] = monotonic_ns()
        self._runs.append(StoredRun(None, hashes[: self._blocks], hashes[self._blocks :]))
        self.publisher.stored(*self._runs[-1])


class NatsEngines:
    """The same through the publishers that real engines have, and a nats-server."""

    def __init__(self, load: StreamLoad) -> None:
        self._load = load
        self._applied = 0  # stored blocks that the reader has
        self._applied_ns = monotonic_ns()

    async def publish(self) -> Published:
        """TimeoutError if the server, or the reader, is not there."""
        plane = NatsPlane(self._load.url)
        try:
            await until_connected(plane)
            return await self._publish(plane)
        finally:
            await plane.close()

    async def _publish(self, plane: NatsPlane) -> Published:
        load = self._load
        engines = [NatsEngine(plane, worker, load) for worker in range(load.engines)]
        subscription = await plane.subscribe(APPLIED, self._on_applied)
        for engine in engines:
            await engine.publisher.start()
        began = self._applied_ns = monotonic_ns()
        cpu = process_time()
        turn = late_ns = 0
        while (now := monotonic_ns()) < began + load.seconds * 1e9 or turn < load.messages * len(
            engines
        ):
            if now - self._applied_ns > STALL_S * 1e9:
                raise TimeoutError("the reader of the events has stopped")
            due = began + load.due_ns(turn) // len(engines)
            if due > now or turn * load.run_blocks - self._applied > load.window_blocks:
                await asyncio.sleep(max(IDLE_S, (due - now) / 1e9))
                continue
            if load.blocks_per_s:
                late_ns = max(late_ns, now - due)
            engines[turn % len(engines)].prefill()
            turn += 1
            if turn % len(engines) == 0 or load.blocks_per_s:
                await asyncio.sleep(0)  # the publishers' turn
        for engine in engines:
            await engine.publisher.flush()
        await subscription.close()
        stats = [engine.publisher.stats for engine in engines]
        for engine in engines:
            await engine.publisher.close()
        return Published(
            stored=turn * load.run_blocks,
            messages=sum(each.messages for each in stats),
            events=sum(each.events for each in stats),
            bytes=0,
            began_ns=began,
            cpu_s=process_time() - cpu,
            given_up=sum(each.given_up for each in stats),
            late_ms=late_ns / 1e6,
        )

    def _on_applied(self, subject: str, payload: bytes) -> None:
        self._applied = int(payload)
        self._applied_ns = monotonic_ns()


async def until_connected(plane: NatsPlane) -> None:
    """TimeoutError if the server is not there."""
    async with asyncio.timeout(CONNECT_TIMEOUT_S):
        while plane.state is not PlaneState.CONNECTED:
            await asyncio.sleep(0.01)


if __name__ == "__main__":
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    wanted = msgspec.json.decode(sys.stdin.buffer.read(), type=StreamLoad)
    if wanted.way == "zmq":
        done = publish(wanted)
    else:
        source = GrpcEngines(wanted) if wanted.way == "grpc" else NatsEngines(wanted)
        done = uvloop.run(source.publish())
    sys.stdout.buffer.write(msgspec.json.encode(done))
