"""Dynamo's own mock workers, called through our runtime. Needs them, and is not the only proof:
set DYNAMO_PEER to a Python that has ai-dynamo 1.6.1. The recorded frames of it are tested always.
"""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.polling import until
from support.servers.dynamo_peer import PEER, DynamoMockers

from dynamo_router.runtime import Client, DistributedRuntime
from dynamo_router.runtime.kv_stores import FileStore

pytestmark = pytest.mark.skipif(PEER is None, reason="DYNAMO_PEER names no Python with ai-dynamo")
WORKERS = 3


@pytest.fixture
def mockers(tmp_path: Path) -> Iterator[DynamoMockers]:
    environ = {"DYN_FILE_KV": str(tmp_path / "kv")}
    running = DynamoMockers(tmp_path, environ, "file", "zmq", WORKERS)
    running.start()
    yield running
    running.kill()


async def tokens(client: Client, prompt: int, count: int) -> int:
    body = {"token_ids": list(range(prompt, prompt + 40)), "stop_conditions": {"max_tokens": count}}
    parts = [part async for part in client.round_robin(body)]
    assert parts[-1]["finish_reason"] == "length"
    return sum(len(part["token_ids"]) for part in parts)


async def test_a_thousand_completions_of_dynamos_workers(
    tmp_path: Path, mockers: DynamoMockers
) -> None:
    async with DistributedRuntime(FileStore(tmp_path / "kv")) as runtime:
        client = await runtime.client("dynamo.backend.generate")
        await until(lambda: len(client.instances) == WORKERS)
        for start in range(0, 1000, 50):
            counts = await asyncio.gather(*(tokens(client, start + n, 8) for n in range(50)))
            assert counts == [8] * 50
        for instance in await runtime.instances():
            if instance.name.endpoint.startswith("worker_kv_query_source_"):
                recovery = await runtime.client(str(instance.name))
                question = {"worker_id": instance.instance_id, "dp_rank": 0, "kind": "recovery",
                            "start_event_id": 1, "end_event_id": None}  # fmt: skip
                (answer,) = [part async for part in recovery.random(question)]
                assert answer["Events"]["last_event_id"] > 0
        mockers.kill()
        await until(lambda: not client.instances, 30.0)
