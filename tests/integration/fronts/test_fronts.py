"""Several processes on the same ports, as real processes: all serve, and answer for each other."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import grpc
import pytest
from support.fake_engine import FakeEngine, prompt, stall
from support.fronts.clients import clients_of_all, engine, eventually, urls
from support.fronts.processes import LOOKS, Client, Fronts, serve_fronts
from support.polling import until
from support.processes import alive, children_of, command, http_json, http_text

from dynamo_router.router.proto import RouterServiceStub, router_pb2
from dynamo_router.workers.trtllm_proto import SERVICE, pb

SERVE = ("--no-kv-events", "--block-size", "16", "--policy", "dynamo")


@pytest.fixture
async def stack() -> AsyncIterator[AsyncExitStack]:
    async with AsyncExitStack() as opened:
        yield opened


async def serving(
    stack: AsyncExitStack, folder: Path, *engines: FakeEngine, more: tuple[str, ...] = ()
) -> tuple[Fronts, dict[int, Client]]:
    """A router of two processes before these engines, and a client of each."""
    for each in engines:
        await stack.enter_async_context(each)
    words = (*SERVE, *more, *urls(*engines))
    served = await stack.enter_async_context(serve_fronts(folder, *words))
    return served, await clients_of_all(served, stack)


async def views(served: Fronts, path: str) -> list[Any]:
    """What a route answers over several connections, which reach all processes."""
    return [await http_json(served.http, path) for _ in range(LOOKS)]


async def test_all_processes_serve_and_the_same_prefix_goes_to_the_same_worker(
    tmp_path: Path, stack: AsyncExitStack
) -> None:
    one, two = engine(), engine()
    served, clients = await serving(stack, tmp_path, one, two)
    assert set(clients) == {0, 1}
    before = len(one.requests) + len(two.requests)
    for number, client in clients.items():
        found = await client.answers(prompt(f"p-{number}", tokens=2048))
        tokens = [list(each.chunk.token_ids) for each in found[:2]]
        assert tokens == [[11], [12]]
        assert list(found[2].complete.output_token_ids) == [11, 12]
    sent = len(one.requests) + len(two.requests)
    assert sent == before + 2

    async def all_counted() -> bool:
        metrics = await served.metrics()
        workers = [v for n, v in metrics.items() if "router_worker_requests_total" in n]
        return (
            metrics['dynamo_component_router_requests_total{status="ok"}'] == sent
            and sum(workers) == sent
            and metrics['dynamo_component_inflight_requests{front="0"}'] == 0
            and metrics['dynamo_component_inflight_requests{front="1"}'] == 0
            and metrics['dynamo_router_front_up{front="0"}'] == 1
            and metrics['dynamo_router_front_up{front="1"}'] == 1
        )

    await eventually(all_counted)
    await eventually(served.nothing_booked)
    assert sum(front["requests"] for front in await served.fronts()) == sent
    assert {front["draining"] for front in await served.fronts()} == {False}


async def test_what_one_process_has_booked_counts_at_the_other(
    tmp_path: Path, stack: AsyncExitStack
) -> None:
    one, two = engine(), engine()
    served, clients = await serving(stack, tmp_path, one, two)
    one.script = two.script = stall
    calls = []
    for turn in range(4):
        call = clients[turn % 2].call(prompt(f"turn-{turn}", tokens=64 + turn))
        assert await call.read()
        calls.append(call)

        async def counted(booked: int = turn + 1) -> bool:
            return [await served.booked() for _ in range(LOOKS)] == [booked] * LOOKS

        await eventually(counted)
    waiting = [len(each.requests) - len(each.cancelled) for each in (one, two)]
    assert sum(waiting) >= 4
    one.go.set()
    two.go.set()
    await eventually(served.nothing_booked)


async def test_a_booking_of_one_connection_is_freed_over_another(
    tmp_path: Path, stack: AsyncExitStack
) -> None:
    one = engine()
    served, clients = await serving(stack, tmp_path, one)
    here, there = (RouterServiceStub(clients[n].channel) for n in (0, 1))
    booked = router_pb2.BookedRequest(request_id="mine")
    select = router_pb2.SelectWorkerRequest(token_ids=range(1, 65), request_id="mine")
    answer = await here.SelectWorker(select)
    assert answer.booked and answer.address == one.address
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await here.SelectWorker(select)
    assert refused.value.code() is grpc.StatusCode.ALREADY_EXISTS
    assert (await there.MarkPrefillComplete(booked)).known
    assert (await there.Free(booked)).known
    assert not (await there.Free(booked)).known
    assert not (await here.Free(booked)).known
    await eventually(served.nothing_booked)


async def test_an_abort_finds_the_request_of_another_process(
    tmp_path: Path, stack: AsyncExitStack
) -> None:
    one = engine()
    _, clients = await serving(stack, tmp_path, one)
    one.script = stall
    call = clients[0].call(prompt("aborted"))
    assert await call.read()
    abort = clients[1].channel.unary_unary(f"/{SERVICE}/Abort", None, None)
    answer = await abort(pb.AbortRequest(request_id="aborted").SerializeToString())
    assert pb.AbortResponse.FromString(answer).success
    assert one.aborted == ["aborted"]
    answer = await abort(pb.AbortRequest(request_id="unknown").SerializeToString())
    assert pb.AbortResponse.FromString(answer).message == "request unknown not found"


async def test_a_cancelled_request_frees_its_booking(tmp_path: Path, stack: AsyncExitStack) -> None:
    one = engine()
    served, clients = await serving(stack, tmp_path, one)
    one.script = stall
    call = clients[0].call(prompt("cancelled"))
    assert await call.read()
    call.cancel()
    await eventually(served.nothing_booked)
    await until(lambda: one.cancelled == ["cancelled"])


async def test_a_request_waits_while_another_process_has_its_place(
    tmp_path: Path, stack: AsyncExitStack
) -> None:
    one = engine()
    limit = ("--max-requests-per-worker", "1")
    served, clients = await serving(stack, tmp_path, one, more=limit)
    one.script = stall
    running = clients[0].call(prompt("first"))
    assert await running.read()

    async def both_know() -> bool:
        return [await served.booked() for _ in range(LOOKS)] == [1] * LOOKS

    await eventually(both_know)
    sent = len(one.requests)
    waiting = asyncio.ensure_future(clients[1].answers(prompt("second")))

    async def waits() -> bool:
        return {each["front"]: each["in_flight"] for each in await served.fronts()} == {0: 1, 1: 1}

    await eventually(waits)
    assert len(one.requests) == sent
    one.go.set()
    assert len(await waiting) == 2


async def test_an_admin_call_changes_all_processes_and_those_started_later(
    tmp_path: Path, stack: AsyncExitStack
) -> None:
    one, two = engine(), engine()
    await stack.enter_async_context(two)
    served, _ = await serving(stack, tmp_path, one)
    status, added = await served.change("/workers", {"url": two.url})
    assert status == 201 and added["state"] == "ready" and "warning" not in added
    worker = f"/workers/{added['worker_id']}"

    async def states() -> list[dict[str, Any]]:
        return [
            {each["address"]: (each["state"], each["weight"]) for each in view["workers"]}
            for view in await views(served, "/workers")
        ]

    async def are(expected: dict[str, Any]) -> bool:
        return await states() == [expected] * LOOKS

    await eventually(lambda: are({one.address: ("ready", 1.0), two.address: ("ready", 1.0)}))
    assert (await served.change(worker, {"weight": 0.5}, "PATCH"))[0] == 200
    await eventually(lambda: are({one.address: ("ready", 1.0), two.address: ("ready", 0.5)}))
    status, drained = await served.change(f"{worker}/drain", {"deadline_s": 5})
    assert status == 200 and drained["drained"]
    thresholds = {"active_decode_blocks_threshold": 0.75}
    assert (await served.change("/busy_threshold", thresholds))[0] == 200
    for view in await views(served, "/busy_threshold"):
        assert view["active_decode_blocks_threshold"] == 0.75

    killed = (await served.pids())[1]
    os.kill(killed, signal.SIGKILL)

    async def back() -> bool:
        return (await served.pids()).get(1, killed) != killed

    await eventually(back)
    expected = {one.address: ("ready", 1.0), two.address: ("draining", 0.5)}
    await eventually(lambda: are(expected))
    for view in await views(served, "/busy_threshold"):
        assert view["active_decode_blocks_threshold"] == 0.75
    assert (await served.change(worker, method="DELETE"))[0] == 200
    await eventually(lambda: are({one.address: ("ready", 1.0)}))
    assert (await served.change(worker, method="DELETE"))[0] == 404


async def test_a_worker_with_a_request_of_any_process_is_not_removed(
    tmp_path: Path, stack: AsyncExitStack
) -> None:
    one = engine()
    served, clients = await serving(stack, tmp_path, one)
    one.script = stall
    calls = {number: client.call(prompt(f"r{number}")) for number, client in clients.items()}
    for call in calls.values():
        assert await call.read()
    (worker,) = await served.workers()
    calls[0].cancel()
    await until(lambda: one.cancelled == ["r0"])
    for _ in range(LOOKS):
        status, _ = await served.change(f"/workers/{worker['worker_id']}", method="DELETE")
        assert status == 409
    one.go.set()


async def test_settings_are_read_again_by_all_processes(
    tmp_path: Path, stack: AsyncExitStack
) -> None:
    one, two = engine(), engine()
    await stack.enter_async_context(two)
    file = tmp_path / "settings.toml"
    await stack.enter_async_context(one)
    file.write_text(f'workers = ["{one.url}"]\n')
    words = (*SERVE, "--config", str(file))
    served = await stack.enter_async_context(serve_fronts(tmp_path / "router", *words))

    async def has(*engines: FakeEngine) -> bool:
        found = [
            {each["address"] for each in view["workers"] if each["state"] == "ready"}
            for view in await views(served, "/workers")
        ]
        return found == [{each.address for each in engines}] * LOOKS

    await eventually(lambda: has(one))
    file.write_text(f'workers = ["{one.url}", "{two.url}"]\n')
    served.router.send(signal.SIGHUP)
    await eventually(lambda: has(one, two))
    file.write_text(f'workers = ["{two.url}"]\n')
    status, answer = await served.change("/reload", {})
    assert status == 200 and list(answer["changed"]) == ["workers"]
    await eventually(lambda: has(two))
    file.write_text(f'workers = ["{two.url}"]\nnamespace = "other"\n')
    assert (await served.change("/reload", {}))[0] == 409


async def test_the_dashboard_shows_one_process_whichever_answers(
    tmp_path: Path, stack: AsyncExitStack
) -> None:
    served, clients = await serving(stack, tmp_path, engine())
    for number, client in clients.items():
        await client.answers(prompt(f"seen-{number}"))
    processes = {view["process"] for view in await views(served, "/dashboard/state")}
    assert len(processes) == 1
    assert "<html" in await http_text(served.http, "/dashboard")
    found = [await http_json(served.http, "/dashboard/caches") for _ in range(LOOKS)]
    assert all(each == found[0] for each in found)


async def test_the_history_of_the_dashboard_is_that_of_all_processes(
    tmp_path: Path, stack: AsyncExitStack
) -> None:
    served, clients = await serving(stack, tmp_path, engine())
    for number, client in clients.items():
        await client.answers(prompt(f"seen-{number}"))
    nothing, _ = await served.change("/dashboard/nothing", method="GET")
    requests = [front["requests"] for front in await served.fronts()]
    assert nothing == 404 and min(requests) > 0

    def sums(overview: Any) -> dict[str, int]:
        fields = overview["layout"]["fields"]
        columns = zip(*(row[2 : 2 + len(fields)] for row in overview["rows"]), strict=True)
        return {name: sum(column) for name, column in zip(fields, columns, strict=True)}

    async def shown() -> bool:
        """Once the step is over in both of them: no process alone has all requests."""
        found = await http_json(served.http, "/dashboard/overview")
        if found["missing"] or not found["rows"] or sums(found)["ok"] != sum(requests):
            return False
        assert found["processes"] == 2
        ready = found["layout"]["fields"].index("ready")
        assert found["rows"][-1][2 + ready] == 1  # the same worker in both
        assert [each["status"] for each in found["http_errors"]] == [404]
        return True

    await eventually(shown)


async def test_sigterm_under_load_loses_nothing_and_leaves_nothing(tmp_path: Path) -> None:
    async with engine(stall) as one, serve_fronts(tmp_path, *SERVE, *urls(one)) as served:
        children = children_of(served.router.pid)
        (folder,) = {
            Path(word).parent
            for line in Path("/proc/net/unix").read_text().splitlines()
            for word in line.split()[7:]
            if word.endswith("front-0.sock") and owned_by(children, word)
        }
        assert folder.stat().st_mode & 0o777 == 0o700
        assert (folder / "front-0.sock").stat().st_mode & 0o777 == 0o600
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
        assert not folder.exists()


async def test_a_second_signal_ends_all_at_once(tmp_path: Path) -> None:
    long = ("--drain-timeout-s", "600")
    async with engine(stall) as one, serve_fronts(tmp_path, *SERVE, *long, *urls(one)) as served:
        children = children_of(served.router.pid)
        async with served.client() as client:
            call = client.call(prompt("endless"))
            assert await call.read()
            served.router.send(signal.SIGTERM)
            await served.router.says("draining")
            assert await served.router.stop() == 0
        assert not [pid for pid in children if alive(pid)]


async def test_nothing_outlives_a_parent_that_is_killed(tmp_path: Path) -> None:
    async with engine() as one, serve_fronts(tmp_path, *SERVE, *urls(one)) as served:
        children = children_of(served.router.pid)
        await served.router.stop(signal.SIGKILL)
        await until(lambda: not [pid for pid in children if alive(pid)])


@pytest.mark.parametrize("count", ["0", "65"])
async def test_a_number_of_processes_out_of_range_is_refused(tmp_path: Path, count: str) -> None:
    async with command(tmp_path, "serve", "--port", "0", "--fronts", count) as router:
        assert await router.ended() != 0
        assert f"fronts: {count} must be in 1..64" in router.text


async def test_a_port_that_is_in_use_is_an_error(tmp_path: Path) -> None:
    async with engine() as one, serve_fronts(tmp_path, *SERVE, *urls(one)) as served:
        for key, address in (("port", served.grpc), ("http_port", served.http)):
            port = address.rpartition(":")[2]
            flags = {"port": "0", "http_port": "0", key: port}
            given = [w for k, v in flags.items() for w in (f"--{k.replace('_', '-')}", v)]
            words = ("serve", "--fronts", "2", *given, "--no-kv-events", *urls(one))
            async with command(tmp_path / key, *words) as other:
                assert await other.ended() == 1
                assert f"{key}: cannot listen on 127.0.0.1:{port}" in other.text
        assert len(await served.answers(prompt("still"))) == 3
        await served.router.stop()


async def test_a_process_that_cannot_start_is_an_error(tmp_path: Path) -> None:
    twice = ("--worker", "grpc://127.0.0.1:9", "--worker", "grpc://127.0.0.1:9")
    words = ("serve", "--port", "0", "--http-port", "0", "--fronts", "2", *SERVE, *twice)
    async with command(tmp_path, *words) as router:
        assert await router.ended() == 1
        assert "is there twice: give each address once" in router.text
        assert "fronts: the front 0 did not start" in router.text
        assert "Traceback" not in router.text


def owned_by(children: list[int], path: str) -> bool:
    """Whether one of these processes was told of the folder that a path is in."""
    folder = str(Path(path).parent).encode()
    return any(folder in Path(f"/proc/{pid}/environ").read_bytes() for pid in children)
