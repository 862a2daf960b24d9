"""One worker's health, as a pure state machine: what it did goes in, its state comes out."""

from dataclasses import dataclass

from .registry import WorkerState


@dataclass(frozen=True, kw_only=True)
class HealthPolicy:
    """How health is judged. Times in seconds."""

    probe_interval_s: float = 5.0
    """between probes of a worker that is well"""
    probe_timeout_s: float = 3.0
    """a probe without an answer by then has failed"""
    retry_first_s: float = 0.2
    """before the second probe of a worker that is not well; doubles with each further one"""
    retry_most_s: float = 5.0
    failures_to_eject: int = 5
    """requests in a row that a worker may fail before it is left alone"""
    inhibit_s: float = 5.0
    """how long it is left alone then, or after its connection broke"""


class HealthTracker:
    """The health of one worker.

    A failed probe makes it UNHEALTHY at once, a good one READY again. A broken connection
    inhibits it until a probe says otherwise. Failed requests in a row eject it for `inhibit_s`,
    however well its probes go; afterwards one more failure ejects it again, one success
    forgives all. `state`, `inhibited_until` and `next_probe` hold after each event.
    """

    def __init__(self, policy: HealthPolicy, now: float) -> None:
        self._policy = policy
        self.state = WorkerState.CONNECTING
        self.reason = "not probed yet"
        self.inhibited_until = float("-inf")
        self.next_probe = now
        self._failed_probes = 0
        self._failed_requests = 0
        self._ejected = False

    def on_probe_ok(self, now: float) -> None:
        self._failed_probes = 0
        if self._ejected:
            if now < self.inhibited_until:
                self.next_probe = self.inhibited_until
                return
            self._ejected = False
            self._failed_requests = self._policy.failures_to_eject - 1
        self.inhibited_until = float("-inf")
        self._become(WorkerState.READY, "")
        self.next_probe = now + self._policy.probe_interval_s

    def on_probe_failed(self, now: float, reason: str) -> None:
        wait = min(
            self._policy.retry_first_s * 2 ** min(self._failed_probes, 30),
            self._policy.retry_most_s,
        )
        self._failed_probes += 1
        if self.state is not WorkerState.CONNECTING:
            self._become(WorkerState.UNHEALTHY, reason)
        self.reason = reason
        self.next_probe = now + wait

    def on_refused(self, now: float, reason: str) -> None:
        """It answers, but does not belong here: wrong block size, or an id that is taken."""
        self._failed_probes = 0
        self._become(WorkerState.REFUSED, reason)
        self.next_probe = now + self._policy.retry_most_s

    def on_request_ok(self) -> None:
        if self._failed_requests and not self._ejected:
            self._failed_requests = 0

    def on_request_failed(self, now: float, *, may_eject: bool = True) -> None:
        """A request failed by the worker's fault. With `may_eject` off it is only counted."""
        if self.state is not WorkerState.READY:
            return
        self._failed_requests += 1
        if may_eject and self._failed_requests >= self._policy.failures_to_eject:
            self._ejected = True
            self.inhibited_until = now + self._policy.inhibit_s
            self.next_probe = self.inhibited_until
            self._become(WorkerState.UNHEALTHY, f"failed {self._failed_requests} requests in a row")

    def on_connection_lost(self, now: float, *, may_eject: bool = True) -> None:
        """The transport to it broke under a request: ask it at once, use it no more until then."""
        self.on_request_failed(now, may_eject=may_eject)
        if self.state is WorkerState.READY:
            self.inhibited_until = now + self._policy.inhibit_s
            self.next_probe = now

    def _become(self, state: WorkerState, reason: str) -> None:
        self.state, self.reason = state, reason
