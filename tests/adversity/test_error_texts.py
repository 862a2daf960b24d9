"""What a client is told of a failure at an engine: what went wrong, in the engine's words or ours,
without credentials, and without addresses and names of the cluster. Each listener, each engine.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import grpc
import pytest
from grpc import aio
from support.adversity.log_hygiene import SECRET
from support.calls import messages_of
from support.fake_engine import FakeEngine, chunk, prompt
from support.servers.http_engine import Asked, HttpEngine, event, part, reply, stream_head
from support.servers.openai_serving import Served, openai_serving
from support.serving import ServedRouter

from dynamo_router.base.clock import SystemClock
from dynamo_router.runtime.request_planes import RequestClient, RequestServer, annotated
from dynamo_router.workers.dialects import DynamoClient
from dynamo_router.workers.dynamo_route import DynamoRoute
from dynamo_router.workers.engine_facts import EngineFacts
from dynamo_router.workers.trtllm_proto import SERVICE
from dynamo_router.workers.worker_url import WorkerUrl

TEXT = f"no room: tried nats://user:{SECRET}@broker:4222, then https://{SECRET}@h/x"
LONG = f"no room: {'x' * 950} nats://user:{SECRET}{'y' * 200}@broker:4222"
"""Cut where every client can take it, the URL has no @ left."""
PATH = "generate-of-7"
NUMBER = 714_071


class Fleet:
    """One engine, of which kind ever. `begun`: it fails after a first token."""

    def __init__(self, stack: AsyncExitStack, text: str, begun: bool) -> None:
        self.stack, self.text, self.begun = stack, text, begun
        self.engines: list[FakeEngine] = []
        self.urls: tuple[str, ...] = ()
        self.names: tuple[str, ...] = ()
        """what no client may see"""

    async def enter(self) -> None:
        raise NotImplementedError

    def attach(self, server: ServedRouter) -> None:
        pass


class Http(Fleet):
    async def enter(self) -> None:
        error = {"error": {"message": self.text}}

        async def answer(asked: Asked, writer: asyncio.StreamWriter) -> None:
            if not self.begun or not asked.body.get("stream"):
                writer.write(reply(json.dumps(error).encode(), status=500))
            else:
                writer.write(stream_head() + event(part(11)))
                await writer.drain()
                writer.write(event(error))
            await writer.drain()

        engine = await self.stack.enter_async_context(HttpEngine({"/v1/completions": answer}))
        self.urls, self.names = (engine.url,), (engine.address,)


class Grpc(Fleet):
    async def enter(self) -> None:
        async def script(engine: Any, request: Any, context: Any) -> AsyncIterator[Any]:
            if self.begun:
                yield chunk(request, 11)
            more = (("x-where", self.text), ("detail-bin", self.text.encode()))
            await context.abort(grpc.StatusCode.INTERNAL, self.text, more)

        engine = FakeEngine(script, worker_id=NUMBER)
        self.engines = [engine]


class Dynamo(Fleet):
    async def enter(self) -> None:
        self.server, self.plane = RequestServer(), RequestClient()
        await self.server.start()
        await self.plane.start()
        self.stack.push_async_callback(self.server.close)
        self.stack.push_async_callback(self.plane.close)
        self.server.add(PATH, self._generate)
        self.names = (f"127.0.0.1:{self.server.port}", PATH)

    def attach(self, server: ServedRouter) -> None:
        address = f"127.0.0.1:{self.server.port}/{PATH}"
        route = DynamoRoute("tcp", address, "msgpack", NUMBER, EngineFacts(model_id="tiny"))
        client = DynamoClient(route, self.plane, SystemClock())
        server.monitor.add(WorkerUrl(address, NUMBER), client=client)

    async def _generate(self, body: Any, context: Any) -> AsyncIterator[object]:
        if len(body["token_ids"]) == 1:  # a canary
            yield annotated({"token_ids": [1], "finish_reason": "length"})
            return
        if self.begun:
            yield annotated({"token_ids": [11]})
        yield {"event": "error", "comment": [self.text]}


KINDS: dict[str, type[Fleet]] = {"http": Http, "grpc": Grpc, "dynamo": Dynamo}


@asynccontextmanager
async def serving(
    kind: str, text: str = TEXT, begun: bool = False
) -> AsyncIterator[tuple[Served, Fleet]]:
    async with AsyncExitStack() as stack:
        fleet = KINDS[kind](stack, text, begun)
        await fleet.enter()
        served = await stack.enter_async_context(
            openai_serving(*fleet.engines, workers=fleet.urls, attach=fleet.attach)
        )
        if fleet.engines:
            fleet.names = (f"127.0.0.1:{fleet.engines[0].port}",)
        yield served, fleet


async def complete(served: Served, streamed: bool) -> str:
    body = {"model": "tiny", "prompt": [5] * 20, "max_tokens": 4, "stream": streamed}
    return await posted(served, "/v1/completions", body)


async def chat(served: Served, streamed: bool) -> str:
    tokens = {"nvext": {"token_data": [5] * 20}}
    body = {"model": "tiny", "messages": [{"role": "user", "content": "a"}], "stream": streamed}
    return await posted(served, "/v1/chat/completions", {**body, "max_tokens": 4, **tokens})


async def posted(served: Served, path: str, body: Any) -> str:
    async with served.session.post(served.url + path, json=body) as answer:
        return f"{answer.status} {answer.headers} {await answer.text()}"


async def generate(served: Served, streamed: bool) -> str:
    async with aio.insecure_channel(served.server.grpc_address) as channel:
        call = channel.unary_stream(f"/{SERVICE}/Generate", None, None)
        with pytest.raises(aio.AioRpcError) as caught:
            await messages_of(call(prompt("r1", 20).SerializeToString()))
    error = caught.value
    return f"{error.details()} {list(error.trailing_metadata() or ())}"


LISTENERS: dict[str, Callable[[Served, bool], Any]] = {
    "completions": complete,
    "chat": chat,
    "grpc": generate,
}


@pytest.mark.parametrize("text", [TEXT, LONG], ids=["short", "long"])
@pytest.mark.parametrize("begun", [False, True], ids=["refused", "begun"])
@pytest.mark.parametrize("listener", LISTENERS)
@pytest.mark.parametrize("kind", KINDS)
async def test_a_clients_error_has_no_credentials_and_no_address(
    kind: str, listener: str, begun: bool, text: str
) -> None:
    async with serving(kind, text, begun) as (served, fleet):
        for streamed in (False, True):
            shown = await LISTENERS[listener](served, streamed)
            assert "no room" in shown, shown
            assert SECRET not in shown, shown
            for name in (*fleet.names, str(NUMBER)):
                assert name not in shown.replace(f"x-dynamo-worker-id', value='{NUMBER}", ""), shown


@pytest.mark.parametrize("listener", LISTENERS)
@pytest.mark.parametrize("kind", KINDS)
async def test_an_engine_that_is_gone_is_not_named(kind: str, listener: str) -> None:
    """Its address stands in what the transport says of it."""
    async with serving(kind) as (served, fleet):
        if isinstance(fleet, Dynamo):
            await fleet.server.close()
        for engine in fleet.engines:
            await engine.stop()
        for streamed in (False, True):
            shown = await LISTENERS[listener](served, streamed)
            for name in (*fleet.names, "127.0.0.1", str(NUMBER)):
                assert name not in shown, shown


@pytest.mark.parametrize("listener", LISTENERS)
async def test_an_endpoint_that_a_worker_does_not_have_is_not_named(listener: str) -> None:
    async with serving("dynamo") as (served, fleet):
        assert isinstance(fleet, Dynamo)
        fleet.server.remove(PATH)
        shown = await LISTENERS[listener](served, False)
        assert "takes no requests" in shown or "no worker is ready" in shown, shown
        assert PATH not in shown and "127.0.0.1" not in shown, shown
