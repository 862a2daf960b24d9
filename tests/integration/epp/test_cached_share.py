"""What engines find cached of the same load, by way of Envoy's listener and of OpenAI's."""

import asyncio
import json
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from support.epp.caching_engine import CachingEngine
from support.epp.engine import MODEL
from support.epp.gateway import Gateway
from support.epp.picking import BLOCK
from support.polling import until

from dynamo_router.frontend.config import EnvoyConfig, FrontendConfig, ServeFrontendConfig
from dynamo_router.frontend.serve import new_router
from dynamo_router.router.config import KvRouterConfig
from dynamo_router.server.server_parts import ServerParts

SESSIONS, TURNS, ENGINES = 18, 6, 3


class AnsweringEngine(CachingEngine):
    """Its answers are such as a frontend reads."""

    def whole(self, body: bytes) -> bytes:
        if not body:  # what is asked of its kind and version
            return super().whole(body)
        tokens = json.loads(body)["prompt"]
        choice = {"index": 0, "text": "a", "token_ids": [7], "finish_reason": "length"}
        usage = {"prompt_tokens": len(tokens), "completion_tokens": 1, "total_tokens": 1}
        answer = {"model": self.model, "choices": [choice], "usage": usage}
        return json.dumps(answer).encode()


def prompt(session: int, turn: int) -> list[int]:
    """A turn begins with all of the one before."""
    own = (session + 1) * 1000
    return [session + 1] * BLOCK * 8 + [own + n for n in range(turn * 4 * BLOCK)]


async def cached_share(folder: Path, *, by_envoy: bool) -> float:
    """Of all blocks of the prompts."""
    async with AsyncExitStack() as stack:
        engines = [await stack.enter_async_context(AnsweringEngine(BLOCK)) for _ in range(ENGINES)]
        config = ServeFrontendConfig(
            port=0,
            http_port=0,
            frontend=FrontendConfig(http_frontend=0),
            envoy=EnvoyConfig(ext_proc_port=0, secure_serving=False),
            workers=tuple(f"openai+http://{engine.endpoint}" for engine in engines),
            router=KvRouterConfig(block_size=BLOCK, seed=1),
        )
        server: Any = new_router(config, ServerParts(config))
        stack.push_async_callback(server.close)
        await server.start()
        pool, (_, _, openai, picker) = server.pools.workers, server.listeners
        await until(lambda: len(pool.monitor.ready_clients()) == ENGINES)
        sources = pool.router.registry.entries
        await until(lambda: {entry.event_source for entry in sources()} == {"zmq"})
        url = f"http://{openai.address}"
        if by_envoy:
            addresses = [engine.address for engine in engines]
            gateway = Gateway(folder / "envoy", picker.address, addresses)
            stack.callback(gateway.kill)
            await gateway.come_back()
            url = gateway.url
        session = await stack.enter_async_context(aiohttp.ClientSession())

        def knows_all(session: int, turn: int) -> bool:
            """Whether the index has the prompt at the engine that computed it."""
            tokens = prompt(session, turn)
            return max(pool.router.overlaps(tokens).values(), default=0) == len(tokens) // BLOCK

        for turn in range(TURNS):
            for number in range(SESSIONS):
                body = {"model": MODEL, "prompt": prompt(number, turn), "max_tokens": 1}
                async with session.post(f"{url}/v1/completions", json=body) as answer:
                    assert answer.status == 200, await answer.text()
                    await answer.read()
                await until(lambda n=number, t=turn: knows_all(n, t))
            await until(lambda: pool.dispatcher.in_flight == 0)
        assert sum(len(engine.prompts) for engine in engines) == SESSIONS * TURNS
        return sum(each.cached_blocks for each in engines) / sum(each.blocks for each in engines)


async def test_it_is_the_same_at_both_listeners(tmp_path: Path) -> None:
    pytest.importorskip("envoy")
    by_envoy, by_openai = await asyncio.gather(
        cached_share(tmp_path, by_envoy=True), cached_share(tmp_path, by_envoy=False)
    )
    assert by_openai > 0.7, "turns find their engines"
    assert abs(by_envoy - by_openai) <= 0.01, (by_envoy, by_openai)
