"""What mock engines publish about their caches, in process and over a real NATS server."""

import asyncio
import os
import re
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import msgspec
import numpy as np
import pytest
from grpc import aio
from smg_grpc_proto.generated.trtllm_service_pb2_grpc import TrtllmServiceStub
from support.polling import until

from dynamo_router.engines.mocker.config import EngineConfig, MockerConfig
from dynamo_router.engines.mocker.fleet import MockFleet
from dynamo_router.engines.mocker.server import MockServer
from dynamo_router.indexer.wire.codec import decode_event_message
from dynamo_router.indexer.wire.events import Cleared, Removed, Stored
from dynamo_router.runtime.event_planes.embedded_nats import EmbeddedNats
from dynamo_router.runtime.event_planes.event_plane import EventPlane
from dynamo_router.runtime.event_planes.local_plane import LocalPlane
from dynamo_router.runtime.event_planes.nats_plane import NatsPlane
from dynamo_router.workers.trtllm_proto import common_pb, pb

EVENTS = "namespace.dynamo.component.backend.endpoint.generate.kv-events"
RESYNC = "namespace.dynamo.component.backend.endpoint.generate.kv-resync"
CONFIG = MockerConfig(
    port=0, workers=3, speedup_ratio=1e6, engine=EngineConfig(block_size=4, num_gpu_blocks=32)
)


class ToldCaches:
    """What a listener knows of every worker's cache; checks order, numbering and chains."""

    def __init__(self) -> None:
        self.blocks: dict[int, set[int]] = {}
        self.last_id: dict[int, int] = {}
        self.kinds: set[type] = set()

    def on_message(self, subject: str, payload: bytes) -> None:
        for event in decode_event_message(payload):
            worker_id, rank = event.worker
            assert rank == 0 and event.storage_tier == "device"
            assert event.event_id == self.last_id.get(worker_id, 0) + 1
            self.last_id[worker_id] = event.event_id
            blocks = self.blocks.setdefault(worker_id, set())
            self.kinds.add(type(event.data))
            match event.data:
                case Stored(parent_hash=parent, blocks=stored):
                    assert parent is None or parent in blocks
                    blocks.update(block.block_hash for block in stored)
                case Removed(block_hashes=hashes):
                    blocks.difference_update(hashes)
                case Cleared():
                    blocks.clear()

    def agree_with(self, engines: list[MockServer]) -> bool:
        return all(self.blocks.get(e.worker_id, set()) == cached(e) for e in engines)


def cached(engine: MockServer) -> set[int]:
    return {block.block_hash for block in engine.engine.cached_blocks()}


@asynccontextmanager
async def planes(kind: str) -> AsyncIterator[tuple[EventPlane, EventPlane]]:
    """One plane for the engines and one for the listener, which may be the same."""
    if kind == "local":
        plane = LocalPlane()
        yield plane, plane
        await plane.close()
        return
    async with EmbeddedNats() as nats:
        ours, theirs = NatsPlane(nats.url), NatsPlane(nats.url)
        try:
            await until(lambda: ours.state.value == theirs.state.value == "connected")
            yield ours, theirs
        finally:
            await ours.close()
            await theirs.close()


async def send_prompts(address: str, seed: int, count: int = 10) -> None:
    """Prompts with common prefixes, together more than an engine's cache."""
    rng = np.random.default_rng(seed)
    async with aio.insecure_channel(address) as channel:
        stub = TrtllmServiceStub(channel)
        for i in range(count):
            prompt = [*range(int(rng.integers(0, 40))), *rng.integers(0, 32000, 30).tolist()]
            async for _ in stub.Generate(generate_request(f"{seed} {i}", prompt)):
                pass


@pytest.mark.parametrize("kind", ["local", "nats"])
async def test_a_listener_knows_every_cache_and_can_ask_for_it_again(kind):
    async with planes(kind) as (ours, theirs):
        told = ToldCaches()
        await theirs.subscribe(EVENTS, told.on_message)
        async with MockFleet(CONFIG, plane=ours) as fleet:
            await asyncio.gather(*(send_prompts(a, i) for i, a in enumerate(fleet.addresses)))
            await until(lambda: told.agree_with(fleet.engines))
            assert {Stored, Removed} <= told.kinds
            assert all(len(blocks) > 20 for blocks in told.blocks.values())

            late = ToldCaches()
            late.last_id = dict(told.last_id)
            await theirs.subscribe(EVENTS, late.on_message)
            worker_id = fleet.worker_ids[1]
            request = msgspec.msgpack.encode({"worker_id": worker_id, "dp_rank": None})
            await theirs.publish(RESYNC, request)
            await until(lambda: late.agree_with([fleet.engines[1]]))
            assert list(late.blocks) == [worker_id]

            await fleet.kill(0)
            before = told.blocks[fleet.worker_ids[0]]
            await fleet.engines[1].stop()
            await until(lambda: not told.blocks[fleet.worker_ids[1]])
            assert before == told.blocks[fleet.worker_ids[0]], "a crashed engine says nothing"


async def read_until_ready(stdout: Any) -> list[str]:
    lines = []
    while not lines or lines[-1] != "ready":
        line = await asyncio.wait_for(stdout.readline(), 60)
        assert line, f"the mocker ended: {lines}"
        lines.append(line.decode().strip())
    return lines


@asynccontextmanager
async def command(*flags: str) -> AsyncIterator[asyncio.subprocess.Process]:
    """`dynamo-router mocker` as a process of its own."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "dynamo_router", "mocker", *flags),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env={**os.environ, "GRPC_VERBOSITY": "NONE"},
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


async def test_the_command_serves_publishes_and_drains():
    async with EmbeddedNats() as nats:
        plane = NatsPlane(nats.url)
        told = ToldCaches()
        try:
            await plane.subscribe(EVENTS.replace("dynamo", "elsewhere"), told.on_message)
            flags = ["--workers", "2", "--port", "0", "--nats", nats.url, "--block-size", "4"]
            flags += [
                "--num-gpu-blocks",
                "32",
                "--speedup-ratio",
                "1e6",
                "--namespace",
                "elsewhere",
            ]
            async with command(*flags) as process:
                assert process.stdout is not None and process.stderr is not None
                lines = await read_until_ready(process.stdout)
                assert lines[0] == f"events: {nats.url}"
                found = [
                    re.fullmatch(r"engine (\d): grpc://(\S+) worker (\d+)", x) for x in lines[1:3]
                ]
                ids = {int(match[3]) for match in found if match}
                assert len(ids) == 2
                for match in found:
                    assert match is not None
                    await send_prompts(match[2], 1, 2)
                await until(lambda: set(told.blocks) == ids and all(told.blocks.values()))
                process.send_signal(signal.SIGTERM)
                out, err = await asyncio.wait_for(process.communicate(), 60)
                assert process.returncode == 0
                # asyncio's debug mode says which step took long.
                said = [line for line in err.splitlines() if not line.startswith(b"Executing <")]
                assert b"draining" in out and said == []
                await until(lambda: not any(told.blocks.values()))
        finally:
            await plane.close()


async def test_a_second_signal_does_not_wait_for_what_still_runs():
    flags = ["--port", "0", "--speedup-ratio", "1e-6", "--drain-timeout-s", "600"]
    async with command(*flags) as process:
        assert process.stdout is not None
        lines = await read_until_ready(process.stdout)
        async with aio.insecure_channel(lines[-2].split()[2].removeprefix("grpc://")) as channel:
            stub = TrtllmServiceStub(channel)
            call = stub.Generate(generate_request("a", range(8)))
            await until(lambda: running_requests(stub), 60.0)
            process.send_signal(signal.SIGINT)
            assert b"draining" in await asyncio.wait_for(process.stdout.readline(), 60)
            process.send_signal(signal.SIGINT)
            assert await asyncio.wait_for(process.wait(), 60) == 0
            with pytest.raises(grpc.RpcError) as caught:
                await call.read()
            assert caught.value.code() is grpc.StatusCode.UNAVAILABLE


def generate_request(request_id: str, tokens: Any) -> Any:
    tokenized = pb.TokenizedInput(input_token_ids=list(tokens))
    return pb.GenerateRequest(request_id=request_id, tokenized=tokenized, max_tokens=6)


async def running_requests(stub: Any) -> int:
    """What the engine says of its load, to whoever subscribes to its events."""
    call = stub.SubscribeKvEvents(common_pb.SubscribeKvEventsRequest())
    batch = await call.read()
    call.cancel()
    return batch.load.running_requests


async def test_the_command_names_a_port_that_is_in_use():
    async with command("--port", "0") as first:
        lines = await read_until_ready(first.stdout)
        assert lines[0].startswith("events: "), "it says whether it publishes"
        port = lines[-2].split()[2].rpartition(":")[2]
        async with command("--port", port) as second:
            _, err = await asyncio.wait_for(second.communicate(), 60)
            assert second.returncode == 2
            assert f"cannot listen on 127.0.0.1:{port}: Address already in use" in err.decode()
            assert "Traceback" not in err.decode()
