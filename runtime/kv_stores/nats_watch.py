"""A watch on a bucket of NATS. After a break it lists again, as its consumer died."""

import asyncio
import time
from collections.abc import Awaitable, Callable

from nats.aio.msg import Msg
from nats.errors import Error as NatsError
from nats.js.api import AckPolicy, ConsumerConfig, DeliverPolicy
from nats.js.errors import APIError
from structlog import get_logger

from ...base.backoff import Backoff
from ...base.outage_log import OutageLog
from .nats_connection import NatsConnection, refusal
from .nats_messages import BucketSubjects, read_delivery
from .nats_view import BucketView
from .pending_changes import PendingChanges
from .store import Change, Entry, Listing, StoreError

HEARTBEAT_S = 2.0
_SILENCE_S = 3.5 * HEARTBEAT_S
_MAX_MESSAGES, _MAX_BYTES = 1 << 18, 64 << 20

log = get_logger(__name__)


class NatsWatch:
    """Changes of the keys that begin with `prefix`, as lists. `make` makes the stream, unless it is
    known to be there."""

    def __init__(
        self,
        connection: NatsConnection,
        subjects: BucketSubjects,
        prefix: str,
        make: Callable[[], Awaitable[None]],
        on_failed: Callable[[], None],
    ) -> None:
        """`on_failed`: it failed in a way that may pass, and the stream may be gone."""
        self._connection, self._subjects, self._prefix = connection, subjects, prefix
        self._make, self._on_failed = make, on_failed
        self._backoff = Backoff()
        away, back = "a watch lost NATS and goes on when it is back", "a watch has NATS again"
        self._outage = OutageLog(log, away, back)
        self._consumer: _Consumer | None = None
        connection.on_lost.add(self._on_lost)

    async def next(self) -> list[Change]:
        """Wait for changes. StoreError only if NATS will never answer."""
        while True:
            try:
                if self._consumer is None:
                    return [await self._list()]
                return await self._consumer.next()
            except StoreError as error:
                if not error.transient:
                    raise
                self._outage.on_failed(error=str(error))
                self._on_failed()
                await self._drop()
                await asyncio.sleep(self._backoff.next())

    def take_dead(self) -> list[Entry]:
        """Keys whose lease has ended, to be deleted; each is named once."""
        return [] if self._consumer is None else self._consumer.take_dead()

    async def close(self) -> None:
        self._connection.on_lost.discard(self._on_lost)
        await self._drop()

    async def _list(self) -> Listing:
        await self._make()
        link = await self._connection.link()
        consumer = self._consumer = _Consumer(self._subjects, self._prefix)
        inbox = link.new_inbox()
        try:
            consumer.end = await link.subscribe_messages(
                inbox, consumer.on_message, _MAX_MESSAGES, _MAX_BYTES
            )
        except (NatsError, OSError) as error:
            raise StoreError(f"NATS: {error}") from None
        config = ConsumerConfig(
            deliver_subject=inbox,
            deliver_policy=DeliverPolicy.LAST_PER_SUBJECT,
            filter_subject=self._subjects.all,
            ack_policy=AckPolicy.NONE,
            idle_heartbeat=HEARTBEAT_S,
            inactive_threshold=2 * _SILENCE_S,
            mem_storage=True,
            num_replicas=1,
        )
        try:
            info = await self._connection.call(
                lambda streams: streams.add_consumer(self._subjects.stream, config)
            )
        except APIError as error:
            raise refusal("a watch", error) from None
        listing = await consumer.listing(empty=not info.num_pending)
        self._backoff.reset()
        self._outage.on_well()
        return listing

    async def _drop(self) -> None:
        consumer, self._consumer = self._consumer, None
        if consumer is not None and consumer.end is not None:
            await consumer.end()

    def _on_lost(self) -> None:
        if self._consumer is not None:
            self._consumer.on_lost()


class _Consumer:
    """What one consumer of the stream delivers, from its first message to the first one missed."""

    def __init__(self, subjects: BucketSubjects, prefix: str) -> None:
        self._subjects, self._prefix = subjects, prefix
        self._view = BucketView()
        self._pending = PendingChanges(prefix)
        self._listed = False
        self._count = 0
        self._last_message_at = time.monotonic()
        self._buried: set[tuple[str, int]] = set()
        self._lost: str | None = None
        self.end: Callable[[], Awaitable[None]] | None = None

    async def listing(self, empty: bool) -> Listing:
        """All keys, once the last of them has come."""
        self._listed = self._listed or empty
        while not self._listed:
            await self._wait()
        self._pending.take()
        return Listing(tuple(self._view.visible(self._prefix)), self._view.revision)

    async def next(self) -> list[Change]:
        while not self._pending:
            await self._wait()
        return list(self._pending.take())

    def take_dead(self) -> list[Entry]:
        named, self._buried = self._buried, {(e.key, e.revision) for e in self._view.dead()}
        dead = [e for e in self._view.dead() if (e.key, e.revision) not in named]
        return dead

    def on_message(self, message: Msg) -> None:
        self._last_message_at = time.monotonic()
        delivery = read_delivery(message.reply)
        if delivery is None:
            return  # a heartbeat
        self._count += 1
        if delivery.consumer_sequence != self._count:
            self.on_lost("NATS left messages out")
            return
        record = self._subjects.read_live(message, delivery.stream_sequence)
        for change in self._view.take_in(record) if record is not None else ():
            self._pending.add(change)
        if delivery.pending == 0 and not self._listed:
            self._listed = True
            self._pending.wake()

    def on_lost(self, why: str = "the connection was lost") -> None:
        self._lost = self._lost or why
        self._pending.wake()

    async def _wait(self) -> None:
        if self._lost is None and time.monotonic() - self._last_message_at > _SILENCE_S:
            self._lost = f"not a word for {_SILENCE_S:g} s"
        if self._lost is not None:
            raise StoreError(f"NATS: {self._lost}")
        await self._pending.wait(HEARTBEAT_S)
