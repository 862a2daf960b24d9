"""EventStreamClient: one stream in JetStream, as calls. Every failure of NATS is a StoreError."""

from collections.abc import Awaitable, Callable
from functools import partial
from secrets import token_hex
from typing import NamedTuple, TypeVar

from nats.aio.msg import Msg
from nats.errors import Error as NatsError
from nats.js import JetStreamContext
from nats.js.api import (
    AckPolicy,
    ConsumerConfig,
    ConsumerInfo,
    DeliverPolicy,
    DiscardPolicy,
    RetentionPolicy,
    StorageType,
    StreamConfig,
    StreamInfo,
)
from nats.js.errors import APIError

from ...kv_stores import STREAM_IN_USE, NatsConnection, StoreError, refusal
from .stream_names import MAX_BYTES, StreamNames
from .stream_reader import IDLE_HEARTBEAT_S
from .stream_upkeep import ReaderFact

MAX_ACK_PENDING = 4096
"""Messages that are delivered and not yet acknowledged; then the server waits."""
ACK_WAIT_S = 30.0
FORGET_S = 3600.0
"""Seconds without use after which the server deletes a consumer."""
_ROUTER = "dynamo-router"  # in a consumer's metadata: the process that reads by it
_MAX_BYTES = 256 << 20
LEAST_MESSAGE_BYTES = 1 << 20
"""A stream has to take messages of as much, NATS' own limit, or have none."""
MAX_CONSUMERS = 4096
"""Of a stream, that are looked through: a server may have pages without end."""
T = TypeVar("T")
R = TypeVar("R")


class NameTakenError(StoreError):
    """Another router that is alive reads under this name."""


class StreamFacts(NamedTuple):
    created: str
    """which life of it this is"""
    first: int
    last: int


class EventStreamClient:
    """Calls about the stream of `names`."""

    def __init__(self, connection: NatsConnection, names: StreamNames, *, max_age_s: float) -> None:
        self.connection, self.names = connection, names
        self._what = f"the stream {names.stream}"
        self._max_age_s = max_age_s
        self._process = token_hex(8)

    async def ensure(self) -> StreamFacts:
        """The stream, made if it is not there."""
        names = self.names
        config = StreamConfig(
            name=names.stream,
            subjects=names.subjects,
            retention=RetentionPolicy.LIMITS,
            storage=StorageType.FILE,
            discard=DiscardPolicy.OLD,
            max_age=self._max_age_s,
            max_bytes=MAX_BYTES,
            num_replicas=1,
        )
        try:
            return await self.facts()
        except StreamMissingError:
            pass
        try:
            return await self.connection.call(
                partial(_read, lambda js: js.add_stream(config), _facts)
            )
        except APIError as error:
            if error.err_code == STREAM_IN_USE:
                return await self.facts()  # another process was faster
            raise self._refused(error) from None

    async def facts(self) -> StreamFacts:
        """The stream as it is; StreamMissingError if there is none. StoreError, not transient, if
        it is one of other subjects, or does not take what is published: its settings may be an
        operator's, but not its purpose."""
        found = await self._find(
            partial(_read, lambda js: js.stream_info(self.names.stream), self._checked)
        )
        if found is None:
            raise StreamMissingError(f"NATS has no stream {self.names.stream}")
        return found

    def _checked(self, info: StreamInfo) -> StreamFacts:
        if self.names.subject not in (info.config.subjects or ()):
            there = ", ".join(info.config.subjects or ()) or "nothing"
            text = f"the stream {self.names.stream} is of {there}, not of {self.names.subject}"
            raise StoreError(f"NATS: {text}", transient=False)
        if why := _why_useless(info.config):
            text = f"the stream {self.names.stream} {why}: what it does not take is lost"
            raise StoreError(f"NATS: {text}", transient=False)
        return _facts(info)

    async def read_from(
        self, sequence: int, name: str, handler: Callable[[Msg], None]
    ) -> Callable[[], Awaitable[None]]:
        """Have the messages from `sequence` on delivered to `handler`, through the durable consumer
        `name`, made anew; the result ends the delivery. NameTakenError if another process reads by
        that name."""
        stream = self.names.stream
        await self.claim(name)
        link = await self.connection.link()
        inbox = link.new_inbox()
        try:
            end = await link.subscribe_messages(inbox, handler, 2 * MAX_ACK_PENDING, _MAX_BYTES)
        except (NatsError, OSError) as error:
            raise StoreError(f"NATS: {error}") from None
        config = ConsumerConfig(
            durable_name=name,
            deliver_subject=inbox,
            deliver_policy=DeliverPolicy.BY_START_SEQUENCE,
            opt_start_seq=sequence,
            ack_policy=AckPolicy.ALL,
            ack_wait=ACK_WAIT_S,
            max_ack_pending=MAX_ACK_PENDING,
            idle_heartbeat=IDLE_HEARTBEAT_S,
            inactive_threshold=FORGET_S,
            metadata={_ROUTER: self._process},
        )
        try:
            await self._ask(lambda js: js.add_consumer(stream, config))
        except StoreError:
            await end()
            raise
        return end

    async def readers(self) -> list[ReaderFact]:
        """The consumers of routers, among the first MAX_CONSUMERS of the stream."""
        found: list[ReaderFact] = []
        seen = 0
        while seen < MAX_CONSUMERS:
            ask = partial(JetStreamContext.consumers_info, stream=self.names.stream, offset=seen)
            page = await self._ask(partial(_read, ask, _readers_of))
            if not page:
                break
            seen += len(page)
            found += filter(None, page)
        return found

    async def remove_reader(self, name: str) -> None:
        """Nothing if it is gone."""
        await self._find(lambda js: js.delete_consumer(self.names.stream, name))

    async def withdraw(self, name: str) -> None:
        """Remove this process's consumer; another's of that name stays."""
        info = await self._consumer(name)
        if info is not None and info[1] == self._process:
            await self.remove_reader(name)

    async def purge_below(self, sequence: int) -> None:
        """Let the messages before this one go."""
        await self._ask(lambda js: js.purge_stream(self.names.stream, seq=sequence))

    async def remove(self) -> None:
        """Delete the stream, and all that reads it. Nothing if there is none."""
        await self._find(lambda js: js.delete_stream(self.names.stream))

    async def claim(self, name: str) -> None:
        """Remove what is left of a consumer. NameTakenError if another process reads by it."""
        info = await self._consumer(name)
        if info is None:
            return
        bound, process = info
        if bound and process != self._process:
            text = f"another router reads {self.names.stream} as {name!r}"
            raise NameTakenError(f"NATS: {text}: give each a --router-id of its own")
        await self.remove_reader(name)

    async def _consumer(self, name: str) -> tuple[bool, str | None] | None:
        """(whether a reader uses it, which process made it)."""
        return await self._find(
            partial(_read, lambda js: js.consumer_info(self.names.stream, name), _holder_of)
        )

    async def _find(self, ask: Callable[[JetStreamContext], Awaitable[T]]) -> T | None:
        return await self.connection.find(ask, self._what)

    async def _ask(self, ask: Callable[[JetStreamContext], Awaitable[T]]) -> T:
        try:
            return await self.connection.call(ask)
        except APIError as error:
            raise self._refused(error) from None

    def _refused(self, error: APIError) -> StoreError:
        return refusal(self._what, error)


class StreamMissingError(StoreError):
    """There is no such stream."""


async def _read(
    ask: Callable[[JetStreamContext], Awaitable[T]], read: Callable[[T], R], js: JetStreamContext
) -> R:
    """An answer, read where the connection takes what cannot be read for no answer."""
    return read(await ask(js))


def _readers_of(page: list[ConsumerInfo]) -> list[ReaderFact | None]:
    """One for each, None for those of others."""
    return [
        ReaderFact(
            info.name,
            info.ack_floor.stream_seq if info.ack_floor is not None else 0,
            bool(info.push_bound),
        )
        if _ROUTER in (info.config.metadata or {})
        else None
        for info in page
    ]


def _holder_of(info: ConsumerInfo) -> tuple[bool, str | None]:
    return bool(info.push_bound), (info.config.metadata or {}).get(_ROUTER)


def _why_useless(config: StreamConfig) -> str:
    """Why a stream does not take what is published; empty if it does."""
    if config.sealed:
        return "is sealed"
    per_subject = config.max_msgs_per_subject if config.discard_new_per_subject else 0
    bounded = any((limit or -1) > 0 for limit in (config.max_msgs, config.max_bytes, per_subject))
    if config.discard == DiscardPolicy.NEW and bounded:
        return "refuses new messages once it is full"
    size = config.max_msg_size or -1
    return f"takes no messages above {size} bytes" if 0 < size < LEAST_MESSAGE_BYTES else ""


def _facts(info: StreamInfo) -> StreamFacts:
    created = "" if info.created is None else info.created.isoformat()
    return StreamFacts(created, int(info.state.first_seq), int(info.state.last_seq))
