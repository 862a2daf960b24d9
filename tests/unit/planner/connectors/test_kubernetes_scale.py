"""KubernetesScale against the API server of tests, whose ReplicaSets delete as Kubernetes' do."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from support.servers.kubernetes import KubernetesServer
from support.servers.kubernetes.api_server import service_account
from support.servers.kubernetes.replicas import add_deployment, pods_of, reconcile

from dynamo_router.base.errors import ConfigError
from dynamo_router.planner.connectors import ConnectorError, KubernetesScale
from dynamo_router.runtime.kv_stores.kubernetes import (
    KubernetesApi,
    KubernetesConfig,
    instance_id_of,
)


@pytest.fixture
async def server() -> AsyncIterator[KubernetesServer]:
    async with KubernetesServer() as running:
        add_deployment(running, "prefill", 1)
        add_deployment(running, "decode", 3)
        for name in ("prefill", "decode"):
            reconcile(running, name)
        yield running


@pytest.fixture
async def scale(server: KubernetesServer, tmp_path: Path) -> AsyncIterator[KubernetesScale]:
    config = KubernetesConfig(
        server=server.url, token_file=service_account(tmp_path, "first"), namespace="test"
    )
    made = KubernetesScale(
        KubernetesApi(config), "test", {"prefill": "prefill", "decode": "decode"}
    )
    yield made
    await made.close()


def names(server: KubernetesServer, deployment: str) -> list[str]:
    return [pod["metadata"]["name"] for pod in pods_of(server, deployment)]


async def test_a_deployment_grows(server: KubernetesServer, scale: KubernetesScale) -> None:
    await scale.start()
    assert await scale.asked() == {"prefill": 1, "decode": 3}
    await scale.apply({"prefill": 2, "decode": 3}, {})
    assert await scale.asked() == {"prefill": 2, "decode": 3}
    patched = [path for method, path, _ in server.requests if method == "PATCH"]
    assert patched == ["/apis/apps/v1/namespaces/test/deployments/prefill/scale"]


@pytest.mark.parametrize("container", ["", "-sidecar"])
async def test_the_victim_s_pod_is_the_one_that_goes(
    server: KubernetesServer, scale: KubernetesScale, container: str
) -> None:
    oldest = names(server, "decode")[0]  # by itself the newest would go
    victim = instance_id_of(f"{oldest}{container}")
    await scale.apply({"decode": 2}, {"decode": (victim,)})
    assert reconcile(server, "decode") == [oldest]
    before = len(server.requests)
    await scale.apply({"decode": 2}, {"decode": (victim,)})  # it is gone: nothing is left to do
    assert {method for method, _, _ in server.requests[before:]} == {"GET"}


async def test_no_pod_that_serves_goes_without_a_name(
    server: KubernetesServer, scale: KubernetesScale
) -> None:
    await scale.apply({"decode": 1}, {})
    assert (await scale.asked())["decode"] == 3
    victim = instance_id_of(names(server, "decode")[1])
    await scale.apply({"decode": 1}, {"decode": (victim,)})
    assert (await scale.asked())["decode"] == 2


async def test_pods_that_never_got_ready_go(
    server: KubernetesServer, scale: KubernetesScale
) -> None:
    before = names(server, "decode")
    await scale.apply({"decode": 5}, {})
    reconcile(server, "decode", ready=False)
    await scale.apply({"decode": 3}, {})
    reconcile(server, "decode")
    assert names(server, "decode") == before


async def test_to_zero_and_back(server: KubernetesServer, scale: KubernetesScale) -> None:
    (only,) = names(server, "prefill")
    await scale.apply({"prefill": 0}, {"prefill": (instance_id_of(only),)})
    assert (await scale.asked())["prefill"] == 0
    await scale.apply({"prefill": 1}, {})
    assert (await scale.asked())["prefill"] == 1


async def test_a_victim_without_a_pod_is_no_reason_to_take_another(
    server: KubernetesServer, scale: KubernetesScale
) -> None:
    with pytest.raises(ConnectorError, match="no pod of role decode has the engine 77"):
        await scale.apply({"decode": 2}, {"decode": (77,)})
    assert (await scale.asked())["decode"] == 3


async def test_refusals_and_absence(
    server: KubernetesServer, scale: KubernetesScale, tmp_path: Path
) -> None:
    server.refusals.append((503, {}))
    with pytest.raises(ConnectorError, match="answers 503: not now"):
        await scale.asked()
    with pytest.raises(ConnectorError, match="no Deployment is named for role aggregated"):
        await scale.apply({"aggregated": 2}, {})
    config = KubernetesConfig(
        server=server.url, token_file=service_account(tmp_path, "first"), namespace="test"
    )
    missing = KubernetesScale(KubernetesApi(config), "test", {"decode": "other"})
    with pytest.raises(ConfigError, match="the Deployment of role decode: .* not found"):
        await missing.start()
    await missing.close()
    server.tokens.clear()
    with pytest.raises(ConfigError, match="answers 401"):
        await scale.start()
    await server.stop()
    with pytest.raises(ConnectorError, match="Kubernetes at"):
        await scale.asked()
    await scale.start()  # the server may come back
