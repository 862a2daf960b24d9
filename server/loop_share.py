"""Long work on the event loop: the share of its time that the work may have at most, and the turns
that others have between its steps.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from time import perf_counter
from typing import TypeVar

from ..router.steps import Steps, by_steps

T = TypeVar("T")
R = TypeVar("R")


class TimeShare:
    """Says when work may be done, so that it takes at most `share` of the time in the long run.

    What was not taken is saved up, `burst_s` of it at most. A break of `least_s` follows each time
    in any case. Work is timed from `begin` to `lap`; `now` is the monotonic time of the caller's
    clock.
    """

    def __init__(self, share: float, *, burst_s: float = 0.0, least_s: float = 0.0) -> None:
        self._share = share
        self._burst_s = burst_s
        self._least_s = least_s
        self._saved = burst_s
        self._at: float | None = None  # when that was so
        self._next = float("-inf")
        self._due = float("-inf")  # both that and that enough is saved up
        self._began = 0.0
        self.skipped = 0
        """how often it was too early"""

    def is_due(self, now: float) -> bool:
        """Whether the work may be done; counts if it may not."""
        if now >= self._due:
            return True
        self.skipped += 1
        return False

    def wait_s(self, now: float) -> float:
        """Seconds until the work may be done; 0 if it may be now."""
        saved = self._saved_by(now)
        return max(0.0, self._next - now, -saved / self._share)

    def begin(self) -> None:
        """A part of the work begins."""
        self._began = perf_counter()

    def lap(self) -> float:
        """Seconds since then."""
        return perf_counter() - self._began

    def spent(self, seconds: float, now: float) -> None:
        """The work took `seconds`, and ended."""
        self._saved, self._at = self._saved_by(now) - seconds, now
        self._next = now + self._least_s
        self._due = max(self._next, now - min(0.0, self._saved) / self._share)

    def _saved_by(self, now: float) -> float:
        """Seconds of work that are saved up; below 0 if too much was taken."""
        if self._at is None:
            return self._saved
        return min(self._burst_s, self._saved + self._share * (now - self._at))


def answer_share() -> TimeShare:
    """For answers of one kind: one goes ahead at once, many take a fifth of the loop's time."""
    return TimeShare(0.2, burst_s=0.02)


async def in_turns(items: Iterable[T], share: TimeShare) -> AsyncIterator[T]:
    """The items; others have a turn before the first, and after what was done with each.

    All users of one `share` wait for what they took of the time together.
    """
    await asyncio.sleep(share.wait_s(perf_counter()))
    share.begin()
    for item in items:
        yield item
        share.spent(share.lap(), perf_counter())
        await asyncio.sleep(share.wait_s(perf_counter()))
        share.begin()


async def made_in_turns(make: Callable[[T], R], items: Iterable[T], share: TimeShare) -> list[R]:
    """`make` of each item; the event loop has a turn after each step."""
    made: list[R] = []
    async for chunk in in_turns(by_steps(items), share):
        made += map(make, chunk)
    return made


async def finish_in_turns(steps: Steps[T], share: TimeShare) -> T:
    """The result; the event loop has a turn after each step."""
    result: list[T] = []

    def through() -> Steps[None]:
        result.append((yield from steps))

    async for _ in in_turns(through(), share):
        pass
    return result[0]
