"""A process of several dies, or hangs: the others go on, and it comes back."""

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import Any

import grpc
import pytest
from support.fake_engine import prompt, stall
from support.fronts.clients import clients_of_all, engine, eventually, urls
from support.fronts.processes import serve_fronts
from support.polling import until
from support.processes import alive, command

SERVE = ("--no-kv-events", "--block-size", "16", "--policy", "dynamo")


async def test_one_that_is_killed_frees_its_bookings_and_comes_back(tmp_path: Path) -> None:
    async with engine() as one, AsyncExitStack() as stack:
        served = await stack.enter_async_context(serve_fronts(tmp_path, *SERVE, *urls(one)))
        clients = await clients_of_all(served, stack)
        pids = await served.pids()
        one.script = stall
        lost, kept = clients[0].call(prompt("lost")), clients[1].call(prompt("kept"))
        assert await lost.read() and await kept.read()

        async def booked(count: int) -> bool:
            return await served.booked() == count

        await eventually(lambda: booked(2))
        os.kill(pids[0], signal.SIGKILL)
        with pytest.raises(grpc.aio.AioRpcError):
            await lost.read()
        await eventually(lambda: booked(1))
        one.go.set()
        assert await kept.read()
        await served.answers(prompt("next"))

        async def back() -> bool:
            now = await served.pids()
            return now.keys() == {0, 1} and now[0] != pids[0] and now[1] == pids[1]

        await eventually(back)
        await clients_of_all(served, stack)
        assert (await served.metrics())['dynamo_router_front_up{front="0"}'] == 1
        assert await served.router.stop() == 0


async def test_one_that_hangs_is_killed_and_started_again(tmp_path: Path) -> None:
    async with engine() as one, AsyncExitStack() as stack:
        flags = (*SERVE, "--front-hang-timeout-s", "3")
        served = await stack.enter_async_context(serve_fronts(tmp_path, *flags, *urls(one)))
        clients = await clients_of_all(served, stack)
        pids = await served.pids()
        os.kill(pids[1], signal.SIGSTOP)
        for number in range(3):
            assert len(await clients[0].answers(prompt(f"meanwhile-{number}"))) == 3
        await until(lambda: not alive(pids[1]), 60)

        async def back() -> bool:
            now = await served.pids()
            return now.keys() == {0, 1} and now[0] == pids[0] and now[1] != pids[1]

        await eventually(back)
        assert served.router.text.count("a process hangs and is killed") == 1
        assert len(await served.answers(prompt("after"))) == 3
        assert await served.router.stop() == 0


async def test_one_that_hangs_is_missing_from_what_the_others_show(tmp_path: Path) -> None:
    async with engine() as one, AsyncExitStack() as stack:
        # Not killed meanwhile: of the connections half lead to the one that hangs.
        flags = (*SERVE, "--front-hang-timeout-s", "0")
        served = await stack.enter_async_context(serve_fronts(tmp_path, *flags, *urls(one)))
        pids = await served.pids()
        os.kill(pids[1], signal.SIGSTOP)
        try:
            health = await answered(served.health)
            assert [each["pid"] for each in health["fronts"]] == [pids[0]]
            assert health["fronts_missing"] == [1]
            metrics = await answered(served.metrics)
            assert metrics['dynamo_router_front_up{front="0"}'] == 1
            assert metrics['dynamo_router_front_up{front="1"}'] == 0
        finally:
            os.kill(pids[1], signal.SIGCONT)

        async def back() -> bool:
            return await served.pids() == pids

        await eventually(back)


async def test_the_index_comes_back_with_a_process(tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        words = ("mocker", "--workers", "1", "--port", "0", "--block-size", "16")
        engines = await stack.enter_async_context(
            command(tmp_path / "engines", *words, "--discovery", "static", "--speedup-ratio", "50")
        )
        url = (await engines.says("engine 0: ")).split()[2]
        await engines.says("ready")
        snapshot = tmp_path / "index"
        flags = ("--block-size", "16", "--event-sources", "grpc", "--worker", url)
        words = (*flags, "--index-snapshot", str(snapshot))
        served = await stack.enter_async_context(serve_fronts(tmp_path, *words))
        await served.answers(prompt("r1", tokens=512))

        async def indexed() -> bool:
            looks = [await served.workers() for _ in range(8)]
            return all(sum(each["indexed_blocks"] for each in look) >= 32 for look in looks)

        await eventually(indexed)
        pids = await served.pids()
        for number in (0, 1):
            os.kill(pids[number], signal.SIGKILL)

            async def back(number: int = number) -> bool:
                now = await served.pids()
                return len(now) == 2 and now[number] != pids[number] and await indexed()

            await eventually(back)
        assert await served.router.stop() == 0
        assert snapshot.exists()


async def answered(ask: Callable[[], Awaitable[Any]]) -> Any:
    """What a connection gets that does not lead to the process that hangs."""
    for _ in range(60):
        with suppress(TimeoutError):
            return await asyncio.wait_for(ask(), 5)
    raise AssertionError("all connections lead to the process that hangs")
