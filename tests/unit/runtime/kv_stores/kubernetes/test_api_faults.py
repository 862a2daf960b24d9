"""An API server that forgets, refuses, breaks off or talks nonsense, and credentials that end."""

from contextlib import aclosing
from pathlib import Path

import pytest
from support.polling import until
from support.security.certificates import Authority
from support.servers.kubernetes import KubernetesServer, service_account
from support.servers.kubernetes.clients import INSTANCES, KEY, VALUE, Clients, soon
from support.servers.kubernetes.pods import METADATA, add_pod, set_ready

from dynamo_router.runtime.kv_stores import (
    Deleted,
    Entry,
    StoreError,
)
from dynamo_router.runtime.kv_stores.kubernetes import (
    KubernetesConfig,
    KubernetesStore,
    resource_position,
)

pytestmark = pytest.mark.usefixtures("leaves_no_task")


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


@pytest.mark.parametrize("strict", [True, False])
async def test_over_tls_only_a_known_server_is_believed(tmp_path: Path, strict: bool) -> None:
    authority = Authority(tmp_path, strict=strict)
    async with KubernetesServer(authority=authority) as server:
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
