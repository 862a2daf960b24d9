"""FreedMemory: what long requests had goes back to the system once they have ended."""

import asyncio
import ctypes
from collections.abc import Callable

from .off_loop import OffLoop

LEAST_BYTES = 1 << 20
"""Of a request that is worth the work: threads that allocate may wait for it meanwhile."""
PAUSE_S = 4.0
"""In which more of them may end."""


def trim_memory() -> None:
    """Give what is free of all arenas back; nothing where the C library has no such call."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


class FreedMemory:
    """Trims memory some time after a long request has ended, until `close`.

    The C library keeps what a thread has freed for that thread: after one long text, a hundred
    times its size.
    """

    def __init__(self, off_loop: OffLoop, trim: Callable[[], None] = trim_memory) -> None:
        self._off_loop, self._trim = off_loop, trim
        self._timer: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[None] | None = None

    def on_freed(self, size: int) -> None:
        """`size` bytes are in flight no more."""
        if size >= LEAST_BYTES and self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(PAUSE_S, self._begin)

    def close(self) -> None:
        """Idempotent."""
        if self._timer is not None:
            self._timer.cancel()
        if self._task is not None:
            self._task.cancel()

    def _begin(self) -> None:
        self._timer = None
        self._task = asyncio.get_running_loop().create_task(self._off_loop.run(self._trim))
