"""Admission: the queue in front of the dispatcher, on the event loop. Called by dispatch.py."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from .kv_router import KvRouter
from .queue import AdmissionQueue, Ticket


def admission_of(router: KvRouter) -> "Admission | None":
    """The queue that a router's configuration asks for; None if nobody is to wait."""
    if router.config.admission.queue_threshold is None:
        return None
    return Admission(queue_of(router))


def queue_of(router: KvRouter) -> AdmissionQueue:
    """A queue that asks a router for room, as its configuration says."""
    config = router.config.admission
    return AdmissionQueue(router.has_room, policy=config.queue_policy, limit=config.queue_limit)


class Admission:
    """Lets requests go one at a time, each once it is its turn.

    Say `poll` whenever load fell. Between a request's turn and its booking nobody else is let go:
    the load that decides about the next one would not be the one there will be.
    """

    def __init__(self, queue: AdmissionQueue) -> None:
        self.queue = queue
        self._waiters: dict[str, asyncio.Future[None]] = {}
        self._going: str | None = None  # has its turn, is not booked yet

    @asynccontextmanager
    async def turn(self, ticket: Ticket) -> AsyncIterator[None]:
        """Wait for a request's turn; book it inside. Raises NoWorkersError if too many wait.

        Cancel the task to give the turn up.
        """
        if self._going is None and self.queue.offer(ticket):
            yield
            return
        request_id = ticket.request_id
        if self._going is not None:
            self.queue.enter(ticket)
        waiter = self._waiters[request_id] = asyncio.get_running_loop().create_future()
        try:
            await waiter
            yield
        finally:
            del self._waiters[request_id]
            self.queue.discard(request_id)
            if self._going == request_id:
                self._going = None
            self.poll()

    def give_up(self, request_id: str, error: Exception) -> None:
        """End a request's waiting with an error; nothing, if it does not wait."""
        waiter = self._waiters.get(request_id)
        if waiter is not None and not waiter.done():
            waiter.set_exception(error)

    def poll(self) -> None:
        """Let the next request go, if there is room for it."""
        if self._going is not None or not self._waiters:
            return
        ticket = self.queue.next()
        if ticket is not None:
            self._going = ticket.request_id
            waiter = self._waiters[ticket.request_id]
            if not waiter.done():  # else it is being given up, and polls when it is
                waiter.set_result(None)
