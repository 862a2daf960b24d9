"""Routers that read their KV events from a stream, as processes beside a real nats-server."""

import signal
from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path

import pytest
from support.fleet import PROMPT, Fleet
from support.free_port import free_port
from support.polling import until
from support.processes import command, http_text
from support.servers.jetstream import JetStreamServer

from dynamo_router.indexer.event_index import EventIndex
from dynamo_router.kv_events import DurableEvents
from dynamo_router.runtime.event_planes import EmbeddedNats, NatsPlane
from dynamo_router.runtime.event_planes.jetstream.stream_reader import StreamReader
from dynamo_router.runtime.kv_stores import NatsAddress
from dynamo_router.server.config import ServeConfig

DURABLE = "--durable-kv-events", "--router-id", "first"


class Durable:
    """A fleet whose events last. The engines tell them on NATS alone."""

    def __init__(self, folder: Path) -> None:
        self.server = JetStreamServer(folder / "nats")
        self.fleet = Fleet(folder, *DURABLE, nats_url=self.server.url)

    async def serve(self, *options: str, by: signal.Signals = signal.SIGKILL) -> None:
        await self.fleet.router.stop(by)
        await self.fleet.start_router(*(options or DURABLE))

    async def knows(self, prompt: list[int], blocks: int) -> bool:
        held = await self.fleet.overlaps(prompt)
        return max(held.values(), default=0) == blocks and await self.fleet.all_exact()

    async def sources(self) -> set[str]:
        return {row["event_source"] for row in (await self.fleet.workers()).values()}

    async def metric(self, name: str) -> float:
        lines = (await http_text(self.fleet.http, "/metrics")).splitlines()
        (value,) = [line.split()[1] for line in lines if line.startswith(f"dynamo_router_{name} ")]
        return float(value)


@pytest.fixture
async def durable(tmp_path: Path) -> AsyncIterator[Durable]:
    made = Durable(tmp_path)
    made.server.start()
    try:
        async with made.fleet:
            await made.fleet.ask(PROMPT)
            await until(lambda: made.knows(PROMPT, 6))
            yield made
    finally:
        made.server.kill()


async def test_a_killed_router_reads_what_it_missed(durable: Durable) -> None:

    async def from_the_stream() -> bool:
        return await durable.sources() == {"jetstream"}

    await until(from_the_stream)
    more = [3] * (5 * 16)
    await durable.fleet.router.stop(signal.SIGKILL)
    await durable.fleet.start_router("--no-kv-events")
    await durable.fleet.ask(more)  # while nobody of ours listens
    await durable.serve()
    await until(lambda: durable.knows(more, 5))
    await until(lambda: durable.knows(PROMPT, 6))
    assert await durable.metric("event_plane_announcements_asked_total") == 0
    assert "Traceback" not in durable.fleet.router.text


async def test_a_router_that_stopped_starts_from_its_snapshot(durable: Durable) -> None:
    await durable.serve(by=signal.SIGTERM)
    assert await durable.metric("index_restored_sources") == 2
    assert await durable.knows(PROMPT, 6) or await durable.fleet.overlaps(PROMPT)
    await until(lambda: durable.knows(PROMPT, 6))
    assert await durable.metric("event_plane_announcements_asked_total") == 0


async def test_old_messages_go_behind_a_snapshot(durable: Durable) -> None:
    await durable.serve(*DURABLE, "--router-snapshot-threshold", "3")
    for number in range(4):
        await durable.fleet.ask([10 + number] * 32)

    async def purged() -> bool:
        return await durable.metric("event_stream_purges_total") >= 1

    await until(purged)
    await durable.serve()
    assert await durable.metric("index_restored_sources") == 2
    await until(lambda: durable.knows(PROMPT, 6))


async def test_a_snapshot_of_another_block_size_is_refused_by_name(durable: Durable) -> None:
    await durable.serve(by=signal.SIGTERM)
    await durable.serve(*DURABLE, "--block-size", "32")
    await durable.fleet.router.says("its block_size is 16, wanted is 32")
    assert await durable.metric("index_restored_sources") == 0
    await durable.serve(*DURABLE, "--router-reset-states")
    await durable.fleet.router.says("were deleted")
    await until(lambda: durable.knows(PROMPT, 6))


async def test_what_was_read_a_moment_ago_is_in_the_last_snapshot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A router that stops need not have acknowledged anything yet."""
    monkeypatch.setattr(StreamReader, "ack_due", lambda reader, now: None)
    with JetStreamServer(tmp_path / "nats") as server:
        with closing(EventIndex()) as index:
            config, address = ServeConfig(router_id="first"), NatsAddress(server.url)
            durable = DurableEvents(config, index, NatsPlane(server.url), address)
            plane = await durable.open()
            subject = plane.client.names.subject
            await plane.subscribe(subject, lambda _, payload: None)
            await until(lambda: plane.reader.is_open)
            await plane.publish(subject, b"{}")
            await until(lambda: plane.reader.read == 1)
            assert plane.position.sequence == 0
            await durable.close()
            assert durable.saves == 1
            assert plane.position.sequence == 1


async def test_ghosts_of_engines_that_restarted_meanwhile_go(durable: Durable) -> None:
    await durable.fleet.router.stop(signal.SIGTERM)
    for number in range(2):
        await durable.fleet.engines[number].stop(signal.SIGKILL)
        durable.fleet.engines[number] = await durable.fleet.start_engine(number)
    await durable.fleet.start_router(*DURABLE)
    await until(lambda: durable.knows(PROMPT, 0))


async def test_a_broker_that_dies_and_comes_back_costs_nothing(durable: Durable) -> None:
    durable.server.kill()
    more = [3] * (5 * 16)
    await durable.fleet.ask(more)
    await durable.server.come_back()
    await until(lambda: durable.knows(more, 5))
    await until(lambda: durable.knows(PROMPT, 6))


async def test_it_does_not_start_without_jetstream(tmp_path: Path) -> None:
    async with EmbeddedNats(free_port()) as server:
        options = "--port", "0", "--http-port", "0", "--nats", server.url, *DURABLE
        async with command(tmp_path / "serve", "serve", *options) as router:
            assert "JetStream" in await router.says("durable_kv_events: NATS at")
            assert await router.ended() == 1


async def test_a_router_that_stood_still_reads_what_it_missed(durable: Durable) -> None:
    paused, more = durable.fleet.router, [3] * (5 * 16)
    where = durable.fleet.http
    paused.send(signal.SIGSTOP)
    await durable.fleet.start_router("--no-kv-events")
    await durable.fleet.ask(more)
    await durable.fleet.router.stop(signal.SIGKILL)
    paused.send(signal.SIGCONT)
    durable.fleet.http = where
    await until(lambda: durable.knows(more, 5))
    await until(lambda: durable.knows(PROMPT, 6))


async def test_two_routers_read_the_same_and_a_third_may_not_take_a_name(durable: Durable) -> None:
    first = durable.fleet.http
    await durable.fleet.start_router("--durable-kv-events", "--router-id", "second")
    more = [3] * (5 * 16)
    await durable.fleet.ask(more)
    for where in (durable.fleet.http, first):
        durable.fleet.http = where
        await until(lambda: durable.knows(more, 5))
        await until(lambda: durable.knows(PROMPT, 6))
    options = "--port", "0", "--http-port", "0", "--nats", durable.server.url
    async with command(durable.fleet.folder / "third", "serve", *options, *DURABLE) as third:
        await third.says("router_id: NATS: another router reads")
        assert await third.ended() == 1
