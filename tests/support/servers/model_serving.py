"""A frontend that finds its models in a store, in the test's own loop, and a client of it."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

import aiohttp
from support.polling import closed_after, until
from support.servers.discovered_fleet import Backend

from dynamo_router.engines.mocker.config import EngineConfig
from dynamo_router.frontend.config import ModelFrontendConfig
from dynamo_router.frontend.frontend import frontend_server
from dynamo_router.frontend.models import ModelManager
from dynamo_router.process.settings import SettingsSource
from dynamo_router.router.config import KvRouterConfig
from dynamo_router.server.config import ServeConfig
from dynamo_router.server.server_parts import ServerParts

TINY = EngineConfig(block_size=16, num_gpu_blocks=512, vocab_size=4096)


class ModelServer:
    """The server of `frontend`, with the parts of it that tests look at."""

    models: ModelManager

    def __init__(
        self, config: ModelFrontendConfig, source: SettingsSource[Any] | None = None
    ) -> None:
        self.parts = ServerParts(config, source)
        server = frontend_server(config, self.parts)
        pools: Any = server.pools
        self.models = pools
        listeners: Any = server.listeners
        self._listener, *self.others = listeners
        self.start, self.close, self.reload = server.start, server.close, server.reload
        self.turn_away = server.turn_away
        self._server = server

    @property
    def ready_line(self) -> str:
        return self._server.ready_line

    @property
    def config(self) -> ServeConfig:
        return self.parts.config

    @property
    def address(self) -> str:
        address: str = self._listener.address
        return address


class ModelClient(NamedTuple):
    """What clients see of it."""

    server: ModelServer
    session: aiohttp.ClientSession
    url: str

    async def get(self, path: str) -> tuple[int, Any]:
        async with self.session.get(self.url + path) as answer:
            return answer.status, await answer.json()

    async def complete(self, model: str, prompt: Any = "Hello", **more: Any) -> tuple[int, Any]:
        body = {"model": model, "prompt": prompt, "max_tokens": 4, **more}
        headers = {"x-dynamo-explain": "1"}
        url = f"{self.url}/v1/completions"
        async with self.session.post(url, json=body, headers=headers) as answer:
            return answer.status, await answer.json()

    async def worker_of(self, model: str, **more: Any) -> int:
        """Which worker answered a request for a model."""
        status, body = await self.complete(model, **more)
        assert status == 200, body
        worker: int = body["nvext"]["worker_id"]["decode_worker_id"]
        return worker

    def shares(self) -> dict[str, float]:
        """Workers that take requests, by model, of all its pools."""
        found: dict[str, float] = {}
        for pool in self.server.models.pools:
            found[pool.name.model] = found.get(pool.name.model, 0) + pool.share
        return found

    async def until_shares(self, **wanted: float) -> None:
        """Wait until each of these models has so many workers that take requests."""

        def there() -> bool:
            found = self.shares()
            return all(found.get(model, 0) == count for model, count in wanted.items())

        await until(there)


@asynccontextmanager
async def model_serving(backend: Backend, **config: Any) -> AsyncIterator[ModelClient]:
    """Serve the models of a store until the block ends; without events, unless asked for."""
    config.setdefault("router", KvRouterConfig(use_kv_events=False, seed=1))
    settings = ModelFrontendConfig(http_port=0, discovery=backend.config, **config)
    async with closed_after(ModelServer(settings)) as server:
        await server.start()
        async with aiohttp.ClientSession() as session:
            yield ModelClient(server, session, f"http://{server.address}")


async def many(client: ModelClient, model: str, count: int, **more: Any) -> set[int]:
    """The workers that answered so many requests for a model, at most 16 at once."""
    at_once = asyncio.Semaphore(16)

    async def one(number: int) -> int:
        async with at_once:
            return await client.worker_of(model, prompt=f"request {number}", **more)

    return set(await asyncio.gather(*(one(number) for number in range(count))))
