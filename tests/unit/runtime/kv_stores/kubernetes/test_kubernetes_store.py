"""Discovery over Kubernetes against an API server: who is ready is seen, with what it wrote."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path

import pytest
from support.polling import DEADLINE_S, until
from support.security.certificates import Authority
from support.servers.kubernetes import KubernetesServer, service_account
from support.servers.kubernetes.pods import METADATA, PODS, add_pod, set_ready

from dynamo_router.runtime import DistributedRuntime
from dynamo_router.runtime.discovery import Registrations
from dynamo_router.runtime.kv_stores import (
    Change,
    Deleted,
    Entry,
    LeaseLostError,
    Listing,
    StoreError,
    Watch,
)
from dynamo_router.runtime.kv_stores.kubernetes import (
    KubernetesConfig,
    KubernetesStore,
    PodIdentity,
    instance_id_of,
    resource_position,
)

pytestmark = pytest.mark.usefixtures("leaves_no_task")
INSTANCES = "v1/instances"
KEY = f"dynamo/backend/generate/{instance_id_of('worker-0'):x}"
VALUE = b'{"transport":{"tcp":"a:1"},"type":"Endpoint"}'


@pytest.fixture
async def server() -> AsyncIterator[KubernetesServer]:
    running = KubernetesServer()
    await running.start()
    yield running
    await running.stop()


class Clients:
    """Makes clients of the server, as pods have them, and closes them."""

    def __init__(self, server: KubernetesServer, folder: Path) -> None:
        self.server, self.token = server, service_account(folder, "first")
        self._stores: list[KubernetesStore] = []

    def __call__(
        self, identity: PodIdentity | None = None, *, containers: bool = False, **more: object
    ) -> KubernetesStore:
        config = KubernetesConfig(
            server=self.server.url, token_file=self.token, namespace="test",
            identity=identity, containers=containers, **more,  # type: ignore[arg-type]
        )  # fmt: skip
        self._stores.append(KubernetesStore(config))
        return self._stores[-1]

    async def close(self) -> None:
        for store in self._stores:
            await store.close()


@pytest.fixture
async def clients(server: KubernetesServer, tmp_path: Path) -> AsyncIterator[Clients]:
    made = Clients(server, tmp_path)
    yield made
    await made.close()


async def soon(watch: Watch) -> Change:
    async with asyncio.timeout(DEADLINE_S):
        return await anext(watch)


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
    async with asyncio.timeout(DEADLINE_S):
        while await reader.get(KEY) is not None:
            await asyncio.sleep(0.001)
    with pytest.raises(LeaseLostError):
        await worker.renew(1)


@pytest.mark.parametrize("in_stream", [False, True])
async def test_changes_that_were_missed_for_good_are_listed_again(
    server: KubernetesServer, clients: Clients, in_stream: bool
) -> None:
    server.gone_in_stream = in_stream
    worker, reader = clients(add_pod(server, "worker-0")), clients()
    await set_ready(server, "worker-0")
    bucket = worker.bucket(INSTANCES)
    await bucket.put(KEY, VALUE)
    async with aclosing(reader.bucket(INSTANCES).watch()) as watch:
        assert [entry.key for entry in (await soon(watch)).entries] == [KEY]  # type: ignore[union-attr]
        await until(lambda: server.watches == 2)
        # While the watches are off, one key goes, one comes, and the history is forgotten.
        port, before = server.port, len(server.requests)
        await server.stop()
        data = {"endpoints": {"dynamo/backend/other/1": {"type": "Endpoint"}}}
        server.objects.merge(
            METADATA, "test", "worker-0", {"spec": {"data": {"endpoints": None}}}, "x"
        )
        server.objects.merge(METADATA, "test", "worker-0", {"spec": {"data": data}}, "x")
        server.objects.compact()
        server.port = port
        await server.start()
        said = [await soon(watch), await soon(watch)]
        assert [(type(change), change.key) for change in said] == [  # type: ignore[union-attr]
            (Deleted, KEY),
            (Entry, "dynamo/backend/other/1"),
        ]
    asked = [query for _, path, query in server.requests[before:] if "metadatas" in path]
    assert any("watch" in query for query in asked) and any("limit" in query for query in asked)


async def test_a_watch_goes_on_from_where_it_was_and_bookmarks_move_it(
    server: KubernetesServer, clients: Clients
) -> None:
    worker, reader = clients(add_pod(server, "worker-0")), clients()
    await set_ready(server, "worker-0")
    async with aclosing(reader.bucket(INSTANCES).watch()) as watch:
        await soon(watch)
        await until(lambda: server.watches == 2)
        for number in range(20):  # of another namespace: only bookmarks tell of them
            add_pod(server, f"stranger-{number}", namespace="other")
        version = server.objects.version
        listed = len([1 for _, _, query in server.requests if "limit" in query])
        # Once a bookmark has told the version, a compaction costs nothing.
        while True:
            before = len(server.requests)
            server.cut_watches()
            await until(lambda before=before: len(server.requests) >= before + 2)
            asked = {query.get("resourceVersion") for _, _, query in server.requests[before:]}
            if asked == {str(version)}:
                break
            await until(lambda: server.watches == 2)
        server.objects.compact()
        await worker.bucket(INSTANCES).put(KEY, VALUE)
        assert (await soon(watch)).key == KEY  # type: ignore[union-attr]
    assert listed == len([1 for _, _, query in server.requests if "limit" in query])


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


async def test_a_list_whose_moment_is_forgotten_is_asked_for_in_one_piece(
    server: KubernetesServer, clients: Clients, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resource_position, "PAGE", 1)
    for number in range(3):
        worker = clients(add_pod(server, f"worker-{number}"))
        await worker.bucket(INSTANCES).put(f"a/b/c/{number}", VALUE)
    await set_ready(server, "worker-0", "worker-1", "worker-2")
    list_objects = server.objects.page

    def forgetful(*given: object) -> dict[str, object]:
        server.objects.compact()
        server.objects.version += 1  # something happens meanwhile
        return list_objects(*given)  # type: ignore[arg-type]

    monkeypatch.setattr(server.objects, "page", forgetful)
    assert len((await clients().bucket(INSTANCES).entries()).entries) == 3


async def test_a_token_that_was_replaced_is_read_again(
    server: KubernetesServer, clients: Clients, tmp_path: Path
) -> None:
    worker, reader = clients(add_pod(server, "worker-0")), clients()
    await worker.bucket(INSTANCES).put(KEY, VALUE)
    async with aclosing(reader.bucket(INSTANCES).watch()) as watch:
        await soon(watch)
        service_account(tmp_path, "second")
        server.tokens = {"second"}
        server.cut_watches()
        await set_ready(server, "worker-0")
        assert (await soon(watch)).key == KEY  # type: ignore[union-attr]
        assert await worker.renew(0) == 300.0


async def test_a_kubeconfig_is_read_again_when_its_token_is_refused(
    server: KubernetesServer, tmp_path: Path
) -> None:
    path = server.kubeconfig(tmp_path, "first")
    store = KubernetesStore(KubernetesConfig.from_environment({"KUBECONFIG": str(path)}))
    assert (await store.bucket(INSTANCES).entries()).entries == ()
    server.kubeconfig(tmp_path, "second")
    server.tokens = {"second"}
    other = KubernetesStore(KubernetesConfig.from_environment({"KUBECONFIG": str(path)}))
    assert (await other.bucket(INSTANCES).entries()).entries == ()
    server.cut_watches()
    before = len(server.requests)
    await until(lambda: len(server.requests) >= before + 2 and server.watches >= 2)
    await store.close()
    await other.close()


async def test_who_is_not_let_in_is_told_at_once(
    server: KubernetesServer, clients: Clients
) -> None:
    server.tokens = {"another"}
    store = clients(add_pod(server, "worker-0"))
    for step in (store.bucket(INSTANCES).get(KEY), store.grant(), clients().grant()):
        with pytest.raises(
            StoreError, match="Kubernetes at .* answers 401: Unauthorized"
        ) as caught:
            await step
        assert caught.value.transient is False


async def test_a_server_that_is_busy_is_left_alone_for_a_while(
    server: KubernetesServer, clients: Clients
) -> None:
    server.refusals += [(429, {"Retry-After": "7"})]
    with pytest.raises(StoreError, match="answers 429") as caught:
        await clients(add_pod(server, "worker-0")).grant()
    assert caught.value.transient and caught.value.retry_after_s == 7.0  # type: ignore[attr-defined]
    server.refusals += [(429, {"Retry-After": "0"}), (503, {}), (500, {})]
    assert (await clients().bucket(INSTANCES).entries()).entries == ()


async def test_an_address_where_nobody_is(clients: Clients, server: KubernetesServer) -> None:
    store = clients(add_pod(server, "worker-0"))
    await server.stop()
    with pytest.raises(StoreError, match=f"Kubernetes at http://127.0.0.1:{server.port}: ") as said:
        await store.grant()
    assert said.value.transient


GARBAGE = [
    b"no json\n",
    b"[]\n",
    b'{"type":"ADDED"}\n',
    b'{"type":"ADDED","object":{}}\n',
    b'{"type":"ADDED","object":{"metadata":{"resourceVersion":7}}}\n',
    b'{"type":"RENAMED","object":{"metadata":{"resourceVersion":"7"}}}\n',
    b'{"type":"ERROR","object":{"code":500,"message":"out of order"}}\n',
    b'{"type":"ADDED","object":{"metadata":{"name":"worker-0"}',
]


@pytest.mark.parametrize("garbage", GARBAGE)
async def test_what_is_no_event_ends_that_watch_only(
    server: KubernetesServer, clients: Clients, garbage: bytes
) -> None:
    server.garbage += [garbage, garbage]
    worker, reader = clients(add_pod(server, "worker-0")), clients()
    async with aclosing(reader.bucket(INSTANCES).watch()) as watch:
        await soon(watch)
        await worker.bucket(INSTANCES).put(KEY, VALUE)
        await set_ready(server, "worker-0")
        assert (await soon(watch)).key == KEY  # type: ignore[union-attr]
    assert not server.garbage


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


async def test_over_tls_only_a_known_server_is_believed(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    server = KubernetesServer(authority=authority)
    await server.start()
    token = service_account(tmp_path, "first")
    known = KubernetesStore(
        KubernetesConfig(server=server.url, token_file=token, ca=authority.ca, namespace="test")
    )
    assert (await known.bucket(INSTANCES).entries()).entries == ()
    await known.close()
    stranger = Authority(tmp_path / "other", "stranger")
    wary = KubernetesStore(
        KubernetesConfig(server=server.url, token_file=token, ca=stranger.ca, namespace="test")
    )
    with pytest.raises(StoreError, match="(?i)certificate") as caught:
        await wary.grant()
    assert caught.value.transient is False
    await wary.close()
    await server.stop()


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
