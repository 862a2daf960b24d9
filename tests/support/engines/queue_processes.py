"""A prefill queue's engines as processes, behind a router, and what befalls them and their servers:
SIGKILL and a new start, or SIGSTOP for a while."""

import asyncio
import signal
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from random import Random

import aiohttp
from grpc import aio
from support.free_port import free_ports
from support.polling import until
from support.processes import BUSY_S, Command, command, http_text
from support.servers.child import Child
from support.servers.etcd import EtcdServer
from support.servers.jetstream import JetStreamServer
from support.servers.killed_engines import VOCABULARY, Streams
from support.serving import ServedRouter

from dynamo_router.engines.mocker import OWN_MODEL
from dynamo_router.frontend.config import FrontendConfig, ServeFrontendConfig
from dynamo_router.frontend.processor import ModelText
from dynamo_router.process.off_loop import OffLoop
from dynamo_router.router.config import KvRouterConfig
from dynamo_router.router.disagg import DisaggConfig
from dynamo_router.server.request_limits import HandoffLimits, RequestLimits
from dynamo_router.workers.health_tracker import HealthPolicy

BLOCK, TOKENS = 16, 12
ACK_WAIT_S, TIMEOUT_S, LEASE_S = 0.5, 3.0, 1.0
PREFILLS, DECODES = 2, 2
_SETTINGS = (
    f"--vocab-size {VOCABULARY} --model-id tiny --block-size {BLOCK} --num-gpu-blocks 512"
    f" --transfer shm --transfer-block-bytes 4096 --transfer-layers 2 --prefill-queue"
    f" --prefill-queue-ack-wait-s {ACK_WAIT_S} --prefill-queue-timeout-s {TIMEOUT_S}"
    f" --lease-ttl-s {LEASE_S} --drain-timeout-s 1 --metrics-port 0"
)
_SPEED = {"prefill": "--speedup-ratio 0.05", "decode": "--speedup-ratio 0.25"}
"""So slow that what befalls them does so while they have prompts."""
HELD = (
    "dynamo_router_prefill_queue_requests",
    'dynamo_router_transfer_blocks{state="granted"}',
    'dynamo_router_transfer_blocks{state="kept"}',
    'dynamo_router_transfer_blocks{state="quarantined"}',
)


class Engine:
    """A `mocker` of one role, at a port that it keeps."""

    def __init__(self, folder: Path, role: str, port: int, environ: dict[str, str], *more: str):
        self._folder, self.role, self.port = folder, role, port
        self._environ, self._more = environ, more
        self._stack = AsyncExitStack()
        self._process: Command | None = None
        self._page = ""
        self.counts: Counter[str] = Counter()
        """of incarnations that are gone, as of their last page"""

    async def start(self) -> None:
        words = f"mocker --disaggregation-mode {self.role} --port {self.port} {_SETTINGS}"
        words += f" {_SPEED[self.role]}"
        running = command(self._folder, *words.split(), *self._more, environ=self._environ)
        self._process = process = await self._stack.enter_async_context(running)
        await process.says("ready")
        self._page = (await process.says("metrics: ")).partition("http://")[2].partition("/")[0]

    async def page(self) -> Counter[str]:
        """Its samples, of this incarnation."""
        lines = (await http_text(self._page, "/metrics")).splitlines()
        samples = (line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
        return Counter({name: int(float(at)) for name, at in samples if "_created" not in name})

    async def kill(self) -> None:
        """SIGKILL, after a look at its page."""
        assert self._process is not None
        self.counts += await self.page()
        await self._process.stop(signal.SIGKILL)

    def pause(self) -> None:
        assert self._process is not None
        self._process.send(signal.SIGSTOP)

    def resume(self) -> None:
        assert self._process is not None
        self._process.send(signal.SIGCONT)

    async def stop(self) -> None:
        """Well, by SIGTERM."""
        assert self._process is not None
        assert await self._process.stop() == 0, self._process.text
        await self._stack.aclose()


class QueueProcesses:
    """Engines, NATS, etcd and a router, from `running_queue` on."""

    def __init__(self, seed: int, folder: Path) -> None:
        self.rng = Random(seed)
        self.folder = folder
        self.nats, self.etcd = JetStreamServer(folder / "nats"), EtcdServer(folder / "etcd")
        self.blocks = folder / "blocks"
        self.blocks.mkdir(mode=0o700)
        self.engines: list[Engine] = []
        self.faults: Counter[str] = Counter()
        self._turns: dict[object, asyncio.Lock] = {}

    async def start(self) -> None:
        self.nats.launch()
        self.etcd.launch()
        more = ("--discovery", "etcd", "--nats", self.nats.url)
        more += ("--transfer-folder", str(self.blocks))
        environ = {"ETCD_ENDPOINTS": self.etcd.url}
        roles = ["prefill"] * PREFILLS + ["decode"] * DECODES
        ports = free_ports(len(roles))
        for number, (role, port) in enumerate(zip(roles, ports, strict=True)):
            folder = self.folder / f"{role}{number}"
            self.engines.append(Engine(folder, role, port, environ, *more))
        await until(self.nats.ready, BUSY_S)
        await until(self.etcd.ready, BUSY_S)
        await asyncio.gather(*(engine.start() for engine in self.engines))

    async def close(self) -> None:
        try:
            await asyncio.gather(*(engine.stop() for engine in self.engines))
        finally:
            for server in (self.nats, self.etcd):
                server.kill()

    def settings(self) -> ServeFrontendConfig:
        urls = {
            role: tuple(f"grpc://127.0.0.1:{e.port}" for e in self.engines if e.role == role)
            for role in ("prefill", "decode")
        }
        return ServeFrontendConfig(
            port=0,
            http_port=0,
            workers=urls["decode"],
            prefill_workers=urls["prefill"],
            router=KvRouterConfig(block_size=BLOCK, use_kv_events=False, seed=1),
            limits=RequestLimits(migration_limit=10),
            health=HealthPolicy(probe_interval_s=0.2, retry_first_s=0.05, retry_most_s=0.2),
            frontend=FrontendConfig(http_frontend=0),
            disagg=DisaggConfig(disagg="always"),
            handoff=HandoffLimits(
                disagg_handoff="queue", max_local_prefill_length=0, max_prefill_queue_size=16
            ),
        )

    async def befall(self) -> None:
        """One fault, lifted before it returns."""
        engine = self.rng.choice(self.engines)
        choices: list[tuple[str, object, Callable[[], Awaitable[None]]]] = [
            (f"{engine.role} killed", engine, lambda: self._restart(engine)),
            (f"{engine.role} killed", engine, lambda: self._restart(engine)),
            (f"{engine.role} stopped", engine, lambda: self._halt(engine)),
            (f"{engine.role} stopped", engine, lambda: self._halt(engine)),
            ("nats killed", self.nats, lambda: self._lose(self.nats)),
            ("nats stopped", self.nats, lambda: self._halt(self.nats)),
            ("etcd killed", self.etcd, lambda: self._lose(self.etcd)),
            ("etcd stopped", self.etcd, lambda: self._halt(self.etcd)),
        ]
        name, whose, happen = self.rng.choice(choices)
        async with self._turns.setdefault(whose, asyncio.Lock()):
            self.faults[name] += 1
            await happen()

    async def _moment(self) -> None:
        await asyncio.sleep(self.rng.uniform(0.05, 3 * ACK_WAIT_S))

    async def _restart(self, engine: Engine) -> None:
        await engine.kill()
        await self._moment()
        await engine.start()

    async def _halt(self, process: Engine | Child) -> None:
        process.pause()
        try:
            await self._moment()
        finally:
            process.resume()

    async def _lose(self, server: Child) -> None:
        server.kill()
        await self._moment()
        await server.come_back()

    async def counted(self, name: str) -> int:
        """The sum of a counter over all incarnations, killed ones as of their last page."""
        found = await self.counted_by(name)
        return sum(value for key, value in found.items() if key.partition("{")[0] == name)

    async def counted_by(self, prefix: str) -> dict[str, int]:
        """The same of all samples whose names begin so, those that are 0 left out."""
        found: Counter[str] = Counter()
        for engine in self.engines:
            found += engine.counts + await engine.page()
        return {name: value for name, value in found.items() if name.startswith(prefix)}

    async def held(self) -> dict[str, int]:
        """What engines that live hold of prompts and blocks, if anything."""
        found: Counter[str] = Counter()
        for engine in self.engines:
            page = await engine.page()
            assert all(name in page for name in HELD), page
            whose = f"{engine.role} at {engine.port}: "
            found.update({whose + name: page[name] for name in HELD if page[name]})
        return dict(found)


class Prompts(Streams):
    """Prompts of a few blocks, over both ports of the router; each ends once."""

    def __init__(self, seed: int) -> None:
        super().__init__(TOKENS, seed)

    def new_prompt(self) -> list[int]:
        length = self._rng.randrange(20, 24 * BLOCK)
        return [self._rng.randrange(3, VOCABULARY) for _ in range(length)]


@asynccontextmanager
async def running_queue(seed: int, folder: Path) -> AsyncIterator[tuple[QueueProcesses, "Clients"]]:
    fleet = QueueProcesses(seed, folder)
    off_loop = OffLoop()
    server: ServedRouter | None = None
    try:
        await fleet.start()
        server = ServedRouter(fleet.settings())
        await server.start()
        await until(lambda: len(server.monitor.ready_clients()) == DECODES)
        async with (
            aiohttp.ClientSession() as session,
            aio.insecure_channel(server.grpc_address) as channel,
        ):
            yield fleet, Clients(server, session, channel, ModelText(OWN_MODEL, off_loop), seed)
    finally:
        if server is not None:
            await server.close()
        off_loop.close()
        await fleet.close()


class Clients:
    """Of the router, over both of its ports."""

    def __init__(
        self,
        server: ServedRouter,
        session: aiohttp.ClientSession,
        channel: aio.Channel,
        text: ModelText,
        seed: int,
    ) -> None:
        self.server, self.streams = server, Prompts(seed)
        self._session, self._channel, self._text = session, channel, text
        self._asked = 0

    async def ask(self) -> None:
        """One request, to its end."""
        self._asked += 1
        if self._asked % 2:
            await self.streams.of_grpc(self._channel, f"grpc-{self._asked}")
        else:
            url = f"http://{self.server.openai_address}"
            await self.streams.of_text(self._session, url, self._text, f"text-{self._asked}")
