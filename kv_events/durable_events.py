"""DurableEvents: KV events from a stream in JetStream, with snapshots of the index beside it."""

import asyncio
import io
import random
from collections.abc import Awaitable, Callable
from secrets import token_hex

import structlog

from ..base.errors import ConfigError
from ..indexer.event_index import (
    EventIndex,
    ForeignSnapshotError,
    SnapshotHead,
    dump_index,
    read_frames,
    restore_index,
)
from ..process.settings import bad_setting
from ..process.supervised import stopped, supervise
from ..runtime.event_planes import KV_HEARTBEAT, NatsPlane, endpoint_subject
from ..runtime.event_planes.jetstream import (
    EventStreamClient,
    JetStreamPlane,
    SnapshotStore,
    StreamNames,
    StreamPosition,
    StreamUpkeep,
    max_age_s,
    slug,
)
from ..runtime.kv_stores import NatsAddress, NatsConnection, StoreError
from .settings import EventSettings

UPKEEP_S = 1.0
UPKEEP_JITTER = 0.1
SAVE_EVERY_S = 60.0
"""How often a snapshot is saved while events come, however few."""
LAST_SAVE_S = 5.0
"""How long a router that stops may take to save one more."""


class StateReset:
    """Deletes what JetStream keeps of an endpoint: once, however many pools of it begin."""

    def __init__(self) -> None:
        self._lock = asyncio.Lock()
        self._done: set[str] = set()

    async def run(self, stream: str, delete: Callable[[], Awaitable[None]]) -> None:
        """Delete, unless it was done for this stream; what `delete` raises leaves it undone."""
        async with self._lock:
            if stream not in self._done:
                await delete()
                self._done.add(stream)


_open_readers: set[tuple[str, str]] = set()  # (stream, name), of this process

log = structlog.get_logger(__name__)


class DurableEvents:
    """Opens the plane for one index, and keeps stream and snapshots in order until `close`."""

    def __init__(
        self,
        config: EventSettings,
        index: EventIndex,
        plane: NatsPlane,
        address: NatsAddress,
        *,
        pool: str = "",
        reset: StateReset | None = None,
    ) -> None:
        """`pool`: which set of the endpoint's workers the index is of, empty: all; all pools of a
        process share `reset`. ConfigError if the endpoint has no name in JetStream."""
        place = (config.namespace, config.component, config.endpoint)
        names = StreamNames.of_endpoint(*place)
        self._index = index
        self._head = SnapshotHead(block_size=config.router.block_size, subject=names.subject)
        self._reset = (reset or StateReset()) if config.router_reset_states else None
        self._pool = pool
        self._threshold = config.router_snapshot_threshold
        name = config.router_id or f"router-{token_hex(4)}"
        self.name = slug(f"{name}-{pool}" if pool else name)
        """under which the server keeps how far this router has read; with a number behind it where
        a process has several indexes of one endpoint, for models of their own"""
        connection = NatsConnection(address)
        self._client = EventStreamClient(connection, names, max_age_s=max_age_s())
        self._snapshots = SnapshotStore(connection, address, names, pool)
        self._below = plane
        self._heartbeats = endpoint_subject(*place, KV_HEARTBEAT)
        self._plane: JetStreamPlane | None = None
        self._task: asyncio.Task[None] | None = None
        self._may_save = True
        self._out_of_order = False  # and logged so
        self._unlisted: object = None  # the reading whose consumer the server did not list
        self._saved = 0  # up to where, of the present stream
        self.restored = 0
        """sources that the snapshot had"""
        self.saves = 0
        self.failures = 0
        """times that a snapshot could not be read or saved, or the stream not be kept in order"""
        self.saved_bytes = 0
        """size of the last one saved"""
        self.purges = 0
        self.readers_removed = 0
        """of routers that are gone"""

    @property
    def plane(self) -> JetStreamPlane:
        assert self._plane is not None, "it was not opened"
        return self._plane

    async def open(self) -> JetStreamPlane:
        """The plane, the snapshot being loaded. ConfigError if the server keeps no streams."""
        self._take_name()
        if self._reset is not None:
            await self._reset.run(self._client.names.stream, self._begin_anew)
        position = await self._load()
        self._plane = JetStreamPlane(
            self._below,
            self._client,
            reader=self.name,
            position=position,
            settled=self._applied,
            held=[self._heartbeats],
        )
        await self._plane.start()
        self._task = supervise("event stream upkeep", self._run)
        log.info("events come from a stream", stream=self._client.names.stream, reader=self.name)
        return self._plane

    async def close(self) -> None:
        """Save once more, and close the plane. Idempotent."""
        task, self._task = self._task, None
        await stopped(task)
        _open_readers.discard((self._client.names.stream, self.name))
        if self._plane is None:
            await self._below.close()
            await self._client.connection.close()
            return
        if task is not None and self._plane.reader.is_open:
            try:
                async with asyncio.timeout(LAST_SAVE_S):
                    await self._plane.settle()
                    if self._plane.position.sequence > self._saved:
                        await self._save()
            except TimeoutError:
                log.warning("the last snapshot took too long")
        await self._plane.close()

    def _take_name(self) -> None:
        stream, name = self._client.names.stream, self.name
        number = 1
        while (stream, self.name) in _open_readers:
            number += 1
            self.name = f"{name}-{number}"
        _open_readers.add((stream, self.name))
        self._upkeep = StreamUpkeep(
            self.name, threshold=self._threshold, interval_s=SAVE_EVERY_S, pool=self._pool
        )

    async def _applied(self) -> None:
        await asyncio.to_thread(self._index.flush)

    async def _begin_anew(self) -> None:
        try:
            await self._client.remove()
            await self._snapshots.remove()
        except StoreError as error:
            raise bad_setting("router_reset_states", str(error)) from None
        log.warning("the stream of events and its snapshot were deleted")

    async def _load(self) -> StreamPosition | None:
        """What the snapshot covers; None if nothing is known by one."""
        try:
            found = await self._snapshots.load()
            if found is None:
                return None
            position, snapshot = found
            self.restored = await asyncio.to_thread(self._restore, snapshot)
        except ForeignSnapshotError as error:
            self.failures += 1
            self._may_save = False
            log.error(
                "starting with an empty index, and saving none: --router-reset-states begins anew",
                error=str(error),
            )
            return None
        except (StoreError, ConfigError) as error:
            self.failures += 1
            log.warning("starting without a snapshot", error=str(error))
            return None
        log.info("index restored", sources=self.restored, sequence=position.sequence)
        return position

    def _restore(self, snapshot: bytes) -> int:
        return restore_index(self._index, read_frames(io.BytesIO(snapshot)), self._head)

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(UPKEEP_S * random.uniform(1 - UPKEEP_JITTER, 1 + UPKEEP_JITTER))
            if not self.plane.reader.is_open:
                continue
            try:
                await self._keep_up()
            except StoreError as error:
                self.failures += 1
                if not self._out_of_order:
                    log.warning("the stream of events is not kept in order", error=str(error))
                self._out_of_order = True
            else:
                self._out_of_order = False

    async def _keep_up(self) -> None:
        reading = self.plane.reading
        try:
            facts, readers = await self._client.ensure(), await self._client.readers()
        except StoreError as error:
            if not error.transient:
                self.plane.read_anew()  # which it cannot be: other sources are to have the events
            raise
        there = self.name in {reader.name for reader in readers}
        # Of a cluster's servers one may know a new consumer a moment later than another.
        gone = self.plane.position.created != facts.created or (
            not there and self._unlisted is reading
        )
        self._unlisted = None if there else reading
        if reading is not None and reading is self.plane.reading and gone:
            self.plane.read_anew()
            return
        saved = await self._snapshots.position()
        position = self.plane.position
        is_of_this = saved is not None and saved.created == facts.created
        self._saved = saved.sequence if saved is not None and is_of_this else 0
        plan = self._upkeep.plan(
            asyncio.get_running_loop().time(),
            first=facts.first,
            last=facts.last,
            read=position.sequence,
            readers=readers,
            snapshot=self._saved if is_of_this else None,
        )
        for name in plan.remove:
            log.info("the reader of a router that is gone was removed", reader=name)
            await self._client.remove_reader(name)
            self.readers_removed += 1
        below = plan.purge_below
        if below is not None:
            # Before the first message a snapshot is of no use: a pool that is gone delays nothing.
            others = [
                position.sequence + 1
                for position in await self._snapshots.others()
                if position.created == facts.created and position.sequence + 1 >= facts.first
            ]
            below = min([below, *others])
        if below is not None and below > facts.first:
            await self._client.purge_below(below)
            self.purges += 1
        if plan.save and position.created == facts.created:
            await self._save()

    async def _save(self) -> None:
        if not self._may_save:
            return
        # Taken before: what is applied meanwhile counts once, by the cursor of its source.
        position = self.plane.position
        try:
            snapshot = await asyncio.to_thread(self._dump)
            await self._snapshots.save(position, snapshot)
        except StoreError as error:
            self.failures += 1
            log.warning("cannot save the index", error=str(error))
            return
        self._saved, self.saved_bytes = position.sequence, len(snapshot)
        self.saves += 1

    def _dump(self) -> bytes:
        return b"".join(dump_index(self._index, self._head))
