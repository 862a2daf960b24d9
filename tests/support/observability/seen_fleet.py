"""A served fleet with something of everything that metrics tell: caches in every tier, failures,
an ejected worker, TLS, the event plane with a stream and snapshots."""

import ssl
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import aiohttp
import grpc
from support.fake_engine import FakeEngine, fail, prompt
from support.kv_events.messages import prompt_message
from support.polling import until
from support.security.certificates import Authority
from support.servers.jetstream import JetStreamServer
from support.serving import ServedRouter

from dynamo_router.base.errors import WorkerError
from dynamo_router.base.identity import WorkerWithDpRank
from dynamo_router.frontend.config import FrontendConfig
from dynamo_router.frontend.token_cache import piece_cache
from dynamo_router.indexer.wire.events import StorageTier
from dynamo_router.router.affinity import AffinityConfig
from dynamo_router.router.config import KvRouterConfig
from dynamo_router.server.config import ServeConfig
from dynamo_router.server.observability import ObservabilityConfig
from dynamo_router.transport.security import ServerTlsConfig
from dynamo_router.workers.failures import EngineCallError
from dynamo_router.workers.outliers import OutlierPolicy

BLOCK = 16
OPENMETRICS = {"Accept": "application/openmetrics-text;version=1.0.0"}


@asynccontextmanager
async def seen_fleet(folder: Path, *, used: bool = True) -> AsyncIterator[str]:
    """Its /metrics, as OpenMetrics; not `used`: before it has served anything."""
    authority = Authority(folder)
    cert, key = authority.issue("router")
    engines = [
        FakeEngine(worker_id=1),
        FakeEngine(fail(grpc.StatusCode.INTERNAL, "broken"), worker_id=2),
        FakeEngine(worker_id=3),
    ]
    async with AsyncExitStack() as stack:
        for engine in engines:
            await stack.enter_async_context(engine)
        nats = stack.enter_context(JetStreamServer(folder / "nats"))
        server = ServedRouter(
            ServeConfig(
                port=0,
                http_port=0,
                workers=tuple(engine.url for engine in engines),
                router=KvRouterConfig(
                    block_size=BLOCK,
                    seed=1,
                    affinity=AffinityConfig(session_affinity_ttl_secs=60.0),
                ),
                outliers=OutlierPolicy(failures_in_a_row=1, ejection_s=60),
                observability=ObservabilityConfig(record=str(folder / "record.jsonl.gz")),
                nats=nats.url,
                durable_kv_events=True,
                tls=ServerTlsConfig(cert=cert, key=key),
            )
        )
        stack.push_async_callback(server.close)
        piece_cache(FrontendConfig(), server.parts)
        await server.start()
        await until(lambda: len(server.monitor.ready_clients()) == len(engines))
        if used:
            await _use(server)
        context = ssl.create_default_context(cafile=authority.ca)
        url = f"https://{server.http_address}/metrics"
        session = await stack.enter_async_context(aiohttp.ClientSession())
        async with session.get(url, headers=OPENMETRICS, ssl=context) as answer:
            assert answer.status == 200
            page = await answer.text()
        yield page


async def _use(server: ServedRouter) -> None:
    for n, tier in enumerate(("device", "host_pinned", "disk", "external")):
        server.router.apply_event(_stored(n, tier))
    await _send_requests(server)
    server.dispatcher.hits.hit("retry_budget")
    server.dispatcher.migrations.moved["connection_lost"] += 1


async def _send_requests(server: ServedRouter) -> None:
    """Until one has failed on the bad engine."""

    async def respond(message: bytes) -> None: ...

    number = 0
    while not server.monitor.reports.outliers.ejections:
        number += 1
        assert number < 1000
        try:
            body = prompt(f"r{number}", 8 + number % 50).SerializeToString()
            await server.dispatcher.generate(body, respond)
        except (EngineCallError, WorkerError):
            pass


def _stored(event_id: int, tier: StorageTier) -> bytes:
    tokens = range(1, 1 + (event_id + 1) * BLOCK)
    return prompt_message(WorkerWithDpRank(1), tokens, BLOCK, event_id + 1, tier=tier)
