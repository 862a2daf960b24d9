"""Engines that publish KV events over ZMQ as vLLM does, and do nothing else.

A process of its own (`python -m dynamo_router.bench.stream_source`): it takes a `StreamLoad` on
stdin, publishes until its messages are sent and its readers gone, and says on stdout what it
`Published`.
"""

import struct
import sys
from time import monotonic_ns, process_time, sleep

import msgspec
import numpy as np

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
            due = began + int(turn * load.run_blocks * len(sockets) / load.blocks_per_s * 1e9)
            sleep(max(0, due - monotonic_ns()) / 1e9)
        for socket, messages in zip(sockets, told, strict=True):
            payload = messages[turn % RUNS]
            socket.send_multipart([b"kv", _NUMBER.pack(turn), payload])
            size += len(payload)
    cpu = process_time() - cpu
    for socket in sockets:
        socket.recv()  # its reader goes
    context.destroy(linger=0)
    return Published(size, began, cpu)


if __name__ == "__main__":
    wanted = msgspec.json.decode(sys.stdin.buffer.read(), type=StreamLoad)
    sys.stdout.buffer.write(msgspec.json.encode(publish(wanted)))
