"""`dynamo-router worker trtllm` as a process, found by a router: the library is a small one of the
same shape. Its model gives the same tokens to a prompt that is cut anywhere."""

import asyncio
import os
import signal
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc import aio
from smg_grpc_proto.generated.trtllm_service_pb2_grpc import TrtllmServiceStub
from support.places import ROOT
from support.polling import until
from support.processes import Command, command
from support.servers.discovered_fleet import Backend, backend, finding, until_ready

from dynamo_router.base.identity import WorkerWithDpRank
from dynamo_router.engines.mocker import OWN_MODEL
from dynamo_router.router.config import KvRouterConfig
from dynamo_router.server.request_limits import RequestLimits
from dynamo_router.workers.trtllm_proto import pb

__all__ = ["backend"]
LIBRARIES = Path(ROOT) / "tests" / "support" / "libraries"
BLOCK = 16


@asynccontextmanager
async def worker(
    folder: Path, backend: Backend | None = None, *words: str, **environ: str
) -> AsyncIterator[Command]:
    found = backend.environ | {"DYN_DISCOVERY_BACKEND": backend.kind} if backend else {}
    path = os.pathsep.join([str(LIBRARIES), os.environ.get("PYTHONPATH", "")])
    given = "--model tiny --port 0 --max-model-len 2000 --block-size"
    async with command(
        folder, "worker", "trtllm", *given.split(), str(BLOCK), *words,
        environ={"PYTHONPATH": path, **found, **environ},
    ) as running:  # fmt: skip
        yield running


def request(request_id: str, count: int = 40, max_tokens: int = 4) -> Any:
    made = pb.GenerateRequest(request_id=request_id, max_tokens=max_tokens, streaming=True)
    made.tokenized.input_token_ids.extend(range(count))
    return made


@pytest.mark.parametrize("dialect", ["trtllm", "dynamo"])
async def test_a_router_finds_it_and_knows_its_cache(
    tmp_path: Path, backend: Backend, dialect: str
) -> None:
    router = KvRouterConfig(block_size=BLOCK, seed=1)
    words = ("--dialect", dialect, "--model-path", str(OWN_MODEL), "--event-plane", "zmq")
    async with worker(tmp_path / "a", backend, *words) as engine:
        await engine.says("ready")
        said = await engine.says("engine: grpc://")
        async with finding(backend, router=router, event_sources="auto") as ports:
            await until_ready(ports, 1)
            (entry,) = ports.server.router.registry.entries()
            assert str(entry.worker_id) == said.rpartition(" ")[2]
            answers = await ports.answers(request("a"))
            tokens = [t for each in answers[:-1] for t in each.chunk.token_ids]
            assert tokens == list(answers[-1].complete.output_token_ids) and len(tokens) == 4
            held = WorkerWithDpRank(entry.worker_id, 0)
            if dialect == "trtllm":  # its stream of events; over the plane no server listens here
                await until(lambda: ports.server.router.overlaps(range(40)).get(held) == 2)
            again = await ports.answers(request("b"))
            assert again[-1].complete.cached_tokens == 2 * BLOCK
            assert await engine.stop() == 0
            await until(lambda: not ports.server.monitor.ready_clients())


@pytest.mark.parametrize("dialect", ["trtllm", "dynamo"])
async def test_streams_of_an_engine_that_dies_go_on_elsewhere(
    tmp_path: Path, backend: Backend, dialect: str
) -> None:
    slow = {"FAKE_TRTLLM_STEP_S": "0.01"}
    async with (
        worker(tmp_path / "a", backend, "--dialect", dialect, **slow) as steady,
        worker(
            tmp_path / "b", backend, "--dialect", dialect, **slow, FAKE_TRTLLM_DIES_AFTER_S="4"
        ) as dying,
    ):
        for each in (steady, dying):
            await each.says("ready")
        limits = RequestLimits(migration_limit=3)
        quiet = KvRouterConfig(block_size=BLOCK, use_kv_events=False, seed=1, mode="round-robin")
        async with finding(backend, router=quiet, limits=limits) as ports:
            await until_ready(ports, 2)
            made = [request(f"{nth}", max_tokens=600) for nth in range(4)]
            messages = await asyncio.gather(*(ports.answers(each) for each in made))
            whole = {tuple(each[-1].complete.output_token_ids) for each in messages}
            assert len(whole) == 1 and len(whole.pop()) == 600
            for each in messages:
                chunks = [t for message in each[:-1] for t in message.chunk.token_ids]
                assert chunks == list(each[-1].complete.output_token_ids)
            assert ports.server.dispatcher.migrations.moved.total() == 2
            await until_ready(ports, 1)
        assert await dying.ended() == 1
        assert "the engine is lost" in dying.text


async def test_a_drain_lets_streams_end_and_a_second_signal_does_not(tmp_path: Path) -> None:
    async with worker(tmp_path, FAKE_TRTLLM_STEP_S="0.01") as engine:
        await engine.says("ready")
        address = (await engine.says("engine: ")).split("grpc://")[1].split()[0]
        async with aio.insecure_channel(address) as channel:
            stub = TrtllmServiceStub(channel)
            call = stub.Generate(request("a", max_tokens=100))
            messages = aiter(call)
            first = await anext(messages)
            engine.send(signal.SIGTERM)
            await engine.says("draining: running requests have 5 s")
            tokens = list(first.chunk.token_ids)
            async for message in messages:
                tokens += message.chunk.token_ids
            assert tokens == list(message.complete.output_token_ids) and len(tokens) == 100
        assert await engine.ended() == 0
    async with worker(tmp_path, FAKE_TRTLLM_STEP_S="0.01") as engine:
        await engine.says("ready")
        address = (await engine.says("engine: ")).split("grpc://")[1].split()[0]
        async with aio.insecure_channel(address) as channel:
            call = TrtllmServiceStub(channel).Generate(request("a", max_tokens=1900))
            messages = aiter(call)
            await anext(messages)
            engine.send(signal.SIGTERM)
            await engine.says("draining")
            assert await engine.stop() == 0
            with pytest.raises(grpc.RpcError):
                _ = [message async for message in messages]


async def test_a_port_in_use_is_one_line(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        async with worker(tmp_path / "a", None, "--port", port) as engine:
            assert await engine.ended() == 2
            assert f"cannot listen on 127.0.0.1:{port}: Address already in use" in engine.text


@pytest.mark.skipif(find_spec("tensorrt_llm") is not None, reason="the real library is here")
async def test_a_missing_library_is_one_line(tmp_path: Path) -> None:
    words = ("worker", "trtllm", "--model", "tiny")
    async with command(tmp_path, *words) as engine:
        assert await engine.ended() == 2
        wanted = "dynamo-router: tensorrt_llm is not installed: pip install 'dynamo-router[trtllm]'"
        assert engine.text.strip() == wanted
