"""kubectl, an independent client, against the API server of tests: it keeps the real rules."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.security.certificates import Authority
from support.servers.child import find_program
from support.servers.kubernetes import KubernetesServer, service_account
from support.servers.kubernetes.pods import add_pod, set_ready

from dynamo_router.runtime.kv_stores.kubernetes import (
    KubernetesConfig,
    KubernetesStore,
    instance_id_of,
)

KEY = f"dynamo/backend/generate/{instance_id_of('worker-0'):x}"


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[KubernetesServer]:
    # kubectl shows no token to a server without TLS.
    async with KubernetesServer(
        {"kubectl", "first"}, authority=Authority(tmp_path / "tls")
    ) as running:
        yield running


class Kubectl:
    def __init__(self, server: KubernetesServer, folder: Path) -> None:
        config = server.kubeconfig(folder / "kubectl", "kubectl")
        self._command = [
            find_program("kubectl"), f"--kubeconfig={config}", f"--cache-dir={folder / 'cache'}",
        ]  # fmt: skip
        self.folder = folder

    async def launch(self, *words: str) -> asyncio.subprocess.Process:
        pipe = asyncio.subprocess.PIPE
        return await asyncio.create_subprocess_exec(
            *self._command, *words, stdout=pipe, stderr=pipe
        )

    async def __call__(self, *words: str, fails: bool = False) -> str:
        process = await self.launch(*words)
        async with asyncio.timeout(60):
            out, err = await process.communicate()
        assert (process.returncode != 0) is fails, err.decode()
        return (err if fails else out).decode()

    def manifest(self, data: dict[str, Any]) -> str:
        path = self.folder / "manifest.yaml"
        found = {
            "apiVersion": "nvidia.com/v1alpha1", "kind": "DynamoWorkerMetadata",
            "metadata": {"name": "worker-0", "namespace": "test"}, "spec": {"data": data},
        }  # fmt: skip
        path.write_text(yaml.safe_dump(found))
        return str(path)


@pytest.fixture
def kubectl(server: KubernetesServer, tmp_path: Path) -> Kubectl:
    return Kubectl(server, tmp_path)


@pytest.fixture
async def store(server: KubernetesServer, tmp_path: Path) -> AsyncIterator[KubernetesStore]:
    assert server.authority is not None
    opened = KubernetesStore(
        KubernetesConfig(
            server=server.url,
            token_file=service_account(tmp_path, "first"),
            ca=server.authority.ca,
            namespace="test",
            identity=add_pod(server, "worker-0"),
        )
    )
    yield opened
    await opened.close()


async def test_it_gets_lists_and_watches_what_we_apply(
    server: KubernetesServer, kubectl: Kubectl, store: KubernetesStore
) -> None:
    await store.bucket("v1/instances").put(KEY, b'{"type":"Endpoint"}')
    found = json.loads(await kubectl("get", "dwm", "worker-0", "-o", "json"))
    assert found["spec"]["data"]["endpoints"] == {KEY: {"type": "Endpoint"}}
    assert found["metadata"]["ownerReferences"][0]["name"] == "worker-0"
    shown = await kubectl("get", "dwm", "worker-0", "-o", "json", "--show-managed-fields")
    (entry,) = json.loads(shown)["metadata"]["managedFields"]
    assert (entry["manager"], entry["operation"]) == ("dynamo-worker", "Apply")
    assert "worker-0" in await kubectl("get", "pods,dwm", "--chunk-size=1")
    watch = await kubectl.launch("get", "dwm", "--watch", "--output-watch-events")
    assert watch.stdout is not None
    async with asyncio.timeout(60):
        assert (await watch.stdout.readline()).split()[0] == b"EVENT"
        assert (await watch.stdout.readline()).split()[0] == b"ADDED"
        await store.bucket("v1/instances").delete(KEY)
        assert (await watch.stdout.readline()).split()[0] == b"MODIFIED"
        await kubectl("delete", "pod", "worker-0", "--wait=false")
        assert (await watch.stdout.readline()).split()[0] == b"DELETED"
    watch.kill()
    await watch.wait()


async def test_it_owns_what_it_applies_until_we_force(
    server: KubernetesServer, kubectl: Kubectl, store: KubernetesStore
) -> None:
    apply = "apply", "--server-side", "--validate=false", "--field-manager=human", "-f"
    await kubectl(*apply, kubectl.manifest({"endpoints": {KEY: {"type": "Endpoint", "x": 1}}}))
    await store.bucket("v1/instances").put(KEY, b'{"type":"Endpoint","x":2}')
    refusal = await kubectl(
        *apply, kubectl.manifest({"endpoints": {KEY: {"type": "Endpoint", "x": 3}}}), fails=True
    )
    assert 'conflict with "dynamo-worker"' in refusal and ".x" in refusal
    # What both have applied stays when one of them leaves it out.
    await kubectl(*apply, kubectl.manifest({"model_cards": {}}))
    found = json.loads(await kubectl("get", "dwm", "worker-0", "-o", "json"))
    assert found["spec"]["data"]["endpoints"] == {KEY: {"type": "Endpoint", "x": 2}}
    await kubectl(*apply, kubectl.manifest({"endpoints": {KEY: {"x": 3}}}), "--force-conflicts")
    found = json.loads(await kubectl("get", "dwm", "worker-0", "-o", "json"))
    assert found["spec"]["data"]["endpoints"] == {KEY: {"type": "Endpoint", "x": 3}}


async def test_what_it_applies_is_seen_by_us(
    server: KubernetesServer, kubectl: Kubectl, store: KubernetesStore
) -> None:
    await set_ready(server, "worker-0")
    data = {"endpoints": {"dynamo/backend/generate": {"instance_id": instance_id_of("worker-0")}}}
    await kubectl("apply", "--server-side", "--validate=false", "-f", kubectl.manifest(data))
    (entry,) = (await store.bucket("v1/instances").entries()).entries
    assert entry.key == KEY  # a key as older versions of Dynamo have them


async def test_a_token_that_ended_is_refused(server: KubernetesServer, kubectl: Kubectl) -> None:
    server.tokens = {"another"}
    assert "must be logged in" in await kubectl("get", "pods", fails=True)


async def test_a_compacted_history_is_gone_for_it_too(
    server: KubernetesServer, kubectl: Kubectl
) -> None:
    add_pod(server, "a")
    version = server.objects.version
    add_pod(server, "b")
    server.objects.compact()
    path = f"/api/v1/namespaces/test/pods?watch=1&resourceVersion={version}"
    assert "too old resource version" in await kubectl("get", "--raw", path, fails=True)
    page = json.loads(await kubectl("get", "--raw", "/api/v1/namespaces/test/pods?limit=1"))
    add_pod(server, "c")
    server.objects.compact()
    path = f"/api/v1/namespaces/test/pods?limit=1&continue={page['metadata']['continue']}"
    assert "too old to display a consistent list" in await kubectl("get", "--raw", path, fails=True)
