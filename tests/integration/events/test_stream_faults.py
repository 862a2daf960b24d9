"""The stream of KV events beneath a router that reads it: deleted, of no use, back."""

from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest
from nats.js import JetStreamContext
from nats.js.api import StorageType, StreamConfig
from support.polling import until
from support.servers.jetstream import JetStreamServer

from dynamo_router.indexer.event_index import EventIndex
from dynamo_router.kv_events import DurableEvents, durable_events
from dynamo_router.runtime.event_planes import NatsPlane
from dynamo_router.runtime.event_planes.jetstream import stream_reader
from dynamo_router.runtime.event_planes.jetstream.stream_names import MAX_BYTES
from dynamo_router.runtime.kv_stores import NatsAddress, NatsConnection
from dynamo_router.server.config import ServeConfig

Change = Callable[[JetStreamContext], Awaitable[object]]


class Rig:
    """A router's stream, and what it heard of what was said."""

    def __init__(self, durable: DurableEvents, connection: NatsConnection) -> None:
        self.durable, self._connection = durable, connection
        self.names = durable.plane.client.names
        self.heard: set[bytes] = set()
        self._said = 0

    async def change(self, change: Change) -> None:
        await self._connection.call(change)

    async def hears(self) -> None:
        """Return once something is heard that is said from now on."""
        before = b"%d" % self._said

        async def heard() -> bool:
            self._said += 1
            await self.durable.plane.publish(self.names.subject, b"%d" % self._said)
            return any(int(word) > int(before) for word in self.heard)

        await until(heard)

    async def reads(self, after: object = None) -> object:
        """The reading of the stream that comes after another one."""
        plane = self.durable.plane
        await until(lambda: plane.reading not in (None, after))
        await self.hears()
        return plane.reading


@pytest.fixture
async def rig(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Rig]:
    monkeypatch.setattr(durable_events, "UPKEEP_S", 0.1)
    monkeypatch.setattr(stream_reader, "SILENCE_S", 3600.0)  # nothing is noticed by that
    monkeypatch.setattr(stream_reader, "FALL_BACK_S", 0.1)
    server, index = JetStreamServer(tmp_path / "nats"), EventIndex()
    server.start()
    address = NatsAddress(server.url)
    connection = NatsConnection(address)
    config = ServeConfig(router_id="first")
    durable = DurableEvents(config, index, NatsPlane(server.url), address)
    try:
        plane = await durable.open()
        made = Rig(durable, connection)
        await plane.subscribe(made.names.subject, lambda _, payload: made.heard.add(payload))
        yield made
    finally:
        await durable.close()
        await connection.close()
        index.close()
        server.kill()


async def test_a_stream_that_is_deleted_is_made_and_read_anew(rig: Rig) -> None:
    reading = await rig.reads()
    await rig.change(lambda js: js.delete_stream(rig.names.stream))
    await rig.reads(after=reading)
    assert rig.durable.plane.reader.lapses >= 1  # every worker is asked


async def test_a_consumer_that_is_deleted_is_made_anew(rig: Rig) -> None:
    reading = await rig.reads()
    await rig.change(lambda js: js.delete_consumer(rig.names.stream, "first"))
    await rig.reads(after=reading)
    assert rig.durable.plane.reader.lapses == 0


async def test_events_go_on_where_the_stream_takes_none_any_more(
    rig: Rig, capsys: pytest.CaptureFixture[str]
) -> None:
    reading = await rig.reads()
    sealed = StreamConfig(
        rig.names.stream, subjects=rig.names.subjects, storage=StorageType.FILE, sealed=True,
        max_age=0, max_bytes=MAX_BYTES,
    )  # fmt: skip
    await rig.change(lambda js: js.update_stream(sealed))
    await until(lambda: rig.durable.plane.fallbacks)
    await rig.hears()
    assert "is sealed: what it does not take is lost" in capsys.readouterr().out
    await rig.change(lambda js: js.delete_stream(rig.names.stream))
    await rig.reads(after=reading)
