"""How long the event loop makes its callers wait: a probe that is called again and again."""

import asyncio
from collections.abc import Iterable

from prometheus_client.metrics_core import Metric

from ...base.clock import Clock
from .histogram import SECONDS, Histogram

PROBE_EVERY_S = 0.1
"""A stall that lasts longer is always seen, one that is shorter with that much luck. Each probe
wakes an idle process, which costs some 0.1 ms."""


class LoopLagProbe:
    """Asks to be called each `PROBE_EVERY_S`, and notes how late it was, from `start` to `close`.

    A stall counts once, for what of it was left when a probe was due: less than `PROBE_EVERY_S`
    of it is missed.
    """

    def __init__(self, clock: Clock) -> None:
        self._now = clock.now
        self._timer: asyncio.TimerHandle | None = None
        self._due = 0.0
        self._lag = Histogram(
            "dynamo_router_loop_lag_seconds",
            "Delay of a periodic callback on the event loop, each 100 ms.",
            SECONDS,
        )

    def start(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._ask()

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def collect(self) -> Iterable[Metric]:
        return (self._lag.family(),)

    def _ask(self) -> None:
        self._due = self._now() + PROBE_EVERY_S
        self._timer = self._loop.call_later(PROBE_EVERY_S, self._on_time)

    def _on_time(self) -> None:
        self._lag.observe(max(0.0, self._now() - self._due))
        self._ask()
