"""A front or the decider dies, or hangs: what goes on meanwhile, and what comes back."""

import asyncio
import os
import signal
from contextlib import AsyncExitStack
from pathlib import Path

import grpc
import pytest
from support.fake_engine import prompt, stall
from support.fronts.clients import clients_of_all, engine, eventually, urls
from support.fronts.processes import Fronts, serve_fronts
from support.polling import until
from support.processes import alive, command

SERVE = ("--no-kv-events", "--block-size", "16", "--policy", "dynamo")


async def fallbacks(served: Fronts) -> int:
    return sum(front["fallback_decisions"] for front in await served.fronts())


async def test_a_front_that_is_killed_frees_its_bookings_and_comes_back(tmp_path: Path) -> None:
    async with engine() as one, AsyncExitStack() as stack:
        served = await stack.enter_async_context(serve_fronts(tmp_path, *SERVE, *urls(one)))
        clients = await clients_of_all(served, stack)
        pids = {front["front"]: front["pid"] for front in await served.fronts()}
        one.script = stall
        lost, kept = clients[0].call(prompt("lost")), clients[1].call(prompt("kept"))
        assert await lost.read() and await kept.read()
        assert await served.booked() == 2
        os.kill(pids[0], signal.SIGKILL)
        with pytest.raises(grpc.aio.AioRpcError):
            await lost.read()

        async def freed() -> bool:
            return await served.booked() == 1

        await eventually(freed)
        one.go.set()
        assert await kept.read()
        await served.answers(prompt("next"))

        async def back() -> bool:
            fronts = {front["front"]: front["pid"] for front in await served.fronts()}
            return fronts.keys() == {0, 1} and fronts[0] != pids[0]

        await eventually(back)
        await clients_of_all(served, stack)
        assert await served.router.stop() == 0


async def test_a_decider_that_is_killed_stops_no_request(tmp_path: Path) -> None:
    async with engine(stall) as one, engine(stall) as two, AsyncExitStack() as stack:
        served = await stack.enter_async_context(serve_fronts(tmp_path, *SERVE, *urls(one, two)))
        client = await stack.enter_async_context(served.client())
        before = client.call(prompt("before"))
        assert await before.read()
        killed = await served.decider()
        os.kill(killed, signal.SIGKILL)
        during = client.call(prompt("during"))
        assert await asyncio.wait_for(during.read(), 60)

        async def told_anew() -> bool:
            back = await served.decider() != killed and len(await served.fronts()) == 2
            return back and await served.booked() == 2

        await eventually(told_anew)
        assert {len(one.requests), len(two.requests)} == {1}, "it went to the less loaded one"
        after = client.call(prompt("after"))
        assert await after.read()
        assert await served.booked() == 3
        one.go.set()
        two.go.set()
        for call in (before, during, after):
            assert await call.read() is not grpc.aio.EOF
            assert await call.read() is grpc.aio.EOF
        await eventually(served.nothing_booked)

        async def decided_alone() -> bool:
            return await fallbacks(served) >= 1

        await eventually(decided_alone)
        assert await served.router.stop() == 0


async def test_a_decider_that_hangs_is_not_waited_for(tmp_path: Path) -> None:
    hangs = ("--decider-timeout-s", "0.5")
    async with engine() as one, AsyncExitStack() as stack:
        served = await stack.enter_async_context(serve_fronts(tmp_path, *SERVE, *hangs, *urls(one)))
        client = await stack.enter_async_context(served.client())
        pid = await served.decider()
        os.kill(pid, signal.SIGSTOP)
        try:
            for number in range(3):
                found = await asyncio.wait_for(client.answers(prompt(f"r{number}")), 60)
                assert len(found) == 3
        finally:
            os.kill(pid, signal.SIGCONT)

        async def back() -> bool:
            await client.answers(prompt("again"))
            return len(await served.fronts()) == 2 and await fallbacks(served) >= 3

        await eventually(back)

        async def decides() -> bool:
            before = sum(front["decided"] for front in await served.fronts())
            await client.answers(prompt("decided"))
            return sum(front["decided"] for front in await served.fronts()) > before

        await eventually(decides)
        assert await served.decider() == pid
        await eventually(served.nothing_booked)


async def test_a_process_that_stays_hung_is_killed_and_started_again(tmp_path: Path) -> None:
    async with engine() as one, AsyncExitStack() as stack:
        flags = (*SERVE, "--front-hang-timeout-s", "1.5", "--decider-timeout-s", "0.5")
        served = await stack.enter_async_context(serve_fronts(tmp_path, *flags, *urls(one)))
        fronts = {front["front"]: front["pid"] for front in await served.fronts()}
        decider = await served.decider()
        for hung in (fronts[0], decider):
            os.kill(hung, signal.SIGSTOP)
            await until(lambda hung=hung: not alive(hung), 30)  # type: ignore[misc]

        async def back() -> bool:
            try:
                now = {front["front"]: front["pid"] for front in await served.fronts()}
            except OSError:
                return False
            return now.keys() == {0, 1} and now[0] != fronts[0] and now[1] == fronts[1]

        await eventually(back)
        assert await served.decider() != decider
        await until(lambda: served.router.text.count("a process hangs and is killed") == 2)
        assert len(await served.answers(prompt("after"))) == 3
        assert await served.router.stop() == 0


async def test_the_index_comes_back_with_the_decider(tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        words = ("mocker", "--workers", "1", "--port", "0", "--block-size", "16")
        engines = await stack.enter_async_context(
            command(tmp_path / "engines", *words, "--discovery", "static", "--speedup-ratio", "50")
        )
        url = (await engines.says("engine 0: ")).split()[2]
        await engines.says("ready")
        flags = ("--block-size", "16", "--event-sources", "grpc", "--worker", url)
        served = await stack.enter_async_context(serve_fronts(tmp_path, *flags))
        await served.answers(prompt("r1", tokens=512))

        async def indexed() -> bool:
            return sum(worker["indexed_blocks"] for worker in await served.workers()) >= 32

        await eventually(indexed)
        killed = await served.decider()
        os.kill(killed, signal.SIGKILL)

        async def back() -> bool:
            return await served.decider() != killed and await indexed()

        await eventually(back)
        assert await served.router.stop() == 0


async def test_a_bad_frame_ends_its_connection_alone(tmp_path: Path) -> None:
    async with engine() as one, serve_fronts(tmp_path, *SERVE, *urls(one)) as served:
        pid = await served.decider()
        (folder,) = [
            Path(word)
            for word in Path(f"/proc/{pid}/cmdline").read_text().split("\0")
            if "dynamo-router-" in word
        ]
        path = folder / "decider.sock"
        assert folder.stat().st_mode & 0o777 == 0o700
        assert path.stat().st_mode & 0o777 == 0o600
        for bad in (b"\xff" * 64, b"\0\0\0\1\xc0", b"\0\0\0\2\x91\x01", b"GET / HTTP/1.1\r\n"):
            reader, writer = await asyncio.open_unix_connection(str(path))
            writer.write(bad)
            assert await asyncio.wait_for(_to_end(reader), 60) == b""
            writer.close()
        await until(lambda: "no front's" in served.router.text)
        assert len(await served.answers(prompt("still"))) == 3
        assert await served.router.stop() == 0
        assert not folder.exists()


async def _to_end(reader: asyncio.StreamReader) -> bytes:
    try:
        return await reader.read()
    except ConnectionResetError:
        return b""
