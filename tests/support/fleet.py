"""The whole house as real processes: serve, engines and a nats-server, for tests that kill them."""

import asyncio
import os
import re
import signal
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import grpc
from support.calls import messages_of
from support.free_port import free_port, free_ports
from support.polling import until
from support.processes import Command, command, http_json

from dynamo_router.runtime.event_planes.embedded_nats import EmbeddedNats
from dynamo_router.workers.trtllm_proto import SERVICE, pb

BLOCK = 16
PROMPT = list(range(100, 100 + 6 * BLOCK))


class Fleet:
    """A router, two mocker processes of one engine each, and a nats-server of the test's, or none
    that anybody is told of, or the one at `nats_url`."""

    def __init__(
        self, folder: Path, *serve: str, with_nats: bool = True, nats_url: str | None = None
    ) -> None:
        self._serve = serve
        self._with_nats = with_nats and nats_url is None
        self._nats_url = nats_url
        self.folder, self.nats = folder, EmbeddedNats(free_port())
        self.ports = free_ports(2)
        self._stack = AsyncExitStack()
        self.engines: list[Command] = []

    async def __aenter__(self) -> "Fleet":
        try:
            if self._with_nats:
                await self.nats.start()
            self._stack.push_async_callback(self.nats.stop)
            async with asyncio.TaskGroup() as starting:
                engines = [starting.create_task(self.start_engine(n)) for n in range(2)]
            self.engines += [engine.result() for engine in engines]
            await self.start_router(*self._serve)
        except BaseException:
            await self._stack.aclose()  # nothing of a half-started one stays behind
            raise
        return self

    @property
    def _nats_words(self) -> tuple[str, ...]:
        if self._nats_url is not None:
            return ("--nats", self._nats_url)
        return ("--nats", self.nats.url) if self._with_nats else ()

    def url(self, port: int) -> str:
        """Of the engine at a port, as the router gets it."""
        return f"grpc://127.0.0.1:{port}"

    async def start_router(self, *more: str) -> None:
        """Serve, also again after the one before was stopped."""
        stack = self._stack
        workers = [self.url(port) for port in self.ports]
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
                *self._nats_words,
                *(word for url in workers for word in ("--worker", url)),
                *more,
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
                *self._nats_words,
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
        for response in await messages_of(self.generate(request)):
            tokens += response.chunk.token_ids
            cached = max(cached, response.complete.cached_tokens)
        return tokens, cached

    async def workers(self) -> dict[int, dict[str, Any]]:
        rows = (await http_json(self.http, "/workers"))["workers"]
        return {self.ports.index(int(row["address"].rpartition(":")[2])): row for row in rows}

    async def overlaps(self, prompt: list[int]) -> dict[str, int]:
        told: dict[str, int] = await http_json(self.http, "/overlaps", {"token_ids": prompt})
        return told

    async def kill_nats(self) -> None:
        pid = self.nats.pid
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        await until(lambda: not self.nats.running)

    async def all_exact(self) -> bool:
        rows = (await self.workers()).values()
        return {row["event_source_state"] for row in rows} == {"exact"}

    async def idle(self) -> bool:
        return not any(row["active_requests"] for row in (await self.workers()).values())
