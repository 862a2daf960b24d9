"""One worker's health, as a pure state machine: what it did goes in, its state comes out."""

from dataclasses import dataclass, fields
from typing import ClassVar

from ..process.setting_checks import require_finite
from ..process.settings import SHORTEST_S, option
from .registry import WorkerState


@dataclass(frozen=True, kw_only=True)
class HealthPolicy:
    """How workers are probed. Times in seconds; ConfigError, naming the key, on a bad one."""

    GROUP: ClassVar[str] = "Health of workers"

    probe_interval_s: float = option(
        5.0, "Time between probes of a worker that is well.", "--probe-interval-s"
    )
    probe_timeout_s: float = option(
        3.0, "Seconds without an answer after which a probe has failed.", "--probe-timeout-s"
    )
    retry_first_s: float = option(
        0.2,
        "Time before the second probe of a worker that is not well; doubles with each further one.",
        "--probe-retry-first-s",
    )
    retry_most_s: float = option(5.0, "Longest time between such probes.", "--probe-retry-most-s")
    inhibit_s: float = option(
        5.0,
        "Seconds without new requests after a worker's connection broke, unless a probe succeeds.",
        "--inhibit-s",
    )

    def __post_init__(self) -> None:
        for field in fields(self):
            require_finite(self, SHORTEST_S, field.name)


class HealthTracker:
    """What the probes of one worker say.

    A failed probe makes it UNHEALTHY at once, a good one READY again. A broken connection
    inhibits it until a probe says otherwise. `state`, `inhibited_until` and `next_probe` hold
    after each event. outliers.py decides against which worker requests speak.
    """

    def __init__(self, policy: HealthPolicy, now: float) -> None:
        self.policy = policy
        self.state = WorkerState.CONNECTING
        self.reason = "not probed yet"
        self.inhibited_until = float("-inf")
        self.next_probe = now
        self.failed_probes = 0
        """in a row"""
        self._was_void = False  # the last probe, see on_probe_void

    def on_probe_ok(self, now: float) -> None:
        self._was_void = False
        self.failed_probes = 0
        self.inhibited_until = float("-inf")
        self._become(WorkerState.READY, "")
        self.next_probe = now + self.policy.probe_interval_s

    def on_probe_failed(self, now: float, reason: str) -> None:
        wait = min(
            self.policy.retry_first_s * 2 ** min(self.failed_probes, 30),
            self.policy.retry_most_s,
        )
        self.failed_probes += 1
        self._was_void = False
        if self.state is not WorkerState.CONNECTING:
            self._become(WorkerState.UNHEALTHY, reason)
        self.reason = reason
        self.next_probe = now + wait

    def on_probe_void(self, now: float, reason: str) -> None:
        """A probe says nothing of its worker: it timed out while this process was stalled, so the
        answer may be there unread, or it failed by a fault of this process. Probe again at once. A
        second one in a row has failed."""
        if self._was_void:
            self.on_probe_failed(now, reason)
        else:
            self._was_void = True
            self.next_probe = now

    def on_refused(self, now: float, reason: str) -> None:
        """It answers, but does not belong here: wrong block size, or an id that is taken."""
        self.failed_probes = 0
        self._become(WorkerState.REFUSED, reason)
        self.next_probe = now + self.policy.retry_most_s

    def on_connection_lost(self, now: float, *, may_inhibit: bool = True) -> None:
        """The transport to it broke under a request: ask it at once, use it no more until then."""
        if self.state is WorkerState.READY:
            self.next_probe = now
            if may_inhibit:
                self.inhibited_until = now + self.policy.inhibit_s

    def on_suspicion(self, now: float) -> None:
        """It has answers to send and is silent: ask it at once."""
        if self.state is WorkerState.READY:
            self.next_probe = min(self.next_probe, now)

    def _become(self, state: WorkerState, reason: str) -> None:
        self.state, self.reason = state, reason
