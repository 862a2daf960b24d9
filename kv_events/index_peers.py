"""IndexPeers: gets the index of a router that runs, over the event plane, and lends ours to it."""

import asyncio
import contextlib
import io
from collections import deque
from secrets import randbelow

import msgspec
import structlog

from ..base.clock import Clock
from ..base.errors import UNREADABLE, ConfigError
from ..indexer.event_index import EventIndex, SnapshotHead, dump_index, merge_index, read_frames
from ..process.supervised import stopped, supervise
from ..runtime.event_planes import EventPlane, PlaneState, Subscription, endpoint_subject
from .index_transfer import IndexBorrower, IndexCopy, IndexLender, Message, Outgoing

ROUTER_INDEX = "router-index"
"""The topic of all routers; with a router's number behind it, of that one alone."""
CONNECT_S = 2.0
"""How long a router that starts waits for the event plane."""
BORROW_S = 20.0
TICK_S = 0.02
MAX_OUTGOING = 256

log = structlog.get_logger(__name__)


class IndexPeers:
    """One router's part in it, from `start` to `close`, on one event loop."""

    def __init__(
        self,
        plane: EventPlane,
        index: EventIndex,
        head: SnapshotHead,
        clock: Clock,
        *,
        place: tuple[str, str, str],
        pool: str = "",
    ) -> None:
        """`place`: namespace, component and endpoint, whose routers these are; `pool`: which set of
        the endpoint's workers they are in front of, empty: all."""
        self._plane, self._index, self._head, self._clock = plane, index, head, clock
        self._place = place
        self._topic = f"{ROUTER_INDEX}-{pool}" if pool else ROUTER_INDEX
        self._id = 1 + randbelow(2**53 - 1)
        self._lender = IndexLender(self._id, head)
        self._borrower: IndexBorrower | None = None
        self._lending: asyncio.Task[None] | None = None
        self._wake = asyncio.Event()
        self._outgoing: deque[Outgoing] = deque(
            maxlen=MAX_OUTGOING
        )  # what is lost is asked for again
        self._subscriptions: list[Subscription] = []
        self._encode = msgspec.msgpack.Encoder().encode
        self._decode = msgspec.msgpack.Decoder(Message).decode
        self.undecodable = 0
        self.lent = 0
        """copies of our index that were made for others"""
        self.borrowed = 0
        """sources that were known from another router at the start"""

    async def start(self) -> None:
        """Listen to the others, and lend."""
        for subject in (self._subject(None), self._subject(self._id)):
            self._subscriptions.append(await self._plane.subscribe(subject, self._on_message))
        self._lending = supervise("index lender", self._lend)

    async def borrow(self) -> int:
        """Take the index of another router in; how many sources that brought, 0 if there is none.

        Of sources that are known already, the more recent state counts.
        """
        borrower = self._borrower = IndexBorrower(self._id, self._head)
        try:
            async with asyncio.timeout(BORROW_S):
                if not await self._is_connected():
                    return 0
                await self._send(borrower.begin(self._clock.now()))
                while not borrower.done:
                    await asyncio.sleep(TICK_S)
                    await self._send(borrower.tick(self._clock.now()))
        except TimeoutError:
            log.warning("the index of another router took too long")
        finally:
            self._borrower = None
        if borrower.index is None:
            return 0
        try:
            self.borrowed = await asyncio.to_thread(self._merge, borrower.index)
        except ConfigError as error:
            log.warning("the index of another router cannot be used", error=str(error))
            return 0
        log.info("index borrowed from another router", sources=self.borrowed)
        return self.borrowed

    async def close(self) -> None:
        """Idempotent."""
        await stopped(self._lending)
        subscriptions, self._subscriptions = self._subscriptions, []
        for subscription in subscriptions:
            await subscription.close()

    async def _is_connected(self) -> bool:
        end = self._clock.now() + CONNECT_S
        while self._plane.state is not PlaneState.CONNECTED:
            if self._clock.now() >= end:
                return False
            await asyncio.sleep(TICK_S)
        return True

    def _merge(self, chunks: list[bytes]) -> int:
        copy = b"".join(chunks)
        chunks.clear()
        return merge_index(self._index, read_frames(io.BytesIO(copy)), self._head)

    async def _lend(self) -> None:
        while True:
            self._wake.clear()
            self._lender.tick(self._clock.now())
            if self._lender.wants_copy:
                copy = await asyncio.to_thread(self._dump)
                self.lent += copy is not None
                await self._send(self._lender.lend(copy, self._clock.now()))
            while self._outgoing:
                await self._send([self._outgoing.popleft()])
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(1.0):
                    await self._wake.wait()

    def _dump(self) -> IndexCopy | None:
        frames = list(dump_index(self._index, self._head))
        if len(frames) <= 2:  # a head and an end alone
            return None
        return IndexCopy.of(b"".join(frames))

    def _on_message(self, subject: str, payload: bytes) -> None:
        try:
            message = self._decode(payload)
        except UNREADABLE:
            self.undecodable += 1
            return
        now = self._clock.now()
        messages = self._lender.on_message(message, now)
        if self._borrower is not None:
            messages += self._borrower.on_message(message, now)
        if self._lender.wants_copy:
            self._wake.set()
        if messages:
            self._outgoing.extend(messages)
            self._wake.set()

    async def _send(self, messages: list[Outgoing]) -> None:
        for router_id, message in messages:
            await self._plane.publish(self._subject(router_id), self._encode(message))

    def _subject(self, router_id: int | None) -> str:
        topic = self._topic if router_id is None else f"{self._topic}-{router_id:x}"
        return endpoint_subject(*self._place, topic)
