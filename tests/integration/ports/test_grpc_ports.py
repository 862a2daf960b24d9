"""The service from outside over gRPC: RouterService, the fleet as one engine, reflection."""

from typing import Any

import grpc
import pytest
from grpc import aio
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2
from support.fake_engine import FakeEngine, fail, prompt
from support.polling import until
from support.serving import BLOCK, PROMPT, serving, stored

from dynamo_router.base.identity import WorkerWithDpRank
from dynamo_router.router.config import KvRouterConfig
from dynamo_router.router.proto import router_pb2 as rpb
from dynamo_router.workers.trtllm_proto import SERVICE, common_pb, pb

EVENTS = KvRouterConfig(block_size=BLOCK, seed=1)


async def test_select_books_when_it_is_given_an_id() -> None:
    async with serving(FakeEngine(worker_id=7)) as ports:
        request = rpb.SelectWorkerRequest(token_ids=PROMPT)
        named = await ports.select.SelectWorker(request)
        (entry,) = ports.server.router.registry.entries()
        assert (named.worker.worker_id, named.address) == (7, entry.address)
        assert (named.request_blocks, named.overlap_blocks, named.booked) == (4, 0, False)
        request.request_id = "mine"
        assert (await ports.select.SelectWorker(request)).booked
        loads = await ports.select.GetPotentialLoads(rpb.PotentialLoadsRequest(token_ids=PROMPT))
        assert loads.loads[0].decode_blocks == 4
        with pytest.raises(aio.AioRpcError) as caught:
            await ports.select.SelectWorker(request)
        assert caught.value.code() is grpc.StatusCode.ALREADY_EXISTS
        mine = rpb.BookedRequest(request_id="mine")
        assert (await ports.select.MarkPrefillComplete(mine)).known
        assert (await ports.select.Free(mine)).known
        assert not (await ports.select.Free(mine)).known
        assert not (await ports.select.MarkPrefillComplete(mine)).known


async def test_select_keeps_to_what_it_is_told() -> None:
    async with serving(FakeEngine(worker_id=7), FakeEngine(worker_id=8)) as ports:
        for wanted in (7, 8):
            for _ in range(3):
                allowed = rpb.SelectWorkerRequest(token_ids=PROMPT, allowed_worker_ids=[wanted])
                pinned = rpb.SelectWorkerRequest(
                    token_ids=PROMPT, pinned_worker={"worker_id": wanted}
                )
                for request in (allowed, pinned):
                    chosen = await ports.select.SelectWorker(request)
                    assert chosen.worker.worker_id == wanted


@pytest.mark.parametrize(
    ("request_", "code", "text"),
    [
        (rpb.SelectWorkerRequest(), "INVALID_ARGUMENT", "empty prompt"),
        (
            rpb.SelectWorkerRequest(token_ids=PROMPT, pinned_worker={"worker_id": 99}),
            "INVALID_ARGUMENT",
            "not registered",
        ),
        (
            rpb.SelectWorkerRequest(token_ids=PROMPT, allowed_worker_ids=[99]),
            "UNAVAILABLE",
            "takes requests now",
        ),
    ],
)
async def test_select_says_why_not(request_: Any, code: str, text: str) -> None:
    async with serving(FakeEngine(worker_id=7)) as ports:
        with pytest.raises(aio.AioRpcError) as caught:
            await ports.select.SelectWorker(request_)
        assert caught.value.code().name == code and text in caught.value.details()


async def test_explain_shows_every_candidate() -> None:
    async with serving(FakeEngine(worker_id=7), FakeEngine(worker_id=8), router=EVENTS) as ports:
        ports.server.router.apply_event(stored(WorkerWithDpRank(8), PROMPT))
        told = await ports.select.Explain(rpb.ExplainRequest(token_ids=PROMPT))
        assert [worker.worker_id for worker in told.cheapest] == [8]
        by_id = {c.worker.worker_id: c for c in told.candidates}
        assert by_id[8].overlap_blocks == 4 and by_id[8].cost < by_id[7].cost
        assert '"cheapest"' in told.json
        asks = [("x-dynamo-slo-ttft-ms", "123"), ("x-dynamo-slo-itl-ms", "7")]
        told = await ports.select.Explain(rpb.ExplainRequest(token_ids=PROMPT), metadata=asks)
        assert '"objectives":{"ttft_ms":123.0,"itl_ms":7.0}' in told.json
        for method, kind in (
            (ports.select.Explain, rpb.ExplainRequest),
            (ports.select.SelectWorker, rpb.SelectWorkerRequest),
        ):
            with pytest.raises(grpc.RpcError) as caught:
                await method(kind(token_ids=PROMPT), metadata=[("x-dynamo-slo-itl-ms", "slow")])
            assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
            assert caught.value.details() == "x-dynamo-slo-itl-ms is no number: 'slow'"


# The fleet as one engine


async def test_the_fleet_describes_itself_as_one_engine() -> None:
    small = FakeEngine()
    small.model.max_input_len = 50
    async with serving(FakeEngine(), small) as ports:
        healthy = await ports.trtllm("HealthCheck", pb.HealthCheckRequest(), pb.HealthCheckResponse)
        assert healthy.status == "OK"
        info = await ports.trtllm("GetModelInfo", pb.GetModelInfoRequest(), pb.GetModelInfoResponse)
        assert (info.model_id, info.max_input_len, info.vocab_size) == ("fake", 100, 1000)
        server = await ports.trtllm(
            "GetServerInfo", pb.GetServerInfoRequest(), pb.GetServerInfoResponse
        )
        assert server.world_size == 2


async def test_no_engine_no_description() -> None:
    async with serving() as ports:
        said = await ports.trtllm("HealthCheck", pb.HealthCheckRequest(), pb.HealthCheckResponse)
        assert said.status == "no workers ready"
        with pytest.raises(aio.AioRpcError) as caught:
            await ports.trtllm("GetModelInfo", pb.GetModelInfoRequest(), pb.GetModelInfoResponse)
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE


async def test_a_name_given_by_the_operator_wins() -> None:
    async with serving(FakeEngine(), model_id="ours") as ports:
        info = await ports.trtllm("GetModelInfo", pb.GetModelInfoRequest(), pb.GetModelInfoResponse)
        assert info.model_id == "ours"


async def test_what_is_not_offered_says_so() -> None:
    async with serving(FakeEngine()) as ports:
        events = ports.channel.unary_stream(f"/{SERVICE}/SubscribeKvEvents", None, None)
        with pytest.raises(aio.AioRpcError) as caught:
            async for _ in events(common_pb.SubscribeKvEventsRequest().SerializeToString()):
                pass
        assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED
        assert "subscribe to its workers" in caught.value.details()
        # The engines do not implement these two, and that is what comes through.
        with pytest.raises(aio.AioRpcError) as caught:
            await ports.trtllm("Embed", pb.EmbedRequest(), pb.EmbedResponse)
        assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED
        tokenizer = ports.channel.unary_stream(f"/{SERVICE}/GetTokenizer", None, None)
        with pytest.raises(aio.AioRpcError) as caught:
            async for _ in tokenizer(b""):
                pass
        assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED


async def test_routers_can_be_stacked() -> None:
    async with serving(FakeEngine(), FakeEngine()) as inner:
        address = inner.server.grpc_address
        async with serving() as outer:
            outer.server.monitor.add(f"grpc://{address}")
            await until(outer.server.monitor.ready_clients)
            assert len(await outer.answers(prompt("through"))) == 3
            assert outer.server.monitor.facts.max_input_len == 100


async def test_grpc_health_follows_the_workers() -> None:
    async with serving(FakeEngine()) as ports:
        stub = health_pb2_grpc.HealthStub(ports.channel)
        serving_, not_serving = 1, 2

        async def status(service: str) -> int:
            return (await stub.Check(health_pb2.HealthCheckRequest(service=service))).status

        async def until_status(wanted: int) -> None:
            async def told() -> bool:
                return {await status(""), await status(SERVICE)} == {wanted}

            await until(told, 60.0)

        await until_status(serving_)
        assert await status("dynamo_router.v1.RouterService") == serving_
        (entry,) = ports.server.router.registry.entries()
        await ports.server.monitor.remove(f"grpc://{entry.address}")
        await until_status(not_serving)
        with pytest.raises(aio.AioRpcError) as caught:
            await status("nonsense")
        assert caught.value.code() is grpc.StatusCode.NOT_FOUND


@pytest.mark.parametrize("version", ["v1", "v1alpha"])
async def test_reflection_tells_of_the_services(version: str) -> None:
    async with serving() as ports:
        path = f"/grpc.reflection.{version}.ServerReflection/ServerReflectionInfo"
        call = ports.channel.stream_stream(path, None, None)()

        async def ask(**question: str) -> Any:
            request = reflection_pb2.ServerReflectionRequest(**question)
            await call.write(request.SerializeToString())
            return reflection_pb2.ServerReflectionResponse.FromString(await call.read())

        listed = (await ask(list_services="")).list_services_response.service
        ours = {SERVICE, "dynamo_router.v1.RouterService", "grpc.health.v1.Health"}
        assert {service.name for service in listed} >= ours
        for name in ours:
            found = await ask(file_containing_symbol=name)
            assert found.file_descriptor_response.file_descriptor_proto
        assert (await ask(file_containing_symbol="nowhere")).error_response.error_code == 5
        await call.done_writing()
        assert await call.read() is aio.EOF and await call.code() is grpc.StatusCode.OK


async def test_an_engine_that_fails_reaches_the_client_as_it_is() -> None:
    async with serving(FakeEngine(fail(grpc.StatusCode.INVALID_ARGUMENT, "max_tokens"))) as ports:
        with pytest.raises(aio.AioRpcError) as caught:
            await ports.answers(prompt())
        assert (caught.value.code().name, caught.value.details()) == (
            "INVALID_ARGUMENT",
            "max_tokens",
        )


async def test_it_says_how_requests_find_their_worker() -> None:
    async with serving(FakeEngine()) as ports:
        call = ports.channel.unary_unary(f"/{SERVICE}/GetModelInfo", None, None)(b"")
        told = dict(await call.initial_metadata())
        await call
    assert (told["x-dynamo-router-mode"], told["x-dynamo-router-policy"]) == ("kv", "forecast")
