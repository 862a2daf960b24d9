"""Long computations on a thread of their own, so that the event loop goes on meanwhile."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")


class OffLoop:
    """Runs computations one after the other, in the order they came, until `close`.

    One thread: a client that sends many long requests gets one core, not all of them. A computation
    must release the interpreter's lock for most of its time, or the loop waits all the same.
    """

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="off-loop")
        self.runs = 0
        """computations, ever"""
        self.waiting = 0
        """computations that have not ended"""

    async def run(self, work: Callable[[], T]) -> T:
        """The result of `work`, or what it raises.

        Cancelled while it waits for its turn, it is not begun; after that it goes on to its end,
        and its result is dropped.
        """
        self.runs += 1
        self.waiting += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self._pool, work)
        finally:
            self.waiting -= 1

    def close(self) -> None:
        """End the thread once it is done; what still waits is cancelled. Idempotent."""
        self._pool.shutdown(cancel_futures=True)
