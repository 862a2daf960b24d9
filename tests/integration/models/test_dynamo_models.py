"""Dynamo's own workers behind our frontend, found by the cards that they write, beside ours.

A worker of theirs does not stay where another model is served: ours are of another component.

Needs them, and is not the only proof: set DYNAMO_PEER to a Python that has ai-dynamo 1.6.1.
"""

from contextlib import ExitStack
from pathlib import Path

import pytest
from support.polling import until
from support.servers.discovered_fleet import backend_of, registered
from support.servers.dynamo_peer import PEER, DynamoMockers
from support.servers.jetstream import JetStreamServer
from support.servers.model_serving import TINY, many, model_serving

from dynamo_router.router.config import KvRouterConfig

pytestmark = pytest.mark.skipif(PEER is None, reason="DYNAMO_PEER names no Python with ai-dynamo")


async def test_their_prefill_and_decode_workers_behind_our_frontend(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("blake3")
    monkeypatch.setenv("DYN_FILE_KV", str(tmp_path / "store"))
    environ = {"DYN_FILE_KV": str(tmp_path / "store")}
    with backend_of("file", tmp_path) as files, ExitStack() as stack:
        files.environ.update(environ)
        for kind in ("prefill", "decode"):
            mode = ("--disaggregation-mode", kind)
            mockers = DynamoMockers(tmp_path / kind, environ, "file", "zmq", 2, *mode)
            stack.callback(mockers.kill)
            mockers.launch()
        router = KvRouterConfig(use_kv_events=False, seed=1)
        async with model_serving(files, router=router) as client:

            def answering() -> float:
                return sum(pool.share for pool in client.server.models.pools if pool.answers)

            await until(lambda: answering() == 2, 60.0)
            ways = set()
            for number in range(20):
                prompt = list(range(3 + number, 83 + number))
                status, body = await client.complete("tiny", prompt)
                assert status == 200 and body["usage"]["completion_tokens"] == 4, body
                told = body["nvext"]["worker_id"]
                ways.add((told["prefill_worker_id"], told["decode_worker_id"]))
            prefill, decode = ({way[at] for way in ways} for at in (0, 1))
            assert len(prefill) == len(decode) == 2 and prefill.isdisjoint(decode)


async def test_a_model_of_theirs_beside_one_of_ours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("blake3")
    nats = JetStreamServer(tmp_path / "nats")
    nats.start()
    try:
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
    finally:
        nats.kill()
