"""A scripted TrtllmService: says what a test tells it to, and remembers what it was asked."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import grpc
from grpc import aio
from support.free_port import free_port

from dynamo_router.workers.trtllm_proto import SERVICE, pb

Script = Callable[["FakeEngine", Any, Any], AsyncIterator[Any]]


def prompt(request_id: str = "r1", tokens: int = 8, **more: Any) -> Any:
    """A GenerateRequest of `tokens` tokens."""
    request = pb.GenerateRequest(request_id=request_id, max_tokens=4, streaming=True, **more)
    request.tokenized.input_token_ids.extend(range(1, tokens + 1))
    return request


def chunk(request: Any, *token_ids: int) -> Any:
    response = pb.GenerateResponse(request_id=request.request_id)
    response.chunk.token_ids.extend(token_ids)
    return response


def complete(request: Any, *token_ids: int) -> Any:
    response = pb.GenerateResponse(request_id=request.request_id)
    response.complete.output_token_ids.extend(token_ids)
    response.complete.completion_tokens = len(token_ids)
    response.complete.prompt_tokens = len(request.tokenized.input_token_ids)
    response.complete.finish_reason = "length"
    return response


async def answer(engine: "FakeEngine", request: Any, context: Any) -> AsyncIterator[Any]:
    """The ordinary script: two tokens, then all of it."""
    yield chunk(request, 11)
    yield chunk(request, 12)
    yield complete(request, 11, 12)


async def hang(engine: "FakeEngine", request: Any, context: Any) -> AsyncIterator[Any]:
    """Never say anything."""
    await asyncio.Event().wait()
    yield


async def stall(engine: "FakeEngine", request: Any, context: Any) -> AsyncIterator[Any]:
    """One token, then nothing until `engine.go` is set."""
    yield chunk(request, 11)
    await engine.go.wait()
    yield complete(request, 11)


def fail(code: grpc.StatusCode, details: str) -> Script:
    """A script that ends at once with a status."""

    async def script(engine: "FakeEngine", request: Any, context: Any) -> AsyncIterator[Any]:
        await context.abort(code, details)
        yield

    return script


class FakeEngine:
    """One engine on loopback. `script` answers Generate; the rest answers from the attributes."""

    def __init__(
        self, script: Script = answer, *, worker_id: int | None = None, host: str = "127.0.0.1"
    ) -> None:
        self.script = script
        self.host = host
        self.worker_id = worker_id
        self.dp_size: int | None = None
        self.publisher_ids: str | None = None
        self.status = "OK"
        self.model = pb.GetModelInfoResponse(model_id="fake", vocab_size=1000, max_input_len=100)
        self.server_info = pb.GetServerInfoResponse(version="1", world_size=1)
        self.go = asyncio.Event()
        self.deaf: asyncio.Event | None = None  # health checks and model infos wait for it
        self.unimplemented: set[str] = set()
        self.probes = 0
        self.questions = 0  # waiting until it is deaf no more
        self.described = 0
        self.undescribed: grpc.StatusCode | None = None  # what GetServerInfo fails with
        self.requests: list[Any] = []
        self.metadata: list[dict[str, Any]] = []
        self.aborted: list[str] = []
        self.cancelled: list[str] = []
        self.finished: list[str] = []
        self.ended: list[str] = []  # in whatever way
        self.embed: Callable[[bytes, Any], Awaitable[bytes]] | None = None
        self.tokenizer: Callable[[bytes, Any], AsyncIterator[bytes]] | None = None
        self.has_events = False  # says that it will tell of its cache, and does not
        self.port = 0
        self._server: Any = None

    @property
    def address(self) -> str:
        return f"{self.host}:{self.port}"

    @property
    def url(self) -> str:
        return f"grpc://{self.address}"

    async def start(self) -> "FakeEngine":
        """Listen: on a free port the first time, on the same one after a stop."""
        self.port = self.port or free_port()
        self._server = aio.server(options=(("grpc.so_reuseport", 0),))
        self._server.add_generic_rpc_handlers((_Handler(self),))
        self._server.add_insecure_port(self.address)
        await self._server.start()
        return self

    async def stop(self) -> None:
        """End at once; what runs is cut off."""
        if self._server is not None:
            server, self._server = self._server, None
            await server.stop(None)

    async def __aenter__(self) -> "FakeEngine":
        return await self.start()

    async def __aexit__(self, *error: object) -> None:
        await self.stop()

    async def generate(self, request: Any, context: Any) -> AsyncIterator[Any]:
        self.requests.append(request)
        self.metadata.append(dict(context.invocation_metadata()))
        try:
            async for response in self.script(self, request, context):
                yield response
            self.finished.append(request.request_id)
        except asyncio.CancelledError:
            self.cancelled.append(request.request_id)
            raise
        finally:
            self.ended.append(request.request_id)

    async def abort(self, request: Any, context: Any) -> Any:
        self.aborted.append(request.request_id)
        running = [r.request_id for r in self.requests if r.request_id not in self.finished]
        found = request.request_id in running and request.request_id not in self.cancelled
        return pb.AbortResponse(success=found, message="" if found else "not found")

    async def health_check(self, request: Any, context: Any) -> Any:
        self.probes += 1
        await self._listen()
        await self._introduce(context)
        return pb.HealthCheckResponse(status=self.status)

    async def get_model_info(self, request: Any, context: Any) -> Any:
        await self._listen()
        await self._introduce(context)
        return self.model

    async def get_server_info(self, request: Any, context: Any) -> Any:
        self.described += 1
        if self.undescribed is not None:
            await context.abort(self.undescribed, "no description")
        await self._introduce(context)
        return self.server_info

    async def _listen(self) -> None:
        if self.deaf is not None:
            self.questions += 1
            try:
                await self.deaf.wait()
            finally:
                self.questions -= 1

    async def _introduce(self, context: Any) -> None:
        said = {
            "x-dynamo-worker-id": self.worker_id,
            "x-dynamo-dp-size": self.dp_size,
            "x-dynamo-publisher-id": self.publisher_ids,
        }
        pairs = tuple((key, str(value)) for key, value in said.items() if value is not None)
        if pairs:
            await context.send_initial_metadata(pairs)


async def _no_events(request: bytes, context: Any) -> AsyncIterator[bytes]:
    await context.send_initial_metadata(())
    await asyncio.Event().wait()
    yield b""


class _Handler(grpc.GenericRpcHandler):
    def __init__(self, engine: FakeEngine) -> None:
        self._engine = engine
        unary = {
            "Abort": (engine.abort, pb.AbortRequest),
            "HealthCheck": (engine.health_check, pb.HealthCheckRequest),
            "GetModelInfo": (engine.get_model_info, pb.GetModelInfoRequest),
            "GetServerInfo": (engine.get_server_info, pb.GetServerInfoRequest),
        }
        self._methods = {
            f"/{SERVICE}/{name}": grpc.unary_unary_rpc_method_handler(
                method, request.FromString, lambda message: message.SerializeToString()
            )
            for name, (method, request) in unary.items()
        }
        self._methods[f"/{SERVICE}/Generate"] = grpc.unary_stream_rpc_method_handler(
            engine.generate,
            pb.GenerateRequest.FromString,
            lambda message: message.SerializeToString(),
        )

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> Any:
        method = handler_call_details.method
        if method.rpartition("/")[2] in self._engine.unimplemented:
            return None
        if method.endswith("/Embed") and self._engine.embed is not None:
            return grpc.unary_unary_rpc_method_handler(self._engine.embed)
        if method.endswith("/SubscribeKvEvents") and self._engine.has_events:
            return grpc.unary_stream_rpc_method_handler(_no_events)
        if method.endswith("/GetTokenizer") and self._engine.tokenizer is not None:
            return grpc.unary_stream_rpc_method_handler(self._engine.tokenizer)
        return self._methods.get(method)
