"""The live planner on real parts: engines are processes, a frontend routes to them, the store is
files. What is wanted is given, so that each change is known."""

import asyncio
import json
import os
import re
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from support.planner.environment import FixedBrain
from support.polling import until
from support.processes import command

from dynamo_router.base.clock import SystemClock
from dynamo_router.planner import Fleet
from dynamo_router.planner.connectors import LocalEngines, VirtualKeys, mocker_command
from dynamo_router.planner.live.change_log import ChangeLog
from dynamo_router.planner.live.fleet_watch import FleetWatch
from dynamo_router.planner.live.leader import Leader
from dynamo_router.planner.live.live_planner import LivePlanner
from dynamo_router.planner.live.router_client import RouterClient
from dynamo_router.planner.live.sight import Sight
from dynamo_router.planner.live.status_page import StatusPage
from dynamo_router.planner.live.transaction import Limits
from dynamo_router.runtime.kv_stores import FileStore

ENGINE = (
    *("--discovery", "file", "--event-plane", "zmq", "--model-id", "tiny"),
    *("--vocab-size", "4096", "--num-gpu-blocks", "512"),
)
LONG_S = 60.0


@asynccontextmanager
async def frontend(folder: Path, *more: str) -> AsyncIterator[str]:
    """The address of a frontend that records."""
    words = (
        *("frontend", "--discovery", "file", "--event-plane", "zmq", "--http-port", "0"),
        *("--record", str(folder / "record.jsonl"), "--lame-duck-s", "0"),
    )
    environ = {"DYN_FILE_KV": str(folder / "store")}
    async with command(folder / "frontend", *words, *more, environ=environ) as process:
        ready = re.search(r"openai (\S+)", await process.says("dynamo-router ready"))
        assert ready is not None
        yield ready[1]


@dataclass
class Rig:
    """A planner in this process, turned by hand."""

    planner: LivePlanner
    brain: FixedBrain
    engines: LocalEngines
    address: str
    session: aiohttp.ClientSession

    async def turn_until(self, condition: Callable[[], bool]) -> None:
        async def turned() -> bool:
            await self.planner.turn()
            return condition()

        await until(turned, LONG_S)

    async def want(self, wanted: Fleet) -> None:
        """Turn until there are these, and no decision is open."""
        self.brain.wanted = wanted

        def in_place() -> bool:
            there = len(self.engines.ids("aggregated")) == wanted.aggregated
            return there and self.planner.open_decision is None

        await self.turn_until(in_place)

    async def stream(self, tokens: int) -> tuple[int, str]:
        """How many chunks had text, and the finish reason."""
        body = {
            "model": "tiny", "prompt": "Hello there", "max_tokens": tokens, "stream": True,
            "ignore_eos": True,
        }  # fmt: skip
        chunks, reason = 0, ""
        url = f"http://{self.address}/v1/completions"
        async with self.session.post(url, json=body) as answer:
            assert answer.status == 200, await answer.text()
            async for line in answer.content:
                data = line.decode().removeprefix("data: ").strip()
                if not data.startswith("{"):
                    continue
                (choice,) = json.loads(data)["choices"] or [{"text": ""}]
                chunks += bool(choice.get("text"))
                reason = choice.get("finish_reason") or reason
        return chunks, reason


@pytest.fixture
async def rig(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Rig]:
    folder = tmp_path / "store"
    folder.mkdir()
    monkeypatch.setenv("DYN_FILE_KV", str(folder))
    clock = SystemClock()
    async with AsyncExitStack() as stack:
        address = await stack.enter_async_context(frontend(tmp_path))
        store = FileStore(folder)
        stack.push_async_callback(store.close)
        watch = FleetWatch(FileStore(folder), "dynamo", None, clock)
        stack.push_async_callback(watch.close)
        await watch.start()
        router = RouterClient(f"http://{address}", None, None, "tiny")
        stack.push_async_callback(router.close)
        leader = Leader(store, "dynamo", "test", clock)
        await leader.start()
        stack.push_async_callback(leader.close)
        engines = LocalEngines({"aggregated": mocker_command(ENGINE)})
        stack.push_async_callback(engines.close)
        brain = FixedBrain(Fleet(1))
        planner = LivePlanner(
            name="test", engines=watch, registry="a folder", routers=[router],
            sight=Sight(600.0), brain=brain,
            connector=engines, connector_name="local", leader=leader,
            changes=ChangeLog(store, "dynamo", "test"), limits=Limits(4, admit_s=0.5),
            least=Fleet(1), window_s=600.0, clock=clock,
        )  # fmt: skip
        stack.push_async_callback(planner.close)
        session = await stack.enter_async_context(aiohttp.ClientSession())
        yield Rig(planner, brain, engines, address, session)


async def test_engines_come_and_go_and_no_stream_is_cut(rig: Rig) -> None:
    await rig.want(Fleet(1))  # the least, by rule
    await rig.want(Fleet(3))
    assert len(rig.engines.ids("aggregated")) == 3
    streams = [asyncio.create_task(rig.stream(300)) for _ in range(9)]
    planner = rig.planner
    await rig.turn_until(lambda: planner.seen is not None and (planner.seen.in_flight or 0) >= 9)
    assert planner.seen is not None
    assert all(engine.in_flight for engine in planner.seen.engines)  # whichever goes has some
    await rig.want(Fleet(1))
    assert len(rig.engines.ids("aggregated")) == 1
    answers = await asyncio.gather(*streams)
    assert {reason for _, reason in answers} == {"length"}
    assert await rig.stream(3) != (0, "")


async def test_requests_are_observed_as_they_were(rig: Rig) -> None:
    await rig.want(Fleet(1))
    await rig.planner.turn()
    for tokens in (4, 5, 6):
        await rig.stream(tokens)
    planner = rig.planner
    await rig.turn_until(lambda: planner.seen is not None and len(planner.seen.requests or ()) >= 3)
    assert planner.seen is not None and planner.seen.requests is not None
    observed = [each.observed for each in planner.seen.requests]
    assert [each.output_tokens for each in observed] == [4, 5, 6]
    (engine_id,) = rig.engines.ids("aggregated")
    assert {each.worker_id for each in observed} == {engine_id}
    assert all(each.ttft_ms and each.block_ids for each in observed)
    assert planner.seen.queued == 0.0


async def test_what_is_planned_is_on_its_page_and_on_the_dashboard(rig: Rig) -> None:
    await rig.want(Fleet(1))
    page = StatusPage(rig.planner)
    await page.start("127.0.0.1", 0)
    try:
        async with rig.session.get(f"http://{page.address}/metrics") as answer:
            text = await answer.text()
        assert 'dynamo_planner_desired_replicas{pool="aggregated"} 1.0' in text
        assert 'dynamo_planner_observed_replicas{pool="aggregated",state="ready"} 1.0' in text
        assert 'dynamo_planner_decisions_total{outcome="done"} 1.0' in text
        assert "dynamo_planner_no_data 0.0" in text
        async with rig.session.get(f"http://{page.address}/plan") as answer:
            plan = await answer.json()
        assert (plan["leads"], plan["wanted"]) == (True, {"aggregated": 1})
        async with rig.session.get(f"http://{page.address}/health") as answer:
            assert (answer.status, (await answer.json())["ready"]) == (200, True)
    finally:
        await page.close()
    async with rig.session.get(f"http://{rig.address}/dashboard/plan") as answer:
        shown: dict[str, Any] = await answer.json()
    (only,) = shown["decisions"]
    assert only["decision"]["to"] == {"aggregated": 1}
    assert shown["status"]["connector"] == "local"


async def test_an_engine_that_dies_is_started_again(rig: Rig) -> None:
    await rig.want(Fleet(2))
    assert len(rig.engines.ids("aggregated")) == 2
    pid = rig.engines._engines[0]._child.pid
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    await until(lambda: len(rig.engines.ids("aggregated")) == 1)
    await rig.want(Fleet(2))
    assert len(rig.engines.ids("aggregated")) == 2


def mockers_of(folder: Path) -> list[int]:
    """Mock engines whose store is in this folder."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            words, environ = (path / "cmdline").read_bytes(), (path / "environ").read_bytes()
        except OSError:
            continue
        if b"mocker" in words and f"DYN_FILE_KV={folder}".encode() in environ:
            found.append(int(path.name))
    return found


async def test_the_command_plans_survives_a_kill_and_leaves_nothing(tmp_path: Path) -> None:
    folder = tmp_path / "store"
    folder.mkdir()
    environ = {"DYN_FILE_KV": str(folder)}
    words = (
        *("planner", "--discovery", "file", "--port", "0", "--engines-min", "2"),
        *("--engine-arguments", " ".join(ENGINE), "--admit-s", "0.1", "--look-every-s", "0.1"),
    )
    async with frontend(tmp_path) as address:
        words = (*words, "--router", f"http://{address}")
        async with command(tmp_path / "first", *words, environ=environ) as first:
            await first.says("decision ")
            await first.stop(signal.SIGKILL)
        await until(lambda: not mockers_of(folder))
        async with command(tmp_path / "second", *words, environ=environ) as second:
            await second.says("an open decision is resumed", LONG_S)
            await second.says("decision ended", LONG_S)
            assert len(mockers_of(folder)) == 2
            assert await second.stop() == 0
        await until(lambda: not mockers_of(folder))


async def test_a_dry_run_of_the_command_says_what_it_would_do(tmp_path: Path) -> None:
    folder = tmp_path / "store"
    folder.mkdir()
    async with frontend(tmp_path) as address:
        words = (
            *("planner", "--discovery", "file", "--port", "0", "--dry-run"),
            *("--router", f"http://{address}"),
        )
        environ = {"DYN_FILE_KV": str(folder)}
        async with command(tmp_path / "planner", *words, environ=environ) as planner:
            await planner.says("no engines -> 1 aggregated")
            assert "fewer than the least" in planner.text
            await planner.says("none is registered in namespace 'dynamo' of --discovery file")
            assert await planner.stop() == 0
    assert not mockers_of(folder)
    assert not [path for path in folder.rglob("*") if "planner" in str(path.relative_to(folder))]


async def test_a_dry_run_counts_engines_that_others_started(tmp_path: Path) -> None:
    folder = tmp_path / "store"
    folder.mkdir()
    environ = {"DYN_FILE_KV": str(folder)}
    mocker = ("mocker", "--workers", "2", "--port", "0", *ENGINE)
    async with (
        frontend(tmp_path) as address,
        command(tmp_path / "mocker", *mocker, environ=environ) as engines,
    ):
        await engines.says("ready")
        words = (
            *("planner", "--discovery", "file", "--connector", "local", "--dry-run"),
            *("--port", "0", "--router", f"http://{address}"),
        )
        async with command(tmp_path / "planner", *words, environ=environ) as planner:
            await planner.says("stays at 2 aggregated", LONG_S)
            assert "no engines" not in planner.text
            assert await planner.stop() == 0


async def test_a_follower_of_the_virtual_connector_starts_and_stops_engines(
    tmp_path: Path,
) -> None:
    folder = tmp_path / "store"
    folder.mkdir()
    words = (
        *("planner", "--discovery", "file", "--connector", "local", "--follow"),
        *("--engine-arguments", " ".join(ENGINE)),
    )
    store = FileStore(folder)
    keys = VirtualKeys(store, "dynamo", "aggregated", SystemClock())
    bucket = store.bucket("v1/dynamo/planner")
    try:
        async with command(tmp_path / "run", *words, environ={"DYN_FILE_KV": str(folder)}) as run:
            await run.says("planner ready: follows keys")
            for decision, count in ((b"0", 2), (b"1", 1)):
                await keys.apply({"aggregated": count}, {})

                async def is_scaled(decision: bytes = decision) -> bool:
                    entry = await bucket.get("scaled_decision_id")
                    return entry is not None and entry.value == decision

                await until(is_scaled, LONG_S)
                await until(lambda count=count: len(mockers_of(folder)) == count, LONG_S)
            assert await run.stop() == 0
        assert not mockers_of(folder)
    finally:
        await store.close()
