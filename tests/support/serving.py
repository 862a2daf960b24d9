"""A whole Server in the test's own loop, with scripted engines and clients for its ports."""

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
from dynamo_router.indexer.wire.events import StorageTier
from dynamo_router.router.config import KvRouterConfig
from dynamo_router.router.proto import router_pb2_grpc
from dynamo_router.server.config import ServeConfig
from dynamo_router.server.server import Server
from dynamo_router.workers.trtllm_proto import SERVICE, pb

BLOCK = 16
PROMPT = list(range(1, 1 + 4 * BLOCK))


def stored(
    worker: WorkerWithDpRank, tokens: list[int], event_id: int = 1, tier: StorageTier = "device"
) -> bytes:
    """The message by which a worker says that it cached a prompt."""
    return prompt_message(worker, tokens, BLOCK, event_id, tier=tier)


class Ports:
    """A server's ports, seen from outside."""

    def __init__(self, server: Server, channel: Any, session: aiohttp.ClientSession) -> None:
        self.server = server
        self.channel = channel
        self.select = router_pb2_grpc.RouterServiceStub(channel)
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
        server = Server(ServeConfig(port=0, http_port=0, workers=urls, **config))
        stack.push_async_callback(server.close)
        await server.start()
        await until(lambda: len(server.monitor.ready_clients()) >= len(urls))
        channel = await stack.enter_async_context(aio.insecure_channel(server.grpc_address))
        session = await stack.enter_async_context(aiohttp.ClientSession())
        yield Ports(server, channel, session)
