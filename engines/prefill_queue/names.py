"""QueueNames: what a prefill queue, its readers and its subjects are called in NATS."""

import re
from dataclasses import dataclass

from ...runtime.work_queues import GroupSettings, QueueSettings
from .config import PrefillQueueConfig

GROUP = "worker-group"
"""The durable consumer that all prefill workers share, as the design documents name it."""
_OUTSIDE = re.compile(r"[^A-Za-z0-9_-]")


@dataclass(frozen=True, slots=True)
class QueueNames:
    """Stream and subjects as the design documents name them; `stream` has its scope."""

    stream: str

    @classmethod
    def of(cls, namespace: str, pool: str, scope: str) -> "QueueNames":
        """Of a namespace; with the scope `pool`, of one pool (model, generation) in it alone."""
        name = f"{_slug(namespace)}_prefill_queue"
        return cls(f"{name}_{_slug(pool)}" if scope == "pool" else name)

    @property
    def queue(self) -> str:
        """For any prefill worker."""
        return f"{self.stream}.queue"

    def worker(self, worker_id: int) -> str:
        """For one prefill worker."""
        return f"{self.stream}.worker.{worker_id:x}"

    @property
    def cancel(self) -> str:
        """Attempts that are given up; in no stream."""
        return f"{self.stream}.cancel"

    def decode(self, engine_id: str) -> str:
        """Where a decode engine answers those that have its requests; in no stream."""
        return f"{self.stream}.decode.{engine_id}"

    @property
    def dead(self) -> str:
        """The stream, and the subject, of requests that no worker can do."""
        return f"{self.stream}_dead"

    @property
    def exhausted(self) -> str:
        """Where NATS says which message was delivered for the last time."""
        return f"$JS.EVENT.ADVISORY.CONSUMER.MAX_DELIVERIES.{self.stream}.*"

    def settings(self, config: PrefillQueueConfig) -> QueueSettings:
        # `{stream}.*` would have the cancellations in the stream, too.
        return QueueSettings(
            stream=self.stream,
            subjects=(self.queue, f"{self.stream}.worker.*"),
            max_messages=config.prefill_queue_max_messages,
            max_age_s=config.prefill_queue_max_age_s,
            on_disk=config.prefill_queue_storage == "file",
        )

    def group(self, config: PrefillQueueConfig) -> GroupSettings:
        """All workers, for `queue`."""
        return GroupSettings(
            name=GROUP,
            subject=self.queue,
            ack_wait_s=config.prefill_queue_ack_wait_s,
            max_deliver=config.prefill_queue_max_deliver,
        )

    def own_group(self, worker_id: int, config: PrefillQueueConfig) -> GroupSettings:
        """One worker alone, for what is pushed to it; forgotten when it has gone."""
        return GroupSettings(
            name=f"worker-{worker_id:x}",
            subject=self.worker(worker_id),
            ack_wait_s=config.prefill_queue_ack_wait_s,
            max_deliver=config.prefill_queue_max_deliver,
            forget_s=max(60.0, 2 * config.prefill_queue_ack_wait_s),
        )


def _slug(text: str) -> str:
    return _OUTSIDE.sub("_", text) or "_"
