"""Requests that wait, each in a task of its own: the queue says which of them goes, and when."""

import asyncio
import math
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial

from ...base.errors import InvalidRequestError
from .queue import AdmissionQueue
from .ticket import Lane, Ticket


class Admission:
    """Lets requests go one at a time, each once it is its turn.

    Say `poll` whenever load fell; where the queue knows when a worker will be free, a timer does.
    Between a request's turn and its booking no other is let go: the load that decides about the
    next one would not be the one there will be.
    """

    def __init__(self, queue: AdmissionQueue) -> None:
        self.queue = queue
        self.waiters: dict[str, asyncio.Future[None]] = {}
        """of requests that wait, by id; `poll` does nothing without them and without a `timer`"""
        self._going: str | None = None  # has its turn, is not booked yet
        self.timer: asyncio.TimerHandle | None = None

    def is_open(self, lane: Lane, tenant: str = "") -> bool:
        """Whether a tenant's request of that lane may be booked at once; else it waits for its
        `turn`."""
        return self._going is None and self.queue.is_open(lane, tenant)

    @asynccontextmanager
    async def turn(self, ticket: Callable[[], Ticket], tenant: str = "") -> AsyncIterator[None]:
        """Wait for the turn of a tenant's request; book it inside. Raises NoWorkersError if too
        many wait, and asks for no ticket; InvalidRequestError if another one waits under its id.

        Cancel the task to give the turn up.
        """
        request_id = self.queue.enter(partial(self._new, ticket), tenant).request_id
        waiter = self.waiters[request_id] = asyncio.get_running_loop().create_future()
        try:
            self.poll()
            await waiter
            yield
        finally:
            del self.waiters[request_id]
            self.queue.discard(request_id)
            if self._going == request_id:
                self._going = None
            self.poll()

    def _new(self, ticket: Callable[[], Ticket]) -> Ticket:
        """The ticket; InvalidRequestError if another request waits under its id."""
        made = ticket()
        if made.request_id in self.waiters:
            text = f"request id {made.request_id!r} is in use"
            raise InvalidRequestError(text, field="request_id")
        return made

    def give_up(self, request_id: str, error: Exception) -> bool:
        """End a request's waiting with an error; False if it does not wait."""
        waiter = self.waiters.get(request_id)
        if waiter is None or waiter.done():
            return False
        waiter.set_exception(error)
        return True

    def poll(self) -> None:
        """Let the next request go, if a worker is free for it."""
        if not self.waiters and self.timer is None:
            return
        if self._going is None and self.waiters:
            ticket = self.queue.next()
            if ticket is not None:
                self._going = ticket.request_id
                waiter = self.waiters[ticket.request_id]
                if not waiter.done():  # else it is being given up, and polls when it is
                    waiter.set_result(None)
        self._set_timer()

    def _set_timer(self) -> None:
        """Poll again when the queue expects a free worker; sooner if load falls."""
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None
        if self._going is None and self.waiters and self.queue.ask_again_s < math.inf:
            loop = asyncio.get_running_loop()
            self.timer = loop.call_later(self.queue.ask_again_s, self.poll)
