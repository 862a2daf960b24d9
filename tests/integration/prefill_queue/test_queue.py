"""The prefill queue over a real NATS: what is computed where, and what becomes of what cannot be."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from support.engines.queue_rig import BLOCK, DecodeEnd, PrefillEnd, hashes_of
from support.polling import until
from support.servers.jetstream import JetStreamServer

from dynamo_router.engines.prefill_queue import PrefillQueueConfig, RemotePrefillRequest


@pytest.fixture(scope="module")
def nats(tmp_path_factory: pytest.TempPathFactory) -> Iterator[JetStreamServer]:
    server = JetStreamServer(tmp_path_factory.mktemp("nats"))
    server.start()
    yield server
    server.kill()


FAST: dict[str, Any] = {"prefill_queue_ack_wait_s": 0.6, "prefill_queue_timeout_s": 10.0}


class Fleet:
    """Ends of one queue, closed with it."""

    def __init__(self, url: str, folder: Path, stack: AsyncExitStack, namespace: str) -> None:
        self._url, self._folder, self._stack = url, folder, stack
        self.namespace = namespace
        self.config = PrefillQueueConfig(**FAST)

    async def decode(self, **more: Any) -> DecodeEnd:
        end = DecodeEnd(self._url, self._folder, self.config, self.namespace, **more)
        self._stack.push_async_callback(end.close)
        return await end.ready()

    async def prefill(self, **more: Any) -> PrefillEnd:
        end = PrefillEnd(self._url, self._folder, self.config, self.namespace, **more)
        self._stack.push_async_callback(end.close)
        return await end.ready()


@pytest.fixture
async def fleet(
    nats: JetStreamServer, tmp_path: Path, request: pytest.FixtureRequest
) -> AsyncIterator[Fleet]:
    async with AsyncExitStack() as stack:
        yield Fleet(nats.url, tmp_path, stack, request.node.name)


def prompt(tokens: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed).integers(0, 1000, tokens, dtype=np.uint32)


async def test_a_prompt_is_computed_by_a_prefill_worker_and_lands(fleet: Fleet) -> None:
    decode, prefill = await fleet.decode(), await fleet.prefill()
    assert await decode.request(prompt(5 * BLOCK + 3)) == "remote"
    assert (prefill.computed, decode.corrupt, decode.checked) == (1, 0, 6)
    await until(lambda: prefill.consumer.active == 0)
    assert await decode.prefills.queued() == 0


async def test_blocks_that_the_decode_worker_has_are_not_written(fleet: Fleet) -> None:
    decode, prefill = await fleet.decode(), await fleet.prefill()
    assert await decode.request(prompt(6 * BLOCK), cached=4) == "remote"
    assert (prefill.computed, decode.corrupt) == (1, 0)


async def test_without_a_prefill_worker_the_deadline_ends_the_wait(fleet: Fleet) -> None:
    fleet.config = PrefillQueueConfig(prefill_queue_timeout_s=0.3)
    decode = await fleet.decode()
    assert await decode.request(prompt(4 * BLOCK)) == "deadline"
    await until(lambda: decode.prefills.queued())
