"""A router that is asked to stop says so by health first, and serves who comes meanwhile."""

import asyncio
import re
import signal
import urllib.error
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from support.fake_engine import FakeEngine, prompt, stall
from support.polling import until
from support.processes import Command, command, http_json

from dynamo_router.workers.trtllm_proto import SERVICE

SERVE = ("serve", "--no-kv-events", "--port", "0", "--http-port", "0", "--drain-timeout-s", "30")


async def addresses(router: Command) -> tuple[str, str]:
    """(gRPC, HTTP) of a router, once it is ready."""
    found = re.search(r"grpc (\S+) http (\S+)", await router.says("dynamo-router ready"))
    assert found is not None
    return found[1], found[2]


async def test_health_says_so_first_and_new_requests_are_served_until_then(tmp_path: Path) -> None:
    engine = FakeEngine(stall)
    async with engine, command(
        tmp_path, *SERVE, "--worker", engine.url, "--lame-duck-s", "600"
    ) as router:  # fmt: skip
        address, http = await addresses(router)
        async with grpc.aio.insecure_channel(address) as channel:
            watched = health_pb2_grpc.HealthStub(channel).Watch(
                health_pb2.HealthCheckRequest(service=SERVICE)
            )
            serving = health_pb2.HealthCheckResponse.SERVING
            while (await asyncio.wait_for(watched.read(), 60)).status != serving:
                pass
            router.send(signal.SIGTERM)
            health = await asyncio.wait_for(watched.read(), 60)
            assert health.status == health_pb2.HealthCheckResponse.NOT_SERVING
            watched.cancel()
            with pytest.raises(urllib.error.HTTPError, match="503"):
                await http_json(http, "/health")
            assert (await http_json(http, "/live"))["status"] == "live"
        # A client that has not heard of it yet, on a connection of its own.
        async with grpc.aio.insecure_channel(address) as late:
            call = late.unary_stream(f"/{SERVICE}/Generate", None, None)(
                prompt("late").SerializeToString()
            )
            assert await asyncio.wait_for(call.read(), 60)
            # A second signal ends the time of grace, and the requests with it.
            router.send(signal.SIGTERM)
            with pytest.raises(grpc.aio.AioRpcError):
                await call.read()
        assert await router.ended() == 0, router.text
        assert "are served for 600 s more" in router.text and "Traceback" not in router.text


async def test_then_the_listeners_close_and_what_is_in_flight_finishes(tmp_path: Path) -> None:
    engine = FakeEngine(stall)
    async with engine, command(
        tmp_path, *SERVE, "--worker", engine.url, "--lame-duck-s", "0.01"
    ) as router:  # fmt: skip
        address, _ = await addresses(router)
        async with grpc.aio.insecure_channel(address) as channel:
            call = channel.unary_stream(f"/{SERVICE}/Generate", None, None)(
                prompt("r").SerializeToString()
            )
            assert await asyncio.wait_for(call.read(), 60)
            router.send(signal.SIGTERM)
            await router.says("draining: running requests have 30 s")
            host, _, port = address.rpartition(":")

            async def refused() -> bool:
                try:
                    _, writer = await asyncio.open_connection(host, int(port))
                except ConnectionRefusedError:
                    return True
                except ConnectionResetError:  # the listener closed between its two answers
                    return False
                writer.close()
                return False

            await until(refused, 60.0)
            engine.go.set()
            assert await call.read() and await call.read() is grpc.aio.EOF
        assert await router.ended() == 0, router.text


async def test_ctrl_c_does_not_wait_for_a_load_balancer(tmp_path: Path) -> None:
    async with command(tmp_path, *SERVE, "--lame-duck-s", "600") as router:
        await addresses(router)
        router.send(signal.SIGINT)
        await until(lambda: "draining: running requests have 30 s" in router.text)
        assert await router.ended() == 0 and "shutting down" not in router.text
