"""An engine whose answers a test scripts, behind a real gRPC server; a router, if asked."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import grpc

from dynamo_router.workers.trtllm_proto import SERVICE, pb

Script = Callable[[Any, Any], AsyncIterator[Any]]


def chunk(*tokens: int) -> Any:
    return pb.GenerateResponse(chunk=pb.GenerateStreamChunk(token_ids=tokens))


def complete(*tokens: int, cached: int = 0, finish: str = "length") -> Any:
    return pb.GenerateResponse(
        complete=pb.GenerateComplete(
            output_token_ids=tokens, cached_tokens=cached, finish_reason=finish
        )
    )


def number_of(request: Any) -> int:
    return int(request.request_id.rpartition("-")[2])


async def answer_well(request: Any, context: Any) -> AsyncIterator[Any]:
    tokens = list(range(request.max_tokens))
    if request.streaming:
        for token in tokens:
            yield chunk(token)
    yield complete(*tokens, cached=100)


@asynccontextmanager
async def engine(
    script: Script,
    *,
    model_info: Any = None,
    metadata: tuple[tuple[str, str], ...] = (),
    workers: Any = None,
    received: list[Any] | None = None,
) -> AsyncIterator[str]:
    """A server whose Generate follows `script`; yields its address. With `workers`, a router."""

    async def generate(request: Any, context: Any) -> AsyncIterator[Any]:
        if received is not None:
            received.append(request)
        async for message in script(request, context):
            yield message if isinstance(message, bytes) else message.SerializeToString()

    async def get_model_info(request: Any, context: Any) -> Any:
        await context.send_initial_metadata(metadata)
        return model_info

    async def list_workers(request: Any, context: Any) -> Any:
        return workers.SerializeToString()

    methods: dict[str, Any] = {
        "Generate": grpc.unary_stream_rpc_method_handler(
            generate, request_deserializer=pb.GenerateRequest.FromString
        )
    }
    if model_info is not None:
        methods["GetModelInfo"] = grpc.unary_unary_rpc_method_handler(
            get_model_info,
            request_deserializer=pb.GetModelInfoRequest.FromString,
            response_serializer=pb.GetModelInfoResponse.SerializeToString,
        )
    server = grpc.aio.server()
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, methods),))
    if workers is not None:
        listing = {"ListWorkers": grpc.unary_unary_rpc_method_handler(list_workers)}
        router = grpc.method_handlers_generic_handler("dynamo_router.v1.RouterService", listing)
        server.add_generic_rpc_handlers((router,))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        await server.stop(None)
