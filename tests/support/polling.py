"""What tests use where something needs time: waiting for a condition, with a deadline, and for the
end of what is closed."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, Protocol, TypeVar

DEADLINE_S = 25.0
"""Long for a busy machine, and less than the 30 s after which much is asked again anyway."""
_LOOK_S = 0.001
_ASK_S = 0.01  # between two questions to somebody else, at first
_ASK_AGAIN_S = 0.05  # once it has taken a while: who answers has work of its own to do


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
    begin = time.monotonic()
    end = begin + deadline_s
    pause_s = _LOOK_S
    while True:
        holds = condition()
        if isinstance(holds, Awaitable):
            async with asyncio.timeout(end - time.monotonic()):
                holds = await holds
            pause_s = min(max(_ASK_S, (time.monotonic() - begin) / 20), _ASK_AGAIN_S)
        if holds:
            return
        assert time.monotonic() < end, "the condition never held"
        await asyncio.sleep(pause_s)


class Closed(Protocol):
    async def close(self) -> Any: ...


T = TypeVar("T", bound=Closed)


@asynccontextmanager
async def closed_after(thing: T) -> AsyncIterator[T]:
    """It is closed at the end of the block, however that comes."""
    try:
        yield thing
    finally:
        await thing.close()
