"""Several fronts on one port and one process that decides, as real processes."""

import asyncio
import signal
from contextlib import AsyncExitStack
from pathlib import Path

import grpc
import pytest
from support.fake_engine import prompt, stall
from support.fronts.clients import clients_of_all, engine, eventually, urls
from support.fronts.processes import serve_fronts
from support.polling import until
from support.processes import alive, children_of, command

from dynamo_router.router.proto import router_pb2, router_pb2_grpc
from dynamo_router.workers.trtllm_proto import SERVICE, pb

SERVE = ("--no-kv-events", "--block-size", "16", "--policy", "dynamo")


async def test_all_fronts_serve_and_the_same_prefix_goes_to_the_same_worker(
    tmp_path: Path,
) -> None:
    async with engine() as one, engine() as two, AsyncExitStack() as stack:
        served = await stack.enter_async_context(serve_fronts(tmp_path, *SERVE, *urls(one, two)))
        clients = await clients_of_all(served, stack)
        assert set(clients) == {0, 1}
        for client in clients.values():
            client.worker_ids.clear()
            for turn in range(3):
                found = await client.answers(prompt(f"p-{id(client)}-{turn}", tokens=2048))
                tokens = [list(each.chunk.token_ids) for each in found[:2]]
                assert tokens == [[11], [12]]
                assert list(found[2].complete.output_token_ids) == [11, 12]
        chosen = {worker for client in clients.values() for worker in client.worker_ids}
        assert len(chosen) == 1, "a prefix that one front sent is known to the other"

        sent = len(one.requests) + len(two.requests)

        async def all_counted() -> bool:
            metrics = await served.metrics()
            workers = [v for n, v in metrics.items() if "router_worker_requests_total" in n]
            return (
                metrics.get('dynamo_component_router_requests_total{status="ok"}') == sent
                and sum(workers) == sent
                and metrics["dynamo_component_inflight_requests"] == 0
            )

        await eventually(all_counted)
        await eventually(served.nothing_booked)
        assert all(front["fallback_decisions"] == 0 for front in await served.fronts())


async def test_calls_of_the_router_service_reach_the_decider(tmp_path: Path) -> None:
    async with engine() as one, serve_fronts(tmp_path, *SERVE, *urls(one)) as served:
        async with served.client() as client, served.client() as other:
            stub = router_pb2_grpc.RouterServiceStub(client.channel)
            select = router_pb2.SelectWorkerRequest(token_ids=range(1, 65), request_id="mine")
            answer = await stub.SelectWorker(select)
            assert answer.booked and answer.address == one.address
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await stub.SelectWorker(select)
            assert refused.value.code() is grpc.StatusCode.ALREADY_EXISTS
            assert await served.booked() == 1
            stub = router_pb2_grpc.RouterServiceStub(other.channel)
            assert (await stub.Free(router_pb2.BookedRequest(request_id="mine"))).known
            assert await served.booked() == 0
            listed = await stub.ListWorkers(router_pb2.ListWorkersRequest())
            assert [each.address for each in listed.workers] == [one.address]


async def test_a_cancelled_request_frees_its_booking(tmp_path: Path) -> None:
    async with engine(stall) as one, serve_fronts(tmp_path, *SERVE, *urls(one)) as served:
        async with served.client() as client:
            call = client.call(prompt("cancelled"))
            assert await call.read()
            assert await served.booked() == 1
            call.cancel()
            await eventually(served.nothing_booked)
        await until(lambda: one.cancelled == ["cancelled"])


async def test_requests_wait_for_their_turn_at_the_decider(tmp_path: Path) -> None:
    cap = ("--max-requests-per-worker", "1")
    async with engine(stall) as one, serve_fronts(tmp_path, *SERVE, *cap, *urls(one)) as served:
        async with served.client() as first, served.client() as second:
            running = first.call(prompt("first"))
            assert await running.read()
            waiting = asyncio.ensure_future(second.answers(prompt("second")))

            async def waits() -> bool:
                return sum(front["waiting"] for front in await served.fronts()) == 1

            await eventually(waits)
            assert len(one.requests) == 1
            one.go.set()
            assert len(await waiting) == 2


async def test_sigterm_under_load_loses_nothing_and_leaves_nothing(tmp_path: Path) -> None:
    async with engine(stall) as one, serve_fronts(tmp_path, *SERVE, *urls(one)) as served:
        children = children_of(served.router.pid)
        assert len(children) == 3
        requests = [prompt(f"r{number}") for number in range(12)]
        running = [asyncio.ensure_future(served.answers(request)) for request in requests]
        await until(lambda: len(one.requests) == len(requests), 30.0)
        served.router.send(signal.SIGTERM)
        await served.router.says("draining")
        one.go.set()
        for answers in await asyncio.gather(*running):
            assert [list(each.chunk.token_ids) for each in answers[:1]] == [[11]]
            assert len(answers) == 2
        assert await served.router.ended() == 0, served.router.text
        assert not [pid for pid in children if alive(pid)]
        assert "Traceback" not in served.router.text


async def test_nothing_outlives_a_parent_that_is_killed(tmp_path: Path) -> None:
    async with engine() as one, serve_fronts(tmp_path, *SERVE, *urls(one)) as served:
        children = children_of(served.router.pid)
        await served.router.stop(signal.SIGKILL)
        await until(lambda: not [pid for pid in children if alive(pid)])


@pytest.mark.parametrize(
    ("flags", "word"),
    [
        (("--fronts", "0"), "fronts: 0 must be in 1..64"),
        (("--fronts", "65"), "fronts: 65 must be in 1..64"),
        (("--fronts", "2", "--mockers", "1"), "mockers: not with fronts 2"),
        (
            ("--fronts", "2", "--router-session-affinity-ttl-secs", "60"),
            "session_affinity_ttl_secs: not",
        ),
        (("--fronts", "2", "--http-frontend", "0"), "http_frontend: not with fronts 2"),
        (("--fronts", "2", "--discovery", "file"), "discovery: not with fronts 2"),
        (("--fronts", "2", "--decider-timeout-s", "0"), "decider_timeout_s"),
    ],
)
async def test_what_several_fronts_cannot_do_is_refused_by_name(
    tmp_path: Path, flags: tuple[str, ...], word: str
) -> None:
    words = ("serve", "--port", "0", "--http-port", "0", "--no-kv-events", *flags)
    async with command(tmp_path, *words) as router:
        assert await router.ended() != 0
        assert word in router.text


async def test_a_port_that_is_in_use_is_an_error(tmp_path: Path) -> None:
    async with engine() as one, serve_fronts(tmp_path, *SERVE, *urls(one)) as served:
        port = served.grpc.rpartition(":")[2]
        words = ("serve", "--fronts", "2", "--port", port, "--http-port", "0", "--no-kv-events")
        async with command(tmp_path / "other", *words, *urls(one)) as other:
            assert await other.ended() == 1
            assert f"port: cannot listen on 127.0.0.1:{port}" in other.text
        assert len(await served.answers(prompt("still"))) == 3
        await served.router.stop()


async def test_an_abort_finds_the_request(tmp_path: Path) -> None:
    async with engine(stall) as one, serve_fronts(tmp_path, *SERVE, *urls(one)) as served:
        async with served.client() as client:
            call = client.call(prompt("aborted"))
            assert await call.read()
            abort = client.channel.unary_unary(f"/{SERVICE}/Abort", None, None)
            answer = await abort(pb.AbortRequest(request_id="aborted").SerializeToString())
            assert pb.AbortResponse.FromString(answer).success
            assert one.aborted == ["aborted"]
