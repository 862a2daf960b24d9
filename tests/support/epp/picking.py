"""Engines, a picker in the test's own loop and a gateway before them, until the block ends."""

import io
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import aiohttp
import pytest
from support.epp.engine import Engine
from support.epp.gateway import Gateway
from support.epp.messages import HEAD, Answered, body, request_headers
from support.polling import closed_after, until

from dynamo_router.frontend.config import EnvoyConfig
from dynamo_router.frontend.epp.picker import PATH
from dynamo_router.frontend.epp.serve import picker_server
from dynamo_router.frontend.picker_config import PickerConfig
from dynamo_router.router.config import KvRouterConfig
from dynamo_router.server.pool import WorkerPool
from dynamo_router.server.server import Server
from dynamo_router.server.server_parts import ServerParts

BLOCK = 16
LISTENS = EnvoyConfig(ext_proc_port=0, secure_serving=False)


async def picked(channel: Any, data: bytes, path: str) -> tuple[Any, Answered]:
    """An open call whose request has been answered, and that answer."""
    call = channel.stream_stream(PATH)()
    await call.write(request_headers(HEAD | {":path": path}))
    await call.write(body("request_body", data, ends=True))
    answered = Answered()
    while answered.immediate is None and not answered.ended["request"]:
        answered.take(await call.read())
    return call, answered


class Picking(NamedTuple):
    """What a test sees of them."""

    engines: Sequence[Engine]
    server: Server
    pool: WorkerPool
    gateway: Gateway
    session: aiohttp.ClientSession

    @property
    def url(self) -> str:
        return self.gateway.url

    async def post(self, body: bytes, path: str = "/v1/chat/completions", **headers: str) -> Any:
        """(status, headers, body) of an answer."""
        found = {"content-type": "application/json", **headers}
        data = io.BytesIO(body) if len(body) > 1 << 20 else body
        async with self.session.post(f"{self.url}{path}", data=data, headers=found) as answer:
            return answer.status, answer.headers, await answer.read()

    @property
    def booked(self) -> int:
        """Requests in flight, and on all workers."""
        router = self.pool.router
        found = sum(router.requests_of(each.worker_id) for each in router.registry.entries())
        return found + self.pool.dispatcher.in_flight

    async def metrics(self, accept: str = "text/plain") -> str:
        """The page of metrics."""
        http: Any = self.server.listeners[2]
        url, headers = f"http://{http.address}/metrics", {"accept": accept}
        async with self.session.get(url, headers=headers) as answer:
            return await answer.text()

    async def value(self, metric: str) -> float:
        """The sum of a metric's samples, or one of them by its labels."""
        lines = (line.rpartition(" ") for line in (await self.metrics()).splitlines())
        found = [float(v) for name, _, v in lines if metric in (name, name.partition("{")[0])]
        assert found, metric
        return sum(found)

    async def is_idle(self) -> None:
        """Wait until nothing is booked."""
        await until(lambda: self.booked == 0)

    def engine_at(self, address: str) -> Engine:
        return next(engine for engine in self.engines if engine.address == address)


def settings(engines: Sequence[Engine], **config: Any) -> PickerConfig:
    config.setdefault("router", KvRouterConfig(block_size=BLOCK, use_kv_events=False, seed=1))
    config.setdefault("secure_serving", False)
    config.setdefault("workers", tuple(engine.address for engine in engines))
    return PickerConfig(grpc_port=0, grpc_health_port=0, http_port=0, **config)


@asynccontextmanager
async def served_picker(config: PickerConfig, ready: int) -> AsyncIterator[Server]:
    """A picker, once so many of its endpoints are ready."""
    async with closed_after(picker_server(config, ServerParts(config))) as server:
        await server.start()
        pools: Any = server.pools
        await until(lambda: len(pools.workers.monitor.ready_clients()) >= ready)
        yield server


@asynccontextmanager
async def picking(
    folder: Path,
    count: int = 2,
    *,
    gateway: dict[str, Any] | None = None,
    in_cluster: int | None = None,
    ranks: int = 1,
    claims: Sequence[str] = (),
    ready: int | None = None,
    **config: Any,
) -> AsyncIterator[Picking]:
    """`in_cluster`: how many of the engines the gateway knows; None: all. Each has
    `ranks`; `claims` are what else their endpoints say. `ready`: how many of them take
    requests themselves; None: all."""
    pytest.importorskip("envoy")
    async with AsyncExitStack() as stack:
        engines = [await stack.enter_async_context(Engine()) for _ in range(count)]
        said = claims or [""] * count
        config["workers"] = tuple(
            f"{engine.address}?dp_size={ranks}{more}"
            for engine, more in zip(engines, said, strict=True)
        )
        found = settings(engines, **config)
        server = await stack.enter_async_context(
            served_picker(found, count if ready is None else ready)
        )
        listener: Any = server.listeners[0]
        addresses = [engine.address for engine in engines[:in_cluster]]
        envoy = Gateway(folder / "envoy", listener.address, addresses, **(gateway or {}))
        stack.callback(envoy.kill)
        await envoy.come_back()
        session = await stack.enter_async_context(aiohttp.ClientSession())
        pools: Any = server.pools
        yield Picking(engines, server, pools.workers, envoy, session)
