"""QueueMetrics: what an engine's process counts of prefill queues."""

from collections.abc import Callable
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge

from .messages import REASONS


class QueueMetrics:
    """Of the engines of one process, in a registry that others may share."""

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        self.registry = registry or CollectorRegistry()

        def gauge(name: str, help: str, value: Callable[[], float]) -> None:
            found = Gauge(f"dynamo_router_prefill_queue_{name}", help, registry=self.registry)
            found.set_function(value)

        def counter(name: str, help: str, *labels: str) -> Any:
            return Counter(
                f"dynamo_router_prefill_queue_{name}", help, labels, registry=self.registry
            )

        self.queued: dict[str, tuple[int, float]] = {}
        """by attempt: tokens to be computed, and since when (monotonic); of decode engines here"""
        self.now: Callable[[], float] = lambda: 0.0
        gauge(
            "requests",
            "Prompts that decode engines of this process have in prefill queues.",
            lambda: len(self.queued),
        )
        gauge(
            "tokens",
            "Prompt tokens to be computed of these.",
            lambda: sum(tokens for tokens, _ in self.queued.values()),
        )
        gauge(
            "oldest_seconds",
            "Time that the oldest of these has been in its queue.",
            lambda: max((self.now() - since for _, since in self.queued.values()), default=0.0),
        )
        self._redelivered = counter(
            "redelivered_total",
            "Prompts that prefill engines of this process were given after another delivery.",
        )
        self._dead = counter(
            "dead_letters_total",
            "Prompts that prefill engines of this process made dead letters, by reason.",
            "reason",
        )
        self._remote = counter(
            "prefills_total",
            "Prompts that decode engines of this process put into queues, by what became of them.",
            "outcome",
        )
        for reason in REASONS:
            self._dead.labels(reason)
        self.redelivered = self.dead_letters = 0

    def on_queued(self, attempt: str, tokens: int, now: float) -> None:
        self.queued[attempt] = tokens, now

    def on_over(self, attempt: str, outcome: str) -> None:
        """landed, or why it did not: see RemotePrefillError."""
        self.queued.pop(attempt, None)
        self._remote.labels(outcome).inc()

    def on_redelivered(self) -> None:
        self.redelivered += 1
        self._redelivered.inc()

    def on_dead_letter(self, reason: str) -> None:
        self.dead_letters += 1
        self._dead.labels(reason).inc()
