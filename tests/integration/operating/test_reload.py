"""The configuration of a running router read again, at SIGHUP and by an admin call."""

import asyncio
import re
import signal
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import aiohttp
from grpc import aio
from support.fake_engine import FakeEngine, prompt, stall
from support.polling import until
from support.processes import command, http_json
from support.serving import BLOCK, Ports, ServedRouter

from dynamo_router.process.settings import SettingsSource
from dynamo_router.server.config import ServeConfig

FLAGS = {"port": 0, "http_port": 0, "router.use_kv_events": False, "router.block_size": BLOCK}


class Rig:
    """A server whose settings are a file, and engines to put into it."""

    def __init__(self, folder: Path, *engines: FakeEngine) -> None:
        self.file = folder / "router.toml"
        self.engines = engines
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> "Rig":
        stack = self._stack
        for engine in self.engines:
            await stack.enter_async_context(engine)
        self.write(self.engines[:1])
        source = SettingsSource(ServeConfig, FLAGS, str(self.file))
        self.server = ServedRouter(source.current.config, source)
        stack.push_async_callback(self.server.close)
        await self.server.start()
        await until(lambda: self.server.monitor.any_ready)
        channel = await stack.enter_async_context(aio.insecure_channel(self.server.grpc_address))
        session = await stack.enter_async_context(aiohttp.ClientSession())
        self.ports = Ports(self.server, channel, session)
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._stack.aclose()

    def write(self, engines: tuple[FakeEngine, ...], text: str = "", weight: float = 1.0) -> None:
        urls = [f"{engine.url}?weight={weight}" for engine in engines]
        self.file.write_text(f"workers = {urls}\n{text}")

    async def reload(self) -> tuple[int, Any]:
        return await self.ports.http("POST", "/reload", json={})

    @property
    def addresses(self) -> set[str | None]:
        return {entry.address for entry in self.server.router.registry.entries()}


async def test_workers_come_and_go_with_the_list_and_requests_finish(tmp_path: Path) -> None:
    one, two, three = FakeEngine(stall), FakeEngine(), FakeEngine()
    async with Rig(tmp_path, one, two, three) as rig:
        stream = asyncio.create_task(rig.ports.answers(prompt("r")))
        await until(lambda: one.requests)
        await rig.ports.http("POST", "/workers", json={"url": three.url})  # not of the list
        rig.write((two,), weight=0.5)
        status, said = await rig.reload()
        assert status == 200
        assert said["changed"]["workers"] == {
            "old": [f"{one.url}?weight=1.0"], "new": [f"{two.url}?weight=0.5"]
        }  # fmt: skip
        await until(lambda: len(rig.server.monitor.ready_clients()) == 2)
        assert rig.addresses == {one.address, two.address, three.address}  # it has a request
        states = {e.address: e.state.value for e in rig.server.router.registry.entries()}
        assert states[one.address] == "draining"
        one.go.set()
        assert len(await stream) == 2
        await until(lambda: rig.addresses == {two.address, three.address})
        rig.write((two,), weight=0.25)
        await rig.reload()
        weights = {e.address: e.weight for e in rig.server.router.registry.entries()}
        assert weights == {two.address: 0.25, three.address: 1.0}
        rig.write((one, two))
        await rig.reload()
        await until(lambda: len(rig.server.monitor.ready_clients()) == 3)


async def test_a_worker_that_is_taken_back_in_time_stays(tmp_path: Path) -> None:
    one, two = FakeEngine(stall), FakeEngine()
    async with Rig(tmp_path, one, two) as rig:
        stream = asyncio.create_task(rig.ports.answers(prompt("r")))
        await until(lambda: one.requests)
        for engines in ((two,), (one, two)):
            rig.write(engines)
            assert (await rig.reload())[0] == 200
        one.go.set()
        await stream
        await until(lambda: len(rig.server.monitor.ready_clients()) == 2)
        assert not rig.server.admin._retiring


LIVE = """
max_attempts = 5
request_timeout_s = 7
lame_duck_s = 0
disagg_policy = "noncached"
disagg_handoff_timeout_s = 3
[limits]
queue_timeout_s = 8
retry_budget = 0.5
[health]
probe_interval_s = 9
[outliers]
failures_in_a_row = 11
[router]
router_temperature = 0.125
[router.admission]
queue_limit = 12
active_prefill_tokens_threshold = 13
"""


async def test_what_can_change_does_in_the_parts_that_use_it(tmp_path: Path) -> None:
    async with Rig(tmp_path, FakeEngine()) as rig:
        server = rig.server
        await rig.ports.http(
            "POST", "/busy_threshold", json={"active_decode_blocks_threshold": 0.75}
        )
        rig.write(rig.engines, LIVE)
        status, said = await rig.reload()
        assert status == 200 and len(said["changed"]) == 12, said
        dispatcher = server.dispatcher
        assert dispatcher._max_attempts == dispatcher.plain.max_attempts == 5
        assert (dispatcher._watch._silence, dispatcher._watch._queue) == (7.0, 8.0)
        assert dispatcher.budget.share == 0.5
        engine = server.monitor.find(rig.engines[0].address)
        assert engine is not None and engine.tracker.policy.probe_interval_s == 9.0
        assert server.monitor.reports.outliers.policy.failures_in_a_row == 11
        assert server.router._policy.temperature == 0.125
        assert server.router.limits.config.active_prefill_tokens_threshold == 13
        assert server.router.limits.config.active_decode_blocks_threshold == 0.75  # by the call
        queue = server.pool.decider.queue
        assert queue is not None and queue.limit == 12
        assert server.config.lame_duck_s == 0.0
        handoffs = server.pool.handoffs
        assert handoffs.rule.config.disagg_policy == "noncached"
        assert handoffs.outcomes.limits.disagg_handoff_timeout_s == 3.0
        rig.write(rig.engines, LIVE.replace("max_attempts = 5", 'model_id = "x"'))
        status, said = await rig.reload()
        assert (status, said["error"]) == (409, "cannot change without a restart: model_id")
        assert dispatcher._max_attempts == 5
        assert len(await rig.ports.answers(prompt())) == 3


async def test_a_hangup_never_kills_and_the_log_says_what_came_of_it(tmp_path: Path) -> None:
    one, two = FakeEngine(), FakeEngine()
    file = tmp_path / "router.toml"

    def write(*engines: FakeEngine, more: str = "") -> None:
        file.write_text(f"workers = {[engine.url for engine in engines]}\n{more}")

    async with one, two:
        write(one)
        async with command(
            tmp_path / "serve", "serve", "--no-kv-events", "--port", "0", "--http-port", "0",
            "--config", str(file), "--log-format", "json",
        ) as router:  # fmt: skip
            found = re.search(r"http (\S+)", await router.says("dynamo-router ready"))
            assert found is not None

            async def hangup(said: str) -> str:
                router.send(signal.SIGHUP)
                return await router.says(said)

            write(one, two, more='log_level = "debug"\n')
            await hangup('"changed": 2')
            change = await router.says('"key": "workers"')
            assert two.url in change and one.url not in change
            write(one, two, more='log_level = "debug"\nhost = "::1"\n')
            await hangup("cannot change without a restart: host")
            write(one, more="][")
            assert '"level": "error"' in await hangup("is not TOML")
            rows = (await http_json(found[1], "/workers"))["workers"]
            assert {row["address"] for row in rows} == {one.address, two.address}
            write(one)
            await hangup('"new": "info"')
            assert await router.stop() == 0, router.text
            assert "Traceback" not in router.text
