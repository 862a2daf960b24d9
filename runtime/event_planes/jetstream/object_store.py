"""SnapshotStore: one object in JetStream's object store, with the position in a stream it is of."""

import asyncio
import base64
import contextlib
import hashlib
import io
import re
from collections.abc import Awaitable, Callable
from typing import NamedTuple, TypeVar

from nats.js import JetStreamContext
from nats.js.api import ObjectInfo, ObjectMeta
from nats.js.errors import APIError, BadObjectMetaError, NotFoundError

from ...kv_stores import NatsAddress, NatsConnection, StoreError, refusal
from .stream_names import SNAPSHOT, StreamNames
from .stream_reader import StreamPosition

TRANSFER_TIMEOUT_S = 30.0
PART_TIMEOUT_S = 5.0
"""How long each part of a snapshot may take."""
MAX_SNAPSHOT_BYTES = 1 << 30
_CREATED, _SEQUENCE = "Dynamo-Stream-Created", "Dynamo-Stream-Sequence"
_TRIES = 3
_NUID = re.compile(r"[0-9A-Za-z]{1,64}")
T = TypeVar("T")


class _Object(NamedTuple):
    """What is said of a saved one."""

    position: StreamPosition | None
    """None: another process saved it"""
    nuid: str
    """by which its parts are found"""
    size: int
    digest: bytes


class _DamagedError(Exception):
    """The saved object is damaged; the message has the reason."""


class SnapshotStore:
    """The snapshot of the stream of `names`. What is large has a connection of its own, so that it
    stands in nobody's way. Every failure is a StoreError."""

    def __init__(
        self,
        connection: NatsConnection,
        address: NatsAddress,
        names: StreamNames,
        pool: str = "",
    ) -> None:
        """Connections for large things are made to `address`. `pool`: which set of the endpoint's
        workers the snapshot is of, empty: all; each has one of its own."""
        self._connection, self._address, self._names = connection, address, names
        self._object = f"{SNAPSHOT}-{pool}" if pool else SNAPSHOT

    async def position(self) -> StreamPosition | None:
        """Where the saved one ends; None if there is none, or it cannot be read."""

        async def position(streams: JetStreamContext) -> StreamPosition | None:
            try:
                found = await self._find(streams)
            except _DamagedError:
                return None
            return None if found is None else found.position

        return await self._on(self._connection, position)

    async def others(self) -> list[StreamPosition]:
        """Where those of the endpoint's other pools end, as far as they can be read."""
        prefix = f"$O.{self._names.bucket}.M."

        async def positions(streams: JetStreamContext) -> list[StreamPosition]:
            try:
                stream = f"OBJ_{self._names.bucket}"
                info = await streams.stream_info(stream, subjects_filter=f"{prefix}>")
            except NotFoundError:
                return []
            found = []
            for subject in info.state.subjects or ():
                with contextlib.suppress(_DamagedError, ValueError):
                    name = base64.urlsafe_b64decode(subject.removeprefix(prefix)).decode()
                    other = None if name == self._object else await self._find(streams, name)
                    if other is not None and other.position is not None:
                        found.append(other.position)
            return found

        return await self._on(self._connection, positions)

    async def load(self) -> tuple[StreamPosition, bytes] | None:
        """The saved one; None if there is none. One that is replaced meanwhile is read again."""
        failure: StoreError | None = None
        for _ in range(_TRIES):
            try:
                return await self._apart(self._load)
            except StoreError as error:
                failure = error
                if not error.transient:
                    break
        assert failure is not None
        raise failure

    async def save(self, position: StreamPosition, snapshot: bytes) -> None:
        """Replace the saved one, all at once; one that is damaged goes first."""
        if len(snapshot) > MAX_SNAPSHOT_BYTES:
            raise StoreError(f"a snapshot of {len(snapshot)} bytes is too large", transient=False)
        headers = {_CREATED: position.created, _SEQUENCE: str(position.sequence)}

        async def put(streams: JetStreamContext) -> None:
            bucket = self._names.bucket
            try:
                store = await streams.object_store(bucket)
            except NotFoundError:
                store = await streams.create_object_store(bucket)
            try:
                await self._find(streams)
            except _DamagedError:  # nats-py would stumble over it
                name = base64.urlsafe_b64encode(self._object.encode()).decode()
                await streams.purge_stream(f"OBJ_{bucket}", subject=f"$O.{bucket}.M.{name}")
            await store.put(self._object, io.BytesIO(snapshot), ObjectMeta(headers=headers))

        await self._apart(put)

    async def remove(self) -> None:
        """Those of all the endpoint's pools. Nothing if there is none."""

        async def delete(streams: JetStreamContext) -> None:
            try:
                await streams.delete_object_store(self._names.bucket)
            except NotFoundError:
                pass

        await self._on(self._connection, delete)

    async def _load(self, streams: JetStreamContext) -> tuple[StreamPosition, bytes] | None:
        found = None
        try:
            found = await self._find(streams)
            if found is None or found.position is None:
                return None
            if found.size > MAX_SNAPSHOT_BYTES:
                text = f"a snapshot of {found.size} bytes is too large"
                raise StoreError(text, transient=False)
            return found.position, await self._parts(streams, found)
        except _DamagedError as damage:
            with contextlib.suppress(_DamagedError):
                if await self._find(streams) != found:
                    raise StoreError("the snapshot was replaced while it was read") from None
            text = f"the snapshot is damaged: {damage}"
            raise StoreError(text, transient=False) from None

    async def _parts(self, streams: JetStreamContext, found: _Object) -> bytes:
        """What it consists of; no more is taken than it is said to have."""
        parts = bytearray()
        subject = f"$O.{self._names.bucket}.C.{found.nuid}"
        subscription = await streams.subscribe(subject, ordered_consumer=True)
        try:
            while len(parts) < found.size:
                parts += (await subscription.next_msg(PART_TIMEOUT_S)).data
        except TimeoutError:
            raise _DamagedError(f"{len(parts)} of its {found.size} bytes are there") from None
        finally:
            await subscription.unsubscribe()
        snapshot = bytes(parts)
        if len(snapshot) != found.size:
            raise _DamagedError(f"it has more than its {found.size} bytes")
        if (await asyncio.to_thread(hashlib.sha256, snapshot)).digest() != found.digest:
            raise _DamagedError("its digest does not fit")
        return snapshot

    async def _find(self, streams: JetStreamContext, name: str = "") -> _Object | None:
        """What is saved, under this name or ours; None if there is nothing. _DamagedError."""
        try:
            store = await streams.object_store(self._names.bucket)
            return _described(await store.get_info(name or self._object))
        except NotFoundError:
            return None
        except BadObjectMetaError:
            raise _DamagedError("its description cannot be read") from None

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
            raise refusal(f"the bucket {self._names.bucket}", error) from None
        except TimeoutError:
            raise StoreError(f"NATS: nothing within {TRANSFER_TIMEOUT_S:g} s") from None


def _described(info: ObjectInfo) -> _Object:
    """_DamagedError if a field is none that it can be read by. nats-py checks none of them."""
    nuid, size, digest = info.nuid, info.size, info.digest
    if not isinstance(nuid, str) or not _NUID.fullmatch(nuid):
        raise _DamagedError("it has no subject of its parts")
    if type(size) is not int or size < 0:
        raise _DamagedError("it has no size")
    try:
        kind, _, encoded = (digest or "").partition("=")
        checksum = base64.urlsafe_b64decode(encoded)
    except (AttributeError, ValueError):
        raise _DamagedError("its digest is none") from None
    if kind.upper() != "SHA-256":
        raise _DamagedError("its digest is none that is known")
    return _Object(_position(info.headers), nuid, size, checksum)


def _position(headers: object) -> StreamPosition | None:
    """What we write beside a snapshot; None if another process wrote it."""
    if not isinstance(headers, dict):
        return None
    created, sequence = headers.get(_CREATED), headers.get(_SEQUENCE)
    if not isinstance(created, str) or not isinstance(sequence, str):
        return None
    is_number = sequence.isascii() and sequence.isdigit() and len(sequence) < 20
    return StreamPosition(created, int(sequence)) if is_number else None
