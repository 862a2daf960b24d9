"""Engines are killed under streams of both ports: each ends whole, no token twice, none lost."""

import asyncio
from pathlib import Path

import aiohttp
from grpc import aio
from support.polling import until
from support.servers.killed_engines import KilledEngines, Streams
from support.serving import ServedRouter

from dynamo_router.engines.mocker import OWN_MODEL
from dynamo_router.frontend.config import FrontendConfig, ServeFrontendConfig
from dynamo_router.frontend.processor import ModelText
from dynamo_router.process.off_loop import OffLoop
from dynamo_router.router.config import KvRouterConfig
from dynamo_router.server.dispatch import Request
from dynamo_router.server.request_limits import RequestLimits
from dynamo_router.workers.health_tracker import HealthPolicy

STREAMS, TOKENS, KILLS = 24, 150, 3


def has_begun(request: Request) -> bool:
    """Whether the worker that a request is at has sent a message."""
    return request.attempt is not None and request.attempt.messages > 0


async def test_streams_outlive_their_engines(tmp_path: Path) -> None:
    words = "--block-size 16 --num-gpu-blocks 2048"
    # Until it is killed an engine needs minutes for an answer, so each stream has to move.
    slow = ("--decode-speedup-ratio", "0.005")
    async with KilledEngines(tmp_path, 3, *words.split(), until_killed=slow) as engines:
        settings = ServeFrontendConfig(
            port=0,
            http_port=0,
            workers=engines.urls,
            router=KvRouterConfig(block_size=16, use_kv_events=False, seed=1),
            limits=RequestLimits(migration_limit=10),
            health=HealthPolicy(probe_interval_s=0.2, retry_first_s=0.05, retry_most_s=0.2),
            frontend=FrontendConfig(http_frontend=0),
        )
        server = ServedRouter(settings)
        off_loop = OffLoop()
        try:
            await server.start()
            await until(lambda: len(server.monitor.ready_clients()) == 3)
            text, streams = ModelText(OWN_MODEL, off_loop), Streams(TOKENS)
            async with (
                aiohttp.ClientSession() as session,
                aio.insecure_channel(server.grpc_address) as channel,
                asyncio.TaskGroup() as group,
            ):
                for nth in range(STREAMS):
                    url = f"http://{server.openai_address}"
                    group.create_task(streams.of_text(session, url, text, f"text {nth}"))
                    group.create_task(streams.of_grpc(channel, f"grpc-{nth}"))
                await streams.all_begun(2 * STREAMS)
                for nth in range(KILLS):
                    await engines.kill(nth)
                    await until(lambda: len(server.monitor.ready_clients()) == 3)
                    # One that loses two workers before either said a word is taken to kill them.
                    await until(lambda: all(map(has_begun, server.dispatcher.requests)), 60)
            assert streams.wrong == []
            assert streams.whole == 2 * STREAMS
            moved = server.dispatcher.migrations.moved
            assert moved.total() >= 2 * STREAMS, "each stream was under way when its engine ended"
            await until(lambda: not server.dispatcher.in_flight)
        finally:
            await server.close()
            off_loop.close()
