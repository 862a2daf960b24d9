"""Bounds on gRPC calls: bursts, shares of callers, calls without a message, long messages."""

import asyncio
from collections import Counter
from contextlib import AsyncExitStack
from functools import partial
from typing import Any

from grpc import aio
from support.calls import messages_of
from support.fake_engine import FakeEngine, prompt, stall
from support.polling import until
from support.serving import Ports, serving

from dynamo_router.router.config import KvRouterConfig
from dynamo_router.router.proto import router_pb2
from dynamo_router.server.caller_limits import CallerLimits
from dynamo_router.workers.channels import ConnectionPolicy
from dynamo_router.workers.trtllm_proto import SERVICE, pb

HIT = 'dynamo_router_limits_hit_total{limit="%s"}'


def generate(ports: Ports, body: bytes) -> Any:
    return ports.channel.unary_stream(f"/{SERVICE}/Generate", None, None)(body)


async def status(call: Any) -> str:
    """How a streaming call ends, whatever it says before."""
    try:
        await messages_of(call)
    except aio.AioRpcError as error:
        return error.code().name
    return "OK"


async def test_a_burst_beyond_what_grpc_lets_wait_is_answered_or_counted() -> None:
    calls, most = 3200, 50
    limits = CallerLimits(max_requests=most, max_questions=400, max_share_per_caller=1.0)
    async with serving(engine := FakeEngine(stall), peers=limits) as ports:
        bodies = [prompt(f"r{n}").SerializeToString() for n in range(calls)]
        burst = [asyncio.create_task(status(generate(ports, body))) for body in bodies]
        await until(lambda: sum(call.done() for call in burst) == calls - most, 60.0)
        engine.go.set()
        ended = Counter(await asyncio.gather(*burst))
        assert ended == {"OK": most, "RESOURCE_EXHAUSTED": calls - most}
        samples = await ports.metrics()
        assert samples[HIT % "max_requests"] == calls - most
        name = 'dynamo_component_router_requests_total{status="resource_exhausted"}'
        assert samples[name] == calls - most


async def test_one_caller_leaves_room_for_others_and_for_questions() -> None:
    limits = CallerLimits(max_requests=4, max_questions=4, max_share_per_caller=0.5)
    async with serving(engine := FakeEngine(stall), peers=limits) as ports:
        bodies = [prompt(f"r{n}").SerializeToString() for n in range(3)]
        running = [asyncio.create_task(status(generate(ports, body))) for body in bodies]
        await until(lambda: len(engine.requests) == 2 and any(call.done() for call in running))
        workers = await ports.select.ListWorkers(router_pb2.ListWorkersRequest())
        assert len(workers.workers) == 1
        answer = await ports.trtllm("HealthCheck", pb.HealthCheckRequest(), pb.HealthCheckResponse)
        assert answer.status == "OK"
        engine.go.set()
        ended = Counter(await asyncio.gather(*running))
        assert ended == {"OK": 2, "RESOURCE_EXHAUSTED": 1}
        assert (await ports.metrics())[HIT % "max_requests_per_caller"] == 1
        assert len(await ports.answers(prompt("later"))) == 2  # room is given back


async def test_the_bytes_of_requests_are_bounded() -> None:
    limits = CallerLimits(max_request_bytes=1000, max_share_per_caller=1.0)
    async with serving(engine := FakeEngine(stall), peers=limits) as ports:
        first = generate(ports, prompt("a", tokens=90).SerializeToString() + b"\x0a\x01a" * 200)
        await until(lambda: engine.requests)
        second = generate(ports, prompt("b", tokens=90).SerializeToString() + b"\x0a\x01b" * 200)
        assert await status(second) == "RESOURCE_EXHAUSTED"
        engine.go.set()
        assert await status(first) == "OK"
        assert (await ports.metrics())[HIT % "max_request_bytes"] == 1
        assert len(await ports.answers(prompt("c"))) == 2


async def test_a_call_whose_message_does_not_come_is_ended() -> None:
    limits = CallerLimits(message_timeout_s=0.05)
    async with serving(FakeEngine(), peers=limits) as ports:
        for method in ("Generate", "HealthCheck"):
            call = ports.channel.stream_stream(f"/{SERVICE}/{method}", None, None)()
            assert await status(call) == "DEADLINE_EXCEEDED"
        assert (await ports.metrics())[HIT % "message_timeout_s"] == 2


async def test_a_call_that_ends_without_a_message_is_refused() -> None:
    async with serving(FakeEngine()) as ports:
        for method in ("Generate", "HealthCheck"):
            empty = ports.channel.stream_stream(f"/{SERVICE}/{method}", None, None)()
            await empty.done_writing()
            assert await status(empty) == "INVALID_ARGUMENT"
        assert (await ports.metrics())[HIT % "message_timeout_s"] == 0


async def test_a_method_that_decodes_takes_no_long_message_and_no_garbage() -> None:
    async with serving(FakeEngine()) as ports:
        for method, body in (("Abort", b"\x0a\x80\x80\x08" + b"x" * 131072), ("Abort", b"\xff")):
            call = ports.channel.unary_stream(f"/{SERVICE}/{method}", None, None)(body)
            assert await status(call) == "INVALID_ARGUMENT"
        samples = await ports.metrics()
        assert samples[HIT % "decoded_bytes"] == 1


async def test_clients_that_leave_give_their_room_back() -> None:
    limits = CallerLimits(max_requests=2, max_share_per_caller=1.0)
    async with serving(FakeEngine(stall), peers=limits) as ports:
        for n in range(6):
            call = generate(ports, prompt(f"r{n}").SerializeToString())
            assert await call.read() is not aio.EOF
            call.cancel()
            await until(lambda: not ports.server.dispatcher.in_flight)
        samples = await ports.metrics()
        assert samples[HIT % "max_requests"] == 0


async def test_prompts_as_long_as_the_limit_are_taken_and_longer_ones_are_not() -> None:
    limits = CallerLimits(max_prompt_tokens=200_000, max_id_bytes=64)
    async with serving(FakeEngine(), peers=limits) as ports:
        tokens = list(range(200_000))
        selection = router_pb2.SelectWorkerRequest(token_ids=tokens, request_id="a" * 64)
        assert (await ports.select.SelectWorker(selection)).booked
        explained = await ports.select.Explain(router_pb2.ExplainRequest(token_ids=tokens))
        assert len(explained.candidates) == 1
        assert ports.server.dispatcher.reader.off_loop.runs >= 2
        too_long = [
            router_pb2.SelectWorkerRequest(token_ids=[*tokens, 1]),
            router_pb2.SelectWorkerRequest(token_ids=[1], request_id="a" * 65),
            router_pb2.SelectWorkerRequest(token_ids=[1], cache_namespace="a" * 65),
        ]
        path = "/dynamo_router.v1.RouterService/SelectWorker"
        for request in too_long:
            call = ports.channel.unary_stream(path, None, None)(request.SerializeToString())
            assert await status(call) == "INVALID_ARGUMENT"
        call = generate(ports, prompt("a" * 65).SerializeToString())
        assert await status(call) == "INVALID_ARGUMENT"
        samples = await ports.metrics()
        assert samples[HIT % "max_prompt_tokens"] == 1
        assert samples[HIT % "max_id_bytes"] == 3


async def test_metadata_messages_and_bodies_are_bounded() -> None:
    peers = CallerLimits(max_metadata_bytes=1000, max_body_bytes=5000, max_prompt_tokens=900)
    connection = ConnectionPolicy(max_message_bytes=4000)
    async with serving(FakeEngine(), peers=peers, connection=connection) as ports:
        method = ports.channel.unary_stream(f"/{SERVICE}/Generate", None, None)
        body = prompt().SerializeToString()
        assert await status(method(body, metadata=(("x", "y" * 500),))) == "OK"
        assert await status(method(body, metadata=(("x", "y" * 1000),))) == "RESOURCE_EXHAUSTED"
        assert await status(method(body + b"\x0a\x01b" * 1500)) == "RESOURCE_EXHAUSTED"
        for tokens, wanted in ((800, 200), (1000, 400), (3000, 413)):
            code, answer = await ports.http("POST", "/overlaps", json={"token_ids": [1] * tokens})
            assert code == wanted, answer
        samples = await ports.metrics()
        for limit in ("max_metadata_bytes", "max_body_bytes", "max_prompt_tokens"):
            assert samples[HIT % limit] == 1


async def test_a_caller_that_books_all_it_may_is_told_so() -> None:
    config = KvRouterConfig(
        block_size=16,
        use_kv_events=False,
        router_max_booked_blocks=100,
        router_max_booked_share=0.2,
    )
    async with serving(FakeEngine(stall), router=config) as ports:
        selections = [
            router_pb2.SelectWorkerRequest(token_ids=range(n, n + 144), request_id=f"s{n}")
            for n in range(3)
        ]
        booked = [(await ports.select.SelectWorker(each)).booked for each in selections]
        assert booked == [True, True, False]
        free = router_pb2.BookedRequest(request_id="s2")
        assert not (await ports.select.Free(free)).known
        running = asyncio.create_task(ports.answers(prompt("r1", tokens=48)))
        await until(lambda: ports.server.router.slots.total_requests == 3)  # others still count
        assert (await ports.select.Free(router_pb2.BookedRequest(request_id="s0"))).known
        assert (await ports.select.SelectWorker(selections[2])).booked
        samples = await ports.metrics()
        assert samples['dynamo_router_bookings_refused_total{reason="share"}'] == 1
        assert samples[HIT % "router_max_booked_blocks"] == 1
        running.cancel()
        await asyncio.wait([running])


async def _is_let_in(ports: Any) -> bool:
    """Whether a further HTTP connection is: not while all others have just come."""
    code, _ = await ports.http("GET", "/live")
    assert code in (200, 429)
    return bool(code == 200)


async def test_connections_that_say_nothing_keep_nobody_out_for_long() -> None:
    limits = CallerLimits(max_connections=8, max_http_connections=8, connection_handshake_s=1.5)
    async with serving(FakeEngine(), peers=limits) as ports, AsyncExitStack() as stack:
        addresses = (ports.server.grpc_address, ports.server.http_address)
        readers = []
        for address in addresses * 20:
            host, _, port = address.rpartition(":")
            reader, writer = await asyncio.open_connection(host, int(port))
            stack.callback(writer.close)
            readers.append(reader)
        await until(partial(_is_let_in, ports), 60.0)
        channel = await stack.enter_async_context(aio.insecure_channel(addresses[0]))
        health = channel.unary_unary(f"/{SERVICE}/HealthCheck", None, None)
        body = await health(b"", wait_for_ready=True, timeout=30)
        assert pb.HealthCheckResponse.FromString(body).status == "OK"
        assert (await ports.metrics())[HIT % "max_http_connections"] >= 12


async def test_one_address_does_not_take_all_connections() -> None:
    limits = CallerLimits(max_connections=24, max_http_connections=24)
    async with serving(FakeEngine(), peers=limits) as ports, AsyncExitStack() as stack:
        health = pb.HealthCheckRequest()
        assert (await ports.trtllm("HealthCheck", health, pb.HealthCheckResponse)).status == "OK"
        host, _, port = ports.server.grpc_address.rpartition(":")
        opened = [await asyncio.open_connection(host, int(port)) for _ in range(20)]
        for _, writer in opened:
            stack.callback(writer.close)
            writer.write(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\4\0\0\0\0\0")

        async def hit() -> bool:
            return (await ports.metrics()).get(HIT % "max_connection_share", 0) >= 8

        await until(hit, 60.0)
        # The connection that was there before stays.
        assert (await ports.trtllm("HealthCheck", health, pb.HealthCheckResponse)).status == "OK"


async def test_an_address_ends_its_own_http_connections() -> None:
    limits = CallerLimits(max_http_connections=16)
    async with serving(FakeEngine(), peers=limits) as ports, AsyncExitStack() as stack:
        host, _, port = ports.server.http_address.rpartition(":")
        for _ in range(12):
            _, writer = await asyncio.open_connection(host, int(port))
            stack.callback(writer.close)
        await until(partial(_is_let_in, ports), 60.0)
        samples = await ports.metrics()
        assert samples[HIT % "max_connection_share"] >= 4
        assert samples[HIT % "max_http_connections"] == 0
