"""Engines that tell KV events, over ZMQ as vLLM does or by SubscribeKvEvents, and nothing else.

A process of its own: it takes a `StreamLoad` on stdin, publishes until its messages are sent and
its readers gone, and says on stdout what it `Published`.
"""

import asyncio
import struct
import sys
from time import monotonic_ns, process_time, sleep
from typing import Any

import msgspec
import numpy as np
import uvloop

from ...kv_events.dialects import ZmqPayload
from ...transport.http2 import Http2Server, ServerCall
from ...workers.trtllm_proto import SERVICE

RUNS = 64
"""Different prompts of an engine, which come again and again;"""
CACHED_RUNS = 32
"""so many of them are in its cache at a time."""
_AHEAD = 1000  # messages that wait for a reader, of each engine
_NUMBER = struct.Struct(">Q")


class StreamLoad(msgspec.Struct):
    """The load. Each message stores a run of blocks, and removes the oldest one."""

    ports: list[int]
    """one for each engine, of loopback"""
    messages: int
    """of each engine"""
    block_size: int
    run_blocks: int
    blocks_per_s: float
    """stored by all engines; 0: as many as the reader takes"""
    seed: int
    way: str = "zmq"
    """or "grpc\""""

    def due_ns(self, turn: int) -> int:
        """Until all engines' messages of a turn are due, from the beginning on."""
        if not self.blocks_per_s:
            return 0
        return int(turn * self.run_blocks * len(self.ports) / self.blocks_per_s * 1e9)


class Published(msgspec.Struct):
    """What the engines said, and what that took."""

    bytes: int
    began_ns: int
    """of the machine's monotonic clock"""
    cpu_s: float


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
    import zmq  # the extra `zmq` has it

    context = zmq.Context()
    sockets = []
    for port in load.ports:
        socket = context.socket(zmq.XPUB)
        socket.setsockopt(zmq.SNDHWM, _AHEAD)
        socket.setsockopt(zmq.XPUB_NODROP, 1)  # what the reader cannot take has to wait
        socket.bind(f"tcp://127.0.0.1:{port}")
        sockets.append(socket)
    told = [payloads(load, engine) for engine in range(len(sockets))]
    for socket in sockets:
        socket.recv()  # its reader's subscription
    began, cpu = monotonic_ns(), process_time()
    size = 0
    for turn in range(load.messages):
        if load.blocks_per_s:
            sleep(max(0, began + load.due_ns(turn) - monotonic_ns()) / 1e9)
        for socket, messages in zip(sockets, told, strict=True):
            payload = messages[turn % RUNS]
            socket.send_multipart([b"kv", _NUMBER.pack(turn), payload])
            size += len(payload)
    cpu = process_time() - cpu
    for socket in sockets:
        socket.recv()  # its reader goes
    context.destroy(linger=0)
    return Published(size, began, cpu)


class GrpcEngines:
    """The same by SubscribeKvEvents, each engine on a port of its own."""

    def __init__(self, load: StreamLoad) -> None:
        self._load = load
        self._all_read, self._all_gone = asyncio.Event(), asyncio.Event()
        self._readers = self._gone = self._size = 0
        self._began = 0

    async def publish(self) -> Published:
        """Wait for a reader of every engine, then tell."""
        servers = [Http2Server() for _ in self._load.ports]
        try:
            for number, (server, port) in enumerate(zip(servers, self._load.ports, strict=True)):
                server.bind("127.0.0.1", port)
                await server.start({f"/{SERVICE}/SubscribeKvEvents": self._engine(number)})
            await self._all_read.wait()
            cpu = process_time()
            await self._all_gone.wait()
            return Published(self._size, self._began, process_time() - cpu)
        finally:
            for server in servers:
                await server.stop(0.0)

    def _engine(self, number: int) -> Any:
        told, load = payloads(self._load, number), self._load
        translator = ZmqPayload(load.block_size)

        async def tell(call: ServerCall) -> None:
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
                    batch = translator.batch(told[turn % RUNS], turn + 1)
                    assert batch is not None
                    await call.write(batch)
                    self._size += len(batch)
                await asyncio.Event().wait()  # until its reader goes
            finally:
                self._gone += 1
                if self._gone == len(load.ports):
                    self._all_gone.set()

        return tell


async def _publish_over_grpc(load: StreamLoad) -> Published:
    return await GrpcEngines(load).publish()


if __name__ == "__main__":
    wanted = msgspec.json.decode(sys.stdin.buffer.read(), type=StreamLoad)
    over_grpc = wanted.way == "grpc"
    done = uvloop.run(_publish_over_grpc(wanted)) if over_grpc else publish(wanted)
    sys.stdout.buffer.write(msgspec.json.encode(done))
