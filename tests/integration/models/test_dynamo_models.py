"""Dynamo's own workers behind our frontend, found by the cards that they write, beside ours.

A worker of theirs does not stay where another model is served: ours are of another component.

Needs them, and is not the only proof: set DYNAMO_PEER to a Python that has ai-dynamo 1.6.1.
"""

from pathlib import Path

import pytest
from support.polling import until
from support.servers.discovered_fleet import backend_of, registered
from support.servers.dynamo_peer import PEER, DynamoMockers
from support.servers.jetstream import JetStreamServer
from support.servers.model_serving import TINY, many, model_serving

from dynamo_router.router.config import KvRouterConfig

pytestmark = pytest.mark.skipif(PEER is None, reason="DYNAMO_PEER names no Python with ai-dynamo")


async def test_a_model_of_theirs_beside_one_of_ours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with JetStreamServer(tmp_path / "nats") as nats:
        with backend_of("etcd", tmp_path / "etcd") as etcd:
            for name, value in etcd.environ.items():
                monkeypatch.setenv(name, value)
            environ = {**etcd.environ, "NATS_SERVER": nats.url}
            mockers = DynamoMockers(tmp_path / "peer", environ, "etcd", "nats", 2)
            mockers.launch()
            try:
                router = KvRouterConfig(seed=1)
                ours = {"model_id": "ours", "component": "ours", "engine": TINY}
                async with (
                    registered(etcd, 2, nats=nats.url, **ours) as fleet,
                    model_serving(etcd, router=router, nats=nats.url) as client,
                ):
                    await client.until_shares(ours=2)
                    await until(lambda: client.shares().get("tiny") == 2, 60.0)
                    assert await many(client, "ours", 40) == set(fleet.worker_ids)
                    theirs = await many(client, "tiny", 40)
                    assert len(theirs) == 2 and theirs.isdisjoint(fleet.worker_ids)
                    status, body = await client.complete("tiny", list(range(3, 83)))
                    assert status == 200 and body["usage"]["completion_tokens"] == 4
            finally:
                mockers.kill()
