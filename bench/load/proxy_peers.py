"""The other processes of the proxy benchmark: an engine that answers at once, and a bare proxy.

Run as `python -m dynamo_router.bench.load.proxy_peers engine PORTS` or `... bare ADDRESS,...`; each
prints the addresses it listens on, then serves until it is killed.
"""

import asyncio
import itertools
import sys
from typing import Any

import grpc
import uvloop
from grpc import aio

from ...workers.channels import MAX_MESSAGE_BYTES
from ...workers.trtllm_proto import SERVICE, pb

OPTIONS: tuple[tuple[str, Any], ...] = (
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.so_reuseport", 0),
)
GENERATE = f"/{SERVICE}/Generate"


class Methods(grpc.GenericRpcHandler):
    """A server of these, by their full names."""

    def __init__(self, methods: dict[str, Any]) -> None:
        self._methods = methods

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> Any:
        return self._methods.get(handler_call_details.method)


def engine() -> dict[str, Any]:
    """Two messages for every request, made beforehand."""
    first = pb.GenerateResponse(request_id="r")
    first.chunk.token_ids.append(1)
    last = pb.GenerateResponse(request_id="r")
    last.complete.output_token_ids.append(1)
    chunk, complete = first.SerializeToString(), last.SerializeToString()
    healthy = pb.HealthCheckResponse(status="OK").SerializeToString()

    async def generate(request: bytes, context: Any) -> None:
        await context.write(chunk)
        await context.write(complete)

    async def health_check(request: bytes, context: Any) -> bytes:
        return bytes(healthy)

    return {
        GENERATE: grpc.unary_stream_rpc_method_handler(generate),
        f"/{SERVICE}/HealthCheck": grpc.unary_unary_rpc_method_handler(health_check),
    }


def bare_proxy(targets: str) -> dict[str, Any]:
    """Bytes in, bytes out, engines in turn: the least that a proxy on grpc.aio can do."""
    channels = [aio.insecure_channel(target, options=OPTIONS) for target in targets.split(",")]
    calls: list[Any] = [channel.unary_stream(GENERATE, None, None) for channel in channels]
    turns = itertools.cycle(calls)

    async def generate(request: bytes, context: Any) -> None:
        async for message in next(turns)(request):
            await context.write(message)

    return {GENERATE: grpc.unary_stream_rpc_method_handler(generate)}


async def main(role: str, argument: str) -> None:
    """Serve as "engine", on so many ports, or as "bare", to these addresses."""
    methods = engine() if role == "engine" else bare_proxy(argument)
    ports = int(argument) if role == "engine" else 1
    server = aio.server(options=OPTIONS)
    server.add_generic_rpc_handlers((Methods(methods),))
    bound = [server.add_insecure_port("127.0.0.1:0") for _ in range(ports)]
    await server.start()
    print(*(f"127.0.0.1:{port}" for port in bound), flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    uvloop.run(main(*sys.argv[1:]))
