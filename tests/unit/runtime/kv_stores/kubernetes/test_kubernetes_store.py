"""Discovery over Kubernetes against an API server: who is ready is seen, with what it wrote."""

from collections.abc import AsyncIterator
from contextlib import aclosing

import pytest
from support.polling import until
from support.servers.kubernetes import KubernetesServer
from support.servers.kubernetes.clients import INSTANCES, KEY, VALUE, Clients, soon
from support.servers.kubernetes.pods import METADATA, PODS, add_pod, set_ready

from dynamo_router.runtime import DistributedRuntime
from dynamo_router.runtime.discovery import Registrations
from dynamo_router.runtime.kv_stores import (
    Deleted,
    Entry,
    LeaseLostError,
    Listing,
    StoreError,
)
from dynamo_router.runtime.kv_stores.kubernetes import (
    PodIdentity,
    instance_id_of,
    resource_position,
)

pytestmark = pytest.mark.usefixtures("leaves_no_task")


async def test_a_key_is_visible_while_its_pod_is_ready(
    server: KubernetesServer, clients: Clients
) -> None:
    worker = clients(add_pod(server, "worker-0"))
    assert await worker.grant() == instance_id_of("worker-0")
    bucket = clients().bucket(INSTANCES)
    async with aclosing(bucket.watch("dynamo/")) as watch:
        assert await soon(watch) == Listing((), 0)
        await worker.bucket(INSTANCES).put(KEY, VALUE)
        await set_ready(server, "worker-0")
        first = await soon(watch)
        assert first == Entry(KEY, VALUE, 1, instance_id_of("worker-0"))
        # The same id at another address: the container started again.
        moved = VALUE.replace(b"a:1", b"a:2")
        await worker.bucket(INSTANCES).put(KEY, moved)
        assert await soon(watch) == Entry(KEY, moved, 2, instance_id_of("worker-0"))
        await set_ready(server)
        assert await soon(watch) == Deleted(KEY, 3)
        await set_ready(server, "worker-0")
        assert await soon(watch) == Entry(KEY, moved, 4, instance_id_of("worker-0"))
        assert await worker.bucket(INSTANCES).delete(KEY) is True
        assert await soon(watch) == Deleted(KEY, 5)
        assert await worker.bucket(INSTANCES).delete(KEY) is False


async def test_who_dies_takes_its_keys_along(server: KubernetesServer, clients: Clients) -> None:
    worker = clients(add_pod(server, "worker-0"))
    await set_ready(server, "worker-0")
    await worker.bucket(INSTANCES).put(KEY, VALUE)
    reader = clients().bucket(INSTANCES)
    assert [entry.key for entry in (await reader.entries()).entries] == [KEY]
    server.objects.delete(PODS, "test", "worker-0")
    await server.changed()

    async def gone() -> bool:
        return await reader.get(KEY) is None

    await until(gone)
    with pytest.raises(LeaseLostError):
        await worker.renew(1)


async def test_long_lists_come_in_pages(
    server: KubernetesServer, clients: Clients, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resource_position, "PAGE", 3)
    names = [f"worker-{number}" for number in range(10)]
    for name in names:
        store = clients(add_pod(server, name))
        await store.bucket(INSTANCES).put(f"dynamo/b/g/{instance_id_of(name):x}", VALUE)
    await set_ready(server, *names)
    server.requests.clear()
    entries = (await clients().bucket(INSTANCES).entries()).entries
    assert {entry.lease for entry in entries} == {instance_id_of(name) for name in names}
    pages = [query for _, path, query in server.requests if "metadatas" in path]
    assert len([query for query in pages if "continue" in query]) == 3


async def test_namespaces_and_labels_keep_strangers_out(
    server: KubernetesServer, clients: Clients
) -> None:
    await clients(add_pod(server, "worker-0")).bucket(INSTANCES).put(KEY, VALUE)
    await clients(add_pod(server, "worker-1")).bucket(INSTANCES).put("a/b/c/1", VALUE)
    stranger = clients(add_pod(server, "worker-2", namespace="other"))
    await stranger.bucket(INSTANCES).put("a/b/c/2", VALUE)
    await set_ready(server, "worker-0", "worker-2")
    await set_ready(server, "worker-1", name="unlabelled", labels={})
    await set_ready(server, "worker-2", namespace="other")
    found = (await clients().bucket(INSTANCES).entries()).entries
    assert [entry.key for entry in found] == [KEY]


async def test_in_container_mode_each_container_is_an_instance(
    server: KubernetesServer, clients: Clients
) -> None:
    identity = add_pod(
        server, "p", "engine-1", **{"main": True, "engine-1": True, "engine-2": False}
    )
    for container in ("main", "engine-1", "engine-2"):
        each = PodIdentity("p", identity.uid, "test", container)
        await clients(each).bucket(INSTANCES).put(f"a/b/c/{each.instance_id:x}", VALUE)
    found = (await clients(containers=True).bucket(INSTANCES).entries()).entries
    assert {entry.lease for entry in found} == {instance_id_of("p"), instance_id_of("p-engine-1")}


async def test_what_cannot_be_kept_is_refused_for_good(
    server: KubernetesServer, clients: Clients
) -> None:
    store = clients(add_pod(server, "worker-0"))
    bucket = store.bucket(INSTANCES)
    for step in (
        bucket.put(KEY, b"no json"),
        bucket.put(KEY, b"[1]"),
        bucket.put(KEY, b'{"a":[9007199254740992]}'),
        bucket.create(KEY, VALUE),
        bucket.replace(KEY, VALUE, 1),
        bucket.delete(KEY, 1),
        store.bucket("v1/lock").put("writer", VALUE),
        clients().bucket(INSTANCES).put(KEY, VALUE),
    ):
        with pytest.raises(StoreError) as caught:
            await step
        assert caught.value.transient is False
    assert (await store.bucket("/services").entries()).entries == ()


async def test_metadata_that_somebody_changed_is_written_again(
    server: KubernetesServer, clients: Clients
) -> None:
    worker = clients(add_pod(server, "worker-0"))
    await worker.bucket(INSTANCES).put(KEY, VALUE)
    stolen = {"spec": {"data": {"endpoints": {KEY: {"transport": {"tcp": "thief:1"}}}}}}
    server.objects.merge(METADATA, "test", "worker-0", stolen, "thief")
    assert await worker.renew(0) == 300.0
    found = server.objects.get(METADATA, "test", "worker-0")
    assert found["spec"]["data"]["endpoints"][KEY] == {
        "transport": {"tcp": "a:1"},
        "type": "Endpoint",
    }
    (owner,) = found["metadata"]["ownerReferences"]
    assert owner["kind"] == "Pod" and owner["controller"] is True
    await worker.revoke(0)
    assert (METADATA.plural, "test", "worker-0") not in server.objects.objects


async def test_registrations_and_runtimes_use_it_as_any_store(
    server: KubernetesServer, clients: Clients
) -> None:
    runtime = DistributedRuntime(clients(add_pod(server, "worker-0")))

    @runtime.endpoint("dynamo.backend.generate")
    async def generate(body: object, context: object) -> AsyncIterator[object]:
        yield {"token_ids": [7]}

    async with runtime, DistributedRuntime(clients(add_pod(server, "router-0"))) as caller:
        assert runtime.instance_id == instance_id_of("worker-0")
        client = await caller.client("dynamo.backend.generate")
        assert not client.instances
        await set_ready(server, "worker-0")
        await until(lambda: client.instances)
        assert [part async for part in client.random({})] == [{"token_ids": [7]}]
    assert not [place for place in server.objects.objects if place[0] == METADATA.plural]


async def test_metadata_that_was_deleted_is_written_again(
    server: KubernetesServer, clients: Clients
) -> None:
    registrations = Registrations(clients(add_pod(server, "worker-0"), check_s=0.01), ttl_s=0.01)
    await registrations.start()
    await registrations.register(INSTANCES, KEY, VALUE)
    uid = server.objects.delete(METADATA, "test", "worker-0")["metadata"]["uid"]
    place = METADATA.plural, "test", "worker-0"

    def again() -> bool:
        found = server.objects.objects.get(place)
        return found is not None and KEY in (found["spec"]["data"]["endpoints"] or {})

    await until(again)
    assert server.objects.objects[place]["metadata"]["uid"] != uid
    await registrations.close()
