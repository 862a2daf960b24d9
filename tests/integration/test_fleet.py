"""The whole house as real processes: serve, engines and nats-server, some of them killed."""

import asyncio
import os
import re
import signal
import socket
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import grpc
import pytest
from free_port import free_port
from polling import until
from processes import Command, alive, children_of, command, http_json

from dynamo_router.runtime.embedded_nats import EmbeddedNats
from dynamo_router.workers.trtllm_proto import SERVICE, pb

BLOCK = 16
PROMPT = list(range(100, 100 + 6 * BLOCK))


class Fleet:
    """A router, two mocker processes of one engine each, and a nats-server of the test's."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.nats = folder, EmbeddedNats(free_port())
        self.ports = [free_port(), free_port()]
        self._stack = AsyncExitStack()
        self.engines: list[Command] = []

    async def __aenter__(self) -> "Fleet":
        stack = self._stack
        await self.nats.start()
        stack.push_async_callback(self.nats.stop)
        for number in range(2):
            self.engines.append(await self.start_engine(number))
        workers = [f"grpc://127.0.0.1:{port}" for port in self.ports]
        self.router = await stack.enter_async_context(
            command(
                self.folder / "serve",
                "serve",
                "--port",
                "0",
                "--http-port",
                "0",
                "--block-size",
                str(BLOCK),
                "--nats",
                self.nats.url,
                *(word for url in workers for word in ("--worker", url)),
            )  # fmt: skip
        )
        ready = await self.router.says("dynamo-router ready")
        found = re.search(r"grpc (\S+) http (\S+)", ready)
        assert found is not None
        self.http = found[2]
        self.channel = grpc.aio.insecure_channel(found[1])
        stack.push_async_callback(self.channel.close)
        self.generate = self.channel.unary_stream(
            f"/{SERVICE}/Generate",
            pb.GenerateRequest.SerializeToString,
            pb.GenerateResponse.FromString,
        )
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._stack.aclose()

    async def start_engine(self, number: int, *more: str) -> Command:
        engine = await self._stack.enter_async_context(
            command(
                self.folder / f"engine{number}",
                "mocker",
                "--port",
                str(self.ports[number]),
                "--block-size",
                str(BLOCK),
                "--num-gpu-blocks",
                "256",
                "--nats",
                self.nats.url,
                *(more or ("--speedup-ratio", "20")),
            )  # fmt: skip
        )
        await engine.says("ready")
        return engine

    async def ask(self, prompt: list[int], max_tokens: int = 3) -> tuple[list[int], int]:
        """(tokens, cached prompt tokens) of one streamed answer."""
        tokens: list[int] = []
        cached = 0
        request = pb.GenerateRequest(max_tokens=max_tokens, streaming=True)
        request.tokenized.input_token_ids.extend(prompt)
        async for response in self.generate(request):
            tokens += response.chunk.token_ids
            cached = max(cached, response.complete.cached_tokens)
        return tokens, cached

    async def workers(self) -> dict[int, dict[str, Any]]:
        rows = (await http_json(self.http, "/workers"))["workers"]
        return {self.ports.index(int(row["address"].rpartition(":")[2])): row for row in rows}

    async def overlaps(self, prompt: list[int]) -> dict[str, int]:
        told: dict[str, int] = await http_json(self.http, "/overlaps", {"token_ids": prompt})
        return told

    def kill_nats(self) -> None:
        pid = self.nats.pid
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)  # until it is gone, not reaped

    async def all_exact(self) -> bool:
        rows = (await self.workers()).values()
        return {row["event_source_state"] for row in rows} == {"exact"}

    async def idle(self) -> bool:
        return not any(row["active_requests"] for row in (await self.workers()).values())


async def eventually(condition: Any, deadline_s: float = 20.0) -> None:
    """Poll an awaitable condition."""
    async with asyncio.timeout(deadline_s):
        while not await condition():
            await asyncio.sleep(0.05)


@pytest.fixture
async def fleet(tmp_path: Path) -> AsyncIterator[Fleet]:
    async with Fleet(tmp_path) as made:
        yield made


async def test_a_cached_prefix_draws_its_like_and_slots_come_back(fleet: Fleet) -> None:
    tokens, cached = await fleet.ask(PROMPT)
    assert len(tokens) == 3 and cached == 0

    async def is_indexed() -> bool:
        return sorted((await fleet.overlaps(PROMPT)).values()) == [6]

    await eventually(is_indexed)
    for turn in range(4):
        tokens, cached = await fleet.ask(PROMPT + [turn] * 20)
        assert len(tokens) == 3 and cached == 6 * BLOCK
    rows = await fleet.workers()
    assert sorted(bool(row["indexed_blocks"]) for row in rows.values()) == [False, True]
    await eventually(fleet.all_exact)  # the idle engine too: it was asked to announce itself
    await eventually(fleet.idle)


async def test_an_engine_killed_in_mid_stream_fails_one_request_and_comes_back(
    fleet: Fleet,
) -> None:
    await fleet.engines[1].stop(signal.SIGKILL)

    async def only_the_first() -> bool:
        return (await fleet.workers())[1]["state"] != "ready"

    await eventually(only_the_first)
    for n in range(1, 5):
        assert len((await fleet.ask([n] * 40))[0]) == 3

    # Slow enough that the stream is open when the engine dies.
    fleet.engines[1] = await fleet.start_engine(1, "--speedup-ratio", "0.2")

    async def both() -> bool:
        return (await fleet.workers())[1]["state"] == "ready"

    await eventually(both)
    await fleet.engines[0].stop(signal.SIGKILL)

    async def only_the_second() -> bool:
        return (await fleet.workers())[0]["state"] != "ready"

    await eventually(only_the_second)
    request = pb.GenerateRequest(max_tokens=200, streaming=True)
    request.tokenized.input_token_ids.extend(PROMPT)
    call = fleet.generate(request)
    first = await call.read()
    assert isinstance(first, pb.GenerateResponse) and first.chunk.token_ids
    await fleet.engines[1].stop(signal.SIGKILL)
    with pytest.raises(grpc.aio.AioRpcError) as lost:
        while await call.read() is not grpc.aio.EOF:
            pass
    assert lost.value.code() is grpc.StatusCode.UNAVAILABLE
    assert "mid-stream" in (lost.value.details() or "")
    await eventually(fleet.idle)
    with pytest.raises(grpc.aio.AioRpcError) as nobody:
        await fleet.ask(PROMPT)
    assert nobody.value.code() is grpc.StatusCode.UNAVAILABLE


async def test_requests_flow_without_nats_and_the_index_heals_after_it(fleet: Fleet) -> None:
    await fleet.ask(PROMPT)
    fleet.kill_nats()
    other = [7] * (4 * BLOCK)
    assert len((await fleet.ask(other))[0]) == 3  # published into the void, or buffered
    health = await http_json(fleet.http, "/health")
    assert health["status"] == "ready"
    await fleet.nats.start()

    async def healed() -> bool:
        known = [max((await fleet.overlaps(p)).values(), default=0) for p in (PROMPT, other)]
        return known == [6, 4] and await fleet.all_exact()

    await eventually(healed, 40.0)


async def test_a_client_that_hangs_up_frees_its_slot(fleet: Fleet) -> None:
    request = pb.GenerateRequest(max_tokens=4000, streaming=True)
    request.tokenized.input_token_ids.extend(PROMPT)
    call = fleet.generate(request)
    await call.read()
    assert not await fleet.idle()
    call.cancel()
    await eventually(fleet.idle)


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_drains_and_leaves_no_child(tmp_path: Path, how: signal.Signals) -> None:
    async with command(
        tmp_path, "serve", "--port", "0", "--http-port", "0", "--mockers", "2", "--nats",
        "nats://127.0.0.1:1", "--speedup-ratio", "20",
    ) as router:  # fmt: skip
        await router.says("dynamo-router ready")
        children = children_of(router.pid)
        assert children
        assert await router.stop(how) == 0, router.text
        await until(lambda: not any(map(alive, children)))
        assert "Traceback" not in router.text and "[error" not in router.text
        assert "unhealthy" not in router.text.partition("draining")[2]


async def test_a_killed_router_takes_its_children_with_it(tmp_path: Path) -> None:
    async with command(
        tmp_path, "serve", "--port", "0", "--http-port", "0", "--mockers", "1"
    ) as router:
        await router.says("dynamo-router ready")
        family = children_of(router.pid)
        assert family
        await router.stop(signal.SIGKILL)
        await until(lambda: not any(map(alive, family)))


async def test_a_port_in_use_is_one_line(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        async with command(tmp_path, "serve", "--port", str(port), "--http-port", "0") as router:
            assert await router.stop(signal.SIGCONT) == 1
            assert f"{port}" in router.text and "in use" in router.text
            assert "Traceback" not in router.text
