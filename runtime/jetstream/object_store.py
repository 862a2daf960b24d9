"""SnapshotStore: one object in JetStream's object store, with the position in a stream it is of."""

import asyncio
import io
from collections.abc import Awaitable, Callable
from typing import TypeVar

from nats.js import JetStreamContext
from nats.js.api import ObjectMeta
from nats.js.errors import APIError, NotFoundError
from nats.js.object_store import ObjectStore

from ..kv_stores import NatsAddress, NatsConnection, StoreError
from .stream_names import SNAPSHOT, StreamNames
from .stream_reader import StreamPosition

TRANSFER_TIMEOUT_S = 30.0
MAX_SNAPSHOT_BYTES = 1 << 30
_CREATED, _SEQUENCE = "Dynamo-Stream-Created", "Dynamo-Stream-Sequence"
_TRIES = 3
T = TypeVar("T")


class SnapshotStore:
    """The snapshot of the stream of `names`. What is large has a connection of its own, so that it
    stands in nobody's way. Every failure is a StoreError."""

    def __init__(
        self, connection: NatsConnection, address: NatsAddress, names: StreamNames
    ) -> None:
        """Connections for large things are made to `address`."""
        self._connection, self._address, self._names = connection, address, names

    async def position(self) -> StreamPosition | None:
        """Where the saved one ends; None if there is none."""
        return await self._on(self._connection, self._position)

    async def load(self) -> tuple[StreamPosition, bytes] | None:
        """The saved one; None if there is none. One that is replaced meanwhile is read again."""
        failure: StoreError | None = None
        for _ in range(_TRIES):
            try:
                return await self._apart(self._load)
            except StoreError as error:
                failure = error
        assert failure is not None
        raise failure

    async def save(self, position: StreamPosition, snapshot: bytes) -> None:
        """Replace the saved one, all at once."""
        if len(snapshot) > MAX_SNAPSHOT_BYTES:
            raise StoreError(f"a snapshot of {len(snapshot)} bytes is too large", transient=False)
        headers = {_CREATED: position.created, _SEQUENCE: str(position.sequence)}

        async def put(streams: JetStreamContext) -> None:
            bucket = self._names.bucket
            try:
                store = await streams.object_store(bucket)
            except NotFoundError:
                store = await streams.create_object_store(bucket)
            await store.put(SNAPSHOT, io.BytesIO(snapshot), ObjectMeta(headers=headers))

        await self._apart(put)

    async def remove(self) -> None:
        """Nothing if there is none."""

        async def delete(streams: JetStreamContext) -> None:
            try:
                await streams.delete_object_store(self._names.bucket)
            except NotFoundError:
                pass

        await self._on(self._connection, delete)

    async def _position(self, streams: JetStreamContext) -> StreamPosition | None:
        store = await self._bucket(streams)
        if store is None:
            return None
        try:
            info = await store.get_info(SNAPSHOT)
        except NotFoundError:
            return None
        headers = info.headers or {}
        try:
            return StreamPosition(headers[_CREATED], int(headers[_SEQUENCE]))
        except (KeyError, ValueError, TypeError):
            return None  # somebody else's

    async def _load(self, streams: JetStreamContext) -> tuple[StreamPosition, bytes] | None:
        position = await self._position(streams)
        store = await self._bucket(streams)
        if position is None or store is None:
            return None
        info = await store.get_info(SNAPSHOT)
        if (info.size or 0) > MAX_SNAPSHOT_BYTES:
            raise StoreError(f"a snapshot of {info.size} bytes is too large", transient=False)
        target = io.BytesIO()
        await store.get(SNAPSHOT, target)  # checks its digest
        if await self._position(streams) != position:
            raise StoreError("the snapshot was replaced while it was read")
        return position, target.getvalue()

    async def _bucket(self, streams: JetStreamContext) -> ObjectStore | None:
        try:
            return await streams.object_store(self._names.bucket)
        except NotFoundError:
            return None

    async def _apart(self, use: Callable[[JetStreamContext], Awaitable[T]]) -> T:
        connection = NatsConnection(self._address)
        try:
            return await self._on(connection, use)
        finally:
            await connection.close()

    async def _on(
        self, connection: NatsConnection, use: Callable[[JetStreamContext], Awaitable[T]]
    ) -> T:
        try:
            async with asyncio.timeout(TRANSFER_TIMEOUT_S):
                return await connection.call(use)
        except APIError as error:
            text = f"NATS refuses the bucket {self._names.bucket}: {error.description}"
            raise StoreError(text) from None
        except TimeoutError:
            raise StoreError(f"NATS: nothing within {TRANSFER_TIMEOUT_S:g} s") from None
