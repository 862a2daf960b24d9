"""Snapshots in NATS' object store that somebody else has touched: refused by name, and replaced."""

import base64
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from nats.js import JetStreamContext
from nats.js.api import ObjectMeta
from support.servers.jetstream import JetStreamServer

from dynamo_router.runtime.event_planes.jetstream import (
    SnapshotStore,
    StreamNames,
    StreamPosition,
    object_store,
)
from dynamo_router.runtime.kv_stores import NatsAddress, NatsConnection, StoreError

NAMES = StreamNames.of_endpoint("dynamo", "backend", "generate")
OBJECTS = f"OBJ_{NAMES.bucket}"
DESCRIPTION = f"$O.{NAMES.bucket}.M.{base64.urlsafe_b64encode(b'radix-state').decode()}"
POSITION = StreamPosition("2026-11-23T08:00:00+00:00", 7)


class Rig:
    """A saved snapshot of 300 kB, and what may befall it."""

    def __init__(self, connection: NatsConnection, store: SnapshotStore) -> None:
        self._connection, self.store = connection, store

    async def do(self, use: Callable[[JetStreamContext], Awaitable[Any]]) -> Any:
        return await self._connection.call(use)

    async def description(self) -> dict[str, Any]:
        message = await self.do(lambda js: js.get_last_msg(OBJECTS, DESCRIPTION))
        said: dict[str, Any] = json.loads(message.data)
        return said

    async def describe(self, said: object) -> None:
        data = said if isinstance(said, bytes) else json.dumps(said).encode()
        rolled = {"Nats-Rollup": "sub"}
        await self.do(lambda js: js.publish(DESCRIPTION, data, headers=rolled))

    async def parts(self) -> str:
        return f"$O.{NAMES.bucket}.C.{(await self.description())['nuid']}"


@pytest.fixture
async def rig(tmp_path: Path) -> AsyncIterator[Rig]:
    with JetStreamServer(tmp_path / "nats") as server:
        address = NatsAddress(server.url)
        connection = NatsConnection(address)
        store = SnapshotStore(connection, address, NAMES)
        try:
            await store.save(POSITION, b"good" * 75_000)
            yield Rig(connection, store)
        finally:
            await connection.close()


async def refused_and_replaced(rig: Rig, why: str) -> None:
    with pytest.MonkeyPatch.context() as patch:
        if "are there" in why:
            patch.setattr(object_store, "PART_TIMEOUT_S", 0.5)
        with pytest.raises(StoreError, match=why):
            await rig.store.load()
    await rig.store.position()  # is no error, or nothing would be saved in its place
    await rig.store.save(POSITION, b"new")
    assert await rig.store.load() == (POSITION, b"new")


@pytest.mark.parametrize(
    "said",
    [b"\xff{", b"", b"null", [1], {"name": []}],
    ids=["bytes", "empty", "null", "list", "no"],
)
async def test_a_description_that_is_none(rig: Rig, said: object) -> None:
    await rig.describe(said)
    await refused_and_replaced(rig, "the snapshot is damaged: ")


@pytest.mark.parametrize(
    ("field", "value", "why"),
    [
        ("size", "300000", "it has no size"),
        ("size", -1, "it has no size"),
        ("size", 1 << 50, "bytes is too large"),
        ("size", 1_000, "more than its 1000 bytes"),
        ("size", 300_001, "[0-9]+ of its 300001 bytes are there"),
        ("digest", None, "digest is none"),
        ("digest", "SHA-256=é", "digest is none"),
        ("digest", 7, "digest is none"),
        ("digest", "MD5=AAAA", "digest is none that is known"),
        ("digest", "SHA-256=AAAA", "digest does not fit"),
        ("nuid", 7, "no subject of its parts"),
        ("nuid", ">", "no subject of its parts"),
        ("nuid", "else", "0 of its 300000 bytes are there"),
    ],
)
async def test_a_field_that_is_wrong(rig: Rig, field: str, value: object, why: str) -> None:
    await rig.describe(await rig.description() | {field: value})
    await refused_and_replaced(rig, why)


async def test_parts_that_are_gone(rig: Rig) -> None:
    parts = await rig.parts()
    await rig.do(lambda js: js.purge_stream(OBJECTS, subject=parts, keep=1))
    await refused_and_replaced(rig, "the snapshot is damaged: [0-9]+ of its 300000 bytes are there")


async def test_more_than_there_should_be_is_not_taken(rig: Rig) -> None:
    parts = await rig.parts()
    for _ in range(3):
        await rig.do(lambda js: js.publish(parts, b"y" * 300_000))
    position, snapshot = await rig.store.load() or (None, b"")
    assert (position, snapshot) == (POSITION, b"good" * 75_000)


@pytest.mark.parametrize(
    "headers", [None, [1], {}, {"Dynamo-Stream-Created": "x", "Dynamo-Stream-Sequence": "-5"}]
)
async def test_somebody_elses_is_no_snapshot_of_ours(rig: Rig, headers: object) -> None:
    await rig.describe(await rig.description() | {"headers": headers})
    assert await rig.store.load() is None and await rig.store.position() is None
    await rig.store.save(POSITION, b"new")
    assert await rig.store.load() == (POSITION, b"new")


async def test_an_object_of_another_program_is_replaced(rig: Rig) -> None:
    bucket = await rig.do(lambda js: js.object_store(NAMES.bucket))
    await bucket.put("radix-state", b"theirs", ObjectMeta(description="not ours"))
    assert await rig.store.load() is None
    await rig.store.save(POSITION, b"new")
    assert await rig.store.load() == (POSITION, b"new")
