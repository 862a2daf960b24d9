"""What stands behind an endpoint: TLS before it, ranks, workers of a store."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from support.epp.engine import MODEL
from support.epp.picking import BLOCK, picking
from support.kv_events.engine_events import stored
from support.polling import until
from support.security.certificates import Authority

from dynamo_router.base.errors import ConfigError
from dynamo_router.frontend.epp.endpoints import Endpoints
from dynamo_router.frontend.epp.serve import picker_server
from dynamo_router.frontend.picker_config import PickerConfig
from dynamo_router.router.config import KvRouterConfig
from dynamo_router.router.kv_router import KvRouter
from dynamo_router.server.server_parts import ServerParts
from dynamo_router.transport.security import ServerTlsConfig
from dynamo_router.workers.records import DiscoveryConfig


def completion(prompt: Any) -> bytes:
    return json.dumps({"model": MODEL, "prompt": prompt}).encode()


@pytest.mark.parametrize("given", [False, True])
async def test_envoy_asks_over_tls(tmp_path: Path, given: bool) -> None:
    """With the files that are given, and with a certificate that is made at the start."""
    tls = ServerTlsConfig()
    if given:
        cert, key = Authority(tmp_path / "authority").issue("picker")
        tls = ServerTlsConfig(cert=cert, key=key)
    async with picking(tmp_path, 1, gateway={"tls": True}, secure_serving=True, tls=tls) as served:
        body = completion([1, 2, 3])
        status, _, answer = await served.post(body, "/v1/completions")
        assert (status, answer) == (200, served.engines[0].whole(body))


def test_tls_without_files_needs_a_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cryptography", None)
    config = PickerConfig(workers=("10.0.0.1:80",))
    with pytest.raises(ConfigError, match="secure_serving: needs --tls-cert and --tls-key, or"):
        picker_server(config, ServerParts(config))


async def test_ranks_of_an_endpoint_are_told_by_a_header(tmp_path: Path) -> None:
    async with picking(tmp_path, 1, ranks=2) as served:
        (engine,) = served.engines
        for number in range(4):
            status, _, _ = await served.post(completion([number] * 400), "/v1/completions")
            assert status == 200
        ranks = {got.headers["x-data-parallel-rank"] for got in engine.prompts}
        assert ranks == {"0", "1"}


def test_endpoints_of_workers() -> None:
    with KvRouter(KvRouterConfig(use_kv_events=False)) as router:
        endpoints = Endpoints(router, 9100)
        registry = router.registry
        registry.add(1, address="10.0.0.1:8000", dialect="openai")
        registry.add(2, address="10.0.0.2:5000", dialect="dynamo", dp_size=2)
        registry.add(3, address="[fd00::3]:8000", dialect="openai", dp_size=2)
        registry.add(4)
        found = [endpoints.of_worker(worker) for worker in (1, 2, 3, 4, 5)]
        assert found == ["10.0.0.1:8000", "10.0.0.2:9100", "[fd00::3]:8000", "", ""]
        assert endpoints.headers_for(1, 0) == {}
        assert endpoints.headers_for(2, 1) == {
            "x-dynamo-worker-instance-id": "2",
            "x-dynamo-dp-rank": "1",
            "x-dynamo-routing-mode": "aggregated",
        }
        assert endpoints.headers_for(3, 1) == {"x-data-parallel-rank": "1"}
        assert endpoints.headers_for(5, 0) == {}
        asked = {"10.0.0.1": [1], "10.0.0.2:9100": [2], "fd00::3": [3], "10.0.0.2:5000": []}
        for text, workers in asked.items():
            assert [*endpoints.workers_at((text,))] == workers


def test_workers_of_a_store_need_the_port_of_their_frontend() -> None:
    found = DiscoveryConfig(discovery="file")
    with pytest.raises(ConfigError, match="discovery: needs endpoint_port"):
        PickerConfig(discovery=found)
    assert PickerConfig(discovery=found, endpoint_port=8000).backend == "file"


async def test_a_prompt_goes_where_its_blocks_are_by_the_engines_events(tmp_path: Path) -> None:
    """Those of vLLM, over ZMQ; one of the two engines publishes, the other's cache is predicted."""
    from support.kv_events.zmq_publisher import ZmqPublisher

    tokens = list(range(100, 100 + 8 * BLOCK))
    async with ZmqPublisher() as publisher:
        router = KvRouterConfig(block_size=BLOCK, seed=1)
        claims = ("", f"&events={publisher.url}&replay={publisher.replay_url}")
        async with picking(tmp_path, 2, claims=claims, router=router) as served:
            _, holder = served.engines

            def sources() -> set[str]:
                return {entry.event_source for entry in served.pool.router.registry.entries()}

            await until(lambda: sources() == {"predicted", "zmq"})
            await publisher.publish(stored([*range(1, 9)], tokens, BLOCK))
            await until(lambda: served.pool.router.overlaps(tokens))
            for number in range(4):
                body = completion([*tokens, number])
                assert (await served.post(body, "/v1/completions"))[0] == 200
            assert len(holder.prompts) == 4
