"""A runtime's client in mode kv: the router's decisions, booked and released once."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any

import pytest
from support.polling import until

from dynamo_router import KvInstanceSelector, KvRouter, KvRouterConfig
from dynamo_router.base.errors import ConfigError, InvalidRequestError, NoWorkersError
from dynamo_router.runtime import DistributedRuntime
from dynamo_router.runtime.components import Client
from dynamo_router.runtime.kv_stores import MemoryStore
from dynamo_router.runtime.request_planes import Fault, RequestContext, RequestError

NAME = "dynamo.backend.generate"


class Fleet:
    """Workers in this process, and who served what."""

    def __init__(self) -> None:
        self.store = MemoryStore()
        self.served: Counter[int] = Counter()
        self.bodies: list[Any] = []
        self.go = asyncio.Event()
        self.go.set()

    def worker(self) -> DistributedRuntime:
        runtime = DistributedRuntime(self.store)

        @runtime.endpoint(NAME)
        async def generate(body: Any, context: RequestContext) -> AsyncIterator[object]:
            self.served[runtime.instance_id] += 1
            self.bodies.append(body)
            for token in range(body.get("max_tokens", 1)):
                yield {"token_ids": [token]}
            await self.go.wait()

        return runtime


@pytest.fixture
def router() -> Any:
    with KvRouter(KvRouterConfig(block_size=16, use_kv_events=False, seed=1)) as made:
        yield made


async def ask(client: Client, tokens: list[int], **more: Any) -> list[Any]:
    async with asyncio.timeout(60):
        return [part async for part in client.kv({"token_ids": tokens, "max_tokens": 2}, **more)]


async def test_the_same_prefix_goes_to_the_same_worker(router: KvRouter) -> None:
    fleet = Fleet()
    async with fleet.worker(), fleet.worker(), DistributedRuntime(fleet.store) as runtime:
        client = await runtime.client(NAME, selector=KvInstanceSelector(router))
        await until(lambda: len(client.instances) == 2)
        for turn in range(8):
            assert await ask(client, [*range(640), turn]) == [
                {"token_ids": [0]},
                {"token_ids": [1]},
            ]
        assert sorted(fleet.served.values()) == [8]
        (busy,) = fleet.served
        await asyncio.gather(
            *(ask(client, [1000 * n + i for i in range(640)]) for n in range(2, 8))
        )
        assert len(fleet.served) == 2  # what shares nothing is spread
        assert {entry.worker_id for entry in router.registry.entries()} == set(client.instances)
        assert router.requests_of(busy) == 0


async def test_load_is_booked_while_the_answer_goes_on(router: KvRouter) -> None:
    fleet = Fleet()
    fleet.go.clear()
    async with fleet.worker() as worker, DistributedRuntime(fleet.store) as runtime:
        client = await runtime.client(NAME, selector=KvInstanceSelector(router))
        await until(lambda: client.instances)
        async with aclosing(client.kv({"token_ids": list(range(64))})) as parts:
            await anext(parts)
            assert router.requests_of(worker.instance_id) == 1
        assert router.requests_of(worker.instance_id) == 0
        fleet.go.set()


async def test_a_worker_that_is_gone_is_passed_over(router: KvRouter) -> None:
    fleet = Fleet()
    async with fleet.worker() as good, DistributedRuntime(fleet.store) as runtime:
        bad = fleet.worker()
        await bad.start()
        client = await runtime.client(NAME, selector=KvInstanceSelector(router))
        await until(lambda: len(client.instances) == 2)
        id, key = bad.instance_id, f"dynamo/backend/generate/{bad.instance_id:x}"
        value = (await fleet.store.bucket("v1/instances").get(key)).value  # type: ignore[union-attr]
        await bad.shutdown(0.0)
        # It is still there for who looks, as one is whose lease has not ended.
        await fleet.store.bucket("v1/instances").put(key, value)
        await until(lambda: id in client.instances)
        for number in range(6):
            tokens = [1000 * number + i for i in range(64)]
            assert len(await ask(client, tokens)) == 2
        assert fleet.served == {good.instance_id: 6}
        assert router.requests_of(id) == router.requests_of(good.instance_id) == 0
        await fleet.store.bucket("v1/instances").delete(key)
        await until(lambda: id not in client.instances)
        await ask(client, list(range(64)))
        assert router.registry.entry(id) is None


async def test_a_request_id_may_be_given_and_comes_through_once(router: KvRouter) -> None:
    fleet = Fleet()
    fleet.go.clear()
    async with fleet.worker(), DistributedRuntime(fleet.store) as runtime:
        client = await runtime.client(NAME, selector=KvInstanceSelector(router))
        await until(lambda: client.instances)
        first = client.kv({"token_ids": [1] * 64}, request_id="r")
        await anext(first)
        with pytest.raises(InvalidRequestError, match="'r' is in use"):
            await ask(client, [1] * 64, request_id="r")
        assert sum(router.requests_of(id) for id in client.instances) == 1
        fleet.go.set()
        assert [part async for part in first] == []


async def test_what_cannot_be_chosen_by_is_refused(router: KvRouter) -> None:
    fleet = Fleet()
    async with fleet.worker(), DistributedRuntime(fleet.store) as runtime:
        client = await runtime.client(NAME, selector=KvInstanceSelector(router))
        plain = await runtime.client(NAME)
        await until(lambda: client.instances)
        for body in (None, [], {}, {"token_ids": "text"}, {"token_ids": []}):
            with pytest.raises(InvalidRequestError):
                await anext(client.kv(body))
        with pytest.raises(ConfigError, match="mode kv needs a client with a selector"):
            plain.kv({})
    assert not fleet.bodies


async def test_without_workers_nobody_is_chosen(router: KvRouter) -> None:
    async with DistributedRuntime(MemoryStore()) as runtime:
        client = await runtime.client(NAME, selector=KvInstanceSelector(router))
        with pytest.raises(NoWorkersError, match=f"no instance serves {NAME}"):
            await ask(client, [1] * 64)


async def test_a_rank_goes_along_where_there_are_several(router: KvRouter) -> None:
    fleet = Fleet()
    async with fleet.worker() as worker, DistributedRuntime(fleet.store) as runtime:
        router.add_worker(worker.instance_id, dp_size=2)
        client = await runtime.client(NAME, selector=KvInstanceSelector(router))
        await until(lambda: client.instances)
        for number in range(4):
            await ask(client, [1000 * number + i for i in range(64)])
    assert {body["routing"]["dp_rank"] for body in fleet.bodies} <= {0, 1}


async def test_a_failure_in_the_midst_is_not_hidden(router: KvRouter) -> None:
    fleet = Fleet()
    fleet.go.clear()
    worker = fleet.worker()
    async with DistributedRuntime(fleet.store) as runtime:
        await worker.start()
        id = worker.instance_id
        client = await runtime.client(NAME, selector=KvInstanceSelector(router))
        await until(lambda: client.instances)
        parts = client.kv({"token_ids": [1] * 64})
        await anext(parts)
        await worker.shutdown(0.0)
        with pytest.raises(RequestError) as caught:
            await anext(parts)
        assert caught.value.fault is Fault.BROKEN and router.requests_of(id) == 0
