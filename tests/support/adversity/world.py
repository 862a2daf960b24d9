"""The house under adversity, all real processes: a router, three engines, a nats-server, and a
proxy with faults on each way between them and to the clients.
"""

import os
import re
import signal
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import aiohttp
from grpc import aio
from support.adversity.engine_cache import cached_blocks
from support.adversity.fault_proxy import FaultProxy
from support.adversity.nats_messages import MessageFaults
from support.adversity.schedule import ENGINES, LAST
from support.chats.oracle import ChatOracle, write_model
from support.free_port import free_port
from support.polling import until
from support.processes import Command, children_of, command, http_json, http_text

from dynamo_router.engines.mocker.own_model import OWN_VOCABULARY
from dynamo_router.runtime.event_planes.embedded_nats import EmbeddedNats

BLOCK = 16
DURABLE = "--durable-kv-events"
"""of a router whose events last: then the server keeps them"""
MOCKER = (
    *("--block-size", str(BLOCK), "--num-gpu-blocks", "1024", "--heartbeat-s", "0.3"),
    *("--speedup-ratio", "4", "--fault-port", "0", "--vocab-size", str(OWN_VOCABULARY)),
)
# Quick to see a fault and to forgive it, but not so quick that a busy machine looks like one.
SERVE = (
    *("--probe-interval-s", "0.5", "--probe-timeout-s", "2", "--probe-retry-first-s", "0.05"),
    *("--probe-retry-most-s", "0.3", "--ejection-s", "0.3", "--longest-ejection-s", "1"),
    *("--request-timeout-s", "5", "--attempt-timeout-s", "4", "--write-timeout-s", "3"),
    *("--worker-keepalive-s", "2", "--worker-keepalive-timeout-s", "2"),
    *("--worker-connect-timeout-s", "2", "--router-active-request-expiry-secs", "5"),
    # The index is held against the engines, so what decisions predict of them stays out of it.
    *("--router-predicted-ttl-secs", "0"),
    # A step's clients come all at once: of those that one engine fails, more than the usual 16
    # may wait for the one that is left. What the budget refuses is asked elsewhere.
    *("--retry-budget-least", "64"),
)
CHANNEL = (
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.max_send_message_length", 64 << 20),
    ("grpc.initial_reconnect_backoff_ms", 50),
    ("grpc.min_reconnect_backoff_ms", 200),
    ("grpc.max_reconnect_backoff_ms", 200),
)


class World:
    """Use as an async context manager. Engines are 0 to ENGINES - 1; the last has a process of its
    own, `alone`; the others share one.
    """

    def __init__(self, folder: Path, *serve: str) -> None:
        self._folder, self._serve = folder, serve
        self._stack = AsyncExitStack()
        store = folder / "nats" if DURABLE in serve else None
        self.nats = EmbeddedNats(free_port(), store=store)
        self.event_faults = MessageFaults(b".kv-events")
        self.ports = [0] * LAST + [free_port()]
        self._fault_apis = [""] * ENGINES

    async def __aenter__(self) -> "World":
        try:
            await self._start()
        except BaseException:
            await self._stack.aclose()  # nothing of a half-started one stays behind
            raise
        return self

    async def _start(self) -> None:
        stack = self._stack
        await self.nats.start()
        stack.push_async_callback(self.nats.stop)
        model = write_model(self._folder / "model")
        self.oracle = ChatOracle(model)
        self.http_clients = await stack.enter_async_context(
            aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0))
        )
        nats_port = int(self.nats.url.rpartition(":")[2])
        self.nats_proxy = await self._proxy(nats_port, {"down": self.event_faults.filter})
        self.together = await self._mocker(0, LAST)
        self.alone = await self._mocker(LAST, 1)
        self.proxies = [await self._proxy(port) for port in self.ports]
        self.router = await stack.enter_async_context(
            command(
                self._folder / "serve",
                *("serve", "--port", "0", "--http-port", "0", "--block-size", str(BLOCK)),
                *("--http-frontend", "0", "--model-path", str(model), "--model-id", "tiny"),
                *("--tool-call-parser", "hermes"),
                *("--nats", f"nats://{self.nats_proxy.address}", *SERVE, *self._serve),
                *(word for p in self.proxies for word in ("--worker", f"grpc://{p.address}")),
            )
        )
        words = (await self.router.says("dynamo-router ready")).split()
        self.http = words[words.index("http") + 1]
        self.address = words[words.index("grpc") + 1]
        self.openai = words[words.index("openai") + 1]
        self.client_proxy = await self._proxy(int(self.address.rpartition(":")[2]))
        self.near = await stack.enter_async_context(
            aio.insecure_channel(self.address, options=CHANNEL)
        )
        self.far = await stack.enter_async_context(
            aio.insecure_channel(self.client_proxy.address, options=CHANNEL)
        )
        self._direct = [
            await stack.enter_async_context(
                aio.insecure_channel(f"127.0.0.1:{port}", options=CHANNEL)
            )
            for port in self.ports
        ]
        await until(self.is_ready, 60.0)
        self.worker_ids = [row["worker_id"] for row in await self.engines()]

    async def __aexit__(self, *error: object) -> None:
        await self._stack.aclose()

    async def _proxy(self, port: int, filters: Any = None) -> FaultProxy:
        proxy = FaultProxy(port, filters)
        await proxy.start()
        self._stack.push_async_callback(proxy.close)
        return proxy

    async def _mocker(self, first: int, engines: int) -> Command:
        running = await self._stack.enter_async_context(
            command(
                self._folder / f"mocker{first}",
                *("mocker", "--workers", str(engines), "--port", str(self.ports[first])),
                *("--worker-id", str(100 + first), "--nats", self.nats.url, *MOCKER),
            )
        )
        await running.says("ready")
        for line in running.text.splitlines():
            if found := re.match(r"engine (\d): grpc://\S+:(\d+)", line):
                self.ports[first + int(found[1])] = int(found[2])
            elif line.startswith("faults:"):
                self._fault_apis[first : first + engines] = [line.rpartition("/")[2]] * engines
        return running

    # What is done to it

    async def fault(self, engine: int, **fault: object) -> None:
        """Replace an engine's fault; without one it is well."""
        await http_json(self._fault_apis[engine], self._path(engine, "fault"), fault, "PUT")

    async def restart(self, engine: int) -> None:
        await http_json(self._fault_apis[engine], self._path(engine, "restart"), {})

    def _path(self, engine: int, what: str) -> str:
        return f"/engines/{0 if engine == LAST else engine}/{what}"  # numbered in each process

    async def kill_alone(self) -> None:
        await self.alone.stop(signal.SIGKILL)

    async def start_alone(self) -> None:
        """The engine's process once more, on its old port."""
        self.alone = await self._mocker(LAST, 1)

    async def kill_nats(self) -> None:
        nats = self.nats
        pid = nats.pid
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        await until(lambda: not nats.running)

    # What it says of itself

    async def engines(self) -> list[dict[str, Any]]:
        """What the engines' processes say, in order."""
        first = await http_json(self._fault_apis[0], "/engines")
        return [*first, *await http_json(self._fault_apis[LAST], "/engines")]

    async def workers(self) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = (await http_json(self.http, "/workers"))["workers"]
        return rows

    async def is_ready(self) -> bool:
        rows = await self.workers()
        return len(rows) == ENGINES and all(row["state"] == "ready" for row in rows)

    async def metrics(self) -> dict[str, float]:
        """Every sample of /metrics by its name and labels."""
        text = await http_text(self.http, "/metrics")
        lines = [line for line in text.splitlines() if line and line[0] != "#"]
        return {name: float(value) for name, _, value in (x.rpartition(" ") for x in lines)}

    async def overlaps(self, tokens: list[int]) -> dict[int, int]:
        told = await http_json(self.http, "/overlaps", {"token_ids": tokens})
        return {int(worker): blocks for worker, blocks in told.items()}

    async def cached(self, engine: int) -> set[int]:
        """The blocks that an engine holds now, by the hashes of their prefixes, from itself."""
        return await cached_blocks(self._direct[engine])

    # What its process uses

    def usage(self) -> dict[str, int]:
        """Descriptors, threads and children of the router."""
        pid = self.router.pid
        return {
            "descriptors": len(os.listdir(f"/proc/{pid}/fd")),
            "threads": len(os.listdir(f"/proc/{pid}/task")),
            "children": len(children_of(pid)),
        }

    def resident_bytes(self) -> int:
        pages = int(Path(f"/proc/{self.router.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGESIZE")
