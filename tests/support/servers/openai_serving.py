"""A Server with its frontend in the test's own loop, and clients of it."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

import aiohttp
from openai import AsyncOpenAI
from support.fake_engine import FakeEngine
from support.polling import until
from support.serving import ServedRouter

from dynamo_router.frontend.config import FrontendConfig, ServeFrontendConfig
from dynamo_router.router.config import KvRouterConfig
from dynamo_router.workers.trtllm_proto import pb

BLOCK = 16


class Served(NamedTuple):
    """What clients see of it."""

    server: ServedRouter
    client: AsyncOpenAI
    session: aiohttp.ClientSession
    url: str

    async def post(self, path: str, body: Any, **more: Any) -> tuple[int, Any]:
        """(status, body) of a request whose body is JSON, or bytes as they are."""
        data = {"data": body} if isinstance(body, bytes) else {"json": body}
        async with self.session.post(self.url + path, **data, **more) as answer:
            return answer.status, await answer.json()

    async def get(self, path: str) -> tuple[int, Any]:
        async with self.session.get(self.url + path) as answer:
            return answer.status, await answer.json()


@asynccontextmanager
async def openai_serving(
    *engines: FakeEngine,
    frontend: FrontendConfig | None = None,
    context: int = 200,
    attach: Callable[[ServedRouter], None] | None = None,
    **config: Any,
) -> AsyncIterator[Served]:
    """Serve the engines, which take `context` tokens, the `workers` at URLs, and what `attach` adds
    to the server that has started, to OpenAI clients until the block ends."""
    config.setdefault("router", KvRouterConfig(block_size=BLOCK, use_kv_events=False, seed=1))
    urls = config.pop("workers", ())
    for engine in engines:
        engine.model = pb.GetModelInfoResponse(
            model_id="tiny", vocab_size=4096, max_seq_len=context
        )
        await engine.start()
    settings = ServeFrontendConfig(
        port=0,
        http_port=0,
        workers=(*(engine.url for engine in engines), *urls),
        frontend=frontend or FrontendConfig(http_frontend=0),
        **config,
    )
    server = ServedRouter(settings)
    try:
        await server.start()
        if attach is not None:
            attach(server)
        await until(lambda: len(server.monitor.ready_clients()) >= max(1, len(settings.workers)))
        url = f"http://{server.openai_address}"
        client = AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)
        async with client, aiohttp.ClientSession() as session:
            yield Served(server, client, session, url)
    finally:
        await server.close()
        for engine in engines:
            await engine.stop()
