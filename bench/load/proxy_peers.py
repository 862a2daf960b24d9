"""The other processes of benchmarks of proxies: an engine that answers at once, and bare proxies.

Run as `python -m dynamo_router.bench.load.proxy_peers engine PORTS`, `... bare ADDRESS,...` or
`... bare-http2 ADDRESS,...`; each prints the addresses it listens on, then serves until it is
killed.
"""

import asyncio
import itertools
import sys
from collections.abc import Sequence
from contextlib import AsyncExitStack
from typing import Any

import grpc
import uvloop
from grpc import aio

from ...server.command import settle_memory
from ...transport.http2 import ClientChannel, Http2Server, ServerCall
from ...workers.channels import MAX_MESSAGE_BYTES, WINDOW_BYTES
from ...workers.trtllm_proto import SERVICE, pb
from .child import pid_of, start_child

OPTIONS: tuple[tuple[str, Any], ...] = (
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.so_reuseport", 0),
)
CLIENT_OPTIONS = (
    *OPTIONS,
    ("grpc.enable_retries", 0),
    # A fixed window: probing for the best one costs a ping with nearly every message.
    ("grpc.http2.bdp_probe", 0),
    ("grpc.http2.lookahead_bytes", WINDOW_BYTES),
)
GENERATE = f"/{SERVICE}/Generate"


class _Methods(grpc.GenericRpcHandler):
    """A server of these, by their full names."""

    def __init__(self, methods: dict[str, Any]) -> None:
        self._methods = methods

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> Any:
        return self._methods.get(handler_call_details.method)


def engine_methods(generate: Any) -> dict[str, Any]:
    """An engine that is well and generates so: a coroutine function of a request and a context."""
    healthy = pb.HealthCheckResponse(status="OK").SerializeToString()

    async def health_check(request: bytes, context: Any) -> bytes:
        return bytes(healthy)

    return {
        GENERATE: grpc.unary_stream_rpc_method_handler(generate),
        f"/{SERVICE}/HealthCheck": grpc.unary_unary_rpc_method_handler(health_check),
    }


def engine() -> dict[str, Any]:
    """A message for each token that is asked for, and one for the end; all made beforehand."""
    first = pb.GenerateResponse(request_id="r")
    first.chunk.token_ids.append(1)
    last = pb.GenerateResponse(request_id="r")
    last.complete.output_token_ids.append(1)
    chunk, complete = first.SerializeToString(), last.SerializeToString()

    async def generate(request: bytes, context: Any) -> None:
        for _ in range(pb.GenerateRequest.FromString(request).max_tokens):
            await context.write(chunk)
        await context.write(complete)

    return engine_methods(generate)


def bare_proxy(targets: str) -> dict[str, Any]:
    """Bytes in, bytes out, engines in turn: the least that a proxy on grpc.aio can do."""
    channels = [aio.insecure_channel(target, options=OPTIONS) for target in targets.split(",")]
    calls: list[Any] = [channel.unary_stream(GENERATE, None, None) for channel in channels]
    turns = itertools.cycle(calls)

    async def generate(request: bytes, context: Any) -> None:
        async for message in next(turns)(request):
            await context.write(message)

    return {GENERATE: grpc.unary_stream_rpc_method_handler(generate)}


async def serve_copies(targets: str) -> None:
    """The same on our own HTTP/2, as `serve` has it: what is left of a request without a router."""
    turns = itertools.cycle([ClientChannel(target) for target in targets.split(",")])

    async def generate(call: ServerCall) -> None:
        message = await call.read()
        if message is not None:
            answers = next(turns).call(GENERATE, message)
            await answers.deliver(lambda each: None if call.put(each) else each, call.write)

    server = Http2Server()
    port = server.bind("127.0.0.1", 0)
    await server.start({GENERATE: generate})
    settle_memory()
    print(f"127.0.0.1:{port}", flush=True)
    await asyncio.Event().wait()


async def start_peer(role: str, argument: str, stack: AsyncExitStack) -> tuple[int, list[str]]:
    """This module as a process, stopped with the stack; its pid and the addresses it listens on."""
    # -W: that this module is imported with its room, and then run, is meant.
    run = [sys.executable, "-W", "ignore::RuntimeWarning:runpy", "-m", __spec__.name]
    # gRPC's library has things to say on standard error.
    command = [*run, role, argument]
    child = await start_child(f"the peer {role}", command, stack, join_stderr=False)
    return pid_of(child), child.output[0].split()


def open_call(address: str, stack: AsyncExitStack) -> Any:
    """Generate of a server, as bytes, over a channel that is closed with the stack."""
    channel = aio.insecure_channel(address, options=CLIENT_OPTIONS)
    stack.push_async_callback(channel.close, None)
    return channel.unary_stream(GENERATE, None, None)


async def serve_until_killed(
    methods: dict[str, Any], ports: int, options: Sequence[tuple[str, Any]] = OPTIONS
) -> None:
    """Serve them on free ports of loopback, and print their addresses in a line."""
    server = aio.server(options=options)
    server.add_generic_rpc_handlers((_Methods(methods),))
    bound = [server.add_insecure_port("127.0.0.1:0") for _ in range(ports)]
    await server.start()
    print(*(f"127.0.0.1:{port}" for port in bound), flush=True)
    await asyncio.Event().wait()


async def main(role: str, argument: str) -> None:
    """Serve as "engine", on a number of ports, or as a bare proxy, to these addresses."""
    if role == "engine":
        await serve_until_killed(engine(), int(argument))
    elif role == "bare-http2":
        await serve_copies(argument)
    else:
        await serve_until_killed(bare_proxy(argument), 1)


if __name__ == "__main__":
    uvloop.run(main(*sys.argv[1:]))
