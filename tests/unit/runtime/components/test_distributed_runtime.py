"""Processes that find and call each other, join, leave, lose their lease and their store."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import uvloop
from support.polling import until
from support.servers.stores import OpenStore

from dynamo_router.base.errors import ConfigError, InvalidRequestError, NoWorkersError
from dynamo_router.runtime import Client, DistributedRuntime
from dynamo_router.runtime.components import CancellationToken, EndpointName
from dynamo_router.runtime.kv_stores import FileStore, MemoryStore, StoreError
from dynamo_router.runtime.request_planes import Fault, RequestContext, RequestError

pytestmark = pytest.mark.usefixtures("leaves_no_task")
NAME = "dynamo.backend.generate"


async def who(body: Any, context: RequestContext) -> AsyncIterator[object]:
    for number in range(body["n"]):
        yield [context.path.partition("/")[0], number]


def worker(store: Any, handler: Any = who, **more: Any) -> DistributedRuntime:
    runtime = DistributedRuntime(store, lease_ttl_s=2.0, **more)
    runtime.endpoint(NAME)(handler)
    return runtime


async def take(answer: Any) -> list[Any]:
    async with asyncio.timeout(60):
        return [part async for part in answer]


async def sees(client: Client, *workers: DistributedRuntime) -> None:
    ids = {runtime.instance_id for runtime in workers}
    await until(lambda: set(client.instances) == ids)


async def test_workers_are_found_called_and_leave(open_store: OpenStore) -> None:
    async with DistributedRuntime(open_store()) as caller:
        first, second = worker(open_store()), worker(open_store())
        client = await caller.client(NAME)
        await first.start()
        await second.start()
        await sees(client, first, second)
        ids = sorted([first.instance_id, second.instance_id])
        turns = [(await take(client.round_robin({"n": 1})))[0][0] for _ in range(4)]
        assert turns == [f"{id:x}" for id in ids] * 2
        parts = await take(client.direct({"n": 3}, second.instance_id))
        assert parts == [[f"{second.instance_id:x}", number] for number in range(3)]
        assert len(await take(client.random({"n": 2}))) == 2
        await second.shutdown()
        await sees(client, first)
        with pytest.raises(NoWorkersError, match="has no instance"):
            await take(client.direct({"n": 1}, second.instance_id))
        await first.shutdown()
        await sees(client)
        with pytest.raises(NoWorkersError, match=f"no instance serves {NAME}"):
            await take(client.round_robin({"n": 1}))


async def test_instances_are_listed_at_four_levels() -> None:
    store = MemoryStore()
    async with DistributedRuntime(store) as runtime:
        for name in ("a.b.c", "a.b.d", "a.bb.c", "aa.b.c"):
            await (
                runtime.namespace(name.split(".")[0])
                .component(name.split(".")[1])
                .endpoint(name.split(".")[2])
                .serve(who)
            )
        await store.bucket("v1/instances").put("a/b/c/zz", b"no instance")
        a = runtime.namespace("a")

        async def names(found: Any) -> list[str]:
            return [str(instance.name) for instance in await found]

        assert await names(runtime.instances()) == ["a.b.c", "a.b.d", "a.bb.c", "aa.b.c"]
        assert await names(a.instances()) == ["a.b.c", "a.b.d", "a.bb.c"]
        assert await names(a.component("b").instances()) == ["a.b.c", "a.b.d"]
        assert await names(a.component("b").endpoint("c").instances()) == ["a.b.c"]


async def test_both_generations_of_keys_are_read_and_one_is_written() -> None:
    store = MemoryStore()
    old, new = worker(store, generation="seed"), worker(store)
    async with old, new, DistributedRuntime(store) as caller:
        for bucket, runtime in (("/services", old), ("v1/instances", new)):
            (entry,) = (await store.bucket(bucket).entries()).entries
            assert entry.key == f"dynamo/backend/generate/{runtime.instance_id:x}"
        await store.bucket("/services").put("dynamo/backend/generate-more/7f", b"{}")
        client = await caller.client(NAME)
        await sees(client, old, new)
        assert len(await take(client.direct({"n": 1}, old.instance_id))) == 1


async def test_a_worker_that_dies_is_passed_over_at_once_and_then_gone() -> None:
    store = MemoryStore()
    dead, alive = worker(store), worker(store)
    await dead.start()
    async with alive, DistributedRuntime(store) as caller:
        client = await caller.client(NAME)
        await sees(client, dead, alive)
        await dead._server.close()  # the process is gone; its keys are not yet
        for _ in range(6):
            assert (await take(client.round_robin({"n": 1})))[0][0] == f"{alive.instance_id:x}"
        await dead.shutdown(0.0)
        await sees(client, alive)


async def test_a_failure_is_not_hidden_once_a_part_was_delivered() -> None:
    async def breaks(body: Any, context: RequestContext) -> AsyncIterator[object]:
        yield 1
        raise asyncio.CancelledError

    store = MemoryStore()
    async with DistributedRuntime(store) as caller:
        first, second = worker(store, breaks), worker(store, breaks)
        async with first, second:
            client = await caller.client(NAME)
            await sees(client, first, second)
            seen = []
            with pytest.raises(RequestError) as caught:
                async for part in client.round_robin({}):
                    seen.append(part)
            assert seen == [1] and caught.value.fault is Fault.BROKEN
            assert caught.value.worker_id in (first.instance_id, second.instance_id)


async def test_a_bad_request_is_nobodys_fault_but_the_callers() -> None:
    async def picky(body: Any, context: RequestContext) -> AsyncIterator[object]:
        raise InvalidRequestError("max_tokens is missing")
        yield

    store = MemoryStore()
    async with worker(store, picky), DistributedRuntime(store) as caller:
        client = await caller.client(NAME)
        for _ in range(2):
            with pytest.raises(RequestError, match="max_tokens is missing") as caught:
                await take(client.random({}))
            assert caught.value.fault is Fault.INVALID


async def test_shutting_down_lets_answers_end() -> None:
    go = asyncio.Event()

    async def slow(body: Any, context: RequestContext) -> AsyncIterator[object]:
        yield 1
        await go.wait()
        yield 2

    store = MemoryStore()
    runtime = worker(store, slow)
    await runtime.start()
    async with DistributedRuntime(store) as caller:
        client = await caller.client(NAME)
        await sees(client, runtime)
        answer = client.random({})
        assert await anext(answer) == 1
        ending = asyncio.create_task(runtime.shutdown())
        await sees(client)
        assert not ending.done() and not runtime.token.cancelled
        go.set()
        assert await take(answer) == [2]
        await ending
        assert runtime.token.cancelled
        await runtime.shutdown()


async def test_a_lost_lease_stops_nothing() -> None:
    store = MemoryStore()
    runtime = worker(store)
    async with runtime, DistributedRuntime(store) as caller:
        client = await caller.client(NAME)
        await sees(client, runtime)
        token, id = runtime.lease_token, runtime.instance_id
        await store.revoke(id)
        await until(lambda: token.cancelled)
        assert not runtime.lease_token.cancelled and not runtime.token.cancelled
        await sees(client, runtime)
        assert runtime.instance_id == id
        assert len(await take(client.random({"n": 2}))) == 2


async def test_without_a_store_addresses_are_given() -> None:
    async with worker(None) as serving, DistributedRuntime() as caller:
        assert serving.instance_id == 0 and await serving.instances() == []
        name = EndpointName.parse(NAME)
        instance = serving._served[name]
        client = await caller.client(NAME, [instance.address])
        assert len(await take(client.round_robin({"n": 2}))) == 2
        assert len(await take(client.direct({"n": 1}, 0))) == 1
    with pytest.raises(RuntimeError, match="not started"):
        _ = DistributedRuntime().instance_id


async def test_a_store_that_is_silent_is_not_waited_for_for_ever() -> None:
    class SilentStore(MemoryStore):
        def bucket(self, name: str) -> Any:
            found = super().bucket(name)

            async def watch(prefix: str = "") -> AsyncIterator[Any]:
                await asyncio.Event().wait()
                yield

            found.watch = watch  # type: ignore[assignment]
            return found

    async with DistributedRuntime(SilentStore(), startup_timeout_s=0.1) as runtime:
        with pytest.raises(StoreError, match=f"did not list instances of {NAME} in 0.1 s"):
            await runtime.client(NAME)


def test_it_runs_on_uvloop_as_serve_does(tmp_path: Path) -> None:
    async def meet() -> list[Any]:
        async with (
            worker(FileStore(tmp_path)) as serving,
            DistributedRuntime(FileStore(tmp_path)) as caller,
        ):
            client = await caller.client(NAME)
            await sees(client, serving)
            answers = [take(client.round_robin({"n": 300})) for _ in range(5)]
            return await asyncio.gather(*answers)

    assert [len(parts) for parts in uvloop.run(meet())] == [300] * 5


async def test_what_is_declared_wrongly_is_said_at_once() -> None:
    runtime = DistributedRuntime(MemoryStore())
    with pytest.raises(ValueError, match="namespace.component.endpoint"):
        runtime.endpoint("generate")
    runtime.endpoint(NAME)(who)
    with pytest.raises(ValueError, match="declared already"):
        runtime.endpoint(NAME)
    with pytest.raises(ValueError, match="a name has no dot"):
        runtime.namespace("a/b")
    with pytest.raises(ConfigError, match="other hosts cannot reach this process at '0.0.0.0'"):
        DistributedRuntime(host="0.0.0.0")


async def test_tokens_are_cancelled_with_their_parents() -> None:
    root = CancellationToken()
    child, other = root.child(), root.child()
    child.cancel()
    assert child.cancelled and not other.cancelled
    root.cancel()
    await other.wait()
    root.cancel()
    assert root.child().cancelled
