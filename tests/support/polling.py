"""Waiting for a condition, with a deadline: what tests use where something needs time."""

import asyncio
import time
from collections.abc import Callable

DEADLINE_S = 25.0
"""Long for a busy machine, and less than the 30 s after which much is asked again anyway."""


def wait_until(condition: Callable[[], object], deadline_s: float = DEADLINE_S) -> None:
    """Return once the condition holds; AssertionError if it never does."""
    end = time.monotonic() + deadline_s
    while not condition():
        assert time.monotonic() < end, "the condition never held"
        time.sleep(0.001)


async def until(condition: Callable[[], object], deadline_s: float = DEADLINE_S) -> None:
    """As wait_until, on the event loop."""
    end = time.monotonic() + deadline_s
    while not condition():
        assert time.monotonic() < end, "the condition never held"
        await asyncio.sleep(0.001)
