"""GroupReader: one reader of a group: pulls a message for each free slot, and has it done."""

import asyncio
import json
from collections import deque
from collections.abc import Awaitable, Callable

from nats.aio.msg import Msg
from nats.errors import Error as NatsError
from structlog import get_logger

from ...base.backoff import Backoff
from ...process.supervised import stopped, supervise
from ..kv_stores import StoreError
from .deliveries import Delivery
from .settings import GroupSettings
from .work_queue import QueueRefusedError, WorkQueue

EXPIRES_S = 10.0
"""How long a pull waits at the server."""
_GRACE_S = 2.0
_RETRY_S, _MOST_RETRY_S = 0.1, 2.0
_MOST_BYTES = 64 << 20

log = get_logger(__name__)
Handle = Callable[[Delivery], Awaitable[None]]


class GroupReader:
    """From `start` to `close` it reads. `handle` is called for each message, at most `slots` at a
    time; a message that it leaves unsettled is delivered again after `ack_wait_s`."""

    def __init__(self, queue: WorkQueue, group: GroupSettings, handle: Handle, slots: int) -> None:
        self.refused: QueueRefusedError | None = None
        """what has the queue's name is another's: nothing is read until that has gone"""
        self._queue, self._group, self._handle = queue, group, handle
        self._slots = slots
        self._waiting: deque[asyncio.Future[Delivery | None]] = deque()
        self._tasks: list[asyncio.Task[None]] = []
        self._open = asyncio.Event()
        self._reopen = asyncio.Event()
        self._inbox = ""
        self._end_reading: Callable[[], Awaitable[None]] | None = None
        self._draining = False
        self._returned: set[asyncio.Task[None]] = set()  # deliveries that no slot waited for
        self.active = 0
        """messages that are being handled"""

    @property
    def is_reading(self) -> bool:
        return self._open.is_set()

    def start(self) -> None:
        """Read, from when NATS is there."""
        name = self._group.name
        self._queue.connection.on_lost.add(self._on_lost)
        self._tasks = [supervise(f"queue group-{name}", self._keep_open)]
        self._tasks += [supervise(f"queue slot-{name}", self._work) for _ in range(self._slots)]

    def drain(self) -> None:
        """Take nothing more: what comes is given to others at once."""
        self._draining = True

    async def close(self) -> None:
        """What is being handled is cancelled. Idempotent."""
        self._draining = True
        tasks, self._tasks = self._tasks, []
        self._queue.connection.on_lost.discard(self._on_lost)
        for task in tasks:
            task.cancel()
        for task in tasks:
            await stopped(task)
        await self._stop_reading()
        for returned in list(self._returned):
            await stopped(returned)

    def _on_lost(self) -> None:
        self._open.clear()
        self._reopen.set()
        waiting = list(self._waiting)
        self._waiting.clear()
        for each in waiting:
            if not each.done():
                each.set_result(None)

    async def _keep_open(self) -> None:
        backoff = Backoff(_RETRY_S, _MOST_RETRY_S)
        while True:
            self._reopen.clear()
            try:
                await self._begin_reading()
            except (StoreError, NatsError, OSError) as error:
                is_new = isinstance(error, QueueRefusedError) and self.refused is None
                self.refused = error if isinstance(error, QueueRefusedError) else None
                if is_new:
                    log.error("queue cannot be read", group=self._group.name, error=str(error))
                await asyncio.sleep(backoff.next())
                continue
            backoff.reset()
            self.refused = None
            self._open.set()
            await self._reopen.wait()
            self._open.clear()

    async def _begin_reading(self) -> None:
        await self._stop_reading()
        await self._queue.ensure()
        await self._queue.ensure_group(self._group)
        link = await self._queue.connection.link()
        self._inbox = link.new_inbox()
        self._end_reading = await link.subscribe_messages(
            self._inbox, self._on_message, 2 * self._slots + 64, _MOST_BYTES
        )

    async def _stop_reading(self) -> None:
        end, self._end_reading = self._end_reading, None
        if end is not None:
            await end()

    async def _work(self) -> None:
        while True:
            await self._open.wait()
            delivery = await self._pull()
            if delivery is None:
                continue
            self.active += 1
            try:
                await self._handle(delivery)
            finally:
                self.active -= 1

    async def _pull(self) -> Delivery | None:
        """The next message; None if there was none for a while."""
        if self._draining:
            await asyncio.Event().wait()  # until it is closed
        loop = asyncio.get_running_loop()
        outcome: asyncio.Future[Delivery | None] = loop.create_future()
        self._waiting.append(outcome)
        body = json.dumps({"batch": 1, "expires": int(EXPIRES_S * 1e9)}).encode()
        stream, name = self._queue.settings.stream, self._group.name
        try:
            link = await self._queue.connection.link()
            target = f"$JS.API.CONSUMER.MSG.NEXT.{stream}.{name}"
            await link.publish(target, body, reply=self._inbox)
            async with asyncio.timeout(EXPIRES_S + _GRACE_S):
                return await outcome
        except (StoreError, NatsError, OSError, TimeoutError):
            self._reopen.set()
            self._open.clear()
            return None
        finally:
            if outcome in self._waiting:
                self._waiting.remove(outcome)

    def _on_message(self, message: Msg) -> None:
        status = (message.headers or {}).get("Status")
        if status is not None and not message.reply:
            if status not in ("404", "408"):  # none now; none in time: the rest is a broken reading
                self._open.clear()
                self._reopen.set()
            self._next_waiting(None)
            return
        try:
            delivery = Delivery(message, self._queue.send)
        except (NatsError, ValueError):
            return  # of no consumer: no reader is asked for such
        if self._draining or not self._next_waiting(delivery):
            task = asyncio.create_task(_give_back(delivery))
            self._returned.add(task)
            task.add_done_callback(self._returned.discard)

    def _next_waiting(self, delivery: Delivery | None) -> bool:
        while self._waiting:
            outcome = self._waiting.popleft()
            if not outcome.done():
                outcome.set_result(delivery)
                return True
        return False


async def _give_back(delivery: Delivery) -> None:
    await delivery.nak()
