"""Waiting for a condition, with a deadline: what tests use where something needs time."""

import asyncio
import time
from collections.abc import Awaitable, Callable

DEADLINE_S = 25.0
"""Long for a busy machine, and less than the 30 s after which much is asked again anyway."""
_LOOK_S = 0.001
_ASK_S = 0.02  # between two questions to somebody else


def wait_until(condition: Callable[[], object], deadline_s: float = DEADLINE_S) -> None:
    """Return once the condition holds; AssertionError if it never does."""
    end = time.monotonic() + deadline_s
    while not condition():
        assert time.monotonic() < end, "the condition never held"
        time.sleep(_LOOK_S)


async def until(
    condition: Callable[[], object | Awaitable[object]], deadline_s: float = DEADLINE_S
) -> None:
    """As wait_until, on the event loop. The condition may be one to await: TimeoutError then."""
    end = time.monotonic() + deadline_s
    pause_s = _LOOK_S
    while True:
        holds = condition()
        if isinstance(holds, Awaitable):
            pause_s = _ASK_S
            async with asyncio.timeout(end - time.monotonic()):
                holds = await holds
        if holds:
            return
        assert time.monotonic() < end, "the condition never held"
        await asyncio.sleep(pause_s)
