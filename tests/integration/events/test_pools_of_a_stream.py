"""Several pools of one endpoint read one stream: each has a snapshot, and all are reset once."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest
from support.polling import closed_after, until
from support.servers.jetstream import JetStreamServer

from dynamo_router.indexer.event_index import EventIndex
from dynamo_router.kv_events import DurableEvents, StateReset, durable_events
from dynamo_router.router.config import KvRouterConfig
from dynamo_router.runtime.event_planes import NatsPlane
from dynamo_router.runtime.event_planes.jetstream import SnapshotStore, StreamPosition
from dynamo_router.runtime.kv_stores import NatsAddress, NatsConnection
from dynamo_router.server.config import ServeConfig

BLOCK_SIZES = {"fine": 16, "coarse": 32}


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[JetStreamServer]:
    with JetStreamServer(tmp_path / "nats") as made:
        yield made


@asynccontextmanager
async def reading(
    server: JetStreamServer, pool: str, reset: StateReset | None = None, threshold: int = 1_000_000
) -> AsyncIterator[DurableEvents]:
    """A pool's part in the stream, which it reads."""
    config = ServeConfig(
        router=KvRouterConfig(block_size=BLOCK_SIZES[pool]),
        router_id="first",
        router_reset_states=reset is not None,
        router_snapshot_threshold=threshold,
    )
    address = NatsAddress(server.url)
    async with AsyncExitStack() as stack:
        index = EventIndex()
        stack.callback(index.close)
        durable = DurableEvents(
            config, index, NatsPlane(server.url), address, pool=pool, reset=reset
        )
        stack.push_async_callback(durable.close)
        plane = await durable.open()
        await plane.subscribe(plane.client.names.subject, lambda _, payload: None)
        await until(lambda: plane.reader.is_open)
        yield durable


async def publish(durable: DurableEvents, count: int = 1) -> None:
    plane = durable.plane
    before = plane.reader.read
    for _ in range(count):
        await plane.publish(plane.client.names.subject, b"{}")
    await until(lambda: plane.reader.read >= before + count)


async def test_each_pool_saves_a_snapshot_of_its_own_and_begins_with_it(
    server: JetStreamServer, capsys: pytest.CaptureFixture[str]
) -> None:
    for pool in BLOCK_SIZES:
        async with reading(server, pool) as durable:
            await publish(durable)
        assert durable.saves == 1
    capsys.readouterr()
    for pool, sequence in zip(BLOCK_SIZES, (1, 2), strict=True):
        async with reading(server, pool) as durable:
            assert durable.failures == 0
        said = capsys.readouterr().out
        assert f"sequence={sequence} " in said and "index restored" in said


async def test_the_stream_is_deleted_once_for_all_pools_of_a_process(
    server: JetStreamServer, capsys: pytest.CaptureFixture[str]
) -> None:
    async with reading(server, "fine") as before:
        await publish(before)
    reset = StateReset()
    async with reading(server, "fine", reset) as fine:
        assert fine.plane.position.sequence == 0
        created = (await fine.plane.client.ensure()).created
        async with reading(server, "coarse", reset) as coarse:
            assert (await coarse.plane.client.ensure()).created == created
    assert capsys.readouterr().out.count("were deleted") == 1


async def test_no_message_goes_that_another_pools_snapshot_needs(
    server: JetStreamServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(durable_events, "UPKEEP_S", 0.05)
    async with reading(server, "coarse") as coarse:
        await publish(coarse, 2)
    address = NatsAddress(server.url)
    async with closed_after(NatsConnection(address)) as connection:
        async with reading(server, "fine", threshold=3) as fine:
            await publish(fine, 8)
            names = fine.plane.client.names
            saved = SnapshotStore(connection, address, names, "coarse")
            await until(lambda: fine.purges)
            assert (await fine.plane.client.ensure()).first == 3
            await saved.save(StreamPosition((await fine.plane.client.ensure()).created, 5), b"")

            async def goes_on() -> bool:
                return (await fine.plane.client.ensure()).first == 6

            await until(goes_on)
