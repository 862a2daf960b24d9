"""Endpoints follow an InferencePool and its pods, whatever becomes of the watch."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from support.epp.pool import PODS, POOLS, delete, endpoints_of, objective_of, pod_of, pool_of, put
from support.polling import until
from support.servers.kubernetes import KubernetesServer, service_account
from support.servers.kubernetes.api_objects import ApiObjects, Object

from dynamo_router.frontend.epp import pod_watch
from dynamo_router.frontend.epp.pod_watch import PodWatch
from dynamo_router.frontend.pods_config import PodsConfig
from dynamo_router.runtime.kv_stores import StoreError
from dynamo_router.runtime.kv_stores.kubernetes import KubernetesConfig

LONGEST = "q" * 63
OLD, NEW = "inference.networking.x-k8s.io", "llm-d.ai"


@pytest.fixture
async def server() -> AsyncIterator[KubernetesServer]:
    async with KubernetesServer() as running:
        yield running


@asynccontextmanager
async def watching(
    server: KubernetesServer, folder: Path, config: PodsConfig | None = None, **more: Any
) -> AsyncIterator[PodWatch]:
    token = service_account(folder, "first")
    found = KubernetesConfig(server=server.url, token_file=token, namespace="test", **more)
    watch = PodWatch(config or PodsConfig(pool="qwen"), found)
    try:
        await asyncio.gather(watch.decode.start(), watch.prefill.start())
        yield watch
    finally:
        await watch.decode.close()
        await watch.prefill.close()
    assert not server.watches or await until(lambda: not server.watches) is None


async def has(watch: PodWatch, *endpoints: str) -> None:
    """Wait until these are the endpoints."""
    wanted = sorted(endpoints)
    await until(lambda: list(endpoints_of(watch.decode.workers)) == wanted)


async def test_endpoints_follow_the_pool_and_its_pods(
    server: KubernetesServer, tmp_path: Path
) -> None:
    other = pod_of("other", "10.0.0.9", labels={"app": "another"})
    await put(server, pool_of(), pod_of("a", "10.0.0.1"), other)
    async with watching(server, tmp_path) as watch:
        assert endpoints_of(watch.decode.workers) == ["10.0.0.1:8000"]
        watch.decode.changed.clear()
        await put(server, pod_of("b", "10.0.0.2"))
        await has(watch, "10.0.0.1:8000", "10.0.0.2:8000")
        assert watch.decode.changed.is_set()
        await put(server, pod_of("a", "10.0.0.1", ready=False))
        await has(watch, "10.0.0.2:8000")
        await put(server, pod_of("a", "10.0.0.3"))
        await has(watch, "10.0.0.2:8000", "10.0.0.3:8000")
        await put(server, pod_of("b", "10.0.0.2", terminating=True))
        await has(watch, "10.0.0.3:8000")
        await put(server, pool_of("qwen", 8000, 8001))
        await has(watch, "10.0.0.3:8000", "10.0.0.3:8001")
        await put(server, pool_of(labels={"app": "another"}))
        await has(watch, "10.0.0.9:8000")
        await put(server, pod_of("a", "10.0.0.4"))  # not of this selector any more
        await put(server, pod_of("other", "10.0.0.8", labels={"app": "another"}))
        await has(watch, "10.0.0.8:8000")
        await delete(server, PODS, "other")
        await has(watch)


async def test_a_pool_that_comes_goes_and_comes_again(
    server: KubernetesServer, tmp_path: Path
) -> None:
    async with watching(server, tmp_path) as watch:
        assert not watch.decode.workers
        await put(server, pool_of())
        await put(server, pod_of("a", "10.0.0.1"), pool_of("another", 9000))
        await has(watch, "10.0.0.1:8000")
        await delete(server, POOLS, "qwen")
        await has(watch)
        await until(lambda: server.watches <= 5)  # its pods are not watched any more
        await put(server, pool_of("qwen", 8001))
        await has(watch, "10.0.0.1:8001")


async def test_labels_and_ports_in_place_of_a_pool(
    server: KubernetesServer, tmp_path: Path
) -> None:
    await put(server, pod_of("a", "10.0.0.1"), pod_of("b", "10.0.0.2", labels={}))
    given = PodsConfig(endpoint_selector="app=qwen", endpoint_target_ports="80,81")
    async with watching(server, tmp_path, given) as watch:
        await has(watch, "10.0.0.1:80", "10.0.0.1:81")
    assert not [path for _, path, _ in server.requests if "inferencepools" in path]


async def test_names_of_63_characters(server: KubernetesServer, tmp_path: Path) -> None:
    labels = {LONGEST: LONGEST}
    await put(server, pool_of(LONGEST, labels=labels), pod_of(LONGEST, "10.0.0.1", labels=labels))
    async with watching(server, tmp_path, PodsConfig(pool=LONGEST)) as watch:
        await has(watch, "10.0.0.1:8000")


async def test_another_namespace_than_the_pickers_own(
    server: KubernetesServer, tmp_path: Path
) -> None:
    given = PodsConfig(pool="qwen", pool_namespace="serving")
    server.objects.create(POOLS, "serving", pool_of(), "controller")
    server.objects.create(PODS, "serving", pod_of("a", "10.0.0.1"), "controller")
    await put(server, pool_of("qwen", 9000), pod_of("b", "10.0.0.2"))
    async with watching(server, tmp_path, given) as watch:
        await has(watch, "10.0.0.1:8000")


@pytest.mark.parametrize("in_stream", [False, True])
async def test_changes_that_were_missed_are_found(
    server: KubernetesServer, tmp_path: Path, in_stream: bool
) -> None:
    """The watch breaks and its history is forgotten: 410 Gone, as a status and as an event."""
    server.gone_in_stream = in_stream
    await put(server, pool_of(), pod_of("a", "10.0.0.1"), pod_of("b", "10.0.0.2"))
    async with watching(server, tmp_path) as watch:
        await has(watch, "10.0.0.1:8000", "10.0.0.2:8000")
        server.objects.delete(PODS, "test", "a")
        server.objects.create(PODS, "test", pod_of("c", "10.0.0.3"), "kubelet")
        server.objects.compact()
        server.cut_watches()
        await has(watch, "10.0.0.2:8000", "10.0.0.3:8000")


async def test_a_list_whose_moment_is_forgotten_between_two_pages(
    server: KubernetesServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    count, page, gone = 600, ApiObjects.page, 0
    await put(server, pool_of())
    for number in range(count):
        pod = pod_of(f"p{number}", f"10.0.{number // 250}.{number % 250 + 1}")
        server.objects.create(PODS, "test", pod, "kubelet")

    def forgetful(self: ApiObjects, kind: Any, *given: Any) -> Object:
        nonlocal gone
        if gone == 0 and kind is PODS and given[-1]:
            gone += 1
            self._put(("nothing", "test", "x"), None)
            self.compact()
        return page(self, kind, *given)

    monkeypatch.setattr(ApiObjects, "page", forgetful)
    async with watching(server, tmp_path) as watch:
        assert len(watch.decode.workers) == count
    assert gone == 1


async def test_what_was_known_stays_while_the_api_server_is_away(
    server: KubernetesServer, tmp_path: Path
) -> None:
    await put(server, pool_of(), pod_of("a", "10.0.0.1"))
    async with watching(server, tmp_path) as watch:
        await has(watch, "10.0.0.1:8000")
        await server.stop()
        server.objects.create(PODS, "test", pod_of("b", "10.0.0.2"), "kubelet")
        assert endpoints_of(watch.decode.workers) == ["10.0.0.1:8000"]
        await server.start()
        server.refusals += [(500, {})] * 2 + [(429, {"Retry-After": "0"})]
        server.garbage.append(b"{ no json\n")
        await has(watch, "10.0.0.1:8000", "10.0.0.2:8000")


async def test_objectives_come_when_their_kind_does(
    server: KubernetesServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A cluster may have one of the kinds, both, or none."""
    monkeypatch.setattr(pod_watch, "ASK_AGAIN_S", 0.05)
    await put(server, pool_of(), pod_of("a", "10.0.0.1"), objective_of("chat", OLD, priority=3))
    answered = KubernetesServer._change

    async def without(self: KubernetesServer, request: Any, kind: Any, *more: Any) -> Any:
        from support.servers.kubernetes.api_objects import Failure

        if kind.group == NEW and missing:
            raise Failure(404, "NotFound", "the server could not find the requested resource")
        return await answered(self, request, kind, *more)

    missing = True
    monkeypatch.setattr(KubernetesServer, "_change", without)
    async with watching(server, tmp_path) as watch:
        await has(watch, "10.0.0.1:8000")
        await until(lambda: watch.objectives.priority("chat") == 3)
        await put(server, objective_of("chat", NEW, priority=4))
        assert watch.objectives.priority("chat") == 3
        missing = False
        await until(lambda: watch.objectives.priority("chat") == 4)
        await put(server, objective_of("chat", NEW, priority=5))
        await until(lambda: watch.objectives.priority("chat") == 5)


async def test_a_start_that_is_refused_says_so(server: KubernetesServer, tmp_path: Path) -> None:
    server.tokens = {"another"}
    with pytest.raises(StoreError, match="answers 401"):
        async with watching(server, tmp_path):
            pass
