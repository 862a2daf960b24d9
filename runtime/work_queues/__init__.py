"""Who does this piece of work? Queues that NATS keeps, each message for one reader of a group.

Entered by prefill queues. A message stays until its reader has settled it; one whose reader is gone
goes to another.
"""

from .dead_letters import DeadLetters
from .deliveries import Delivery
from .group_reader import GroupReader
from .settings import GroupSettings, QueueSettings
from .work_queue import QueueFullError, QueueRefusedError, WorkQueue

__all__ = [
    "DeadLetters",
    "Delivery",
    "GroupReader",
    "GroupSettings",
    "QueueFullError",
    "QueueRefusedError",
    "QueueSettings",
    "WorkQueue",
]
