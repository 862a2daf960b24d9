"""Clients that others wrote, at the gRPC port: gRPC C++ and grpc-js, grpclib on h2, and Envoy."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from support.calls import too_late
from support.fake_engine import FakeEngine, chunk, complete, fail, hang, prompt, stall
from support.polling import until
from support.servers.grpc_peers.envoy import envoy_before
from support.servers.grpc_peers.peers import Client, grpclib_client
from support.servers.grpc_peers.program import PROGRAMS, ProgramClient
from support.serving import serving

from dynamo_router.router.proto import router_pb2 as rpb
from dynamo_router.workers.trtllm_proto import SERVICE, pb

GENERATE = f"/{SERVICE}/Generate"
Opener = Callable[..., Any]


@pytest.fixture(params=[*PROGRAMS, "grpclib", "grpclib through Envoy"])
def opened(request: pytest.FixtureRequest, tmp_path: Path) -> Opener:
    """Serves engines; a client of that kind, and the server."""

    @asynccontextmanager
    async def open_server(*engines: FakeEngine, **config: Any) -> AsyncIterator[tuple[Client, Any]]:
        async with AsyncExitStack() as stack:
            command = None
            if request.param in PROGRAMS:
                command = await asyncio.to_thread(PROGRAMS[request.param])
            ports = await stack.enter_async_context(serving(*engines, **config))
            address = ports.server.grpc_address
            if command is not None:
                yield ProgramClient(command, address), ports
                return
            if "Envoy" in request.param:
                address = await stack.enter_async_context(envoy_before(address, tmp_path))
            yield await stack.enter_async_context(grpclib_client(address)), ports

    return open_server


def body(request_id: str = "r1", tokens: int = 8) -> bytes:
    return bytes(prompt(request_id, tokens).SerializeToString())


async def test_messages_and_their_end(opened: Opener) -> None:
    async with opened(engine := FakeEngine()) as (client, _):
        answer = await client.call(GENERATE, [body()])
        assert answer.code == 0, answer
        said = [pb.GenerateResponse.FromString(message) for message in answer.messages]
        assert list(said[0].chunk.token_ids) == [11]
        assert list(said[-1].complete.output_token_ids) == [11, 12]
        asked = await client.call(f"/{SERVICE}/HealthCheck", [b""])
        assert pb.HealthCheckResponse.FromString(asked.messages[0]).status == "OK"
        assert (asked.code, len(asked.messages)) == (0, 1)
        assert engine.finished == ["r1"]


async def test_many_calls_at_once(opened: Opener) -> None:
    async with opened(FakeEngine()) as (client, _):
        calls = 4 if isinstance(client, ProgramClient) else 200
        asked = (client.call(GENERATE, [body(f"r{n}")]) for n in range(calls))
        answers = await asyncio.gather(*asked)
        assert [(each.code, len(each.messages)) for each in answers] == [(0, 3)] * calls


async def test_a_selection_and_what_becomes_of_it(opened: Opener) -> None:
    service = "/dynamo_router.v1.RouterService"
    asked = rpb.SelectWorkerRequest(token_ids=range(64), request_id="s1")
    booked = rpb.BookedRequest(request_id="s1").SerializeToString()
    async with opened(FakeEngine(worker_id=7)) as (client, ports):
        answer = await client.call(f"{service}/SelectWorker", [asked.SerializeToString()])
        chosen = rpb.SelectWorkerResponse.FromString(answer.messages[0])
        assert (answer.code, chosen.worker.worker_id, chosen.booked) == (0, 7, True)
        assert ports.server.router.requests_of(7) == 1
        again = await client.call(f"{service}/SelectWorker", [asked.SerializeToString()])
        assert (again.code, again.messages) == (6, [])
        for method in ("MarkPrefillComplete", "Free"):
            ended = await client.call(f"{service}/{method}", [booked])
            assert rpb.BookingResponse.FromString(ended.messages[0]).known
        assert ports.server.router.requests_of(7) == 0


async def test_a_call_that_is_given_up_ends_at_the_engine(opened: Opener) -> None:
    async with opened(engine := FakeEngine(stall)) as (client, _):
        answer = await client.call(GENERATE, [body()], cancel_after=1)
        assert (answer.code, len(answer.messages)) == (1, 1)
        await until(lambda: engine.cancelled == ["r1"] or engine.aborted == ["r1"])


async def test_a_deadline(opened: Opener) -> None:
    async with opened(engine := FakeEngine(hang)) as (client, _):
        answer = await too_late(
            lambda seconds: client.call(GENERATE, [body()], deadline_s=seconds),
            lambda: engine.requests,
        )
        assert (answer.code, answer.messages) == (4, [])
        await until(lambda: engine.cancelled == ["r1"] or engine.aborted == ["r1"])


async def test_large_messages_both_ways(opened: Opener) -> None:
    tokens = 700_000

    async def answer_at_length(engine: FakeEngine, request: Any, _: Any) -> AsyncIterator[Any]:
        ids = list(request.tokenized.input_token_ids)
        yield chunk(request, *ids)
        yield complete(request, *ids)

    engine = FakeEngine(answer_at_length)
    engine.model = pb.GetModelInfoResponse(vocab_size=2 * tokens, max_input_len=2 * tokens)
    async with opened(engine) as (client, _):
        answer = await client.call(GENERATE, [body("long", tokens)])
        assert answer.code == 0, answer.details
        said = pb.GenerateResponse.FromString(answer.messages[-1])
        assert len(said.complete.output_token_ids) == tokens


async def test_metadata_and_the_words_of_an_error(opened: Opener) -> None:
    words = "nicht da: é, 100 %"
    async with opened(engine := FakeEngine(fail(grpc.StatusCode.INVALID_ARGUMENT, words))) as (
        client,
        _,
    ):
        said = (("x-dynamo-priority", "3"), ("traceparent", f"00-{'1' * 32}-{'2' * 16}-01"))
        answer = await client.call(GENERATE, [body()], metadata=said)
        assert (answer.code, answer.messages) == (3, [])
        assert words in answer.details
        assert engine.metadata[0]["traceparent"].startswith(f"00-{'1' * 32}")


async def test_answers_of_trailers_alone(opened: Opener) -> None:
    async with opened(FakeEngine()) as (client, _):
        assert (await client.call("/no.such/Method", [b""])).code == 12
        assert (await client.call(GENERATE, [b"\xff\xff"])).code == 3
        assert (await client.call(GENERATE, [body()])).code == 0


async def test_the_services_by_reflection(opened: Opener) -> None:
    list_services = b"\x3a\x00"
    async with opened(FakeEngine()) as (client, _):
        for version in ("v1", "v1alpha"):
            path = f"/grpc.reflection.{version}.ServerReflection/ServerReflectionInfo"
            answer = await client.call(path, [list_services, list_services])
            assert answer.code == 0 and len(answer.messages) == 2
            assert b"trtllm.TrtllmService" in answer.messages[0]
