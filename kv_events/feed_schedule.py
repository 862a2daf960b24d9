"""FeedSchedule: when the event feed has to act, without a wake-up while nothing happens."""

import asyncio

from ..base.clock import Clock
from .recovery import REPLAY_TICK_S, TICK_S, EventRecovery


class FeedSchedule:
    """Wakes the feed for gaps at once, and for upkeep every `TICK_S`."""

    def __init__(self, clock: Clock, recovery: EventRecovery) -> None:
        self._clock, self._recovery = clock, recovery
        self._next_upkeep = float("-inf")
        self._wake = asyncio.Event()
        self._timer: asyncio.TimerHandle | None = None  # for when to look at the latest
        self._posted = False  # a message came since the last look

    def upkeep_due(self, now: float) -> bool:
        """Whether upkeep is due; the next one then is after that."""
        if now < self._next_upkeep:
            return False
        self._next_upkeep = now + TICK_S
        return True

    def on_message(self) -> None:
        """A message was posted to the index."""
        if self._recovery.gap_noticed:
            self._wake.set()  # the index noticed a gap, perhaps by an earlier message
        elif not self._posted:
            self._posted = True
            self._look_in(REPLAY_TICK_S)  # or notices one a moment later

    def begin_round(self) -> None:
        """The feed acts now."""
        self._posted = False

    async def wait(self) -> None:
        """Until there is something to do."""
        self._wake.clear()
        self._sleep()
        try:
            await self._wake.wait()
        finally:
            self.cancel()

    def cancel(self) -> None:
        """Stop the timer."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _sleep(self) -> None:
        """Look again in time, which mostly finds nothing to do."""
        restless = self._posted or self._recovery.gap_noticed or self._recovery.waiting
        self._look_in(REPLAY_TICK_S if restless else self._next_upkeep - self._clock.now())

    def _look_in(self, seconds: float) -> None:
        self.cancel()
        self._timer = asyncio.get_running_loop().call_later(seconds, self._look)

    def _look(self) -> None:
        self._posted = False
        due = self._clock.now() >= self._next_upkeep
        if due or self._recovery.gap_noticed or self._recovery.waiting:
            self._wake.set()
        else:
            self._sleep()
