"""The server of `serve` in the test's own loop, with scripted engines, and clients of it."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import aiohttp
from grpc import aio
from support.calls import messages_of
from support.fake_engine import FakeEngine
from support.kv_events.messages import prompt_message
from support.polling import until

from dynamo_router.base.identity import WorkerWithDpRank
from dynamo_router.frontend.config import ServeFrontendConfig
from dynamo_router.frontend.serve import new_router
from dynamo_router.indexer.wire.events import StorageTier
from dynamo_router.process.settings import SettingsSource
from dynamo_router.router.config import KvRouterConfig
from dynamo_router.router.proto import RouterServiceStub
from dynamo_router.server.access import Security
from dynamo_router.server.config import ServeConfig
from dynamo_router.server.pool import ConfiguredPool
from dynamo_router.server.router_server import router_server
from dynamo_router.server.server_parts import ServerParts
from dynamo_router.workers.trtllm_proto import SERVICE, pb

BLOCK = 16
PROMPT = list(range(1, 1 + 4 * BLOCK))


def stored(
    worker: WorkerWithDpRank, tokens: list[int], event_id: int = 1, tier: StorageTier = "device"
) -> bytes:
    """The message by which a worker says that it cached a prompt."""
    return prompt_message(worker, tokens, BLOCK, event_id, tier=tier)


class ServedRouter:
    """From `start` to `close`."""

    def __init__(self, config: ServeConfig, source: SettingsSource[Any] | None = None) -> None:
        self.parts = ServerParts(config, source)
        if isinstance(config, ServeFrontendConfig):
            self._server = new_router(config, self.parts)
        else:
            self._server = router_server(self.parts, ConfiguredPool(self.parts))
        listeners: Any = self._server.listeners
        self.grpc, self.http, *self._openai = listeners
        configured: Any = self._server.pools
        pool = self.pool = configured.workers
        self.router, self.monitor, self.dispatcher = pool.router, pool.monitor, pool.dispatcher
        self.metrics, self.admin, self.dashboard = pool.metrics, pool.admin, pool.dashboard
        self.start, self.drain, self.close = (
            self._server.start,
            self._server.drain,
            self._server.close,
        )
        self.reload = self._server.reload

    @property
    def config(self) -> ServeConfig:
        return self._server.config

    @property
    def security(self) -> Security:
        return self.parts.security

    @property
    def ready_line(self) -> str:
        return self._server.ready_line

    @property
    def grpc_address(self) -> str:
        address: str = self.grpc.address
        return address

    @property
    def http_address(self) -> str:
        address: str = self.http.address
        return address

    @property
    def envoy_address(self) -> str:
        _, listener, *_ = self._openai
        address: str = listener.address
        return address

    @property
    def openai_address(self) -> str:
        listener, *_ = self._openai
        address: str = listener.address
        return address


class Ports:
    """A server's ports, seen from outside."""

    def __init__(self, server: ServedRouter, channel: Any, session: aiohttp.ClientSession) -> None:
        self.server = server
        self.channel = channel
        self.select = RouterServiceStub(channel)
        self._session = session

    async def answers(self, request: Any, metadata: Any = None) -> list[Any]:
        call = self.channel.unary_stream(f"/{SERVICE}/Generate", None, None)
        body = request.SerializeToString()
        return [
            pb.GenerateResponse.FromString(m)
            for m in await messages_of(call(body, metadata=metadata))
        ]

    async def trtllm(self, method: str, request: Any, response: Any) -> Any:
        call = self.channel.unary_unary(f"/{SERVICE}/{method}", None, None)
        return response.FromString(await call(request.SerializeToString()))

    async def http(self, method: str, path: str, **more: Any) -> tuple[int, Any]:
        """(status, body) of a request: JSON decoded, anything else as text."""
        url = f"http://{self.server.http_address}{path}"
        async with self._session.request(method, url, **more) as answer:
            is_json = answer.content_type == "application/json"
            return answer.status, await (answer.json() if is_json else answer.text())

    async def metrics(self) -> dict[str, float]:
        """Every sample of /metrics by its name and labels."""
        _, text = await self.http("GET", "/metrics")
        lines = [line for line in text.splitlines() if line and line[0] != "#"]
        return {name: float(value) for name, _, value in (x.rpartition(" ") for x in lines)}

    async def shows(self, sample: str, value: float) -> None:
        """Wait until /metrics has this: what a client was told may be counted a moment later."""

        async def shown() -> bool:
            return (await self.metrics()).get(sample) == value

        await until(shown)


@asynccontextmanager
async def serving(*engines: FakeEngine, **config: Any) -> AsyncIterator[Ports]:
    """Serve the engines, without events unless asked for, until the block ends."""
    config.setdefault("router", KvRouterConfig(block_size=BLOCK, use_kv_events=False, seed=1))
    async with AsyncExitStack() as stack:
        for engine in engines:
            await stack.enter_async_context(engine)
        urls = (*(engine.url for engine in engines), *config.pop("workers", ()))
        server = ServedRouter(ServeConfig(port=0, http_port=0, workers=urls, **config))
        stack.push_async_callback(server.close)
        await server.start()
        await until(lambda: len(server.monitor.ready_clients()) >= len(urls))
        channel = await stack.enter_async_context(aio.insecure_channel(server.grpc_address))
        session = await stack.enter_async_context(aiohttp.ClientSession())
        yield Ports(server, channel, session)
