"""ReplicaSync: carries routers' messages on their bookings over the event plane."""

import asyncio
from collections.abc import Callable, Collection, Iterable
from secrets import randbelow
from threading import get_ident

import structlog

from ..base.clock import Clock
from ..base.errors import EventError
from ..process.supervised import stopped, supervise
from ..router.affinity import SessionAffinity
from ..router.replicas import (
    ACTIVE_SEQUENCES,
    SESSION_AFFINITY,
    DynamoReplicas,
    PeerLoad,
    Replica,
    SessionSync,
)
from ..runtime.event_planes import EventPlane, PlaneState, Subscription, endpoint_subject
from ..slots.peers import Ask, Beat, Message, decode_message, encode_message

ROUTER_SYNC = "router-sync"
"""The topic on which our routers talk; Dynamo's talk on ACTIVE_SEQUENCES."""
BATCH_S = 0.002
"""How long an event may wait for others to be sent with it."""
TICK_S = 0.05

log = structlog.get_logger(__name__)


class ReplicaSync:
    """One router's part in it, from `start` to `close`, on one event loop.

    `on_load_fell` is called when a request that waits here might go.
    """

    def __init__(
        self,
        load: PeerLoad,
        plane: EventPlane,
        clock: Clock,
        sessions: SessionAffinity,
        *,
        namespace: str,
        component: str,
        endpoint: str,
        pool: str = "",
        elsewhere: Callable[[], Collection[int]] = frozenset,
        name: str = "",
        on_load_fell: Callable[[], None] = lambda: None,
    ) -> None:
        """`pool`: which of the endpoint's sets of workers this router is in front of, empty where
        it is in front of all; routers of another set are no peers. `elsewhere`: the endpoint's
        workers that are of another set, whose bookings Dynamo's topics carry too. `name` is what
        other routers' logs call this one."""
        self._plane, self._clock = plane, clock
        topic = f"{ROUTER_SYNC}-{pool}" if pool else ROUTER_SYNC
        self._subject = endpoint_subject(namespace, component, endpoint, topic)
        self._dynamo_subject = endpoint_subject(namespace, component, endpoint, ACTIVE_SEQUENCES)
        self._sessions_subject = endpoint_subject(namespace, component, endpoint, SESSION_AFFINITY)
        self._on_load_fell = on_load_fell
        router_id = 1 + randbelow(2**53 - 1)
        self.replica = Replica(
            load,
            router_id,
            name,
            on_namesake=_warn_of_namesake,
            on_pending=self._on_pending,
            on_load_fell=on_load_fell,
        )
        self.dynamo = DynamoReplicas(load, router_id, elsewhere)
        self.sessions = SessionSync(sessions, router_id, elsewhere=elsewhere)
        self.undecodable = 0
        self._pending = asyncio.Event()
        self._subscriptions: list[Subscription] = []
        self._tasks: list[asyncio.Task[None]] = []
        self._loop: asyncio.AbstractEventLoop | None = None  # from start to close,
        self._thread = 0  # in this thread
        self._unwatch: Callable[[], None] = lambda: None
        self._closed = False
        self._greets = True  # the others are to be sent all: the plane is there, perhaps again

    async def start(self) -> None:
        self._loop, self._thread = asyncio.get_running_loop(), get_ident()
        self._unwatch = self._plane.on_state(self._on_plane_state)
        handlers = {
            self._subject: self._on_message,
            self._dynamo_subject: self._on_dynamo_message,
        }
        if self.sessions.enabled:
            handlers[self._sessions_subject] = self._on_session_message
        for subject in handlers:
            # What goes in an envelope goes under our id.
            enveloped = subject != self._subject
            await self._plane.offer(subject, self.replica.own.router_id if enveloped else None)
        for subject, handler in handlers.items():
            self._subscriptions.append(await self._plane.subscribe(subject, handler))
        self._tasks = [
            supervise("replica sync", self._run),
            supervise("replica events", self._send_events),
        ]

    async def close(self) -> None:
        """Take leave of the others. Idempotent."""
        self._unwatch()
        for task in self._tasks:
            await stopped(task)
        for subscription in self._subscriptions:
            await subscription.close()
        self._subscriptions, self._loop = [], None
        if self._closed:
            return
        self._closed = True
        self.dynamo.clear()
        leaving = self.replica.close()
        if self._plane.state is PlaneState.CONNECTED:
            await self._say(leaving)

    def forget(self, name: str) -> None:
        """The router of this name has ended: nothing is booked for it any more."""
        self.replica.forget(name)
        self._on_load_fell()

    def _on_pending(self) -> None:
        """There is something to send; called from whatever thread books."""
        loop = self._loop
        if loop is None or self._pending.is_set():
            return
        if get_ident() == self._thread:
            self._pending.set()
        else:
            loop.call_soon_threadsafe(self._pending.set)

    async def _run(self) -> None:
        while True:
            now = self._clock.now()
            if self._plane.state is not PlaneState.CONNECTED:
                self.replica.tick(now)  # it reaches no router
                self.replica.on_disconnected()
            elif self._greets:
                self._greets = False
                await self._say(self.replica.on_connected(now))
            else:
                await self._say(self.replica.tick(now))
                for payload in self.sessions.messages():
                    await self._plane.publish(self._sessions_subject, payload)
            self.dynamo.tick(now)
            await asyncio.sleep(TICK_S)

    async def _send_events(self) -> None:
        while True:
            await self._pending.wait()
            await asyncio.sleep(BATCH_S)
            self._pending.clear()
            if self._plane.state is not PlaneState.CONNECTED:
                self.replica.on_disconnected()
                continue
            batches = self.replica.batches()
            await self._say(batches)
            if self.dynamo.listens(self._clock.now()):
                for batch in batches:
                    for payload in self.dynamo.singly(batch.events):
                        await self._plane.publish(self._dynamo_subject, payload)

    async def _say(self, messages: Iterable[Message]) -> None:
        for message in messages:
            await self._plane.publish(self._subject, encode_message(message))

    def _on_message(self, subject: str, payload: bytes) -> None:
        try:
            message = decode_message(payload)
        except EventError:
            self.undecodable += 1
            return
        if isinstance(message, Ask) and message.wanted in (0, self.replica.own.router_id):
            self.sessions.on_newcomer(message.router_id, self._clock.now())
        if self.replica.hear(message, self._clock.now()):
            self._on_load_fell()

    def _on_session_message(self, subject: str, payload: bytes) -> None:
        try:
            self.sessions.hear(payload)
        except EventError:
            self.undecodable += 1

    def _on_dynamo_message(self, subject: str, payload: bytes) -> None:
        try:
            fell = self.dynamo.hear(payload, self._clock.now(), self.replica.peers.present())
        except EventError:
            self.undecodable += 1
            return
        if fell:
            self._on_load_fell()

    def _on_plane_state(self, state: PlaneState) -> None:
        if state is PlaneState.CONNECTED:
            self._greets = True


def _warn_of_namesake(beat: Beat) -> None:
    text = "another router has the same name: give each its own --router-id"
    log.warning(text, name=beat.name, id=beat.router_id)
