"""LoopTurns: how much work all requests together begin, or end, in one turn of the event loop."""

import asyncio
from collections.abc import Callable
from typing import NamedTuple
from weakref import WeakKeyDictionary

from ..base.account import current_account
from .turns import Turns

MOST_S = 0.002
"""Of work that is begun in one turn; what is beyond it waits for the next one."""


END_S = 0.0003
"""Ending a request that is under way, about: its worker gets an abort, its booking is freed."""


CALLS_EACH = 64
"""Calls of a turn for which the loop is asked once: where it could not begin them, as for want of
memory, those that come next have it begin them all."""


class _Waiter(NamedTuple):
    begin: Callable[[], object]
    seconds: float


class LoopTurns:
    """Work begins at once while less than `most_s` of it was begun in this turn of the loop. The
    rest waits, and callers take turns: however much one of them has waiting, another one's comes
    soon. The caller is the account that the running task is charged to.
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
        """Returns once work of about `seconds` seconds may begin; it begins with what the task does
        next."""
        if not self.begins_now(seconds):
            await self.wait(seconds)

    async def wait(self, seconds: float) -> None:
        """The same of work that did not begin at once."""
        future = asyncio.get_running_loop().create_future()

        def begin() -> None:
            if not future.done():
                future.set_result(None)

        caller, waiter = current_account(), _Waiter(begin, seconds)
        self._put(caller, waiter)
        try:
            await future
        finally:
            self._turns.remove(caller, waiter)  # nothing, but of a task that was cancelled

    def call(self, seconds: float, begin: Callable[[], object]) -> None:
        """Call it once work of about `seconds` seconds, which follows from it, may begin."""
        if self.begins_now(seconds):
            begin()
        else:
            self.put(seconds, begin)

    def put(self, seconds: float, begin: Callable[[], object], caller: str | None = None) -> None:
        """Call it in a later turn: `begins_now` said so."""
        caller = current_account() if caller is None else caller
        self._put(caller, _Waiter(begin, seconds))

    def begins_now(self, seconds: float) -> bool:
        """Whether work of about `seconds` seconds begins at once; else have it wait."""
        if not self._counts:
            self._counts = True
            asyncio.get_running_loop().call_soon(self._on_next_turn)
        if self._begun_s >= self._most_s:
            return False
        self._begun_s += seconds
        return True

    def _put(self, caller: str, waiter: _Waiter) -> None:
        self._turns.put(caller, waiter.seconds, waiter)
        self._queued = True

    def _on_next_turn(self) -> None:
        self._begun_s = 0.0
        try:
            if self._queued:
                self._begin_next()
        finally:  # also if that fails: what still waits has the next turn, though no work comes
            self._counts = self._begun_s > 0 or (self._queued and len(self._turns) > 0)
            if self._counts:
                asyncio.get_running_loop().call_soon(self._on_next_turn)
            elif self._queued:
                self._queued = False
                self._turns.rest()

    def _begin_next(self) -> None:
        while self._begun_s < self._most_s and (waiter := self._turns.take()) is not None:
            self._begun_s += waiter.seconds
            try:
                waiter.begin()
            except (Exception, asyncio.CancelledError) as error:  # which is not the others'
                text = "work failed as its turn came"
                asyncio.get_running_loop().call_exception_handler(
                    {"message": text, "exception": error}
                )


class NextTurn:
    """Calls that are made in the next turn of the event loop, by one callback of it for all: each
    `call_soon` of its own takes a microsecond."""

    def __init__(self) -> None:
        self._calls: list[Callable[[], object]] = []

    def call(self, function: Callable[[], object]) -> None:
        """Call it in the next turn, after those that were given before it."""
        if not len(self._calls) % CALLS_EACH:
            asyncio.get_running_loop().call_soon(self._call_all)
        self._calls.append(function)

    def _call_all(self) -> None:
        calls, self._calls = self._calls, []
        for function in calls:
            try:
                function()
            except (Exception, asyncio.CancelledError) as error:  # which is not the others'
                text = "a call of the next turn failed"
                asyncio.get_running_loop().call_exception_handler(
                    {"message": text, "exception": error}
                )


_ends: WeakKeyDictionary[asyncio.AbstractEventLoop, LoopTurns] = WeakKeyDictionary()


def end_in_turn(end: Callable[[], object]) -> None:
    """Have a request ended, by this call, when it is its turn: of all that end on the running loop,
    at whichever door, some MOST_S of work are begun in one turn of it."""
    loop = asyncio.get_running_loop()
    turns = _ends.get(loop)
    if turns is None:
        turns = _ends[loop] = LoopTurns()
    turns.call(END_S, end)
