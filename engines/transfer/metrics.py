"""TransferMetrics: what an engine's process counts of the blocks that it moves and reads."""

from collections.abc import Callable, Mapping
from functools import partial

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from .tickets import Ticket, TransferState

HELD = ("granted", "kept", "quarantined")
"""Why blocks are of no other use."""
_BUCKETS = (0.0001, 0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0)


class TransferMetrics:
    """Of the engines of one process, in a registry of its own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._seconds = Histogram(
            "dynamo_router_transfer_seconds",
            "Duration of transfers of KV blocks, by way, direction and outcome.",
            ("transfer", "direction", "outcome"),
            buckets=_BUCKETS,
            registry=self.registry,
        )
        self._bytes = Counter(
            "dynamo_router_transfer_bytes_total",
            "Bytes of KV blocks that were moved completely.",
            ("transfer", "direction"),
            registry=self.registry,
        )
        self._checked = Counter(
            "dynamo_router_kv_blocks_checked_total",
            "KV blocks whose contents were compared with what they must be.",
            registry=self.registry,
        )
        self._corrupt = Counter(
            "dynamo_router_kv_corrupt_total",
            "KV blocks that had wrong contents when they were read.",
            registry=self.registry,
        )
        held = Gauge(
            "dynamo_router_transfer_blocks",
            "KV blocks that are held for a transfer: granted to a writer, kept for a reader, or"
            " quarantined.",
            ("state",),
            registry=self.registry,
        )
        self.holders: list[Callable[[], Mapping[str, int]]] = []
        """the blocks that each rank holds now, by HELD"""
        for state in HELD:
            held.labels(state).set_function(partial(self._held, state))

    def _held(self, state: str) -> int:
        return sum(holder()[state] for holder in self.holders)

    def observe(self, transfer: str, direction: str, ticket: Ticket) -> None:
        """A transfer that is over; read or write. One that runs counts as given up."""
        if ticket.state is TransferState.DONE:
            self._bytes.labels(transfer, direction).inc(ticket.bytes)
        outcome = ticket.state.value if ticket.error is None else ticket.error.reason
        if ticket.state is TransferState.RUNNING:
            outcome = "aborted"
        self._seconds.labels(transfer, direction, outcome).observe(ticket.elapsed)

    def on_checked(self, blocks: int, corrupt: int) -> None:
        self._checked.inc(blocks)
        self._corrupt.inc(corrupt)

    def text(self) -> bytes:
        """In Prometheus' text format."""
        return generate_latest(self.registry)
