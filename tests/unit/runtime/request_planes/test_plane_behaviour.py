"""What every request plane does, over real connections."""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest
from support.polling import until
from support.servers.jetstream import JetStreamServer

from dynamo_router.base.errors import InvalidRequestError
from dynamo_router.runtime import DistributedRuntime
from dynamo_router.runtime.kv_stores import FileStore, NatsAddress
from dynamo_router.runtime.request_planes import (
    Fault,
    Handler,
    NatsCarrier,
    RequestClient,
    RequestContext,
    RequestError,
    RequestServer,
)

pytestmark = pytest.mark.usefixtures("leaves_no_task")
PLANES = ("tcp", "nats")


class Plane:
    """A worker and a caller in one process, over one plane."""

    def __init__(self, name: str, nats: NatsAddress, capacity: int = 100) -> None:
        self.name = name
        self.server = RequestServer(capacity)
        self._nats, self._theirs = NatsCarrier(nats), NatsCarrier(nats)
        self.client = RequestClient({"nats_tcp": self._theirs})
        self.transport = "nats_tcp" if name == "nats" else name

    async def start(self) -> None:
        await self.server.start()
        await self.client.start()

    async def add(self, path: str, handler: Handler) -> None:
        self.server.add(path, handler)
        if self.name == "nats":
            take = self.server.take
            await self._nats.serve(path, lambda subject, data: take(path, data))

    async def stop_worker(self) -> None:
        await self._nats.close()
        await self.server.close()

    async def close(self) -> None:
        await self.client.close()
        await self.stop_worker()

    def stream(self, path: str, body: Any, **more: Any) -> AsyncGenerator[Any, None]:
        port = self.server.port
        address = path if self.name == "nats" else f"127.0.0.1:{port}/{path}"
        return self.client.stream(address, body, transport=self.transport, **more)

    async def ask(self, path: str, body: Any, **more: Any) -> list[Any]:
        async with asyncio.timeout(60):
            return [part async for part in self.stream(path, body, **more)]


@pytest.fixture(scope="module")
def nats(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsAddress]:
    with JetStreamServer(tmp_path_factory.mktemp("nats")) as running:
        yield NatsAddress(running.url)


@pytest.fixture(params=PLANES)
async def plane(request: pytest.FixtureRequest, nats: NatsAddress) -> AsyncIterator[Plane]:
    made = Plane(request.param, nats)
    await made.start()
    await made.add("count", count)
    yield made
    await made.close()


async def count(body: Any, context: RequestContext) -> AsyncIterator[object]:
    for number in range(body["n"]):
        yield {"number": number, "id": context.id}
        await asyncio.sleep(0)


@pytest.mark.parametrize("codec", ["msgpack", "json"])
async def test_an_answer_comes_in_parts_and_in_order(plane: Plane, codec: str) -> None:
    parts = await plane.ask("count", {"n": 200}, codec=codec, request_id="r1")
    assert parts == [{"number": number, "id": "r1"} for number in range(200)]
    assert await plane.ask("count", {"n": 0}, codec=codec) == []


async def test_metadata_goes_along(plane: Plane) -> None:
    async def tell(body: Any, context: RequestContext) -> AsyncIterator[object]:
        yield context.metadata

    await plane.add("tell", tell)
    assert await plane.ask("tell", {}, metadata={"a": "ü"}) == [{"a": "ü"}]


async def test_many_requests_at_once(plane: Plane) -> None:
    answers = await asyncio.gather(*(plane.ask("count", {"n": n}) for n in range(80)))
    assert [len(parts) for parts in answers] == list(range(80))
    await until(lambda: plane.server.in_flight == 0)


async def test_refusals_are_told_apart_and_shift_nothing(plane: Plane) -> None:
    asked = (plane.ask("count" if n % 2 else "nobody", {"n": 3}) for n in range(6))
    for n, result in enumerate(await asyncio.gather(*asked, return_exceptions=True)):
        if n % 2:
            assert isinstance(result, list) and len(result) == 3
        else:
            assert isinstance(result, RequestError) and result.fault.not_begun


async def test_a_worker_at_capacity_says_so(plane: Plane, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plane.server, "_capacity", 1)
    go = asyncio.Event()

    async def wait(body: Any, context: RequestContext) -> AsyncIterator[object]:
        yield 1
        await go.wait()

    await plane.add("wait", wait)
    first = plane.stream("wait", {})
    assert await anext(first) == 1
    with pytest.raises(RequestError, match="worker at capacity") as caught:
        await plane.ask("wait", {})
    assert caught.value.fault is Fault.OVERLOADED
    go.set()
    assert [part async for part in first] == []


async def test_closing_the_answer_cancels_the_request(plane: Plane) -> None:
    ended = asyncio.Event()

    async def endless(body: Any, context: RequestContext) -> AsyncIterator[object]:
        try:
            while True:
                yield "x"
                await asyncio.sleep(0)
        finally:
            ended.set()

    await plane.add("endless", endless)
    async with aclosing(plane.stream("endless", {})) as parts:
        assert await anext(parts) == "x"
    async with asyncio.timeout(60):
        await ended.wait()
    await until(lambda: plane.server.in_flight == 0)


async def test_cancelling_whoever_waits_cancels_the_request(plane: Plane) -> None:
    begun, ended = asyncio.Event(), asyncio.Event()

    async def silent(body: Any, context: RequestContext) -> AsyncIterator[object]:
        begun.set()
        try:
            await asyncio.Event().wait()
            yield
        finally:
            ended.set()

    await plane.add("silent", silent)
    asking = asyncio.create_task(plane.ask("silent", {}))
    async with asyncio.timeout(60):
        await begun.wait()
    asking.cancel()
    async with asyncio.timeout(60):
        await ended.wait()
    await asyncio.wait({asking})


async def test_a_slow_reader_slows_the_worker_down(plane: Plane) -> None:
    sent = 0

    async def flood(body: Any, context: RequestContext) -> AsyncIterator[object]:
        nonlocal sent
        for _ in range(2000):
            sent += 1
            yield "x" * 20_000

    await plane.add("flood", flood)
    parts = plane.stream("flood", {})
    await anext(parts)
    before = -1
    while before != sent:  # until it comes to a stop by itself
        before = sent
        for _ in range(50):
            await asyncio.sleep(0.001)
    assert sent < 1000
    assert 1 + len([part async for part in parts]) == 2000


@pytest.mark.parametrize(
    ("error", "error_type"),
    [(InvalidRequestError("max_tokens is missing"), "InvalidArgument"), (KeyError("oops"), None)],
)
async def test_a_handler_that_fails_sends_an_error_and_ends_well(
    plane: Plane, error: Exception, error_type: str | None
) -> None:
    async def fail(body: Any, context: RequestContext) -> AsyncIterator[object]:
        yield 1
        raise error

    await plane.add("fail", fail)
    first, second = await plane.ask("fail", {})
    assert first == 1 and second["event"] == "error"
    assert second.get("error", {}).get("error_type") == error_type


async def test_nobody_there(plane: Plane) -> None:
    assert len(await plane.ask("count", {"n": 1})) == 1
    asked = plane.stream("count", {"n": 1})
    await plane.stop_worker()
    with pytest.raises(RequestError) as caught:
        await anext(asked)
    assert caught.value.fault in (Fault.UNREACHABLE, Fault.BROKEN)


async def test_a_request_larger_than_any_may_be(plane: Plane) -> None:
    with pytest.raises(RequestError) as caught:
        await plane.ask("count", {"n": 1, "prompt": "x" * (33 << 20)})
    assert caught.value.fault is Fault.TOO_LARGE
    assert len(await plane.ask("count", {"n": 2})) == 2


async def test_draining_waits_for_answers(plane: Plane) -> None:
    go = asyncio.Event()

    async def wait(body: Any, context: RequestContext) -> AsyncIterator[object]:
        yield 1
        await go.wait()
        yield 2

    await plane.add("wait", wait)
    parts = plane.stream("wait", {})
    assert await anext(parts) == 1
    plane.server.remove("wait")
    with pytest.raises(RequestError, match="unknown endpoint"):
        await plane.ask("wait", {})
    assert not await plane.server.drain(0.01)
    go.set()
    assert [part async for part in parts] == [2]
    assert await plane.server.drain(10.0)


async def test_a_worker_that_goes_breaks_its_answers(plane: Plane) -> None:
    async def half(body: Any, context: RequestContext) -> AsyncIterator[object]:
        yield 1
        await asyncio.Event().wait()

    await plane.add("half", half)
    parts = plane.stream("half", {})
    assert await anext(parts) == 1
    await plane.stop_worker()
    with pytest.raises(RequestError) as caught:
        await anext(parts)
    assert caught.value.fault is Fault.BROKEN


WORKER = """
import asyncio, sys
from dynamo_router.runtime import DistributedRuntime
from dynamo_router.runtime.kv_stores import FileStore, NatsAddress

async def main(folder, plane, nats):
    runtime = DistributedRuntime(FileStore(folder), nats=NatsAddress(nats), request_plane=plane)

    @runtime.endpoint("dynamo.backend.generate")
    async def generate(body, context):
        yield 1
        await asyncio.Event().wait()

    async with runtime:
        await runtime.run()

asyncio.run(main(*sys.argv[1:]))
"""


@pytest.mark.parametrize("name", PLANES)
async def test_a_worker_that_is_killed_is_noticed_at_once(
    name: str, nats: NatsAddress, tmp_path: Path
) -> None:
    """Long before its lease ends, and before a ping would tell."""
    worker = await asyncio.create_subprocess_exec(
        sys.executable, "-P", "-c", WORKER, str(tmp_path), name, nats.url
    )
    try:
        async with DistributedRuntime(FileStore(tmp_path), nats=nats) as runtime:
            client = await runtime.client("dynamo.backend.generate")
            await until(lambda: client.instances, 60.0)
            parts = client.random({})
            assert await anext(parts) == 1
            os.kill(worker.pid, signal.SIGKILL)
            async with asyncio.timeout(60):
                with pytest.raises(RequestError) as caught:
                    await anext(parts)
            assert caught.value.fault is Fault.BROKEN
    finally:
        if worker.returncode is None:
            worker.kill()
        await worker.wait()
