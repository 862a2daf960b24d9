"""What a queue and a group of its readers are in JetStream: a work-queue stream, a consumer. Pure.

Of a stream with work-queue retention each message has one consumer at most: NATS refuses a second
one whose subjects overlap. A settled message leaves the stream, so that what the stream has is what
is to be done, what is being done among it.
"""

from dataclasses import dataclass

from nats.js.api import (
    AckPolicy,
    ConsumerConfig,
    DiscardPolicy,
    RetentionPolicy,
    StorageType,
    StreamConfig,
)


@dataclass(frozen=True, kw_only=True)
class QueueSettings:
    """One queue. Times are in seconds."""

    stream: str
    subjects: tuple[str, ...]
    max_messages: int = 1024
    """to be done and being done; beyond, a publisher is refused"""
    max_age_s: float = 600.0
    duplicates_s: float = 120.0
    """in which a second message of the same id is none"""
    on_disk: bool = False

    def config(self) -> StreamConfig:
        return StreamConfig(
            name=self.stream,
            subjects=list(self.subjects),
            retention=RetentionPolicy.WORK_QUEUE,
            storage=StorageType.FILE if self.on_disk else StorageType.MEMORY,
            discard=DiscardPolicy.NEW,
            max_msgs=self.max_messages,
            max_age=self.max_age_s,
            duplicate_window=min(self.duplicates_s, self.max_age_s),
            num_replicas=1,
            allow_msg_ttl=True,
        )

    def why_other(self, config: StreamConfig) -> str | None:
        """Why a stream of this name is not this queue; None: it is. Bounds may be an operator's."""
        if config.retention != RetentionPolicy.WORK_QUEUE:
            kind = getattr(config.retention, "value", config.retention)
            return f"has retention {kind}, not workqueue"
        missing = set(self.subjects) - set(config.subjects or ())
        if missing:
            return f"does not take {', '.join(sorted(missing))}"
        return "is sealed" if config.sealed else None


@dataclass(frozen=True, kw_only=True)
class GroupSettings:
    """Readers that share the messages of one subject."""

    name: str
    subject: str
    ack_wait_s: float = 5.0
    """without a sign from its reader, after which a message goes to another one"""
    max_deliver: int = 3
    max_pending: int = 1024
    """messages being done by all readers of the group"""
    forget_s: float | None = None
    """without readers, after which the group is deleted; None: never"""

    def config(self) -> ConsumerConfig:
        return ConsumerConfig(
            durable_name=self.name,
            ack_policy=AckPolicy.EXPLICIT,
            ack_wait=self.ack_wait_s,
            max_deliver=self.max_deliver,
            filter_subject=self.subject,
            max_ack_pending=self.max_pending,
            inactive_threshold=self.forget_s,
        )

    def why_other(self, config: ConsumerConfig) -> str | None:
        """Why a consumer of this name is not this group; None: it is."""
        if config.deliver_subject:
            return "is pushed to one reader"
        if config.ack_policy != AckPolicy.EXPLICIT:
            return "does not wait for acknowledgements"
        if config.filter_subject != self.subject:
            return f"reads {config.filter_subject or 'all'}, not {self.subject}"
        return None
