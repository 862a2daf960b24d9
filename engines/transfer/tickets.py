"""Tickets: transfers that were begun, and what they came to."""

import asyncio
import enum
from collections.abc import Callable
from time import monotonic

from ...base.errors import RouterError


class TransferError(RouterError):
    """Blocks did not move. `reason` is one of a few words, for metrics and dead letters.

    version: metadata of another version or none at all; unknown: no such engine; stale: a block,
    or the engine's incarnation, is not the one that was named; mismatch: blocks that do not fit;
    revoked: the right to write ended; timeout: its deadline passed; dead: the peer is gone;
    unavailable: the way itself cannot be used here; corrupt: see CORRUPT; internal: ours.
    """

    def __init__(self, message: str, reason: str) -> None:
        super().__init__(message)
        self.reason = reason


class TransferState(enum.Enum):
    RUNNING = "running"
    DONE = "done"
    """the bytes are where they belong"""
    FAILED = "failed"


class Ticket:
    """One transfer. It ends once, by `end`, on the loop that made it."""

    __slots__ = ("state", "error", "bytes", "seconds", "_began", "_waiters", "is_moving")

    def __init__(self, size: int) -> None:
        self.state = TransferState.RUNNING
        self.error: TransferError | None = None
        """why it failed"""
        self.bytes = size
        self.seconds = 0.0
        """that it took, once it is over"""
        self.is_moving = True
        """bytes may still arrive"""
        self._began = monotonic()
        self._waiters: list[tuple[Callable[[], bool], asyncio.Future[None]]] = []

    @property
    def elapsed(self) -> float:
        """Seconds until its end, or until now."""
        return (
            self.seconds if self.state is not TransferState.RUNNING else monotonic() - self._began
        )

    def end(self, error: TransferError | None = None, *, is_moving: bool = False) -> None:
        """It is done or has failed; what was `is_moving` may be ended a second time."""
        if self.state is TransferState.RUNNING:
            self.state = TransferState.DONE if error is None else TransferState.FAILED
            self.error = error
            self.seconds = monotonic() - self._began
        self.is_moving = self.is_moving and is_moving
        waiters, self._waiters = self._waiters, []
        for is_over, waiter in waiters:
            if not is_over():
                self._waiters.append((is_over, waiter))
            elif not waiter.done():
                waiter.set_result(None)

    async def until(self, is_over: Callable[[], bool]) -> None:
        """Return once that holds, looked at after each `end`."""
        if is_over():
            return
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.append((is_over, waiter))
        await waiter


async def finished(ticket: Ticket) -> None:
    """See Transfer.finished."""
    await ticket.until(lambda: ticket.state is not TransferState.RUNNING)
    if ticket.error is not None:
        raise ticket.error


async def settled(ticket: Ticket) -> None:
    """See Transfer.settled."""
    await ticket.until(lambda: not ticket.is_moving)
