"""LoopTurns: how much work all requests together begin in one turn of the event loop."""

import asyncio
from typing import NamedTuple

from ..base.account import current_account
from .turns import Turns

MOST_S = 0.002
"""Of work that is begun in one turn; what is beyond it waits for the next one."""


class _Waiter(NamedTuple):
    future: "asyncio.Future[None]"
    seconds: float


class LoopTurns:
    """Work begins at once while less than `most_s` of it was begun in this turn of the loop. The
    rest waits, and callers take turns: however much one of them has waiting, another one's comes
    soon. The caller is the account that the awaiting task is charged to.
    """

    # Between two calls of `_on_next_turn`, which are one turn apart, less than `most_s` and one
    # more piece is begun; while anything waits, all of it.

    def __init__(self, most_s: float = MOST_S) -> None:
        self._most_s = most_s
        self._begun_s = 0.0  # in this turn
        self._counts = False  # whether its end is awaited
        self._queued = False  # whether anything waited since the loop was idle
        self._turns: Turns[_Waiter] = Turns()

    @property
    def waiting(self) -> int:
        """Pieces of work that wait."""
        return len(self._turns)

    async def take(self, seconds: float) -> None:
        """Returns once work of about so many seconds may begin; it begins with what the task does
        next."""
        if not self._counts:
            self._counts = True
            asyncio.get_running_loop().call_soon(self._on_next_turn)
        if self._begun_s < self._most_s:
            self._begun_s += seconds
            return
        caller = current_account()
        waiter = _Waiter(asyncio.get_running_loop().create_future(), seconds)
        self._turns.put(caller, seconds, waiter)
        self._queued = True
        try:
            await waiter.future
        finally:
            self._turns.remove(caller, waiter)  # nothing, but of a task that was cancelled

    def _on_next_turn(self) -> None:
        self._begun_s = 0.0
        if self._queued:
            self._begin_next()
        self._counts = self._begun_s > 0
        if self._counts:
            asyncio.get_running_loop().call_soon(self._on_next_turn)
        elif self._queued:
            self._queued = False
            self._turns.rest()

    def _begin_next(self) -> None:
        while self._begun_s < self._most_s and (waiter := self._turns.take()) is not None:
            if not waiter.future.done():
                self._begun_s += waiter.seconds
                waiter.future.set_result(None)
