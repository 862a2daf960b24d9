"""Long computations on threads of their own, so that the event loop goes on meanwhile."""

import asyncio
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from threading import Lock
from typing import Any, NamedTuple, TypeVar

from ..base.account import current_account
from ..base.errors import CapacityError
from ..base.limit_hits import LimitHits
from ..base.shared_bound import SharedBound
from .turns import Turns

T = TypeVar("T")

SHORT_S = 0.1
"""A computation that takes longer has a thread apart, and keeps none of the others waiting."""
LEAST_COST_S = 0.001
"""What each computation costs its caller at least."""


class OffLoopBounds(NamedTuple):
    """Computations that wait or run: how many, and the bytes they hold; the share of a caller."""

    computations: int = 1024
    bytes: int = 256 << 20
    share: float = 0.5


class OffLoop:
    """Runs computations until `close`: short ones on one thread, long ones on another. Callers take
    turns at each, so that none waits for more than one computation of each other caller.

    The caller is the account that the awaiting task is charged to. A computation must release the
    interpreter's lock for most of its time, or the loop waits all the same; a very long one is best
    done in pieces, a `run` for each: other callers have their turn between them.
    """

    def __init__(self, bounds: OffLoopBounds | None = None, hits: LimitHits | None = None) -> None:
        """`hits` counts what finds no room."""
        bounds, hits = bounds or OffLoopBounds(), hits or LimitHits()
        share = bounds.share
        self._held = SharedBound("max_computations", bounds.computations, share, hits)
        self.held_bytes = SharedBound("max_computation_bytes", bounds.bytes, share, hits)
        self._short, self._long = _Thread("off-loop-short"), _Thread("off-loop-long")
        self.runs = 0
        """computations, ever"""
        self.dropped = 0
        """computations that were never begun, as the task that waited was cancelled"""

    @property
    def waiting(self) -> int:
        """Computations that have not ended."""
        return self._held.used

    @property
    def waiting_bytes(self) -> int:
        """What they hold."""
        return self.held_bytes.used

    async def run(self, work: Callable[[], T], *, size: int = 0, seconds: float = 0.0) -> T:
        """The result of `work`, or what it raises; CapacityError if too much waits already.

        `size` is how many bytes it holds, `seconds` about how long it takes. Cancelled while it
        waits for its turn, it is not begun; after that it goes on to its end, and its result is
        dropped.
        """
        caller = current_account()
        self._take(caller, size)
        thread = self._short if seconds <= SHORT_S else self._long
        self.runs += 1
        future = thread.put(caller, max(seconds, LEAST_COST_S), work)
        try:
            return await asyncio.wrap_future(future)
        except asyncio.CancelledError:
            self.dropped += thread.drop(caller, future)
            raise
        finally:
            future.cancel()  # nothing, once it runs
            if future.done():
                self._give_back(caller, size)
            else:  # it goes on, with what it holds
                loop = asyncio.get_running_loop()
                future.add_done_callback(partial(self._end_later, loop, caller, size))

    def _end_later(
        self, loop: asyncio.AbstractEventLoop, caller: str, size: int, _: "Future[Any]"
    ) -> None:
        with suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(self._give_back, caller, size)

    def close(self) -> None:
        """End the threads once they are done; what still waits is cancelled. Idempotent."""
        self._short.close()
        self._long.close()

    def _take(self, caller: str, size: int) -> None:
        refusal = self._held.take(caller)
        if refusal is None and size:
            refusal = self.held_bytes.take(caller, size)
            if refusal is not None:
                self._held.give_back(caller)
        if refusal is not None:
            raise CapacityError(f"no capacity for the request: {refusal}")

    def _give_back(self, caller: str, size: int) -> None:
        self._held.give_back(caller)
        if size:
            self.held_bytes.give_back(caller, size)


class _Thread:
    """One thread, and the computations that wait for it."""

    def __init__(self, name: str) -> None:
        self._pool = ThreadPoolExecutor(1, thread_name_prefix=name)
        self._lock = Lock()  # of what follows: the loop puts, the thread takes
        self._turns: Turns[Future[Any]] = Turns()
        self._work: dict[Future[Any], Callable[[], Any]] = {}

    def put(self, caller: str, cost: float, work: Callable[[], T]) -> "Future[T]":
        future: Future[T] = Future()
        with self._lock:
            self._turns.put(caller, cost, future)
            self._work[future] = work
        self._pool.submit(self._run_next)  # whichever has its turn then
        return future

    def drop(self, caller: str, future: "Future[Any]") -> bool:
        """Let go of a computation that waits; whether it did."""
        with self._lock:
            if self._work.pop(future, None) is None:
                return False
            self._turns.remove(caller, future)
        return True

    def close(self) -> None:
        with self._lock:
            while (future := self._turns.take()) is not None:
                future.cancel()
            self._work.clear()
        self._pool.shutdown(cancel_futures=True)

    def _run_next(self) -> None:
        with self._lock:
            future = self._turns.take()
            if future is None:
                return  # one was dropped
            work = self._work.pop(future)
        if future.set_running_or_notify_cancel():
            try:
                result = work()
            except BaseException as error:
                future.set_exception(error)
                del future, work  # which the error's traceback would keep
            else:
                future.set_result(result)
        with self._lock:
            self._turns.rest()
