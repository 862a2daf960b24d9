"""`dynamo-router worker vllm` with a real vLLM: its answers, its cache as routers know it, its end.

Needs vLLM's CPU build and what dynamo-router itself needs: set VLLM_PYTHON to a Python that has
both. What an engine says is tested always, from scripted ones.
"""

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from support.polling import until
from support.processes import Command, alive, children_of, command
from support.servers.discovered_fleet import Backend, backend, finding, until_ready
from support.servers.vllm import BLOCK, BLOCKS, CONTEXT, ENVIRONMENT, PYTHON, write_model
from support.serving import Ports

import dynamo_router
from dynamo_router.base.identity import WorkerWithDpRank
from dynamo_router.router.config import KvRouterConfig
from dynamo_router.workers.trtllm_proto import pb

__all__ = ["backend"]
pytestmark = pytest.mark.skipif(PYTHON is None, reason="VLLM_PYTHON names no Python with vLLM")
START_S = 600.0
PACKAGE = str(Path(dynamo_router.__file__).parent.parent)


@asynccontextmanager
async def served(folder: Path, backend: Backend) -> AsyncIterator[tuple[Command, Ports]]:
    """A worker, and a router that has found it."""
    assert PYTHON is not None
    model = write_model(folder / "model")
    args = f'{{"enforce_eager": true, "dtype": "float32", "num_gpu_blocks_override": {BLOCKS}}}'
    words = (
        f"worker vllm --port 0 --block-size {BLOCK} --max-model-len {CONTEXT} --max-num-seqs 4"
        " --event-plane zmq"
    ).split()
    environ = {
        **ENVIRONMENT, **backend.environ, "DYN_DISCOVERY_BACKEND": backend.kind,
        "PYTHONPATH": PACKAGE, "PATH": f"{Path(PYTHON).parent}:{os.environ['PATH']}",
    }  # fmt: skip
    async with command(
        folder / "worker", *words, "--model", str(model), "--engine-args", args,
        environ=environ, python=PYTHON,
    ) as running:  # fmt: skip
        try:
            await running.says("ready", START_S)
            router = KvRouterConfig(block_size=BLOCK, seed=1)
            async with finding(backend, router=router) as ports:
                await until_ready(ports, 1)
                await ports.answers(asked("warm", 3900))  # its first prompt must not be a short one
                yield running, ports
        finally:
            await running.stop()  # by SIGTERM, so that it ends the processes that vLLM started


def asked(request_id: str, first: int, count: int = 100, **more: Any) -> Any:
    request = pb.GenerateRequest(request_id=request_id, max_tokens=4, streaming=True)
    request.MergeFrom(pb.GenerateRequest(ignore_eos=True, **more))
    request.sampling_config.temperature = 0.0
    request.tokenized.input_token_ids.extend(range(first, first + count))
    return request


def tokens_of(messages: list[Any]) -> list[int]:
    *chunks, last = messages
    found = [token for each in chunks for token in each.chunk.token_ids]
    assert found == list(last.complete.output_token_ids)
    return found


async def test_answers_and_the_cache(tmp_path: Path, backend: Backend) -> None:
    async with served(tmp_path, backend) as (running, ports):
        (entry,) = ports.server.router.registry.entries()
        facts = ports.server.monitor.facts
        assert facts.settings["kv_block_size"] == BLOCK and facts.max_seq_len == CONTEXT
        assert facts.settings["total_kv_blocks"] == BLOCKS and facts.vocab_size == 4096
        first = await ports.answers(asked("a", 300))
        tokens = tokens_of(first)
        assert len(tokens) == 4 and first[-1].complete.cached_tokens == 0
        stop = await ports.answers(asked("stop", 300, stop_token_ids=[tokens[1]]))
        assert tokens_of(stop) == tokens[:1]
        assert stop[-1].complete.matched_token_id == tokens[1]
        salted = await ports.answers(asked("salt", 300, cache_salt_id=7))
        assert salted[-1].complete.cached_tokens == 0
        several = asked("n", 300, sampling_config={"num_return_sequences": 2})
        several.sampling_config.temperature = 1.0
        ends = [m.complete for m in await ports.answers(several) if m.HasField("complete")]
        assert {end.sequence_index for end in ends} == {0, 1}
        with pytest.raises(grpc.RpcError) as caught:
            await ports.answers(asked("bad", 300, bad_token_ids=[3]))
        assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT

        worker = WorkerWithDpRank(entry.worker_id, 0)
        for nth in range(40):  # more than its cache takes
            await ports.answers(asked(f"fill {nth}", 90 * nth))

        def known(nth: int) -> int:
            prompt = range(90 * nth, 90 * nth + 100)
            return ports.server.router.overlaps(prompt).get(worker, 0)

        await until(lambda: (known(0), known(39)) == (0, 3))
        # The newest first: those that are cached push nothing out that is asked for later.
        expected = {nth: known(nth) for nth in (39, 38, 30, 0)}
        assert list(expected.values()) == [3, 3, 3, 0]
        for nth, blocks in expected.items():
            again = await ports.answers(asked(f"again {nth}", 90 * nth))
            assert again[-1].complete.cached_tokens == blocks * BLOCK, "as the index says"
        assert await running.stop() == 0


async def test_an_engine_whose_core_dies_is_not_there_any_more(
    tmp_path: Path, backend: Backend
) -> None:
    async with served(tmp_path, backend) as (running, ports):
        asking = asyncio.ensure_future(ports.answers(asked("a", 300, max_tokens=900)))
        await until(lambda: ports.server.dispatcher.in_flight)
        for child in children_of(running.pid):
            if "EngineCore" in Path(f"/proc/{child}/cmdline").read_text():
                os.kill(child, signal.SIGKILL)
        with pytest.raises(grpc.RpcError) as caught:
            await asking
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
        await until(lambda: not ports.server.monitor.ready_clients())
        assert await running.ended() == 1
        assert "the engine is lost" in running.text


async def test_a_worker_that_is_killed_leaves_no_core_behind(
    tmp_path: Path, backend: Backend
) -> None:
    async with served(tmp_path, backend) as (running, _):
        children = children_of(running.pid)
        assert any("EngineCore" in Path(f"/proc/{pid}/cmdline").read_text() for pid in children)
        os.kill(running.pid, signal.SIGKILL)
        await until(lambda: not any(alive(pid) for pid in children))
