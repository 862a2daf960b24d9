"""A router in front of one engine of each kind, whose answer fails or ends as a test says, and the
listeners that clients ask it at."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from typing import Any

import grpc
from grpc import aio
from support.calls import messages_of
from support.epp.picking import LISTENS, picked
from support.fake_engine import FakeEngine, chunk, complete, prompt
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

PATH = "generate-of-7"
NUMBER = 714_071


class Fleet:
    """One engine, of which kind ever. Its answer fails with `text`, or ends for the `reason`.
    `begun`: after a first token."""

    def __init__(
        self, stack: AsyncExitStack, text: str = "", begun: bool = False, reason: str = ""
    ) -> None:
        self.stack, self.text, self.begun, self.reason = stack, text, begun, reason
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
        tokens = (11,) if self.begun else ()

        async def answer(asked: Asked, writer: asyncio.StreamWriter) -> None:
            if self.reason:
                whole = part(*tokens, reason=self.reason)
                if asked.body.get("stream"):
                    writer.write(stream_head() + event(whole) + event(b"[DONE]"))
                else:
                    writer.write(reply(json.dumps(whole).encode()))
            elif not self.begun or not asked.body.get("stream"):
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
            tokens = (11,) if self.begun else ()
            if tokens and request.streaming:
                yield chunk(request, *tokens)
            if self.reason:
                last = complete(request, *tokens)
                last.complete.finish_reason = self.reason
                yield last
                return
            more = (("x-where", self.text), ("detail-bin", self.text.encode()))
            await context.abort(grpc.StatusCode.INTERNAL, self.text, more)

        self.engines = [FakeEngine(script, worker_id=NUMBER)]


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
        if self.reason:
            yield annotated({"token_ids": [], "finish_reason": self.reason})
        else:
            yield {"event": "error", "comment": [self.text]}


KINDS: dict[str, type[Fleet]] = {"http": Http, "grpc": Grpc, "dynamo": Dynamo}


@asynccontextmanager
async def one_engine(kind: str, **answer: Any) -> AsyncIterator[tuple[Served, Fleet]]:
    """Serve it until the block ends; `answer` as Fleet has it."""
    async with AsyncExitStack() as stack:
        fleet = KINDS[kind](stack, **answer)
        await fleet.enter()
        served = await stack.enter_async_context(
            openai_serving(
                *fleet.engines,
                workers=fleet.urls,
                attach=fleet.attach,
                envoy=replace(LISTENS, endpoint_port=9 if fleet.engines else None),
            )
        )
        if fleet.engines:
            fleet.names = (f"127.0.0.1:{fleet.engines[0].port}",)
        yield served, fleet


async def ask_completions(served: Served, streamed: bool) -> str:
    return await _posted(served, "/v1/completions", streamed, prompt=[5] * 20)


async def ask_chat(served: Served, streamed: bool) -> str:
    messages, tokens = [{"role": "user", "content": "a"}], {"token_data": [5] * 20}
    return await _posted(served, "/v1/chat/completions", streamed, messages=messages, nvext=tokens)


async def ask_responses(served: Served, streamed: bool) -> str:
    return await _posted(served, "/v1/responses", streamed, input="a word or two of it")


async def ask_messages(served: Served, streamed: bool) -> str:
    messages = [{"role": "user", "content": "a word or two of it"}]
    return await _posted(served, "/v1/messages", streamed, messages=messages)


async def ask_grpc(served: Served, streamed: bool) -> str:
    async with aio.insecure_channel(served.server.grpc_address) as channel:
        call = channel.unary_stream(f"/{SERVICE}/Generate", None, None)
        request = prompt("r1", 20)
        request.streaming = streamed
        try:
            answers = await messages_of(call(request.SerializeToString()))
        except aio.AioRpcError as error:
            return f"{error.code()} {error.details()} {list(error.trailing_metadata() or ())}"
    return f"200 {answers}"


async def ask_envoy(served: Served, streamed: bool, path: str = "/v1/completions") -> str:
    """What a client of Envoy's gets from the picker itself; empty: Envoy carries its request."""
    asked: dict[str, Any] = {"model": "tiny", "stream": streamed, "prompt": [5] * 20}
    if path.endswith("/chat/completions"):
        asked["messages"] = [{"role": "user", "content": "a"}]
    data = json.dumps(asked).encode()
    async with aio.insecure_channel(served.server.envoy_address) as channel:
        call, answered = await picked(channel, data, path)
        call.cancel()
    return "" if answered.immediate is None else str(answered.immediate)


async def _posted(served: Served, path: str, streamed: bool, **body: Any) -> str:
    most = "max_output_tokens" if path.endswith("responses") else "max_tokens"
    more = {"model": "tiny", "stream": streamed, most: 16}
    async with served.session.post(served.url + path, json={**body, **more}) as answer:
        return f"{answer.status} {answer.headers} {await answer.text()}"


LISTENERS: dict[str, Callable[[Served, bool], Any]] = {
    "completions": ask_completions,
    "chat": ask_chat,
    "grpc": ask_grpc,
}
