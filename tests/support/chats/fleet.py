"""A fleet that chats go to, all real processes: fronts, engines, a nats-server. What befalls it."""

import asyncio
import os
import signal
from contextlib import AsyncExitStack
from pathlib import Path
from random import Random

import aiohttp
from support.adversity.world import BLOCK, MOCKER, SERVE
from support.chats.oracle import ChatOracle, write_model
from support.free_port import free_port
from support.polling import until
from support.processes import Command, command, http_json

from dynamo_router.runtime.event_planes.embedded_nats import EmbeddedNats

ENGINES, FRONTS = 2, 2
STANDS_STILL_S = (0.1, 1.5)
FAULTS = (
    *("front_killed", "front_frozen", "engine_killed", "engine_frozen", "nats_killed"),
    *("nats_frozen", "router_restarted"),
)
LOSES_CONNECTIONS = ("front_killed", "router_restarted")
LOSES_STREAMS = ("engine_killed", "engine_frozen")


class ChatFleet:
    """Use as an async context manager; `befall` it with faults, each lifted when it returns."""

    def __init__(self, folder: Path, random: Random) -> None:
        self._folder, self._random = folder, random
        self._stack = AsyncExitStack()
        self._nats = EmbeddedNats(free_port())
        self._ports = [free_port() for _ in range(ENGINES)]
        self.http, self.openai = (f"127.0.0.1:{free_port()}" for _ in range(2))
        self._grpc_port = free_port()
        self._engines: list[Command] = []
        self.outputs: list[Command] = []
        """of the routers, each that there was"""

    async def __aenter__(self) -> "ChatFleet":
        stack = self._stack
        try:
            self._model = write_model(self._folder / "model")
            self.oracle = ChatOracle(self._model)
            # Each chat has a connection of its own: any front may have it.
            connector = aiohttp.TCPConnector(limit=0, force_close=True)
            self.session = await stack.enter_async_context(
                aiohttp.ClientSession(connector=connector)
            )
            await self._nats.start()
            stack.push_async_callback(self._nats.stop)
            for number in range(ENGINES):
                self._engines.append(await self._start_engine(number))
            await self._start_router()
            await until(self.is_ready, 120.0)
        except BaseException:
            await stack.aclose()
            raise
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._stack.aclose()

    async def _start_engine(self, number: int) -> Command:
        words = ("mocker", "--port", str(self._ports[number]), "--worker-id", str(100 + number))
        return await self._stack.enter_async_context(
            command(self._folder / f"engine{number}", *words, "--nats", self._nats.url, *MOCKER)
        )

    async def _start_router(self) -> None:
        ports = (
            *("--port", str(self._grpc_port), "--http-port", self.http.rpartition(":")[2]),
            *("--http-frontend", self.openai.rpartition(":")[2]),
        )
        self.router = await self._stack.enter_async_context(
            command(
                self._folder / "serve",
                *("serve", "--fronts", str(FRONTS), *ports, "--nats", self._nats.url, *SERVE),
                *(
                    "--model-path",
                    str(self._model),
                    "--model-id",
                    "tiny",
                    "--block-size",
                    str(BLOCK),
                ),
                *("--tool-call-parser", "hermes", "--front-hang-timeout-s", "0"),
                *(word for p in self._ports for word in ("--worker", f"grpc://127.0.0.1:{p}")),
            )
        )
        self.outputs.append(self.router)
        await self.router.says("dynamo-router ready")

    # What befalls it

    async def befall(self, fault: str) -> None:
        """One fault, lifted before it returns."""
        match fault:
            case "front_killed":
                os.kill(await self._front(), signal.SIGKILL)
            case "front_frozen":
                await self._freeze(await self._front())
            case "engine_killed":
                number = self._random.randrange(ENGINES)
                await self._engines[number].stop(signal.SIGKILL)
                self._engines[number] = await self._start_engine(number)
            case "engine_frozen":
                await self._freeze(self._random.choice(self._engines).pid)
            case "nats_killed":
                assert self._nats.pid is not None
                os.kill(self._nats.pid, signal.SIGKILL)
                await until(lambda: not self._nats.running)
                await self._nats.start()
            case "nats_frozen":
                assert self._nats.pid is not None
                await self._freeze(self._nats.pid)
            case "router_restarted":
                assert await self.router.stop() == 0
                await self._start_router()
            case unknown:
                raise ValueError(f"there is no fault {unknown!r}")

    async def _freeze(self, pid: int) -> None:
        os.kill(pid, signal.SIGSTOP)
        try:
            await asyncio.sleep(self._random.uniform(*STANDS_STILL_S))  # it is the fault itself
        finally:
            os.kill(pid, signal.SIGCONT)

    async def _front(self) -> int:
        """The process of one of them."""
        health = await http_json(self.http, "/health")
        return int(self._random.choice(health["fronts"])["pid"])

    # What it says of itself

    async def is_ready(self) -> bool:
        """Whether all fronts are there, and all engines ready for each of them."""
        try:
            for _ in range(4 * FRONTS):  # a connection is any front's
                health = await http_json(self.http, "/health")
                rows = (await http_json(self.http, "/workers"))["workers"]
                if len(health["fronts"]) < FRONTS or len(rows) < ENGINES:
                    return False
                if any(row["state"] != "ready" for row in rows):
                    return False
        except (OSError, KeyError):
            return False
        return True

    async def nothing_is_booked(self) -> bool:
        """Whether no front has anything left of any chat."""
        loads = ("active_requests", "active_blocks", "active_prefill_tokens")
        for _ in range(4 * FRONTS):
            rows = (await http_json(self.http, "/workers"))["workers"]
            if any(row[load] for row in rows for load in loads):
                return False
        return True
