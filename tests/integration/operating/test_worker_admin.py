"""Workers added, drained, weighted and removed while the router runs: over HTTP and gRPC."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc import aio
from support.fake_engine import FakeEngine, hang, prompt, stall
from support.polling import until
from support.processes import command
from support.serving import BLOCK, Ports, serving

from dynamo_router.engines.mocker.config import EngineConfig, MockerConfig
from dynamo_router.engines.mocker.fleet import MockFleet
from dynamo_router.router.config import KvRouterConfig
from dynamo_router.router.proto import RouterServiceStub
from dynamo_router.router.proto import router_pb2 as rpb
from dynamo_router.workers.health_tracker import HealthPolicy
from dynamo_router.workers.registry import WorkerState

JSON = {"Content-Type": "application/json"}


async def change(ports: Ports, method: str, path: str, body: Any = None) -> tuple[int, Any]:
    """An admin call; a DELETE goes without a body."""
    more = {} if method == "DELETE" else {"json": body if body is not None else {}}
    return await ports.http(method, path, **more)


@asynccontextmanager
async def two_engines(**config: Any) -> AsyncIterator[tuple[Ports, FakeEngine, FakeEngine]]:
    """A router of the first, which takes turns; the second is there to be added."""
    turns = KvRouterConfig(mode="round-robin", block_size=BLOCK, use_kv_events=False)
    one, two = FakeEngine(worker_id=1), FakeEngine(worker_id=2)
    eager = HealthPolicy(probe_interval_s=0.05)
    async with two, serving(one, health=eager, router=turns, **config) as ports:
        yield ports, one, two


async def test_a_worker_comes_gets_requests_drains_and_goes() -> None:
    async with two_engines() as (ports, one, two):
        one.script = two.script = stall
        status, said = await change(ports, "POST", "/workers", {"url": two.url})
        assert (status, said["worker_id"], said["state"]) == (201, 2, "ready")
        assert said["address"] == two.address and said["weight"] == 1.0 and "warning" not in said
        streams = [asyncio.create_task(ports.answers(prompt(f"r{n}"))) for n in range(4)]
        await until(lambda: len(one.requests) == len(two.requests) == 2)
        status, said = await change(ports, "POST", "/workers/1/drain")
        assert (status, said["state"], said["in_flight"]) == (200, "draining", 2)
        assert said["drained"] is False and "warning" not in said
        late = [asyncio.create_task(ports.answers(prompt(f"late{n}"))) for n in range(3)]
        await until(lambda: len(two.requests) == 5)
        assert len(one.requests) == 2
        rows = (await ports.http("GET", "/workers"))[1]["workers"]
        by_id = {row["worker_id"]: row for row in rows}
        assert by_id[1]["state"] == "draining" and by_id[1]["active_requests"] == 2
        # It has requests: it stays, unless by force.
        status, said = await change(ports, "DELETE", "/workers/1")
        assert status == 409 and "worker 1 has 2 requests in flight" in said["error"]
        draining = asyncio.create_task(
            change(ports, "POST", "/workers/1/drain", {"deadline_s": 30})
        )
        one.go.set()
        status, said = await draining
        assert (status, said["in_flight"], said["drained"]) == (200, 0, True)
        status, said = await change(ports, "DELETE", f"/workers/{one.address}")
        assert (status, said["state"], said["worker_id"]) == (200, "removed", 1)
        two.go.set()
        assert [len(answer) for answer in await asyncio.gather(*streams, *late)] == [2] * 7
        assert [entry.worker_id for entry in ports.server.router.registry.entries()] == [2]
        status, said = await change(ports, "GET", "/workers/1/drain")
        assert status == 405


async def test_requests_without_a_token_stay_with_a_worker_that_drains() -> None:
    async with two_engines() as (ports, one, two):
        one.script = stall_before_a_token
        waiting = asyncio.create_task(ports.answers(prompt("r")))
        await until(lambda: one.requests)
        await change(ports, "POST", "/workers", {"url": two.url})
        assert (await change(ports, "POST", "/workers/1/drain"))[1]["in_flight"] == 1
        await ports.answers(prompt("other"))
        # The watch over requests in flight has looked at it, and left it there.
        watch = ports.server.dispatcher._watch
        watch._look(ports.server.parts.clock.now())
        one.go.set()
        assert len(await waiting) == 1
        assert [request.request_id for request in two.requests] == ["other"]


async def stall_before_a_token(
    engine: FakeEngine, request: Any, context: Any
) -> AsyncIterator[Any]:
    await engine.go.wait()
    async for message in stall(engine, request, context):
        yield message
        return


async def test_by_force_what_has_no_token_goes_elsewhere_and_the_rest_ends() -> None:
    async with two_engines() as (ports, one, two):
        one.script = hang
        waiting = asyncio.create_task(ports.answers(prompt("waiting")))
        await until(lambda: one.requests)
        one.script = stall
        streaming = asyncio.create_task(ports.answers(prompt("streaming")))
        await until(lambda: len(one.requests) == 2)
        await until(lambda: any(r.messages for r in ports.server.dispatcher.requests))
        await change(ports, "POST", "/workers", {"url": two.url})
        status, said = await change(ports, "DELETE", "/workers/1?force")
        assert (status, said["in_flight"]) == (200, 2)
        assert len(await waiting) == 3
        with pytest.raises(aio.AioRpcError, match="lost in mid-stream"):
            await streaming
        assert ports.server.router.workers()[0].active_requests == 0
        assert ports.server.dispatcher.in_flight == 0


async def test_the_last_worker_may_drain_with_a_warning_and_be_taken_back() -> None:
    async with two_engines() as (ports, one, _):
        status, said = await change(ports, "POST", "/workers/1/drain")
        assert status == 200 and said["warning"] == "no worker is left that takes requests"
        assert (await ports.http("GET", "/health"))[0] == 503
        with pytest.raises(aio.AioRpcError) as caught:
            await ports.answers(prompt())
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
        one.status = "ill"  # whatever its health: it drains until somebody says otherwise
        engine = ports.server.monitor.engine(1)
        assert engine is not None
        await until(lambda: engine.tracker.state is WorkerState.UNHEALTHY)
        assert ports.server.router.registry.entry(1).state is WorkerState.DRAINING
        one.status = "OK"
        await until(lambda: engine.tracker.state is WorkerState.READY)
        status, said = await change(ports, "POST", "/workers", {"url": one.url, "weight": 0.5})
        assert (status, said["state"], said["weight"]) == (200, "ready", 0.5)
        assert len(await ports.answers(prompt())) == 3


BAD: list[tuple[str, str, Any, int, str]] = [
    ("POST", "/workers", {"url": "http://x:1"}, 400, "is not grpc://HOST:PORT"),
    ("POST", "/workers", {"url": "grpc://u:secret@x:1"}, 400, "u:***@x:1"),
    ("POST", "/workers", {}, 400, "missing required field `url`"),
    ("POST", "/workers", {"url": "grpc://x:1", "weigth": 1}, 400, "unknown field `weigth`"),
    ("POST", "/workers", {"url": "grpc://x:1", "weight": 0}, 400, "weight 0.0 is not above 0"),
    ("POST", "/workers", {"url": "grpc://x:1?id=1"}, 409, "worker id 1 is held by 127.0.0.1:"),
    ("POST", "/workers/7/drain", {}, 404, "there is no worker '7'"),
    ("POST", "/workers/x/drain", {}, 404, "there is no worker 'x'"),
    ("POST", f"/workers/{'9' * 400}/drain", {}, 404, "there is no worker"),
    ("POST", "/workers/1/drain", {"deadline_s": -1}, 400, "must be finite and at least 0"),
    ("PATCH", "/workers/1", {"weight": 1.5}, 400, "weight 1.5 is not above 0 and at most 1"),
    ("PATCH", "/workers/7", {"weight": 1}, 404, "there is no worker '7'"),
    ("PATCH", "/workers/1", {}, 400, "missing required field `weight`"),
    ("DELETE", "/workers/7", None, 404, "there is no worker '7'"),
]


async def test_what_cannot_be_done_is_said_with_its_code() -> None:
    async with two_engines() as (ports, one, _):
        for method, path, body, code, text in BAD:
            status, said = await change(ports, method, path, body)
            assert status == code and text in said["error"], (method, path, body, said)
        status, said = await change(ports, "POST", "/workers", {"url": one.url})
        assert (status, said["error"]) == (409, f"worker {one.address} is there already, as 1")
        # As with any change: no web page, and only as JSON.
        for headers in ({"Content-Type": "text/plain"}, JSON | {"Origin": "http://evil.example"}):
            status, _ = await ports.http("POST", "/workers/1/drain", data="{}", headers=headers)
            assert status in (403, 415)
        assert ports.server.router.registry.entry(1).state is WorkerState.READY


async def test_the_same_over_grpc() -> None:
    async with two_engines() as (ports, one, two):
        stub: Any = ports.select
        added = await stub.AddWorker(rpb.AddWorkerRequest(url=two.url, weight=0.5))
        assert (added.worker_id, added.state, added.weight) == (2, "ready", 0.5)
        changed = await stub.SetWorkerWeight(rpb.SetWorkerWeightRequest(worker_id=2, weight=0.25))
        assert changed.weight == 0.25
        workers = (await stub.ListWorkers(rpb.ListWorkersRequest())).workers
        assert {row.worker.worker_id: row.weight for row in workers} == {1: 1.0, 2: 0.25}
        # A booked selection counts as a request.
        chosen = await stub.SelectWorker(
            rpb.SelectWorkerRequest(token_ids=[1], request_id="s", allowed_worker_ids=[2])
        )
        assert chosen.worker.worker_id == 2
        drained = await stub.DrainWorker(rpb.DrainWorkerRequest(worker_id=2, deadline_s=0))
        assert (drained.state, drained.in_flight) == ("draining", 1)
        with pytest.raises(aio.AioRpcError) as caught:
            await stub.RemoveWorker(rpb.RemoveWorkerRequest(worker_id=2))
        assert caught.value.code() is grpc.StatusCode.FAILED_PRECONDITION
        await stub.Free(rpb.BookedRequest(request_id="s"))
        assert (await stub.RemoveWorker(rpb.RemoveWorkerRequest(worker_id=2))).state == "removed"
        for call, code in (
            (stub.RemoveWorker(rpb.RemoveWorkerRequest(worker_id=2)), "NOT_FOUND"),
            (stub.AddWorker(rpb.AddWorkerRequest(url=one.url)), "ALREADY_EXISTS"),
            (stub.AddWorker(rpb.AddWorkerRequest(url="x")), "INVALID_ARGUMENT"),
        ):
            with pytest.raises(aio.AioRpcError) as caught:
                await call
            assert caught.value.code().name == code


async def test_without_tokens_only_this_machine_may_change_workers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The peer's address is all there is to know it by; another machine's is made up here."""
    from dynamo_router.server.access import grpc_guard

    peers = {"ipv4:127.0.0.1:4": True, "ipv6:%5B::1%5D:4": True, "unix:": True,
             "ipv4:10.0.0.7:4": False, "ipv6:%5B2001:db8::1%5D:4": False, "": False}  # fmt: skip
    for peer, local in peers.items():
        assert grpc_guard._is_local(peer) is local, peer
    async with two_engines() as (ports, _, _):
        monkeypatch.setattr(grpc_guard, "_is_local", lambda peer: False)
        with pytest.raises(aio.AioRpcError) as caught:
            await ports.select.DrainWorker(rpb.DrainWorkerRequest(worker_id=1))
        assert caught.value.code() is grpc.StatusCode.PERMISSION_DENIED
        assert len(await ports.answers(prompt())) == 3
        assert ports.server.security.access.refused["listener"] == 1


async def test_the_command_line_does_the_same(tmp_path: Path) -> None:
    token = "operator-0123456789"
    tokens = tmp_path / "tokens.toml"
    tokens.write_text(f'[[caller]]\nname = "ops"\ntoken = "{token}"\nroles = ["admin"]\n')
    tokens.chmod(0o600)
    secret = tmp_path / "token"
    secret.write_text(f"{token}\n")
    secret.chmod(0o600)
    async with two_engines(auth_tokens=str(tokens)) as (ports, one, two):
        to = ("--router", f"http://{ports.server.http_address}", "--token-file", str(secret))

        async def run(*words: str) -> tuple[int, str]:
            async with command(tmp_path / "commands", "workers", *words) as running:
                return await running.ended(), running.text

        assert await run("list", *to[:2]) == (1, "dynamo-router: a bearer token is needed\n")
        code, said = await run("add", two.url, "--weight", "0.5", "--json", *to)
        assert code == 0 and json.loads(said)["worker_id"] == 2
        code, said = await run("list", *to)
        assert code == 0 and two.address in said and "0.5" in said and "ready" in said
        one.script = stall
        channel = aio.insecure_channel(ports.server.grpc_address)
        select: Any = rpb.SelectWorkerRequest(token_ids=[1], request_id="s", allowed_worker_ids=[2])
        bearer = (("authorization", "Bearer operator-0123456789"),)
        with pytest.raises(aio.AioRpcError):  # an admin is no selector
            await RouterServiceStub(channel).SelectWorker(select, metadata=bearer)
        await channel.close()
        ports.server.router.decide([1], "s", pinned_worker=2)
        code, said = await run("drain", "2", "--deadline-s", "0.1", *to)
        assert code == 1 and "draining, weight 0.5, 1 requests in flight" in said
        code, said = await run("remove", two.address, *to)
        assert (code, said) == (
            1,
            f"dynamo-router: worker {two.address} has 1 requests in flight: drain it first, or "
            "use force\n",
        )
        assert (await run("remove", "2", "--force", *to))[0] == 0
        code, said = await run("weight", "1", "0.25", *to)
        assert code == 0 and "weight 0.25" in said
        code, said = await run("drain", "1", *to)
        assert code == 0 and "warning: no worker is left that takes requests" in said
        code, said = await run("list", "--router", "ftp://x", "--timeout-s", "1")
        assert code == 2 and "is not http://HOST:PORT" in said


ENGINE = EngineConfig(block_size=BLOCK, num_gpu_blocks=512)


async def test_requests_flow_without_an_error_while_workers_come_and_go() -> None:
    """Four mock engines, hundreds of streams, every kind of change; what is counted comes to 0."""
    config = MockerConfig(port=0, workers=4, speedup_ratio=20.0, engine=ENGINE)
    router = KvRouterConfig(block_size=BLOCK, use_kv_events=False, seed=1)
    async with MockFleet(config) as engines, serving(router=router) as ports:
        urls = [f"grpc://{address}" for address in engines.addresses]
        ids = engines.worker_ids
        assert (await change(ports, "POST", "/workers", {"url": urls[0]}))[0] == 201
        served, failed, over = [0], list[str](), asyncio.Event()

        async def client(number: int) -> None:
            turn = 0
            while not over.is_set():
                turn += 1
                request = prompt(f"c{number}-{turn}", tokens=3 * BLOCK + number)
                try:
                    assert await ports.answers(request)
                    served[0] += 1
                except aio.AioRpcError as error:
                    failed.append(f"{error.code().name}: {error.details()}")

        async def more(count: int) -> None:
            goal = served[0] + count
            await until(lambda: served[0] >= goal or failed, 60.0)

        async def must(code: int, *call: Any) -> Any:
            status, said = await change(ports, *call)
            assert status == code, said
            return said

        clients = [asyncio.create_task(client(number)) for number in range(16)]
        await more(40)
        for lap in range(2):
            for url in urls[1:]:
                await must(201, "POST", "/workers", {"url": url})
                await more(20)
            await must(200, "PATCH", f"/workers/{ids[1]}", {"weight": 0.1})
            await more(20)
            said = await must(200, "POST", f"/workers/{ids[0]}/drain", {"deadline_s": 60})
            assert said["drained"]
            await must(200, "DELETE", f"/workers/{ids[0]}")
            await more(20)
            for worker_id in ids[2:]:  # two at a time, the second without waiting
                await must(200, "POST", f"/workers/{worker_id}/drain")
            await more(20)
            await must(201, "POST", "/workers", {"url": urls[0]})
            for worker_id in ids[1:]:
                await must(200, "POST", f"/workers/{worker_id}/drain", {"deadline_s": 60})
                await must(200, "DELETE", f"/workers/{worker_id}")
            await more(20 + lap)
        over.set()
        await asyncio.gather(*clients)
        assert not failed and served[0] >= 300
        server = ports.server
        assert server.dispatcher.in_flight == 0
        loads: list[Callable[[Any], int]] = [
            lambda view: view.active_requests, lambda view: view.active_blocks,
        ]  # fmt: skip
        assert all(load(view) == 0 for view in server.router.workers() for load in loads)
        assert [entry.worker_id for entry in server.router.registry.entries()] == ids[:1]
        metrics = await ports.metrics()
        bad = {name: value for name, value in metrics.items() if "errors_total" in name and value}
        assert not bad
