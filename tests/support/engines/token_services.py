"""Scripted engines that serve vLLM's or SGLang's gRPC service, by the stubs that those publish.

Written from the comments in their protocols, apart from the code that is tested.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import grpc
from grpc import aio
from smg_grpc_proto.generated import (
    common_pb2,
    sglang_scheduler_pb2,
    sglang_scheduler_pb2_grpc,
    vllm_engine_pb2,
    vllm_engine_pb2_grpc,
)
from support.free_port import free_port

from dynamo_router.workers.token_services.proto import openengine_pb2

Script = Callable[["TokenService", Any, Any], AsyncIterator[Any]]
CONTEXT, VOCABULARY, VERSION = 4096, 1000, "9.8"


class TokenService:
    """One engine on loopback. `script` answers Generate; the rest answers from the attributes."""

    service = ""
    pb: Any

    def __init__(self, script: Script) -> None:
        self.script = script
        self.port = 0
        self.healthy, self.flushed, self.vocabulary = True, True, VOCABULARY
        self.go = asyncio.Event()
        self.requests: list[Any] = []
        self.metadata: list[dict[str, Any]] = []
        self.aborted: list[str] = []
        self.cancelled: list[str] = []
        self.subscribed: list[Any] = []
        self.events: list[Any] = []
        self._server: Any = None

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def url(self) -> str:
        return f"grpc://{self.address}"

    async def __aenter__(self) -> "TokenService":
        self.port = self.port or free_port()
        self._server = aio.server(options=(("grpc.so_reuseport", 0),))
        self.enlist(self._server)
        self._server.add_insecure_port(self.address)
        await self._server.start()
        return self

    async def __aexit__(self, *error: object) -> None:
        server, self._server = self._server, None
        if server is not None:
            await server.stop(None)

    def enlist(self, server: Any) -> None:
        raise NotImplementedError

    # Methods of its service

    async def Generate(self, request: Any, context: Any) -> AsyncIterator[Any]:  # noqa: N802
        self.requests.append(request)
        self.metadata.append(dict(context.invocation_metadata()))
        try:
            async for message in self.script(self, request, context):
                yield message
        except (asyncio.CancelledError, GeneratorExit):  # the latter while a message is written
            self.cancelled.append(request.request_id)
            raise

    async def HealthCheck(self, request: Any, context: Any) -> Any:  # noqa: N802
        return self.pb.HealthCheckResponse(healthy=self.healthy, message="out of memory")

    async def GetModelInfo(self, request: Any, context: Any) -> Any:  # noqa: N802
        return self.pb.GetModelInfoResponse(
            served_model_name="tiny",
            model_path="/models/tiny",
            max_context_length=CONTEXT,
            max_req_input_len=CONTEXT - 1,
            vocab_size=self.vocabulary,
        )

    async def Embed(self, request: Any, context: Any) -> Any:  # noqa: N802
        count = len(request.tokenized.input_ids)
        return self.pb.EmbedResponse(embedding=[0.5, float(count)], prompt_tokens=count)

    async def FlushCache(self, request: Any, context: Any) -> Any:  # noqa: N802
        return common_pb2.FlushCacheResponse(success=self.flushed, message="requests are running")

    async def GetTokenizer(self, request: Any, context: Any) -> AsyncIterator[Any]:  # noqa: N802
        yield common_pb2.GetTokenizerChunk(data=b"zip", sha256="abc")

    async def SubscribeKvEvents(self, request: Any, context: Any) -> AsyncIterator[Any]:  # noqa: N802
        self.subscribed.append(request)
        for batch in self.events:
            yield batch
        await asyncio.Event().wait()


class VllmService(TokenService, vllm_engine_pb2_grpc.VllmEngineServicer):  # type: ignore[misc]
    """vLLM: the messages of a stream have what is new, and its last one repeats the one before."""

    service, pb = "vllm.grpc.engine.VllmEngine", vllm_engine_pb2

    def __init__(self, script: Script) -> None:
        super().__init__(script)
        self.info = vllm_engine_pb2.GetServerInfoResponse(
            server_type="vllm-grpc", block_size=16, data_parallel_size=1, max_num_seqs=8
        )

    def enlist(self, server: Any) -> None:
        vllm_engine_pb2_grpc.add_VllmEngineServicer_to_server(self, server)

    async def GetServerInfo(self, request: Any, context: Any) -> Any:  # noqa: N802
        return self.info

    async def GetLoads(self, request: Any, context: Any) -> Any:  # noqa: N802
        found = vllm_engine_pb2.GetLoadsResponse(version=VERSION)
        found.loads.add(max_total_num_tokens=6400)
        return found

    async def Abort(self, request: Any, context: Any) -> Any:  # noqa: N802
        self.aborted += request.request_ids
        self.go.set()
        return vllm_engine_pb2.AbortResponse()


class SglangService(TokenService, sglang_scheduler_pb2_grpc.SglangSchedulerServicer):  # type: ignore[misc]
    """SGLang: its messages count all tokens of the answer so far."""

    service, pb = "sglang.grpc.scheduler.SglangScheduler", sglang_scheduler_pb2

    def __init__(self, script: Script) -> None:
        super().__init__(script)
        self.info = sglang_scheduler_pb2.GetServerInfoResponse(
            sglang_version=VERSION, server_type="grpc", max_total_num_tokens=6400
        )
        self.info.server_args.update(
            {"tp_size": 1, "pp_size": 1, "dp_size": 1, "page_size": 16, "max_running_requests": 8}
        )

    def enlist(self, server: Any) -> None:
        sglang_scheduler_pb2_grpc.add_SglangSchedulerServicer_to_server(self, server)

    async def GetServerInfo(self, request: Any, context: Any) -> Any:  # noqa: N802
        return self.info

    async def Abort(self, request: Any, context: Any) -> Any:  # noqa: N802
        self.aborted.append(request.request_id)
        self.go.set()
        return sglang_scheduler_pb2.AbortResponse(success=True, message="aborted")


class OpenEngineService(TokenService):
    """OpenEngine: an event for each part, the finish with its usage."""

    pb = openengine_pb2

    def __init__(self, script: Script) -> None:
        super().__init__(script)
        self.info = openengine_pb2.GetServerInfoResponse(
            engine_name="tensorrt_llm", engine_version=VERSION, engine_role=1
        )
        self.info.capacity.kv_block_size, self.info.capacity.total_kv_blocks = 64, 100
        self.info.capacity.max_running_requests = 8
        self.info.parallelism.data_parallel_size = 1

    def enlist(self, server: Any) -> None:
        unary = {
            "Health": self.HealthCheck,
            "GetModelInfo": self.GetModelInfo,
            "GetServerInfo": self.GetServerInfo,
            "Abort": self.Abort,
        }
        control = {
            name: grpc.unary_unary_rpc_method_handler(
                method, getattr(self.pb, f"{name}Request").FromString, _bytes_of
            )
            for name, method in unary.items()
        }
        generate = grpc.unary_stream_rpc_method_handler(
            self.Generate, self.pb.GenerateRequest.FromString, _bytes_of
        )
        for service, methods in (("Control", control), ("Inference", {"Generate": generate})):
            handler = grpc.method_handlers_generic_handler(f"openengine.v1.{service}", methods)
            server.add_generic_rpc_handlers((handler,))

    async def HealthCheck(self, request: Any, context: Any) -> Any:  # noqa: N802
        found = self.pb.HealthResponse(state=2 if self.healthy else 5)
        found.checks.add(name="scheduler", state=found.state, message="out of memory")
        return found

    async def GetModelInfo(self, request: Any, context: Any) -> Any:  # noqa: N802
        return self.pb.GetModelInfoResponse(
            model_id="/models/tiny", served_model_name="tiny", max_context_length=CONTEXT
        )

    async def GetServerInfo(self, request: Any, context: Any) -> Any:  # noqa: N802
        return self.info

    async def Abort(self, request: Any, context: Any) -> Any:  # noqa: N802
        self.aborted.append(request.request_id)
        self.go.set()
        return self.pb.AbortResponse(message="aborted")


def _bytes_of(message: Any) -> bytes:
    data: bytes = message.SerializeToString()
    return data


def open_part(*tokens: int) -> Any:
    """An event with these tokens."""
    found = openengine_pb2.GenerateResponse()
    found.token.output_index = 0
    for token in tokens:
        found.token.tokens.add(token_id=token)
    return found


def open_last(reason: int = 2, cached: int = 0) -> Any:
    """The finish, by default for its length."""
    found = openengine_pb2.GenerateResponse()
    found.finished.output_index, found.finished.reason = 0, reason
    found.usage.cached_prompt_tokens = cached
    return found


def vllm_part(tokens: list[int], cached: int = 0) -> Any:
    """A message of a stream."""
    found = vllm_engine_pb2.GenerateResponse()
    found.chunk.token_ids.extend(tokens)
    found.chunk.completion_tokens, found.chunk.cached_tokens = len(tokens), cached
    return found


def vllm_last(tokens: list[int], reason: str, cached: int = 0, handed: str = "") -> Any:
    """The last message: of a stream with the tokens of the one before it, else with all."""
    found = vllm_engine_pb2.GenerateResponse()
    found.complete.output_ids.extend(tokens)
    found.complete.completion_tokens, found.complete.cached_tokens = len(tokens), cached
    found.complete.finish_reason = reason
    if handed:
        found.complete.kv_transfer_params_json = handed
    return found


def sglang_part(tokens: list[int], count: int, cached: int = 0) -> Any:
    """A message of a stream; `count` tokens there are in all."""
    found = sglang_scheduler_pb2.GenerateResponse()
    found.chunk.token_ids.extend(tokens)
    found.chunk.completion_tokens, found.chunk.cached_tokens = count, cached
    return found


def sglang_last(tokens: list[int], count: int, reason: str, cached: int = 0) -> Any:
    found = sglang_scheduler_pb2.GenerateResponse()
    found.complete.output_ids.extend(tokens)
    found.complete.completion_tokens, found.complete.cached_tokens = count, cached
    found.complete.finish_reason = reason
    return found


async def refused(context: Any, status: int, text: str) -> None:
    """End a call as a server of HTTP would with this status."""
    code = grpc.StatusCode.INVALID_ARGUMENT if status == 400 else grpc.StatusCode.UNAVAILABLE
    await context.abort(code, text)
